"""The demo page plays: with a real worker whose processes are really stopped, by POST and by polling."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from html import unescape
from http.cookiejar import CookieJar
from pathlib import Path
from typing import Any
from urllib.parse import urlencode
from urllib.request import HTTPCookieProcessor, OpenerDirector, build_opener

import pytest
from django.contrib.auth.models import User
from django.db import connection
from django.test import Client
from django.urls import reverse
from django_redis import get_redis_connection

from fencing.admin.links import revoke_url
from fencing.models import FencedWrite
from inventory_demo import lease_store, processes
from inventory_demo.actors import State, actor, grants, is_active
from inventory_demo.alone import alone
from inventory_demo.models import Stock
from inventory_demo.server_addresses import CHECKOUT
from inventory_demo.stage import RefusedStepError, Stage
from inventory_demo.stage import stage as the_stage
from inventory_demo.story import EXPECTED, INITIAL, Story
from tests.admin.pages import form_of
from tests.celery.conftest import transactional_db  # noqa: F401  (of the whole module: one worker plays all of it)
from tests.concurrency import threads, wait_until
from tests.services import missing

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("transactional_db")]

# Seconds for a whole story, or for the start of a worker, on a machine that does other things, too.
LONG = 90.0
# What A would write.
SEVEN = INITIAL - 3


@pytest.fixture(scope="module", autouse=True)
def stopped_afterwards(transactional_db: None) -> Iterator[None]:  # noqa: F811
    """End the worker before the database goes."""
    yield
    the_stage.close()


@pytest.fixture
def stage(settings: Any) -> Iterator[Stage]:
    """An empty stage; its worker goes on to the next test, if nothing is going on."""
    settings.DEBUG = True
    yield the_stage
    if "reset" in {step for step, cue in the_stage.cues().items() if cue.possible}:
        the_stage.take("reset")
    wait_until(lambda: not the_stage.doing, "the stage is cleared", LONG)


@pytest.fixture
def client() -> Client:
    return Client()


def press(client: Client, step: str) -> None:
    """Press a button, and see that it was not refused."""
    answer = client.post("/", {"step": step}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    assert 'class="answer"' not in answer.content.decode()


def refused(client: Client, step: str) -> str:
    """Press a button, and return why it was refused."""
    answer = client.post("/", {"step": step}, headers={"HX-Request": "true"})
    assert answer.status_code == 200
    found = re.search(r'class="answer">([^<]+)<', answer.content.decode())
    assert found
    return unescape(found[1])


def poll_until(client: Client, condition: Any, what: str) -> None:
    """Poll as the browser does until something holds."""

    def polled() -> Any:
        assert client.get("/state/").status_code == 200
        return condition()

    wait_until(polled, what, LONG)


def is_told(stage: Stage) -> bool:
    return not stage.doing and stage.story is not None and not is_active(stage.story)


def at(stage: Stage, letter: str, state: State) -> Any:
    return lambda: actor(stage.story, letter).state is state


def told(stage: Stage, event: str) -> bool:
    return stage.story is not None and any(report["event"] == event for report in stage.story.reports)


def sleeper_of(stage: Stage) -> int:
    pid = actor(stage.story, "A").pid
    assert pid is not None
    return pid


def start_a(client: Client, stage: Stage) -> Story:
    """A has read, and waits at the gate, with a heartbeat that keeps its lease."""
    press(client, "start-a")
    poll_until(client, lambda: told(stage, "waits"), "A waits at the gate")
    assert stage.story is not None
    return stage.story


def start_and_pause(client: Client, stage: Stage) -> Story:
    """A has read, and is stopped."""
    story = start_a(client, stage)
    press(client, "pause-a")
    assert processes.is_stopped(sleeper_of(stage))
    return story


def overtake(client: Client, stage: Stage) -> None:
    press(client, "start-b")
    poll_until(client, at(stage, "B", State.DONE), "B has written")


def test_story_runs_by_one_click_and_the_switch_shows_the_lost_update_beside_it(client: Client, stage: Stage) -> None:
    press(client, "run")
    poll_until(client, lambda: is_told(stage), "the story is told")
    assert stage.trouble == ""
    fenced = stage.stories[True]
    old, newer, again = fenced.tokens
    page = client.get("/").content.decode()
    assert f"✕ token {old} &lt; {newer} → refused" in page
    assert f"Right: 10 - 3 - 5 = {EXPECTED}. 1 stale write refused." in page
    assert fenced.row == [EXPECTED, again]
    assert [*FencedWrite.objects.filter(resource=fenced.resource, outcome="stale").values_list("token", "seen")] == [
        (old, newer)
    ]
    # The statement is the one that was sent: with the number of this very grant.
    assert re.search(rf"<mark>[^<]*&lt; {old}</mark>", page)
    assert f"last_token = {old}" in page
    assert fenced.pause is not None
    assert fenced.pause.state == "T"

    press(client, "fencing")
    poll_until(client, lambda: is_told(stage), "the story without a fence is told")
    assert stage.trouble == ""
    plain = stage.stories[False]
    assert (plain.final, fenced.final) == (SEVEN, EXPECTED)
    page = unescape(client.get("/").content.decode())
    assert f"Lost update: 10 - 3 - 5 is {EXPECTED}, and the stock says {SEVEN}." in page
    assert f"✕ token {old} < {newer} → refused" in page
    assert "⚠ 5 → 7, lost update" in page
    assert 'UPDATE "inventory_demo_plainstock"' in page
    assert "last_token" not in page.split('id="sql-plain"')[1].split("</pre>")[0]


def test_story_by_hand(client: Client, stage: Stage) -> None:
    assert refused(client, "pause-a") == "Pause A: A holds no lease."
    story = start_and_pause(client, stage)
    assert refused(client, "pause-a") == "Pause A: A is paused already."
    assert refused(client, "start-a") == "Start A: It is at work."
    assert refused(client, "run") == "Run the story: A or B is still at work."
    assert refused(client, "fencing") == "Fencing: A or B is still at work."
    poll_until(client, lambda: grants(story)[0].end is not None, "the lease runs out, and the page sees it")
    assert grants(story)[0].how == "expired"
    overtake(client, stage)
    assert processes.is_stopped(sleeper_of(stage))
    press(client, "resume-a")
    poll_until(client, lambda: is_told(stage), "A has ended")
    assert story.row[0] == EXPECTED
    assert [write["outcome"] for write in story.writes] == ["accepted", "stale", "accepted"]
    assert refused(client, "resume-a") == "Resume A: A is not paused."
    # A new telling has a stock of its own.
    press(client, "start-b")
    poll_until(client, at(stage, "B", State.DONE), "B has written")
    assert stage.story is not story
    assert stage.story is not None
    assert stage.story.final == INITIAL - 5
    # A begins one, too: else B could not overtake it.
    press(client, "start-a")
    poll_until(client, at(stage, "A", State.HOLDS), "A holds the lease")
    assert stage.cues()["start-b"].possible


def test_killed_process_writes_nothing_and_the_next_one_goes_on(client: Client, stage: Stage) -> None:
    story = start_and_pause(client, stage)
    sleeper = sleeper_of(stage)
    press(client, "kill-a")
    wait_until(lambda: not Path(f"/proc/{sleeper}").exists(), "the process is gone")
    assert refused(client, "resume-a") == "Resume A: A is not paused."
    # Nobody else takes it meanwhile, and nobody is left who could tell.
    poll_until(client, lambda: grants(story)[0].how == "expired", "the lease runs out, and the page sees it")
    overtake(client, stage)
    assert story.final == INITIAL - 5
    assert stage.trouble == ""
    page = client.get("/").content.decode()
    assert "✕ killed (SIGKILL)" in page
    assert "Right: 10 - 5 = 5." in page


def test_store_that_forgets_issues_higher_tokens_and_the_sleeper_is_refused(client: Client, stage: Stage) -> None:
    story = start_a(client, stage)
    press(client, "flush")
    assert lease_store.live_lease(story.resource) is None
    assert refused(client, "flush") == "Flush the lease store: Nobody holds a lease."
    press(client, "pause-a")
    overtake(client, stage)
    first, second = story.tokens
    assert second > first
    press(client, "resume-a")
    poll_until(client, lambda: is_told(stage), "A has ended")
    assert story.final == EXPECTED
    assert [write["outcome"] for write in story.writes] == ["accepted", "stale", "accepted"]
    assert "store flushed" in client.get("/").content.decode()


def test_what_an_operator_does_in_the_admin_shows_on_the_page(client: Client, stage: Stage) -> None:
    # Not pytest-django's: that would put the test into a transaction, which the worker cannot see.
    admin_user = User.objects.create_superuser("operator")
    operator = Client()
    operator.force_login(admin_user)
    story = start_a(client, stage)
    [token] = story.tokens
    given = {"token": token, "reason": "hangs since 3:14"}
    assert operator.post(revoke_url("admin", "default", story.resource), given).status_code == 302
    poll_until(client, lambda: told(stage, "revoked"), "the page tells of the revocation")
    assert grants(story)[0].how == "revoked"
    assert not stage.cues()["flush"].possible
    poll_until(client, lambda: told(stage, "lost"), "A's heartbeat has noticed")
    press(client, "pause-a")
    overtake(client, stage)
    press(client, "kill-a")
    stock = Stock.objects.get(sku=story.sku)
    form = reverse("admin:inventory_demo_stock_change", args=[stock.pk])
    changed = form_of(operator.get(form)) | {"quantity": "96"}
    assert operator.post(form, changed).status_code == 302
    poll_until(client, lambda: told(stage, "changed"), "the page tells of the change")
    lines = [event.what for event in story.events]
    assert f"no longer holds the lease: revoked, hangs since 3:14 (operator (user {admin_user.pk}))" in lines
    assert "(heartbeat) finds that its lease is lost: the store refused to renew it" in lines
    assert lines[-1] == "Somebody else sets the stock to 96"
    assert len(lines) == len({(event.process, event.what) for event in story.events}), "nothing is told twice"


def test_flush_takes_nothing_of_other_namespaces(client: Client, stage: Stage) -> None:
    store = get_redis_connection("leases")
    key = b":fencing:{of somebody else:0}:counter"
    store.set(key, "1", ex=300)
    start_a(client, stage)
    press(client, "flush")
    assert store.delete(key) == 1


def test_reset_in_the_middle_ends_the_worker_and_clears_the_stage(client: Client, stage: Stage) -> None:
    start_and_pause(client, stage)
    sleeper = sleeper_of(stage)
    press(client, "reset")
    assert stage.stories == {}
    poll_until(client, lambda: not stage.doing, "the worker has ended")
    assert not Path(f"/proc/{sleeper}").exists()
    assert "Nothing has happened yet." in client.get("/").content.decode()
    press(client, "run")
    poll_until(client, lambda: stage.doing == "plays", "it plays again")
    assert refused(client, "pause-a") == "Pause A: The story is playing."
    press(client, "reset")
    poll_until(client, lambda: not stage.doing, "the worker has ended")
    assert stage.stories == {}
    assert stage.trouble == ""


def test_of_two_clicks_at_once_one_is_refused(stage: Stage) -> None:
    def click() -> str:
        try:
            stage.take("run")
        except RefusedStepError as error:
            return str(error)
        return ""

    with threads() as start:
        answers = [future.result() for future in [start(click) for _ in range(8)]]
    assert answers.count("") == 1
    hints = {answer for answer in answers if answer}
    # A worker that is left of an earlier test need not be started.
    assert hints <= {"Run the story: The worker is starting.", "Run the story: The story is playing."}


def test_a_process_that_is_not_the_workers_is_not_touched(client: Client, stage: Stage) -> None:
    """A report may name any process: the number may be somebody else's by now."""
    # The last report for now: each names A's process.
    start_a(client, stage)
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as other:
        assert stage.story is not None
        stage.story.note("continued", pid=other.pid)
        for step in ("pause-a", "kill-a"):
            assert f"Process {other.pid} is none of the worker's." in refused(client, step)
        stage.story.note("stopped", pid=other.pid)
        assert "none of the worker's" in refused(client, "resume-a")
        assert other.poll() is None
        assert not processes.is_stopped(other.pid)
        other.kill()


def test_worker_that_somebody_else_ends_is_told_and_reset_helps(client: Client, stage: Stage) -> None:
    press(client, "start-a")
    poll_until(client, at(stage, "A", State.HOLDS), "A holds the lease")
    assert stage._worker is not None
    stage._worker.kill()
    poll_until(client, lambda: stage.trouble, "the page notices")
    assert "The worker has ended." in client.get("/").content.decode()
    assert refused(client, "start-b") == "Start B: Something went wrong: reset first."
    press(client, "reset")
    poll_until(client, lambda: not stage.doing, "the stage is cleared")
    press(client, "start-b")
    poll_until(client, at(stage, "B", State.DONE), "a new worker plays")


def test_without_javascript_the_page_is_played_by_reload(client: Client, stage: Stage) -> None:
    assert client.post("/", {"step": "start-b"}, follow=True).redirect_chain == [("/", 302)]
    wait_until(lambda: "Right: 10 - 5 = 5." in client.get("/").content.decode(), "the page shows B's end", LONG)
    assert ": 10 → 5" in client.get("/").content.decode()


def is_process(pid: int) -> bool:
    """Whether the process exists and is no zombie."""
    return bool(processes.thread_states(pid).strip("Z"))


def test_who_prepares_the_database_keeps_others_waiting() -> None:
    if connection.vendor != "postgresql":
        missing("PostgreSQL, whose locks keep one out")
    order: list[str] = []

    def second() -> None:
        with alone(order.append):
            order.append("second")

    with threads() as start:
        with alone(order.append):
            other = start(second)
            wait_until(lambda: order, "the second is told to wait")
            order.append("first")
        other.result(timeout=20)
    assert order == ["Another command is preparing the database: waiting for it.", "first", "second"]


@pytest.fixture
def on_an_empty_database() -> Iterator[dict[str, str]]:
    """The environment of a process whose database has no tables yet."""
    if connection.vendor != "postgresql":
        missing("PostgreSQL, whose locks keep one out")
    name = f"{connection.settings_dict['NAME']}_empty"
    with connection.cursor() as cursor:
        cursor.execute(f'CREATE DATABASE "{name}"')
    yield {**os.environ, "DJANGO_SETTINGS_MODULE": "tests.settings", "FENCING_TEST_DATABASE": name}
    with connection.cursor() as cursor:
        cursor.execute(f'DROP DATABASE "{name}" WITH (FORCE)')


def test_two_servers_at_once_prepare_an_empty_database_one_after_the_other(
    on_an_empty_database: dict[str, str],
) -> None:
    with ExitStack() as stack:
        servers = [
            stack.enter_context(
                subprocess.Popen(
                    [sys.executable, "-u", "manage.py", "serve"],
                    cwd=CHECKOUT,
                    env=on_an_empty_database,
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            for _ in range(2)
        ]
        for server in servers:
            stack.callback(server.kill)
        said = [until_it_serves(server) for server in servers]
    assert not [lines for lines in said if "The story:" not in lines], said


def test_fencing_commands_work_before_anything_else_was_run(on_an_empty_database: dict[str, str]) -> None:
    if "DATABASE_URL" in os.environ:
        missing("the database of the example project, which is the only one to be migrated unasked")
    for arguments, expected in ((["leases"], "Nobody holds a lease."), (["history", "--json"], '"grants": []')):
        command = [sys.executable, "manage.py", "fencing", *arguments]
        done = subprocess.run(
            command, cwd=CHECKOUT, env=on_an_empty_database, capture_output=True, text=True, check=False
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert expected in done.stdout


def until_it_serves(server: subprocess.Popen[str]) -> str:
    """What a server says until it tells its address, or ends."""
    assert server.stdout is not None
    lines = []
    for line in server.stdout:
        lines.append(line)
        if "The story:" in line:
            break
    return "".join(lines)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_however_the_server_ends_it_leaves_no_worker_behind(number: signal.Signals) -> None:
    if not Path("/proc/self").exists():
        missing("procfs")
    with subprocess.Popen(
        [sys.executable, "-u", "manage.py", "serve"],
        cwd=CHECKOUT,
        env={**os.environ, "DJANGO_SETTINGS_MODULE": "inventory_demo.settings"},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as server:
        assert server.stdout is not None
        try:
            address = next(line.split()[-1] for line in server.stdout if "The story:" in line)
            browser = build_opener(HTTPCookieProcessor(CookieJar()))
            wait_until(lambda: answers(browser, address), "the server answers", LONG)
            page = browser.open(address).read().decode()
            token = re.search(r'name="csrfmiddlewaretoken" value="([^"]+)"', page)
            assert token
            browser.open(address, urlencode({"step": "start-a", "csrfmiddlewaretoken": token[1]}).encode())
            wait_until(lambda: pids(browser, address), "A is there", LONG)
            [sleeper] = pids(browser, address)
            assert is_process(sleeper)
            server.send_signal(number)
            said = server.stdout.read()
        finally:
            server.kill()
    assert "Traceback" not in said
    wait_until(lambda: not is_process(sleeper), "the process of A is gone")


def answers(browser: OpenerDirector, address: str) -> bool:
    try:
        browser.open(address, timeout=10)
    except OSError:
        return False
    return True


def pids(browser: OpenerDirector, address: str) -> list[int]:
    """The processes that the page names."""
    return [int(pid) for pid in re.findall(r"Worker A · process (\d+)", browser.open(address).read().decode())]
