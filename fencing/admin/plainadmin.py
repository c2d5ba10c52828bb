"""What a ``ModelAdmin`` that knows nothing of fences does with a refusal: it says so, and nothing is written.

Django's admin has no hook around its views, so three of its methods are wrapped, once for the process, as
``Collector.delete`` is for cascades. Where nothing is refused they do what they did.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import wraps
from typing import Any

from django.contrib.admin import AdminSite, ModelAdmin
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.sites import all_sites
from django.core.checks import CheckMessage, Tags, Warning, register
from django.db import router, transaction
from django.db.models import Model
from django.http import HttpRequest

from fencing.admin import fencedviews
from fencing.admin.fencededit import is_fenced
from fencing.admin.readonly import ReadOnlyAdminMixin
from fencing.connections import open_transactions

View = Callable[..., Any]


def wrap_admin() -> None:
    """Let every admin site answer a refusal by a message."""
    if not hasattr(AdminSite.admin_view, "fencing"):
        AdminSite.admin_view = answering(AdminSite.admin_view)  # type: ignore[method-assign]
        ModelAdmin.changeform_view = with_inlines(ModelAdmin.changeform_view)  # type: ignore[method-assign]
        ModelAdmin.response_action = all_or_nothing(ModelAdmin.response_action)  # type: ignore[method-assign]


def answering(admin_view: View) -> View:
    """``AdminSite.admin_view``, the outermost of Django's own wrappers: every view of a site goes through it."""

    @wraps(admin_view)
    def answered(self: AdminSite, view: View, cacheable: bool = False) -> Any:
        @wraps(view)
        def inner(request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
            try:
                return view(request, *args, **kwargs)
            except Exception as error:
                answer = fencedviews.refused(request, error, self, undone=is_undone(view, request))
                for alias in open_transactions():  # of ATOMIC_REQUESTS, which would commit what came before
                    transaction.set_rollback(True, using=alias)
                return answer

        return admin_view(self, inner, cacheable)

    answered.fencing = True  # type: ignore[attr-defined]
    return answered


def is_undone(view: View, request: HttpRequest) -> bool:
    """Whether a view of Django's admin has a transaction of its own around all that it writes."""
    name = getattr(view, "__name__", "")
    one_step = "_save" in request.POST or fencedviews.chosen_action(request) == delete_selected.__name__
    return name in ("add_view", "change_view", "delete_view") or (name == "changelist_view" and one_step)


def with_inlines(changeform_view: View) -> View:
    """``ModelAdmin.changeform_view``, which takes the leases of fenced inline rows before it opens its transaction."""

    @wraps(changeform_view)
    def changed(
        self: Any, request: HttpRequest, object_id: Any = None, form_url: str = "", extra_context: Any = None
    ) -> Any:
        view = changeform_view.__get__(self)
        if fencedviews.has_fenced_inlines(self.get_inlines(request, None)):
            return fencedviews.change(self, view, request, object_id, form_url, extra_context)
        return view(request, object_id, form_url, extra_context)

    return changed


def all_or_nothing(response_action: View) -> View:
    """``ModelAdmin.response_action``, which logs no deletion of rows that a refusal has kept."""

    @wraps(response_action)
    def acted(self: Any, request: HttpRequest, *args: Any, **kwargs: Any) -> Any:
        if fencedviews.chosen_action(request) != delete_selected.__name__:
            return response_action(self, request, *args, **kwargs)
        with transaction.atomic(using=router.db_for_write(self.model)):
            return response_action(self, request, *args, **kwargs)

    return acted


@register("fencing", Tags.admin)
def check_admins(**_kwargs: Any) -> list[CheckMessage]:
    """Every admin, and every inline, that edits rows of a fenced model and takes no lease."""
    return [
        # Not of the admin: Django names one by the app of its model, so its own ModelAdmin by that, too.
        Warning(
            f"{model._meta.label} is fenced, but {name} of the admin site {site.name!r} takes no lease: "
            "what it saves is refused.",
            hint="Use FencedModelAdmin, FencedTabularInline or FencedStackedInline; or ReadOnlyAdmin to look only.",
            obj=model,
            id="fencing.W006",
        )
        for site in sorted(all_sites, key=lambda one: one.name)
        for options in site._registry.values()
        for model, name in _without_leases(options)
    ]


def _without_leases(options: Any) -> Iterator[tuple[type[Model], str]]:
    """The fenced models that an admin edits without their leases, each with the class that does."""
    if isinstance(options, ReadOnlyAdminMixin):
        return
    admin = type(options)
    if is_fenced(options.model) and not fencedviews.fences_rows(admin):
        yield options.model, _path(admin)
    for inline in options.inlines:
        if is_fenced(inline.model) and not fencedviews.fences_rows(inline):
            yield inline.model, f"{_path(inline)} in {_path(admin)} of {options.opts.label}"


def _path(found: type[Any]) -> str:
    return f"{found.__module__}.{found.__qualname__}"
