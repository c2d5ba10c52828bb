"""The timeline of a resource: every grant and write on one page, drawn and as a table."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from html import escape, unescape
from itertools import pairwise
from typing import Any
from xml.etree import ElementTree

import pytest
from django.contrib.admin import AdminSite
from django.contrib.auth.models import Permission, User
from django.db import connection
from django.http import HttpResponse
from django.test import Client
from django.test.utils import CaptureQueriesContext
from django.urls import path, reverse
from django.utils import timezone

from fencing import StaleWriteError, lease, unfenced
from fencing.admin.links import timeline_url
from fencing.admin.tables import FencedResourceAdmin
from fencing.admin.timeline_chart import Scale
from fencing.admin.timeline_rows import Wanted, read
from fencing.conf import backend_config
from fencing.models import FencedResource, FencedWrite, Reign, TokenGrant
from inventory_demo.models import Stock
from tests.admin.rows import explained, page_of, write
from tests.admin.rows import grant as granted
from tests.admin.rows import many_rows as many_rows
from tests.concurrency import wait_until_expired

pytestmark = pytest.mark.django_db

ODD = 'lager:/{Größe} "4"\'?&#%<b>'
SVG = "{http://www.w3.org/2000/svg}"
NOW = timezone.now()


def grant(token: int, begin: float = 0.0, **values: Any) -> TokenGrant:
    """A grant of stock:1 that began ``begin`` seconds after an hour ago, released after two seconds by default."""
    at = NOW - timedelta(hours=1) + timedelta(seconds=begin)
    ended: dict[str, Any] = {"granted_at": at, "ended_at": at + timedelta(seconds=2), "ended": "released"}
    return granted(token, **ended | values)


def at(begin: float) -> Any:
    """So many seconds after an hour ago."""
    return NOW - timedelta(hours=1) + timedelta(seconds=begin)


def shown(client: Client, resource: str = "stock:1", **query: int) -> str:
    response = client.get(timeline_url("admin", "default", resource, **query))
    assert response.status_code == 200
    return response.content.decode()


def svg_of(page: str) -> ElementTree.Element:
    """The picture, as XML that a strict parser takes."""
    found = re.search(r'<svg class="fencing-picture".*?</svg>', page, re.S)
    assert found, "no picture"
    return ElementTree.fromstring(found[0].replace("<svg ", f'<svg xmlns="{SVG[1:-1]}" ', 1))  # noqa: S314  (our own page)


def classes(page: str) -> list[str]:
    """The classes of the picture's shapes."""
    return [one.get("class", "") for one in svg_of(page).iter(f"{SVG}path")]


def tokens(page: str) -> list[int]:
    """The tokens of the table, from top to bottom."""
    return [int(re.sub(r"\D", "", re.sub("<[^>]+>", "", one))) for one in re.findall(r'<th scope="row".*?</th>', page)]


@pytest.mark.parametrize("resource", ["stock:1", ODD, "ö" * 200, " x "])
def test_its_address_takes_any_name(admin_client, resource):
    grant(5, resource=resource)
    response = admin_client.get(timeline_url("admin", "default", resource))
    assert response.status_code == 200
    assert response.context["resource"] == resource
    assert tokens(response.content.decode()) == [5]
    assert "<b>" not in response.content.decode()


@pytest.mark.parametrize(
    "query", ["token=x", "before=-1", "after=9999999999999999999", "resource=a%00b", "namespace=%00"]
)
def test_bad_input_gets_a_clear_answer(admin_client, query):
    grant(5)
    url = timeline_url("admin", "default", "stock:1").replace(
        "resource=stock%3A1&" if "resource" in query else "?", "?"
    )
    response = admin_client.get(f"{url}&{query}")
    assert response.status_code == 200
    assert "errorlist" in response.content.decode()
    assert tokens(response.content.decode()) == []


def test_without_a_resource_it_asks_for_one(admin_client):
    response = admin_client.get(timeline_url("admin", "", "").split("?")[0])
    assert "Give the whole name of a resource" in response.content.decode()


def test_bars_marks_and_lines_tell_the_story(admin_client):
    grant(5, 0, ended="lost", ended_at=at(4))
    grant(6, 3)
    write(5, at=at(1))
    write(5, "stale", seen=7, at=at(6))
    write(7, grant_token=6, at=at(4))
    write(6, "duplicate", at=at(4.5))
    page = shown(admin_client)
    found = [one for one in classes(page) if one != "fencing-grid"]
    assert sorted(found) == [
        "fencing-bar fencing-lost", "fencing-bar fencing-released", "fencing-cross", "fencing-dot", "fencing-dot",
        "fencing-line", "fencing-ring",
    ]  # fmt: skip
    assert tokens(page) == [6, 5]
    text = re.sub(r"\s+", " ", unescape(re.sub("<[^>]+>", " ", page)))
    assert re.search("✕ stale write ?: update shop.stock 1, token 5, last token seen 7, overtaken by 6", text)
    assert "lost 4.000 s" in text and "released 2.000 s" in text


def test_a_line_leads_from_the_cross_to_the_lane_of_the_token_that_beat_it(admin_client):
    for token in (5, 6, 8):
        grant(token, token)
    write(5, "stale", seen=7, at=at(20))
    picture = svg_of(shown(admin_client))
    lanes = {
        (one.text or "").strip(): one.get("y")
        for one in picture.iter(f"{SVG}text")
        if one.get("class") == "fencing-token"
    }
    [line] = [one.get("d") for one in picture.iter(f"{SVG}path") if one.get("class") == "fencing-line"]
    assert line is not None
    assert line.split(" ")[-1] == lanes["6"], "8 is above what was seen"
    assert float(line.split(" ")[1]) < float(lanes["5"] or 0)


def test_time_goes_from_left_to_right_and_tokens_from_the_bottom_up(admin_client):
    for token in (5, 6, 7):
        grant(token, token * 10)
    picture = svg_of(shown(admin_client))
    bars = [str(one.get("d")) for one in picture.iter(f"{SVG}path") if "fencing-bar" in one.get("class", "")]
    begins = [float(one.split(" ")[0][1:]) for one in bars]
    assert begins == sorted(begins, reverse=True) and len(set(begins)) == 3
    heights = [float(one.get("y", "")) for one in picture.iter(f"{SVG}text") if one.get("class") == "fencing-token"]
    assert heights == sorted(heights)
    assert max(heights) < float(picture.get("viewBox", "").split(" ")[3])


def test_the_picture_has_a_name_and_a_description_and_the_table_a_caption(admin_client):
    grant(5)
    write(5, "stale", seen=5)
    page = shown(admin_client)
    picture = svg_of(page)
    assert picture.get("role") == "img"
    titles = {one.get("id"): one.text for one in picture if one.tag in (f"{SVG}title", f"{SVG}desc")}
    assert list(titles) == str(picture.get("aria-labelledby")).split()
    assert titles["fencing-title"] == "Timeline of stock:1"
    assert "1 token, the newest on top" in str(titles["fencing-desc"])
    assert "1 refused write" in str(titles["fencing-desc"])
    assert "<caption" in page and 'scope="col"' in page and 'scope="row"' in page


def test_reigns_are_bands_with_a_label(admin_client):
    for token in (5, 105, 107):
        grant(token, token)
    for partition, first, name in [(0, 1, "first"), (0, 100, "second"), (0, 900, "later"), (3, 2, "elsewhere")]:
        Reign.objects.create(
            namespace="default", partition=partition, reign=name, server="s", first_token=first, opened_at=NOW
        )
    picture = svg_of(shown(admin_client))
    labels = [one.text for one in picture.iter(f"{SVG}text") if "reign" in (one.text or "")]
    assert labels == ["reign second of server s, tokens from 100 on", "reign first of server s, tokens from 1 on"]
    assert sum("fencing-band" in one.get("class", "") for one in picture.iter(f"{SVG}rect")) == 2


@pytest.mark.parametrize(("zone", "offset"), [("Asia/Kathmandu", "+05:45"), ("America/St_Johns", "-03:30")])
@pytest.mark.parametrize("language", ["en", "de"])
def test_numbers_and_times_are_exact_in_every_zone_and_language(admin_client, settings, zone, offset, language):
    settings.TIME_ZONE, settings.LANGUAGE_CODE, settings.USE_THOUSAND_SEPARATOR = zone, language, True
    begin = datetime(2026, 1, 15, 12, tzinfo=UTC)
    for number in range(60):
        grant(
            2**52 + number, granted_at=begin + timedelta(minutes=number), ended_at=begin + timedelta(minutes=number + 1)
        )
    page = shown(admin_client)
    assert f"{zone} ({offset})" in page
    assert tokens(page) == [2**52 + number for number in range(59, 9, -1)]
    for one in svg_of(page).iter():
        for name in ("x", "y", "width", "height", "viewBox"):
            assert re.fullmatch(r"[\d. ]*", one.get(name, "")), f"{one.tag} {name}={one.get(name)}"
        assert "," not in one.get("d", "")


@pytest.mark.parametrize("days", [0.0, 0.00001, 0.001, 0.04, 1, 40, 400, 40_000])
def test_the_axis_has_a_few_round_times(admin_client, settings, days):
    settings.TIME_ZONE = "Europe/Berlin"
    grant(5, granted_at=NOW - timedelta(days=days), ended_at=NOW)
    picture = svg_of(shown(admin_client))
    places = [float(one.get("x", "")) for one in picture.iter(f"{SVG}text") if one.get("y") == "26"]
    assert 1 <= len(places) <= 9 or days == 0
    assert all(second - first > 50 for first, second in pairwise(places))


def test_50_tokens_and_older_ones_by_a_link_and_newer_ones_back(admin_client):
    for token in range(1, 121):
        grant(token, token)
    page = shown(admin_client)
    assert tokens(page) == list(range(120, 70, -1))
    assert 'rel="prev"' not in page
    seen = []
    for _page in range(3):
        seen += tokens(page)
        links = re.findall(r'href="([^"]+)" rel="next"', page)
        if links:
            page = admin_client.get(unescape(links[0])).content.decode()
    assert seen == list(range(120, 0, -1))
    assert 'rel="next"' not in page
    back = unescape(re.findall(r'href="([^"]+)" rel="prev"', page)[0])
    assert tokens(admin_client.get(back).content.decode()) == list(range(70, 20, -1))


def test_a_token_is_marked_among_its_neighbours(admin_client):
    for token in range(1, 121):
        grant(token, token)
    page = shown(admin_client, token=60)
    assert tokens(page) == list(range(70, 20, -1))
    assert re.search(
        r'<tr role="row" class="fencing-marked">\s*<th[^>]*><span aria-hidden="true">▸</span> <a [^>]+>60<', page
    )
    assert 'rel="prev"' in page and 'rel="next"' in page


def test_what_was_refused_is_never_hidden_by_what_landed(admin_client):
    grant(5)
    for number in range(40):
        write(5, object_pk=f"landed-{number}")
    write(5, "stale", object_pk="refused-0", seen=5)
    page = shown(admin_client)
    assert len(set(re.findall(r"landed-\d+", page))) == 10
    assert "refused-0" in page
    assert classes(page).count("fencing-dot") == 10
    link = re.search(r'There are more\. <a href="([^"]+)">', page)
    assert link
    assert page_of(admin_client, unescape(link[1])).count("landed-") == 40


def test_other_resources_and_namespaces_stay_out(admin_client):
    grant(5)
    grant(6, resource="stock:2")
    granted(5, namespace="other")
    write(5, namespace="other", object_pk="foreign")
    write(6, resource="stock:2", object_pk="foreign")
    page = shown(admin_client)
    assert tokens(page) == [5]
    assert "foreign" not in page


def test_writes_are_there_before_their_grant_is_told(admin_client):
    write(9, at=at(3))
    write(8, "unfenced", note="correct after the audit (root)", at=at(2))
    page = shown(admin_client)
    assert tokens(page) == [9, 8]
    assert "no grant on record" in page and "correct after the audit" in page
    assert "fencing-triangle" in classes(page) and "fencing-dot" in classes(page)
    assert not any("fencing-bar" in one for one in classes(page))


def test_grants_without_times_are_listed_though_there_is_nothing_to_draw(admin_client):
    grant(5, granted_at=None, ended_at=None, ended="")
    page = shown(admin_client)
    assert tokens(page) == [5]
    assert "nothing to draw" in page
    assert 'class="fencing-picture"' not in page


def test_a_resource_that_only_the_fence_knows(admin_client):
    FencedResource.objects.create(namespace="default", name="stock:1", last_token=2**53 - 1, holder="h")
    page = shown(admin_client)
    assert f"<strong>{2**53 - 1}</strong>" in page
    assert "on record any more" in page


def test_an_unknown_resource_is_told_kindly(admin_client):
    page = shown(admin_client, resource="stock:nobody")
    assert "No grant and no write of this resource is on record here" in page
    assert "nobody has written it under a lease" in page


def test_a_page_without_grants_leads_back_to_the_newest(admin_client):
    grant(5)
    page = shown(admin_client, before=5)
    assert "No grant of this resource has such a token." in page
    back = re.findall(r'href="([^"]+)">Newest<', page)
    assert tokens(admin_client.get(unescape(back[0])).content.decode()) == [5]


def test_a_database_that_lacks_the_tables_is_told(admin_client, monkeypatch):
    def fail(*_args: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT * FROM fencing_nothing")

    monkeypatch.setattr("fencing.admin.timeline.read", fail)
    page = shown(admin_client)
    assert "The history cannot be read" in page and "fencing_nothing" in page


def test_without_a_namespace_it_is_that_of_the_first_backend(admin_client):
    with lease("timeline-first") as held:
        page = admin_client.get(timeline_url("admin", "", "timeline-first")).content.decode()
        assert tokens(page) == [held.token]


def test_the_axis_takes_times_without_a_zone():
    begin = datetime(2026, 1, 15, 12)  # noqa: DTZ001  (as with USE_TZ = False)
    ticks = Scale.over([begin, begin + timedelta(hours=6)]).ticks()
    assert [(tick.time, tick.date) for tick in ticks][:2] == [("12:00", "2026-01-15"), ("13:00", "")]


@pytest.mark.parametrize(
    ("begin", "hours", "times"),
    [
        (datetime(2026, 3, 28, 23, tzinfo=UTC), 5, ["01:00", "03:00", "04:00"]),
        (datetime(2026, 3, 28, tzinfo=UTC), 60, None),
    ],
)
def test_the_axis_follows_the_clocks_when_they_are_changed(settings, begin, hours, times):
    settings.TIME_ZONE = "Europe/Berlin"
    ticks = Scale.over([begin, begin + timedelta(hours=hours)]).ticks()
    gaps = {round(second.x - first.x) for first, second in pairwise(ticks)}
    assert max(gaps) - min(gaps) <= 1, "an hour is an hour"
    assert times is None or [tick.time for tick in ticks][1:4] == times


def own_namespace() -> str:
    return backend_config("default").namespace


def own(client: Client, resource: str) -> str:
    response = client.get(timeline_url("admin", own_namespace(), resource))
    assert response.status_code == 200
    return response.content.decode()


def test_a_lease_that_is_held_now_reaches_until_now(admin_client):
    with lease("timeline-held") as held:
        page = own(admin_client, "timeline-held")
        assert tokens(page) == [held.token]
        assert "fencing-bar fencing-open" in classes(page)
        assert held.holder in page and "held now" in page
    page = own(admin_client, "timeline-held")
    assert "fencing-bar fencing-released" in classes(page)
    assert "by nobody" in page


def test_a_lease_that_ran_out_unnoticed_is_not_called_open(admin_client):
    with lease("timeline-expired", ttl=0.1, renew=False):
        wait_until_expired("timeline-expired")
        page = own(admin_client, "timeline-expired")
    assert "no longer held" in page
    assert "fencing-bar fencing-unknown" in classes(page)
    assert "fencing-bar fencing-open" not in classes(page)


@pytest.mark.django_db(transaction=True)
def test_a_real_stale_write_is_on_it_with_the_token_that_beat_it(admin_client):
    stock = Stock.objects.create(sku="line", quantity=1)
    with lease("stock:line") as late, unfenced("the next holder's write comes first") as number:
        Stock.objects.filter(pk=stock.pk).update(quantity=2)
    with lease("stock:line") as newer:
        fresh = Stock.objects.get(pk=stock.pk)
        fresh.save()
        stock.refresh_from_db()
        FencedResource.objects.filter(name="stock:line").update(last_token=newer.token + 5, holder="somebody")
        with pytest.raises(StaleWriteError):
            stock.save()
    page = own(admin_client, "stock:line")
    assert tokens(page) == [newer.token, number, late.token]
    assert "fencing-cross" in classes(page) and "fencing-triangle" in classes(page)


@pytest.mark.parametrize("location", ["unix:///nowhere/valkey.sock", "nonsense"])
def test_a_store_that_is_down_costs_a_message_and_not_the_page(admin_client, settings, location):
    settings.CACHES = {**settings.CACHES, "down": {**settings.CACHES["leases"], "LOCATION": location}}
    down = {"BACKEND": "fencing.backends.redis.RedisBackend", "CACHE": "down", "NAMESPACE": "default"}
    settings.FENCING = {"BACKENDS": {"default": down}}
    grant(5, ended="", ended_at=None)
    page = shown(admin_client)
    assert tokens(page) == [5]
    assert "are missing here" in page and "unknown: " in page
    assert "fencing-bar fencing-open" in classes(page)


def test_a_statement_that_takes_too_long_is_an_answer(admin_client, settings, monkeypatch):
    settings.FENCING = {**settings.FENCING, "ADMIN_TIMEOUT": 0.05}
    grant(5)

    def slow(*_args: Any) -> None:
        with connection.cursor() as cursor:
            cursor.execute("SELECT pg_sleep(20)")

    monkeypatch.setattr("fencing.admin.timeline.read", slow)
    response = admin_client.get(timeline_url("admin", "default", "stock:1"))
    assert response.status_code == 200
    assert "This takes too long" in response.content.decode()


@pytest.mark.parametrize("alias", ["lite", pytest.param("maria", marks=pytest.mark.mariadb)])
@pytest.mark.django_db(databases=["default", "lite", "maria"])
def test_each_database_takes_its_questions(alias):
    def create(model: Any, **values: Any) -> None:
        model.objects.using(alias).create(**{"namespace": "n", "resource": "r", **values})

    for token in range(1, 61):
        create(TokenGrant, token=token, holder="h", granted_at=NOW)
        for number in range(12):
            create(
                FencedWrite,
                token=token,
                grant_token=token,
                action="update",
                outcome="accepted",
                object_pk=str(number),
                at=NOW,
            )
    create(FencedWrite, token=30, grant_token=30, action="update", outcome="stale", seen=31, at=NOW)
    create(FencedWrite, token=61, grant_token=61, action="update", outcome="accepted", at=NOW)
    page = read(Wanted(namespace="n", resource="r", database=alias, written=(alias,)), None)
    assert [row.token for row in page.rows] == list(range(61, 11, -1))
    assert page.has_older and not page.has_newer
    [stale] = [row for row in page.rows if row.token == 30]
    assert [write.outcome for write in stale.writes].count("accepted") == 10 and stale.has_more
    assert stale.writes[-1].outcome == "stale"
    assert (page.rows[0].grant, len(page.rows[0].writes)) == (None, 1)


RIGHTS = ["view_tokengrant", "view_fencedwrite"]


@pytest.mark.parametrize(
    ("rights", "status"),
    [([], 403), (RIGHTS[:1], 403), (RIGHTS[1:], 403), (["view_fencedresource"], 403), (RIGHTS, 200)],
)
def test_it_needs_the_rights_to_see_grants_and_writes(client, rights, status):
    grant(5)
    url = timeline_url("admin", "default", "stock:1")
    assert "/login/" in client.get(url).headers["Location"], "anonymous"
    client.force_login(User.objects.create_user("somebody"))
    assert "/login/" in client.get(url).headers["Location"], "no staff"
    user = User.objects.create_user("viewer", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client.force_login(user)
    assert client.get(url).status_code == status


@pytest.mark.parametrize("may", [True, False])
def test_a_resource_leads_to_its_timeline_from_the_list_and_from_its_row(client, may):
    row = FencedResource.objects.create(namespace="default", name="stock:1", last_token=5, holder="h")
    user = User.objects.create_user("viewer", is_staff=True)
    rights = ["view_fencedresource", "view_tokengrant", "view_fencedwrite"][: 3 if may else 2]
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    client.force_login(user)
    leading = f'href="{escape(timeline_url("admin", "default", "stock:1"))}">stock:1</a>'
    of_row = reverse("admin:fencing_fencedresource_change", args=[row.pk])
    found = client.get(reverse("admin:fencing_fencedresource_changelist")).content.decode()
    assert (leading in found) is may
    assert re.search(rf'href="{of_row}[^"]*">5</a>', found), "the token leads to the row"
    found = client.get(of_row).content.decode()
    assert (leading in found) is may
    assert "stock:1" in found


def test_nothing_is_inline_and_nothing_changes(admin_client):
    grant(5)
    write(5, "stale", seen=9)
    page = shown(admin_client)
    assert not re.search(r"<script(?![^>]*\bsrc=)", page)
    assert not re.search(r"<style|\sstyle=|\son\w+=", page)
    with CaptureQueriesContext(connection) as found:
        shown(admin_client)
    assert not [one["sql"] for one in found if re.match("INSERT|UPDATE|DELETE", one["sql"])]


other = AdminSite("other")
other.register(FencedResource, FencedResourceAdmin)
urlpatterns = [path("other/", other.urls)]


@pytest.mark.urls("tests.admin.test_timeline")
def test_another_site_works_with_links_to_what_it_has(admin_client):
    grant(5)
    response: HttpResponse = admin_client.get(timeline_url("other", "default", "stock:1"))
    page = response.content.decode()
    assert tokens(page) == [5]
    assert not re.findall(r'(?:href|action)="/admin/', page)
    assert 'href="/other/"' in page


def queries(found: CaptureQueriesContext) -> list[str]:
    """What was asked, without what begins, bounds and ends the transaction."""
    return [one["sql"] for one in found if not re.search("SAVEPOINT|set_config", one["sql"])]


@pytest.mark.parametrize("query", [{}, {"before": 60}, {"after": 20}, {"token": 40}])
def test_it_takes_at_most_8_queries(admin_client, query):
    Reign.objects.create(namespace="default", partition=0, reign="r", server="s", first_token=1, opened_at=NOW)
    for token in range(1, 81):
        grant(token, token)
        write(token)
        write(token, "stale", seen=token + 1)
    shown(admin_client, **query)
    with CaptureQueriesContext(connection) as found:
        assert len(tokens(shown(admin_client, **query))) == 50
    asked = queries(found)
    assert len(asked) <= 8, "\n".join(asked)
    assert not any("COUNT(" in one for one in asked)


@pytest.mark.slow
@pytest.mark.parametrize("query", [{}, {"before": 25_077}, {"after": 25_077}, {"token": 25_077}])
def test_no_page_reads_a_whole_table(admin_client, many_rows, query):
    with CaptureQueriesContext(connection) as found:
        assert len(tokens(shown(admin_client, resource="stock:77", **query))) >= 24
    asked = [one for one in queries(found) if re.search("fencing_(tokengrant|fencedwrite)", one)]
    assert len(asked) >= 2
    for sql in asked:
        plan = explained(sql)
        assert not re.search("Seq Scan on fencing_(tokengrant|fencedwrite)", plan), f"{sql}\n{plan}"
