"""The demo page's rules: where it is there, what it refuses, what it sends, and whom it signals. No worker is needed."""

from __future__ import annotations

import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from html import unescape
from time import time
from typing import Any

import pytest
from django.core.management import CommandError, call_command
from django.test import Client
from django.utils.translation import override

from fencing import Lease, lease
from fencing.admin.links import timeline_url
from fencing.revocation import revoke
from inventory_demo import lease_store, processes
from inventory_demo.actors import State, actor, grants
from inventory_demo.lanes import REACH, picture
from inventory_demo.lease_store import namespace
from inventory_demo.management.commands import serve
from inventory_demo.models import Stock
from inventory_demo.stage import Stage
from inventory_demo.stage import stage as the_stage
from inventory_demo.statement import statement
from inventory_demo.steps import LABELS
from inventory_demo.story import Story

pytestmark = pytest.mark.django_db


@pytest.fixture(autouse=True)
def stage(settings: Any) -> Iterator[Stage]:
    """The stage, empty before and after."""
    settings.DEBUG = True
    the_stage.close()
    yield the_stage
    the_stage.close()


def told(*reports: dict[str, Any], fenced: bool = True) -> Story:
    """A story whose worker reported this; it began at 1000."""
    story = Story(fenced=fenced, tell=lambda event: None)
    story.begin()
    story.began = 1000.0
    story.tasks.update({"task-a": "A", "task-b": "B"})
    for report in reports:
        if report["event"] in ("sent", "stopped", "continued", "killed", "flushed", "expired", "revoked", "changed"):
            story.note(**report)
        else:
            story.follow(report)
    return story


def report(event: str, letter: str, at: float, **facts: Any) -> dict[str, Any]:
    return {"event": event, "task": f"task-{letter.lower()}", "pid": 100 + ord(letter), "at": 1000 + at, **facts}


def overtaken() -> list[dict[str, Any]]:
    """What is reported until A is refused."""
    return [
        report("sent", "A", 0),
        report("granted", "A", 0.1, token=33),
        report("waits", "A", 0.2, token=33, before=[10, 0], value=7),
        {"event": "stopped", "at": 1001.0, "pid": 165},
        report("sent", "B", 1.0),
        {"event": "expired", "at": 1002.5, "task": "task-a", "token": 33, "why": "it ran out"},
        report("granted", "B", 2.6, token=34),
        report("writes", "B", 3.0, token=34, before=[10, 0], value=5),
        report("wrote", "B", 3.1, token=34, after=[5, 34], sql="UPDATE x WHERE last_token < 34"),
        report("ended", "B", 3.2, state="SUCCESS"),
        {"event": "continued", "at": 1004.0, "pid": 165},
        report("writes", "A", 4.1, token=33, before=[5, 34], value=7),
        report("refused", "A", 4.2, token=33, seen=34, after=[5, 34], sql="UPDATE x WHERE last_token < 33"),
    ]


def texts(html: bytes) -> str:
    """The text of a page with every run of white space as one space."""
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", html.decode())))


def test_page_is_there_for_a_developers_machine_only(client: Client, settings: Any) -> None:
    assert client.get("/").status_code == 200
    settings.DEBUG = False
    for answer in (client.get("/"), client.get("/state/"), client.post("/", {"step": "run"})):
        assert answer.status_code == 404


def test_server_of_the_page_is_for_a_developers_machine_only(settings: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    settings.DEBUG = False
    # It would serve for ever.
    monkeypatch.setattr(serve, "first_free_port", lambda start: pytest.fail("it serves"))
    with pytest.raises(CommandError, match="DEBUG = True"):
        call_command("serve")


def test_forged_post_takes_no_step(stage: Stage) -> None:
    client = Client(enforce_csrf_checks=True)
    assert client.post("/", {"step": "run"}).status_code == 403
    assert stage.story is None
    token = client.get("/").cookies["csrftoken"].value
    assert client.post("/", {"step": "pause-a", "csrfmiddlewaretoken": token}).status_code == 302


def test_every_button_is_in_the_form_with_a_token_and_a_hint(client: Client) -> None:
    page = client.get("/").content.decode()
    form = page[page.index("<form") : page.index("</form>")]
    assert 'method="post"' in form
    assert "csrfmiddlewaretoken" in form
    assert page.count("<button") == form.count("<button") == len(LABELS)
    for step in LABELS:
        assert f'name="step" value="{step}"' in form
        assert f'aria-describedby="hint-{step}"' in form
        assert re.search(rf'id="hint-{step}">[^<]+<', form)


def test_policy_allows_no_inline_script_or_style_and_there_is_none(client: Client, stage: Stage) -> None:
    stage.stories[True] = told(*overtaken())
    answer = client.get("/")
    assert "default-src 'self'" in answer["Content-Security-Policy"]
    page = answer.content.decode()
    assert not re.search(r"<style|\sstyle=|\son\w+=|javascript:", page)
    scripts = re.findall(r"<script[^>]*>", page)
    assert len(scripts) == 2
    assert all('src="/static/' in script for script in scripts)
    assert "//" not in "".join(scripts)


@pytest.mark.parametrize(
    "step", ["pause-a", "resume-a", "kill-a", "flush", "reset", "nonsense", "", "take", "__init__"]
)
def test_step_that_makes_no_sense_is_refused_with_a_reason(client: Client, stage: Stage, step: str) -> None:
    followed = client.post("/", {"step": step}, follow=True)
    assert followed.redirect_chain == [("/", 302)]
    said = re.findall(r'<p class="answer">([^<]+)</p>', followed.content.decode().split("<noscript>")[0])
    assert len(said) == 1
    hint = stage.cues()[step].hint if step in LABELS else "There is no such step."
    assert str(hint) in unescape(said[0])
    by_htmx = client.post("/", {"step": step}, headers={"HX-Request": "true"})
    assert by_htmx.status_code == 200
    assert str(hint) in unescape(by_htmx.content.decode())
    assert stage.story is None


def test_other_methods_are_refused(client: Client) -> None:
    assert client.put("/").status_code == 405
    assert client.post("/state/").status_code == 405
    assert client.head("/").status_code == 200


def test_poll_sends_what_has_changed_and_else_nothing(client: Client, stage: Stage) -> None:
    page = client.get("/").content.decode()
    seen = dict(re.findall(r'class="seen" name="([^"]+)" value="([^"]+)"', page))
    assert len(seen) == 2 + 2 * 5
    unchanged = client.get("/state/", seen)
    assert (unchanged.status_code, unchanged.content) == (204, b"")
    stage.stories[True] = told(*overtaken())
    changes = client.get("/state/", seen).content.decode()
    swapped = set(re.findall(r'<div id="([^"]+)" hx-swap-oob="innerHTML">', changes))
    assert {"verdict", "lanes-fenced", "log-fenced"} <= swapped
    assert swapped.isdisjoint(name for name in seen if name.endswith("-plain"))


def test_only_the_verdict_and_the_answer_are_announced(client: Client) -> None:
    page = client.get("/").content.decode()
    assert page.count("aria-live") == 1
    live = page[page.index('aria-live="polite"') :]
    assert live.index('id="verdict"') < live.index('id="answer"') < live.index("</div>\n  </div>")


def test_page_tells_who_was_refused_and_why(client: Client, stage: Stage) -> None:
    stage.stories[True] = story = told(*overtaken(), report("ended", "A", 5, state="FAILURE"))
    answer = client.get("/")
    page = texts(answer.content)
    assert "✕ token 33 < 34 → refused" in page
    assert "✓ 34: 10 → 5" in page
    assert "lease · token 33" in page
    assert "0 rows: the row has seen 34, and 34 < 33 is false. Refused." in page
    assert "<mark>last_token &lt; 33</mark>" in answer.content.decode()
    log = answer.content.decode().split('<ol class="log"')[1].split("</ol>")[0]
    moments = [float(moment) for moment in re.findall(r"<time>([\d.]+) s</time>", log)]
    assert moments == sorted(moments, reverse=True)
    assert len(moments) == len(story.events)
    assert timeline_url("admin", namespace(), story.resource) in unescape(answer.content.decode())


@pytest.mark.parametrize(
    ("read", "row", "said"),
    [
        ([99, 40], [96, 41], "→ 96 in stock, which somebody else has changed as well."),
        ([5, 34], [2, 41], "✓ Right: 10 - 3 - 5 = 2. 1 stale write refused."),
        ([10, 34], [7, 41], "✕ Lost update: 10 - 3 - 5 is 2, and the stock says 7."),
    ],
)
def test_only_what_the_story_itself_did_is_summed_up(
    client: Client, stage: Stage, monkeypatch: Any, read: list[int], row: list[int], said: str
) -> None:
    """The admin is one click away."""
    monkeypatch.setattr(Story, "row", row)
    stage.stories[True] = told(
        *overtaken(),
        report("granted", "A", 5.0, token=41),
        report("writes", "A", 5.1, token=41, before=read, value=row[0]),
        report("wrote", "A", 5.2, token=41, after=row, sql="UPDATE x WHERE last_token < 41"),
        report("ended", "A", 5.3, state="SUCCESS"),
    )
    assert said in texts(client.get("/").content)


def holding(stage: Stage, held: Lease) -> Story:
    """A story on the stage whose A has the lease, has read, and sleeps."""
    story = stage.stories[True] = told()
    story.sku, story.began = held.resource.partition(":")[2], time()
    for event in (
        report("sent", "A", 0),
        report("granted", "A", 0, token=held.token),
        report("waits", "A", 0, token=held.token, before=[10, 0], value=7),
    ):
        event["at"] = time()
        story.follow(event)
    story.note("stopped", pid=165)
    return story


def log_of(client: Client) -> list[str]:
    """The lines of the log of the fenced side, the newest first, without their times."""
    log = client.get("/").content.decode().split('<ol class="log"')[1].split("</ol>")[0]
    return [re.sub(r"^[\d.]+ s ", "", texts(line.encode()).strip()) for line in re.findall(r"<li>(.*?)</li>", log)]


def test_revocation_ends_the_lease_on_the_page(client: Client, stage: Stage) -> None:
    with lease("stock:revoked", ttl=60) as held:
        story = holding(stage, held)
        assert "lease runs out by itself" in str(stage.cues()["kill-a"].hint)
        assert {bar.kind for bar in picture(story, time()).bars} == {"lease A", "pause"}
        revoke("stock:revoked", "hangs since 3:14", token=held.token, by="admin (user 1)")
        assert log_of(client)[0] == (
            f"A no longer holds the lease: revoked, hangs since 3:14 (admin (user 1)) token {held.token}"
        )
        assert len(log_of(client)) == len(story.events) == 4, "it is told once"
    page = texts(client.get("/").content)
    assert f"A no longer holds the lease: revoked, hangs since 3:14 (admin (user 1)) (token {held.token})." in page
    assert "lease revoked" in page
    assert "Lease now: nobody" in page
    drawn = {bar.kind: bar for bar in picture(story, time() + 5).bars}
    assert float(drawn["belief"].width) > 10 * float(drawn["lease A"].width)
    cues = stage.cues()
    assert (cues["flush"].possible, cues["flush"].hint) == (False, "Nobody holds a lease.")
    assert cues["kill-a"].possible
    assert cues["kill-a"].hint == "SIGKILL to its process, which has the lease no more."


def test_store_that_somebody_else_empties_is_told_as_what_is_known_of_it(client: Client, stage: Stage) -> None:
    with lease("stock:forgotten", ttl=60) as held:
        story = holding(stage, held)
        client.get("/")
        lease_store.flush()
        assert log_of(client)[0] == f"A no longer holds the lease: the store has it no more token {held.token}"
        assert grants(story)[0].how == "gone"


def test_flush_has_a_line(client: Client, stage: Stage) -> None:
    with lease("stock:flushed", ttl=60) as held:
        story = holding(stage, held)
        assert client.post("/", {"step": "flush"}).status_code == 302
        assert log_of(client)[0] == "The lease store is flushed"
        assert grants(story)[0].how == "flushed"


def test_what_somebody_else_writes_has_a_line(client: Client, stage: Stage) -> None:
    with lease("stock:shared", ttl=60) as held:
        story = holding(stage, held)
    Stock.objects.create(sku="shared", quantity=10)
    with lease("stock:shared") as other:
        stock = Stock.objects.get(sku="shared")
        stock.quantity = 96
        stock.save()
    assert f"Somebody else sets the stock to 96 token {other.token}" in log_of(client)
    with lease("stock:shared"):
        Stock.objects.filter(sku="shared").update(quantity=95)
    with lease("stock:shared") as last:
        Stock.objects.get(sku="shared").delete()
    assert f"Somebody else writes the row (delete) token {last.token}" in log_of(client)
    told_of = [one for one in story.events if "Somebody else" in one.what]
    assert [one.what.partition(" else ")[2] for one in told_of] == [
        "sets the stock to 96", "writes the row (update)", "writes the row (delete)",
    ]  # fmt: skip


def test_end_that_only_follows_from_a_newer_grant_is_not_made_up() -> None:
    reports = overtaken()
    del reports[5]
    first, second = grants(told(*reports))
    assert (first.how, first.end) == ("", second.start)
    revoked = {"event": "revoked", "at": 1002.0, "task": "task-a", "token": 33, "why": "hangs (admin)"}
    first, _second = grants(told(*reports, revoked))
    assert (first.how, first.end) == ("revoked", 1002.0)


def test_no_locale_changes_a_number(client: Client, stage: Stage, settings: Any) -> None:
    settings.USE_THOUSAND_SEPARATOR = True
    settings.TIME_ZONE = "Asia/Kathmandu"
    big = 2**53 - 7
    reports = [report("sent", "A", 0), report("granted", "A", 0.5, token=big)]
    stage.stories[True] = told(*reports)
    with override("de"):
        page = client.get("/", headers={"Accept-Language": "de"}).content.decode()
    assert str(big) in page
    svg = page.split("<svg")[1].split("</svg>")[0]
    assert not re.search(r'\s(?:x|y|x1|x2|y1|y2|width|height|viewBox)="[^"]*,', svg)


def test_text_from_outside_is_escaped(client: Client, stage: Stage) -> None:
    stage.trouble = "<script>alert(1)</script>\n<b>more</b>"
    page = client.get("/").content.decode()
    assert "<script>alert" not in page
    assert "<b>more" not in page
    assert "&lt;script&gt;alert(1)" in page
    assert {step for step, cue in stage.cues().items() if cue.possible} == {"reset"}


def test_lanes_show_leases_the_pause_and_a_belief_that_is_wrong() -> None:
    drawn = picture(told(*overtaken()), 1004.3)
    bars = {bar.kind: bar for bar in drawn.bars}
    assert set(bars) == {"lease A", "lease B", "pause", "waits", "belief"}
    lease, belief, pause = bars["lease A"], bars["belief"], bars["pause"]
    assert float(lease.x) + float(lease.width) == pytest.approx(float(belief.x), abs=0.2)
    assert float(pause.x) < float(belief.x) < float(pause.x) + float(pause.width)
    assert [(mark.kind, mark.caption) for mark in drawn.marks] == [
        ("read", "read 10"), ("accepted", "✓ 34: 10 → 5"), ("refused", "✕ token 33 < 34 → refused"),
    ]  # fmt: skip
    assert len(drawn.beams) == 1


def again() -> list[dict[str, Any]]:
    """What is reported of a whole story under tokens of five digits: A writes in its second lease."""
    reports = [
        *overtaken(),
        report("granted", "A", 4.3, token=35),
        report("writes", "A", 5.2, token=35, before=[5, 34], value=2),
        report("wrote", "A", 5.3, token=35, after=[2, 35], sql="UPDATE x WHERE last_token < 35"),
        report("ended", "A", 5.4, state="SUCCESS"),
    ]
    return [{**one, **{name: 50_000 + one[name] for name in ("token", "seen") if name in one}} for one in reports]


def test_no_mark_covers_the_number_of_a_short_lease() -> None:
    """It is above the lease instead, unless the lane's name is there, as in that of B."""
    drawn = picture(told(*again()), 1006.0)
    assert [(bar.label, bar.place) for bar in drawn.bars if bar.kind.startswith("lease")] == [
        ("token 50033", "in"), ("50035", "above"), ("", "in"),
    ]  # fmt: skip
    for bar in drawn.bars:
        for mark in drawn.marks:
            near = abs(float(mark.y) - float(bar.y) - float(bar.height) / 2) < 1
            apart = abs(float(mark.x) - float(bar.middle)) >= len(bar.label) * 3 + REACH
            assert apart or not near or not bar.label or bar.place == "above", (bar, mark)


def test_lanes_keep_everything_inside_however_long_it_takes() -> None:
    for seconds in (0.5, 30, 4000, 10_000_000):
        drawn = picture(told(report("sent", "A", 0), report("granted", "A", 0.1, token=2**53 - 1)), 1000.0 + seconds)
        assert 1 < len(drawn.ticks) < 12
        for bar in drawn.bars:
            assert 0 <= float(bar.x) <= float(bar.x) + float(bar.width) <= 420


@pytest.mark.parametrize(
    ("reports", "state"),
    [
        ([], State.IDLE),
        ([report("sent", "A", 0)], State.ASKS),
        ([report("sent", "A", 0), report("ended", "A", 1, state="RETRY")], State.ASKS),
        (overtaken()[:3], State.HOLDS),
        (overtaken()[:4], State.PAUSED),
        (overtaken(), State.HOLDS),
        ([*overtaken()[:4], {"event": "killed", "pid": 165}], State.KILLED),
        ([report("sent", "A", 0), report("ended", "A", 1, state="FAILURE")], State.FAILED),
    ],
)
def test_what_a_is_at_follows_from_the_reports(reports: list[dict[str, Any]], state: State) -> None:
    assert actor(told(*reports), "A").state is state


def test_statement_is_cut_where_it_decides_and_quotes_mislead_nobody() -> None:
    sql = (
        'WITH bound AS MATERIALIZED (SELECT 1), old AS MATERIALIZED (SELECT t.last_token AS seen FROM "s" t WHERE '
        "t.\"sku\" = 'a), fenced AS (' FOR NO KEY UPDATE OF t), fenced AS (UPDATE \"s\" SET \"sku\" = 'it''s (', last_token = 7 "
        'WHERE "id" = 4 AND EXISTS (SELECT 1 FROM old WHERE old.seen < 7) RETURNING 1) SELECT old.seen FROM old'
    )
    cut = statement(sql)
    text = "".join(piece for piece, _compares in cut.pieces)
    assert [piece for piece, compares in cut.pieces if compares] == ["old.seen < 7"]
    assert "MATERIALIZED" not in text
    assert '\n  WHERE "id" = 4\n  AND EXISTS (SELECT 1 FROM old WHERE old.seen < 7)' in text
    assert "SET \"sku\" = 'it''s (', last_token = 7" in text
    assert cut.whole == sql
    plain = statement("UPDATE `s` SET `last_token` = 7 WHERE (`s`.`id` = 4 AND `s`.`last_token` < 7)")
    assert [piece for piece, compares in plain.pieces if compares] == ["`s`.`last_token` < 7"]


@pytest.mark.parametrize("act", [processes.stop, processes.wake, processes.kill])
def test_process_of_somebody_else_is_never_signalled(act: Any) -> None:
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE, start_new_session=True) as other:
        try:
            with pytest.raises(RuntimeError, match="none of the worker's"):
                act(other.pid, group=other.pid + 1)
            assert other.poll() is None
            assert not processes.is_stopped(other.pid)
        finally:
            other.send_signal(signal.SIGKILL)
    with pytest.raises(RuntimeError, match="none of the worker's"):
        act(other.pid, group=other.pid)
