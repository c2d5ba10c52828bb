"""The admin's views around fenced rows: leases before the transaction, and a form that comes back when it is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from django.contrib import messages
from django.contrib.admin import AdminSite
from django.contrib.admin.actions import delete_selected
from django.contrib.admin.helpers import ACTION_CHECKBOX_NAME
from django.contrib.admin.options import TO_FIELD_VAR
from django.contrib.admin.utils import unquote
from django.db import router
from django.http import HttpRequest, HttpResponse, HttpResponseRedirect
from django.urls import reverse
from django.utils.translation import gettext as _

from fencing.admin.fencededit import Edit, Resources, begin, edit_of, is_fenced
from fencing.admin.fencedforms import FencedFormSet
from fencing.admin.formreads import INPUT, UnreadFormError, unsigned
from fencing.admin.refusals import is_refusal, tell_operator, text_for_form, text_of
from fencing.exceptions import RowMissingError

View = Callable[..., Any]

# Where Django 6.1 looks for an action on the page of one row.
FORM_ACTION = "CHANGE_FORM-action"


def change(
    options: Any, view: View, request: HttpRequest, object_id: str | None, form_url: str, extra_context: Any
) -> Any:
    """``changeform_view``: under the leases of the row, and of the inline rows that were touched."""
    if request.method != "POST" or edit_of(request) is not None:
        return view(request, object_id, form_url, extra_context)
    if _is_form_action(request):
        return _act_on_row(options, view, request, object_id, form_url, extra_context)
    edit = begin(request, options)
    adding = object_id is None or "_saveasnew" in request.POST
    try:
        with edit.leases:
            row = None if adding else _row(options, request, object_id, options.has_change_permission)
            if row is not None:
                edit.hold(_of_change(options, request, row, edit))
            elif not adding and _is_gone(options, request, object_id):
                raise RowMissingError("", 0, None, f"{options.opts.verbose_name} {unquote(str(object_id))}")
            return view(request, object_id, form_url, extra_context)
    except Exception as error:
        if not is_refusal(error):
            raise
        if not (fences_rows(options) or has_fenced_inlines(options.get_inline_instances(request))):
            raise  # for the site to tell: nothing on this page could
        tell_operator(error, request)
        edit.refusal = error
    if not adding and _is_gone(options, request, object_id):
        edit.gone, object_id = True, None
        site, opts = options.admin_site.name, options.opts
        form_url = reverse(f"{site}:{opts.app_label}_{opts.model_name}_add")
    response = view(request, object_id, form_url, extra_context)
    _tell_if_nothing_did(request, edit)
    return response


def _is_form_action(request: HttpRequest) -> bool:
    return FORM_ACTION in request.POST and not {"_save", "_continue", "_addanother", "_saveasnew"} & {*request.POST}


def _act_on_row(options: Any, view: View, request: HttpRequest, object_id: Any, *more: Any) -> Any:
    """An action on the page of one row, which Django runs in the transaction of ``changeform_view``."""
    edit = begin(request, options)
    try:
        with edit.leases:
            row = _row(options, request, object_id, options.has_view_or_change_permission)
            if row is not None and fences_rows(options):
                edit.hold(_of_action(options, row, edit, deletes=chosen_action(request) == delete_selected.__name__))
            return view(request, object_id, *more)
    except Exception as error:
        return refused(request, error, options.admin_site)


def _of_action(options: Any, row: Any, edit: Edit, *, deletes: bool) -> Resources:
    found = Resources(edit.limit)
    found.add_rows([row])
    if deletes:
        found.add_deleted([row], router.db_for_write(options.model))
    return found


def _row(options: Any, request: HttpRequest, object_id: Any, has_permission: Any) -> Any:
    """The row that a view is about to write; None if Django is going to refuse that."""
    to_field = request.POST.get(TO_FIELD_VAR, request.GET.get(TO_FIELD_VAR))
    if to_field and not options.to_field_allowed(request, to_field):
        return None
    row = options.get_object(request, unquote(object_id), to_field)
    return row if row is not None and has_permission(request, row) else None


def _is_gone(options: Any, request: HttpRequest, object_id: Any) -> bool:
    """Whether a fenced row was deleted, and this user may make another one of what was typed."""
    to_field = request.POST.get(TO_FIELD_VAR, request.GET.get(TO_FIELD_VAR))
    if to_field or not is_fenced(options.model) or not fences_rows(options):
        return False
    may = options.has_change_permission(request) and options.has_add_permission(request)
    return bool(may) and options.get_object(request, unquote(object_id)) is None


def _of_change(options: Any, request: HttpRequest, row: Any, edit: Edit) -> Resources:
    found = Resources(edit.limit)
    if fences_rows(options):
        found.add_rows([row])
        if is_fenced(type(row)) and str(row.pk) not in unsigned(type(row), request.POST.get(INPUT)):
            raise UnreadFormError
    if has_fenced_inlines(options.get_inline_instances(request, row)):
        formsets, _inlines = options._create_formsets(request, row, change=True)
        for formset in formsets:
            if isinstance(formset, FencedFormSet):
                _add_touched(found, formset)
    return found


def _add_touched(found: Resources, formset: FencedFormSet) -> None:
    for form in formset.fence_touched():
        if formset.fence_deletes(form):
            found.add_deleted([form.instance], router.db_for_write(formset.model))  # type: ignore[arg-type]
        elif form.fence_read is None:
            raise UnreadFormError
        else:
            found.add_rows([form.instance])


def fences_rows(options: Any) -> bool:
    """Whether an admin, or an inline, ties its rows to what their forms were loaded from."""
    return bool(getattr(options, "fences_rows", False))


def has_fenced_inlines(inlines: Any) -> bool:
    """Whether any of them has fenced rows, and ties them."""
    return any(fences_rows(one) and is_fenced(one.model) for one in inlines)


def change_list(options: Any, view: View, request: HttpRequest, extra_context: Any) -> Any:
    """``changelist_view``: ``list_editable`` under the leases of the changed rows, all of them or nothing is written."""
    edits = request.method == "POST" and "_save" in request.POST and options.list_editable
    if not edits or not is_fenced(options.model) or not options.has_change_permission(request):
        return view(request, extra_context)
    edit = begin(request, options)
    try:
        with edit.leases:
            edit.hold(_of_list(options, request, edit))
            return _keep_rows_at_their_forms(options, request, view(request, extra_context))
    except Exception as error:
        if not is_refusal(error):
            raise
        tell_operator(error, request)
        edit.refusal = error
    response = _keep_rows_at_their_forms(options, request, view(request, extra_context))
    _tell_if_nothing_did(request, edit)
    return response


def _of_list(options: Any, request: HttpRequest, edit: Edit) -> Resources:
    found = Resources(edit.limit)
    formset_of = options.get_changelist_formset(request)
    rows = options._get_list_editable_queryset(request, formset_of.get_default_prefix())
    _add_touched(found, formset_of(request.POST, request.FILES, queryset=rows))
    return found


def _keep_rows_at_their_forms(options: Any, request: HttpRequest, response: Any) -> Any:
    """A list that comes back, its rows in the order of their forms: they may be elsewhere by now, or gone."""
    found: Any = (getattr(response, "context_data", None) or {}).get("cl")
    formset = getattr(found, "formset", None)
    if formset is None or not formset.is_bound:
        return response
    keys = [form.instance.pk for form in formset.forms]
    present = {row.pk: row for row in options.get_queryset(request).filter(pk__in=[key for key in keys if key])}
    found.result_list = [present.get(form.instance.pk, form.instance) for form in formset.forms]
    return response


def delete(options: Any, view: View, request: HttpRequest, object_id: str, extra_context: Any) -> Any:
    """``delete_view``: under the leases of the row, and of what goes with it."""
    if request.method != "POST":
        return view(request, object_id, extra_context)
    edit = begin(request, options)
    try:
        with edit.leases:
            row = _row(options, request, object_id, options.has_delete_permission)
            if row is not None:
                edit.hold(_of_action(options, row, edit, deletes=True))
            return view(request, object_id, extra_context)
    except Exception as error:
        return refused(request, error, options.admin_site)


def act(options: Any, view: View, request: HttpRequest, queryset: Any, *where: Any) -> Any:
    """``response_action``: under the leases of the selected rows; ``where`` is what Django 6.1 adds."""
    if edit_of(request) is not None:
        return view(request, queryset, *where)
    name = chosen_action(request)
    found = options.get_actions(request).get(name)
    action = found[0] if isinstance(found, tuple) else getattr(found, "func", None)
    asks_first = action is delete_selected and not request.POST.get("post")
    if action is None or asks_first or not getattr(action, "fence_leases", True):
        return view(request, queryset, *where)
    edit = begin(request, options)
    begun = False
    try:
        with edit.leases:
            queryset = _hold_selected(edit, request, options, queryset, deletes=name == delete_selected.__name__)
            begun = action is not delete_selected  # which is undone as a whole
            return view(request, queryset, *where)
    except Exception as error:
        return refused(request, error, options.admin_site, undone=not begun)


def _hold_selected(edit: Edit, request: HttpRequest, options: Any, queryset: Any, *, deletes: bool) -> Any:
    """Take the leases of the selected rows; the rows to act on."""
    selected = queryset
    if request.POST.get("select_across") in (None, "", "0"):
        selected = queryset.filter(pk__in=request.POST.getlist(ACTION_CHECKBOX_NAME))
    found = Resources(edit.limit)
    if is_fenced(options.model):
        rows = list(selected[: edit.limit + 1])
        found.add_rows(rows)
        # Those rows and no others: by now a filter may match more of them.
        queryset = selected = queryset.filter(pk__in=[row.pk for row in rows])
    if deletes:
        found.add_deleted(selected, router.db_for_write(options.model))
    edit.hold(found)
    return queryset


def chosen_action(request: HttpRequest) -> str:
    """The name of the action whose button was pushed, as Django finds it."""
    if _is_form_action(request):
        return str(request.POST[FORM_ACTION])
    names = request.POST.getlist("action")
    try:
        return names[int(request.POST.get("index", 0))]
    except (ValueError, IndexError):
        return names[0] if names else ""


def refused(request: HttpRequest, error: Exception, site: AdminSite, *, undone: bool = True) -> HttpResponse:
    """A message, and the page again, or the site's first one if it cannot be shown; other errors are raised.

    Args:
        request: what was asked.
        error: why it is not answered.
        site: whose page it is.
        undone: whether nothing of it was written, for certain.
    """
    if not is_refusal(error):
        raise error
    index = reverse("admin:index", current_app=site.name)
    again = request.get_full_path() if request.method == "POST" else index
    if again == index and request.path == index:
        raise error
    tell_operator(error, request)
    outcome = _("Nothing was changed.") if undone else _("This was refused; what was done before it may have stayed.")
    messages.error(request, text_of(error, outcome), fail_silently=True)
    return HttpResponseRedirect(again)


def _tell_if_nothing_did(request: HttpRequest, edit: Edit) -> None:
    if (refusal := edit.to_tell()) is not None:
        messages.error(request, text_for_form(refusal, gone=edit.gone), fail_silently=True)
