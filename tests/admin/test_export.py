"""The export: the rows of the list as CSV, exact, capped, streamed, harmless to spreadsheets, for who has the right."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from typing import Any

import pytest
from django.contrib.auth.models import Permission, User
from django.db import OperationalError, connection
from django.test.utils import CaptureQueriesContext
from django.urls import reverse
from django.utils import timezone

from fencing.admin import export
from fencing.admin.keyset import read_page
from fencing.models import FencedWrite, TokenGrant
from tests.admin.rows import grant, list_url, page_of, write, writes

pytestmark = pytest.mark.django_db
BIG = 2**53 + 1


def export_url(model: Any, **query: str) -> str:
    return reverse(f"admin:fencing_{model._meta.model_name}_export", query=query or None)


def exported(client: Any, model: Any = FencedWrite, **query: str) -> list[dict[str, str]]:
    """The lines of the file by the names of its columns."""
    response = client.get(export_url(model, **query))
    assert response.status_code == 200
    assert response["Content-Type"] == "text/csv; charset=utf-8"
    text = b"".join(response.streaming_content).decode("utf-8-sig")
    return list(csv.DictReader(io.StringIO(text)))


def user_with(*rights: str) -> User:
    user = User.objects.create_user("somebody", is_staff=True)
    user.user_permissions.set(Permission.objects.filter(codename__in=rights))
    return user


@pytest.mark.parametrize("model", [TokenGrant, FencedWrite])
@pytest.mark.parametrize(
    ("rights", "list_status", "export_status"),
    [
        (None, 302, 302),
        ((), 403, 403),
        (("view_{0}",), 200, 403),
        (("export_{0}",), 403, 403),
        (("view_{0}", "export_{0}"), 200, 200),
        ("superuser", 200, 200),
    ],
    ids=["anonymous", "no rights", "view", "export alone", "view and export", "superuser"],
)
def test_who_may_export(client: Any, model: Any, rights: Any, list_status: int, export_status: int) -> None:
    grant(7)
    write(7)
    if rights == "superuser":
        client.force_login(User.objects.create_superuser("root"))
    elif rights is not None:
        client.force_login(user_with(*(right.format(model._meta.model_name) for right in rights)))
    listed = client.get(list_url(model))
    assert listed.status_code == list_status
    assert client.get(export_url(model)).status_code == export_status
    if list_status == 200:
        assert ("Export as CSV" in listed.content.decode()) is (export_status == 200)


def test_posting_to_the_export_is_refused(admin_client: Any) -> None:
    assert admin_client.post(export_url(TokenGrant)).status_code == 405


def test_the_button_exports_what_the_list_shows(admin_client: Any) -> None:
    write(7, "stale")
    write(8)
    write(9, "stale", at=timezone.now() - timedelta(days=2))
    assert [row["token"] for row in exported(admin_client)] == ["8", "7"]
    assert [row["token"] for row in exported(admin_client, outcome="stale")] == ["7"]
    assert [row["token"] for row in exported(admin_client, outcome="stale", window="any")] == ["7", "9"]
    html = admin_client.get(list_url(FencedWrite, outcome="stale", window="any")).content.decode()
    assert f'href="{export_url(FencedWrite)}?outcome=stale&amp;window=any"' in html


def test_grants_have_a_column_for_each_outcome(admin_client: Any) -> None:
    grant(7, task_name="shop.apply", task_id="t-1", ended="released")
    for outcome in ("accepted", "accepted", "stale"):
        write(7, outcome)
    (row,) = exported(admin_client, TokenGrant, q="7")
    assert (row["accepted"], row["stale"], row["missing"]) == ("2", "1", "0")
    assert (row["resource"], row["task_name"], row["task_id"], row["ended"]) == (
        "stock:1",
        "shop.apply",
        "t-1",
        "released",
    )


@pytest.mark.parametrize("separator", [True, False])
def test_numbers_are_exact_and_times_have_an_offset(admin_client: Any, settings: Any, separator: bool) -> None:
    settings.USE_THOUSAND_SEPARATOR = separator
    settings.LANGUAGE_CODE = "de"
    settings.TIME_ZONE = "Asia/Kathmandu"
    write(BIG, seen=BIG + 1)
    (row,) = exported(admin_client)
    assert (row["token"], row["seen"]) == (str(BIG), str(BIG + 1))
    assert row["at"].endswith("+05:45")


@pytest.mark.parametrize(
    "text",
    ["=1+1", "+1", "-1", "@SUM(A1)", "\tx", " =1", " x", "\uff1d1", '=HYPERLINK("http://evil.example","x")'],
)
def test_no_text_is_a_formula(admin_client: Any, text: str) -> None:
    write(7, object_pk=text, operation=text)
    (row,) = exported(admin_client)
    assert row["object_pk"] == row["operation"] == f"'{text}"
    assert row["token"] == "7"  # noqa: S105


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a;=1+1", "a;'=1+1"),
        ("a; @SUM(A1);-2", "a;' @SUM(A1);'-2"),
        ('a;"=1"', 'a;\'"=1"'),
        ("a\n=1\r+1", "a\n'=1\r'+1"),
        ("\r=1", "'\r'=1"),
        ("\t=1", "'\t'=1"),
        ("a\t=1\t @SUM(A1)", "a\t'=1\t' @SUM(A1)"),
        ("\n=1", "'\n'=1"),
    ],
)
def test_no_part_of_a_text_is_a_formula_where_semicolons_end_cells(admin_client: Any, text: str, expected: str) -> None:
    write(7, operation=text)
    (row,) = exported(admin_client)
    assert row["operation"] == expected


@pytest.mark.parametrize("text", ["stock:1", 'a "quoted", text', "Größe/{x}", "two\nlines", "'already", "a-b; c=d"])
def test_other_texts_stay_as_they_are(admin_client: Any, text: str) -> None:
    write(7, operation=text)
    (row,) = exported(admin_client)
    assert row["operation"] == text


def test_the_file_is_named_and_known_as_utf_8(admin_client: Any) -> None:
    response = admin_client.get(export_url(FencedWrite))
    assert (
        response["Content-Disposition"] == f'attachment; filename="fencing-fencedwrite-{timezone.now():%Y-%m-%d}.csv"'
    )
    assert next(iter(response.streaming_content)).startswith(b"\xef\xbb\xbfid,at,outcome")


def test_it_reads_batch_by_batch_without_a_row_twice(admin_client: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(export, "BATCH", 10)
    writes(range(1, 26))
    with CaptureQueriesContext(connection) as found:
        rows = exported(admin_client)
    assert [int(row["token"]) for row in rows] == list(range(25, 0, -1))
    batches = [query["sql"] for query in found if 'FROM "fencing_fencedwrite"' in query["sql"]]
    assert len(batches) == 3
    assert all("LIMIT 11" in sql and "OFFSET" not in sql for sql in batches)
    assert not any("COUNT(" in query["sql"] for query in found)


@pytest.mark.parametrize(("rows", "told"), [(25, False), (26, True)])
def test_the_cap_is_told_in_the_last_line(admin_client: Any, monkeypatch: Any, rows: int, told: bool) -> None:
    monkeypatch.setattr(export, "BATCH", 10)
    monkeypatch.setattr(export, "MAX_ROWS", 25)
    writes(range(1, rows + 1))
    found = exported(admin_client)
    assert len(found) == 25 + told
    assert (found[-1]["id"] == "Not complete: an export ends after 25 rows.") is told


def test_a_batch_that_takes_too_long_ends_the_file_and_says_so(
    admin_client: Any, monkeypatch: Any, settings: Any
) -> None:
    monkeypatch.setattr(export, "BATCH", 10)
    writes(range(1, 26))
    asked = []

    def slow(*args: Any) -> Any:
        asked.append(args)
        if len(asked) == 2:
            with connection.cursor() as cursor:
                cursor.execute("SELECT pg_sleep(60)")
        return read_page(*args)

    monkeypatch.setattr("fencing.admin.export.read_page", slow)
    settings.FENCING = {**settings.FENCING, "ADMIN_TIMEOUT": 0.7}
    rows = exported(admin_client)
    assert len(rows) == 11
    assert rows[-1]["id"].startswith("Not complete: the database took too long")


def test_other_errors_are_not_taken_for_a_short_file(admin_client: Any, monkeypatch: Any) -> None:
    def broken(*args: Any) -> Any:
        raise OperationalError("the server is gone")

    monkeypatch.setattr("fencing.admin.export.read_page", broken)
    with pytest.raises(OperationalError, match="the server is gone"):
        exported(admin_client)


def test_a_filter_that_cannot_be_leads_back_to_the_list(admin_client: Any) -> None:
    response = admin_client.get(export_url(FencedWrite), {"grant_token": "x"})
    assert response.status_code == 302
    assert page_of(admin_client, list_url(FencedWrite))
