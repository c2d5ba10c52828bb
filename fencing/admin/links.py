"""Addresses of the admin's pages: names of resources go in the query, because they may hold slashes, braces and spaces."""

from __future__ import annotations

from django.urls import NoReverseMatch, reverse

TIMELINE = "fencing_timeline"
HELD_LEASES = "fencing_heldlease_changelist"
REVOKE = "fencing_revoke"


def timeline_url(
    site_name: str,
    namespace: str,
    resource: str,
    *,
    token: int | None = None,
    before: int | None = None,
    after: int | None = None,
) -> str:
    """Where one resource's timeline is.

    Args:
        site_name: the admin site's ``name``.
        namespace: the namespace of its tokens.
        resource: its name.
        token: a grant that is marked, among those of about its time.
        before: show the grants with tokens below.
        after: show the grants with tokens above.
    """
    numbers = {"token": token, "before": before, "after": after}
    given = {name: str(number) for name, number in numbers.items() if number is not None}
    return reverse(f"{site_name}:{TIMELINE}", query={"namespace": namespace, "resource": resource, **given})


def live_url(site_name: str, resource: str = "") -> str:
    """Where the live leases are, or that of one resource."""
    return reverse(f"{site_name}:{HELD_LEASES}", query={"resource": resource} if resource else None)


def revoke_url(site_name: str, using: str, resource: str) -> str:
    """Where the live lease of ``resource`` in the lease backend ``using`` can be revoked."""
    return reverse(f"{site_name}:{REVOKE}", query={"using": using, "resource": resource})


def url_if_there(site_name: str, name: str, *args: object, **query: object) -> str:
    """The address of a page of this site, or "" where the site does not have it."""
    try:
        return reverse(
            f"{site_name}:{name}", args=args, query={key: str(value) for key, value in query.items()} or None
        )
    except NoReverseMatch:
        return ""
