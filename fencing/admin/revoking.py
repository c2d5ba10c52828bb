"""Revoking a live lease: a page that says what will happen, and a form that wants a reason."""

from __future__ import annotations

from typing import Any

from django import forms
from django.contrib import messages
from django.core.exceptions import PermissionDenied
from django.db import DatabaseError
from django.http import Http404, HttpRequest, HttpResponse, HttpResponseRedirect
from django.template.response import TemplateResponse
from django.utils.translation import gettext as _
from django.utils.translation import gettext_lazy

from fencing import conf
from fencing.admin import cells, links
from fencing.admin.live_cells import lease_cells
from fencing.admin.named import ResourceField
from fencing.admin.newest import UNREACHABLE, collect_newest
from fencing.admin.readonly import BaseAdmin
from fencing.backends import get_backend
from fencing.backends.base import LiveLease
from fencing.exceptions import LeaseHeldError
from fencing.maintenance import MAX_REASON, name_of
from fencing.models import HeldLease
from fencing.revocation import Revocation, revoke
from fencing.tokens import place_of


class Address(forms.Form):
    """Whose lease, of which store: a part of the address, so that a form sends them only as they were shown."""

    using = forms.CharField(max_length=100, strip=False)
    resource = ResourceField()


class RevokeForm(forms.Form):
    """Why, and the token that was shown when that was decided."""

    token = forms.IntegerField(min_value=1, max_value=conf.MAX_TOKEN, widget=forms.HiddenInput)
    reason = forms.CharField(
        label=gettext_lazy("Reason"),
        max_length=MAX_REASON,
        widget=forms.TextInput(attrs={"class": "vTextField", "autocomplete": "off"}),
        help_text=gettext_lazy("It goes to the history and to the log, with your name."),
    )


def revoke_view(options: BaseAdmin, request: HttpRequest, *, may_revoke: bool) -> HttpResponse:
    """Show the lease and ask for a reason; POST revokes it, if it is still the one that was shown."""
    if not may_revoke:
        raise PermissionDenied
    address = Address(request.GET)
    if not address.is_valid() or address.cleaned_data["using"] not in conf.backend_aliases():
        raise Http404(_("No such lease backend, or no name of a resource."))
    using, resource = address.cleaned_data["using"], address.cleaned_data["resource"]
    form = RevokeForm(request.POST) if request.method == "POST" else RevokeForm()
    if form.is_valid() and (answer := _revoked(options, request, using, resource, form.cleaned_data)):
        return answer
    return _asked(options, request, using, resource, form)


def _revoked(
    options: BaseAdmin, request: HttpRequest, using: str, resource: str, given: dict[str, Any]
) -> HttpResponse | None:
    """Revoke; None where nothing was done, with a message that says why."""
    try:
        done = revoke(resource, given["reason"], token=given["token"], using=using, by=name_of(request.user))
    except LeaseHeldError as error:
        text = _(
            "Nothing was revoked: token %(token)s no longer has the lease, which %(holder)s has by now. "
            "Look at it again, as it is shown below."
        )
        messages.error(request, text % {"token": given["token"], "holder": error.holder})
        return None
    except UNREACHABLE as error:
        text = _(
            "The lease of %(resource)s is not known to be revoked: %(error)s The database is told first, so the holder "
            "may be refused already while the lease is still there. To revoke it again is safe."
        )
        messages.error(request, text % {"resource": resource, "error": error})
        return None
    collect_newest(request, using)
    told = _told(done, given["token"], "" if done.removed else _ended(using, given["token"]))
    messages.success(request, told)
    _log(options, request, using, done, given, told)
    return HttpResponseRedirect(links.live_url(options.admin_site.name))


def _ended(using: str, token: int) -> str:
    """How the grant had ended, in a word; "" where the history does not tell."""
    try:
        grant = _grant(using, token)
    except DatabaseError:  # the revocation is done, also if this cannot be read
        return ""
    return grant.get_ended_display() if grant is not None and grant.ended else ""


def _grant(using: str, token: int) -> HeldLease | None:
    config = conf.backend_config(using)
    return HeldLease.objects.using(config.database).filter(namespace=config.namespace, token=token).first()


def _told(done: Revocation, token: int, ended: str) -> str:
    """What was done; ``ended`` is how the lease had ended before, if that is known."""
    numbers = {"resource": done.resource, "token": token, "number": done.token, "ended": ended}
    if done.removed:
        text = _(
            "The lease of %(resource)s, token %(token)s, was revoked. Every token below %(number)s is refused now."
        )
    elif ended:
        text = _(
            "The lease of %(resource)s, token %(token)s, had ended already (%(ended)s). "
            "Every token below %(number)s is refused now."
        )
    else:
        text = _(
            "The lease of %(resource)s, token %(token)s, had ended already. Every token below %(number)s is refused now."
        )
    return text % numbers


def _log(
    options: BaseAdmin, request: HttpRequest, using: str, done: Revocation, given: dict[str, Any], told: str
) -> None:
    """Note it in Django's log; it is done and in the history, also if that fails."""
    try:
        grant = _grant(using, given["token"])
        if grant is None:
            namespace = conf.backend_config(using).namespace
            grant = HeldLease(namespace=namespace, token=given["token"], resource=done.resource)
        options.log_change(request, grant, f"{told} {given['reason']}")
    except DatabaseError as error:
        messages.warning(request, _("Django's log does not have it: %(error)s") % {"error": error})


def _asked(options: BaseAdmin, request: HttpRequest, using: str, resource: str, form: RevokeForm) -> HttpResponse:
    """The page that asks, with the lease as it is now: the token that is shown is the one that will be compared."""
    site = options.admin_site
    try:
        live = _live(using, resource)
    except UNREACHABLE as error:
        messages.error(request, str(error))
        return HttpResponseRedirect(links.live_url(site.name))
    if live is None:
        messages.warning(request, _("Nobody holds the lease of %(resource)s any more.") % {"resource": resource})
        return HttpResponseRedirect(links.live_url(site.name))
    context = {
        **site.each_context(request),
        "title": _("Revoke the lease of %(resource)s") % {"resource": resource},
        "opts": options.opts,
        "using": using,
        "lease": lease_cells(live),
        "form": form,
        "token": cells.digits(live.token),
        "live_url": links.live_url(site.name),
    }
    request.current_app = site.name
    return TemplateResponse(request, "admin/fencing/revoke.html", context)


def _live(using: str, resource: str) -> LiveLease | None:
    backend = get_backend(using)
    return backend.peek(place_of(backend, resource))
