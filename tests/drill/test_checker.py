"""The checker of the drill, fed with histories: orderly ones, and broken ones of each kind."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import pytest

from fencing.drill.attempts import Attempt, Version, attempts_of, unfinished
from fencing.drill.checker import Findings, check
from fencing.drill.histories import Histories
from fencing.drill.plan import KINDS
from fencing.drill.report import as_object, stories, timeline, verdict

RESOURCE = "drill:1"


def wrote(name: str, token: int, at: float, *, read: int | None, row: int = 1, **changes: Any) -> Attempt:
    """An accepted save under a lease that was asked for at ``at``, and half a second later given back."""
    seen = version(read, at + 0.2, row=row) if read is not None else None
    one = Attempt(
        name=name, worker=name, kind="save", resource=RESOURCE, row=row, delta=1, asked=at, granted=at + 0.1,
        token=token, until=at + 1.0, sent=[at + 0.3], read=seen, seen=[seen] if seen else [], ended=at + 0.4,
        outcome="accepted", number=token, released=at + 0.5,
    )  # fmt: skip
    return replace(one, **changes)


def version(
    number: int, at: float = 0.0, *, row: int = 1, previous: int = 0, quantity: int = 0, count: int = 0
) -> Version:
    return Version(row=row, number=number, previous=previous, quantity=quantity, count=count, at=at)


def judged(*attempts: Attempt, final: Version | None = None, **more: Any) -> Findings:
    """What the checker says; the row holds what was accepted unless ``final`` is given."""
    if final is None:
        accepted = [one for one in attempts if one.accepted and one.row == 1]
        last = max((one.number for one in accepted), default=0)
        final = version(last, quantity=sum(one.delta for one in accepted), count=len(accepted), previous=-1)
    return check(Histories(attempts=attempts, final=[final], history=more.pop("history", {}), **more))


def kinds(findings: Findings) -> list[str]:
    return [one.kind for one in findings.violations]


# The story of the README: the first sleeps, the second overtakes, the first wakes up.
SLEEPER = wrote("sleeper", 33, 0.0, read=5, until=1.0, sent=[3.0], ended=3.1, released=3.2)
NEWER = wrote("newer", 34, 1.5, read=5)
REFUSED = replace(SLEEPER, outcome="stale", number=0)


def test_orderly_history_has_no_violations() -> None:
    findings = judged(wrote("a", 1, 0.0, read=0), wrote("b", 2, 1.0, read=1), wrote("c", 3, 2.0, read=2))
    assert not findings.violations
    assert (findings.operations, findings.accepted, findings.attempted) == (3, 3, 0)
    assert findings.longest_wait == pytest.approx(0.1)


def test_stale_write_that_is_refused_counts_as_attempted_and_refused() -> None:
    findings = judged(REFUSED, NEWER)
    assert not findings.violations
    assert (findings.attempted, findings.refused, findings.operations) == (1, 1, 2)
    assert verdict(findings, fenced=True)[0]


def test_no_stale_write_is_inconclusive() -> None:
    passed, line = verdict(judged(wrote("a", 1, 0.0, read=0)), fenced=True)
    assert not passed and line.startswith("INCONCLUSIVE")


def test_stale_write_that_is_accepted_is_a_violation_and_a_lost_update() -> None:
    findings = judged(SLEEPER, NEWER, final=version(33, quantity=1, count=1))
    assert kinds(findings) == ["wrongly accepted", "lost update"]
    assert findings.attempted == 1 and findings.refused == 0
    assert not verdict(findings, fenced=True)[0]


def test_sleeper_whom_nobody_overtook_is_in_order() -> None:
    assert not judged(replace(SLEEPER, ended=3.1)).violations
    assert judged(SLEEPER).attempted == 0


def test_write_that_may_have_been_at_the_same_time_is_let_pass() -> None:
    assert not judged(
        replace(SLEEPER, sent=[1.85], ended=1.95, read=version(34, 1.0)), replace(NEWER, read=version(5))
    ).count("wrongly accepted")


def test_newer_holder_who_only_began_has_superseded_the_resource() -> None:
    begun = replace(NEWER, kind="once", outcome="failed", number=0, begun=1.9, sent=[1.7], row=2)
    assert kinds(judged(replace(SLEEPER, row=1), begun)) == ["wrongly accepted"]
    assert not judged(REFUSED, begun).violations


def test_raw_write_is_judged_by_its_row_alone() -> None:
    raw = replace(SLEEPER, kind="raw", read=None)
    elsewhere = replace(NEWER, row=2)
    assert not judged(raw, elsewhere).violations
    assert "wrongly accepted" in kinds(judged(raw, NEWER))
    assert judged(replace(raw, outcome="guard", number=0), NEWER).refused == 1
    assert kinds(judged(replace(raw, outcome="guard", number=0), elsewhere)) == ["wrongly refused"]


@pytest.mark.parametrize("outcome", ["stale", "stale-read", "guard", "duplicate", "lost"])
def test_refusal_without_a_reason_is_a_violation(outcome: str) -> None:
    alone = wrote("a", 2, 1.0, read=1, outcome=outcome, number=0, key="k", kind="raw" if outcome == "guard" else "save")
    before = wrote("before", 1, 0.0, read=0)
    assert kinds(judged(before, alone)) == ["wrongly refused"]


def test_refusals_with_a_reason_are_none() -> None:
    late = wrote("late", 1, 0.0, read=0, sent=[1.25], ended=1.28)
    assert not judged(late, wrote("a", 2, 1.0, read=0, outcome="stale-read", number=0)).violations
    first = wrote("first", 1, 0.0, read=0, key="k")
    assert not judged(first, wrote("again", 2, 1.0, read=1, outcome="duplicate", number=0, key="k")).violations
    slow = wrote("slow", 1, 0.0, read=0, outcome="lost", number=0, ended=0.6)
    assert not judged(slow, ttl=0.5).violations
    forgotten = wrote("forgotten", 1, 0.0, read=0, outcome="lost", number=0)
    assert kinds(judged(forgotten, ttl=9)) == ["wrongly refused"]
    assert not judged(forgotten, ttl=9, forgets=[(0.2, 0.25)]).violations


def test_tokens_that_do_not_rise_are_a_violation() -> None:
    findings = judged(wrote("a", 2, 0.0, read=0), wrote("b", 1, 1.0, read=2))
    assert kinds(findings) == ["wrongly accepted", "out of order", "out of order"], "the grant, and the write"
    elsewhere = wrote("b", 1, 1.0, read=0, row=2, resource="drill:2")
    assert not judged(wrote("a", 2, 0.0, read=0), elsewhere).violations, "each resource counts for itself"


def test_token_that_is_granted_twice_is_a_violation() -> None:
    elsewhere = wrote("b", 7, 0.0, read=0, row=2, resource="drill:2")
    assert kinds(judged(wrote("a", 7, 0.0, read=0), elsewhere)) == ["out of order"]


def test_two_writes_of_one_version_are_a_lost_update() -> None:
    findings = judged(
        wrote("a", 1, 0.0, read=0), wrote("b", 2, 1.0, read=0), final=version(2, quantity=1, count=1, previous=0)
    )
    assert kinds(findings) == ["lost update"]


def test_write_from_the_row_as_it_is_takes_its_place_in_the_chain() -> None:
    update = wrote("update", 2, 1.0, read=None, kind="update", seen=[version(2, 1.45, previous=1, count=2)])
    first = wrote("first", 1, 0.0, read=0)
    after = version(2, 2.2, previous=1, count=2)
    assert not judged(first, update, wrote("c", 3, 2.0, read=2, seen=[after])).violations
    late = wrote("c", 3, 2.0, read=1)
    assert kinds(judged(first, update, late, final=version(3, quantity=2, count=2))) == ["lost update"]


def test_row_that_is_not_the_sum_of_what_was_accepted_is_a_lost_update() -> None:
    attempts = (wrote("a", 1, 0.0, read=0), wrote("b", 2, 1.0, read=1))
    for quantity, count in ((1, 2), (2, 3), (1, 1)):
        assert kinds(judged(*attempts, final=version(2, quantity=quantity, count=count))) == ["lost update"]


def test_operation_with_two_effects_is_a_duplicate() -> None:
    findings = judged(
        wrote("a", 1, 0.0, read=0, key="k", kind="once"), wrote("b", 2, 1.0, read=1, key="k", kind="once")
    )
    assert kinds(findings) == ["duplicate"]


def test_grant_while_somebody_holds_is_a_violation() -> None:
    slow = wrote("slow", 1, 0.0, read=0, until=2.0, released=math.inf, sent=[], outcome="", ended=math.inf)
    other = wrote("other", 2, 0.5, read=0)
    assert kinds(judged(slow, other)) == ["two holders"]
    assert not judged(replace(slow, until=0.55), other).violations, "its time was over"
    assert not judged(replace(slow, released=0.55), other).violations, "it had given it back"
    assert not judged(slow, other, forgets=[(0.4, 0.5)]).violations, "the store had forgotten"


def test_refusal_of_another_kind_is_a_violation() -> None:
    assert kinds(judged(replace(SLEEPER, outcome="odd", number=0, error="IntegrityError"), NEWER)) == ["odd"]


# --- processes that were killed


def killed(**changes: Any) -> Attempt:
    """A save whose process died after it was sent."""
    return wrote(
        "killed", 1, 0.0, read=0, outcome="", number=0, ended=math.inf, released=math.inf, until=0.5, **changes
    )


def test_history_tells_what_a_killed_process_did() -> None:
    findings = judged(killed(), final=version(1, quantity=1, count=1), history={1: ("accepted", 1)})
    assert not findings.violations and findings.accepted == 1
    findings = judged(killed(), wrote("b", 2, 1.0, read=0), history={1: ("stale", 1)})
    assert kinds(findings) == [], "somebody newer may have come: nobody knows when it was refused"


def test_row_tells_what_a_killed_process_did() -> None:
    row = version(2, quantity=2, count=2, previous=1)
    findings = judged(killed(kind="raw"), wrote("b", 2, 1.0, read=None, kind="update"), final=row)
    assert not findings.violations and findings.accepted == 2
    findings = judged(killed(kind="raw"), wrote("b", 2, 1.0, read=None, kind="update"))
    assert not findings.violations and findings.accepted == 1


def test_nobody_made_what_cannot_be_from_a_killed_process() -> None:
    row = version(9, quantity=3, count=3, previous=8)
    assert kinds(judged(killed(kind="raw"), wrote("b", 2, 1.0, read=None, kind="update"), final=row)) == ["lost update"]


# --- from the journals to the report


def story() -> list[dict[str, Any]]:
    ask = {"key": "", "kind": "save", "resource": RESOURCE, "row": 1, "delta": -3}
    read = {"version": 5, "previous": 4, "quantity": 10, "count": 2}
    told: list[tuple[float, str, str, dict[str, Any]]] = [
        (0.0, "asks", "a", ask), (0.1, "granted", "a", {"token": 33, "until": 0.6}), (0.2, "reads", "a", read),
        (0.2, "stops", "a", {"where": "read"}), (0.3, "asks", "b", ask),
        (0.7, "granted", "b", {"token": 34, "until": 1.2}), (0.8, "reads", "b", read),
        (0.9, "sends", "b", {"step": "write"}), (1.0, "accepted", "b", {"number": 34}), (1.1, "releases", "b", {}),
        (1.2, "wakes", "a", {}), (1.3, "sends", "a", {"step": "write"}), (1.4, "accepted", "a", {"number": 33}),
        (1.5, "releases", "a", {}),
    ]  # fmt: skip
    return [{"at": at, "what": what, "worker": name, "attempt": name, **more} for at, what, name, more in told]


def test_violation_is_told_as_a_timeline() -> None:
    findings = check(Histories(attempts=attempts_of(story()), final=[version(33, quantity=7, count=3)], history={}))
    wrong = findings.violations[0]
    assert wrong.kind == "wrongly accepted"
    told = [(step["worker"], step["what"]) for step in timeline(wrong, 0.0)]
    assert told == [(event["worker"], event["what"]) for event in story()]
    text = "\n".join(stories(findings, 0.0, seed=7))
    assert "seed 7" in text and "token=34" in text and "quantity=10" in text
    shown = as_object(findings, 0.0)
    assert list(shown) == [
        "attempted", "refused", "wrongly_accepted", "wrongly_refused", "out_of_order", "lost_updates", "duplicates",
        "longest_wait", "operations", "violations",
    ]  # fmt: skip
    assert shown["wrongly_accepted"] == shown["lost_updates"] == 1
    assert shown["violations"][0]["timeline"][0] == {
        "at": 0.0, "worker": "a", "what": "asks", "attempt": "a", "kind": "save", "resource": RESOURCE, "row": 1,
        "delta": -3,
    }  # fmt: skip


def test_operation_of_a_killed_process_is_to_be_sent_again() -> None:
    events = story()[:4]
    assert unfinished(events) is None, "it has no key"
    events[0]["key"] = "k"
    job = unfinished(events)
    assert job is not None
    assert (job.key, job.resource, job.row, job.delta, job.again, job.fault) == ("k", RESOURCE, 1, -3, True, None)
    assert unfinished([*events, {"at": 1.0, "what": "stale", "worker": "a", "attempt": "a", "error": ""}]) is None
    assert unfinished([]) is None


# --- what is on record


def test_what_a_process_was_told_must_be_on_record() -> None:
    recorded = ("accepted", "stale", "stale-read")
    on_record = {33: ("stale", 33), 34: ("accepted", 34)}
    assert kinds(judged(REFUSED, NEWER, history=on_record, recorded=recorded)) == []
    for token, (name, *_) in {33: ["sleeper"], 34: ["newer"]}.items():
        left_out = {one: line for one, line in on_record.items() if one != token}
        (found,) = judged(REFUSED, NEWER, history=left_out, recorded=recorded).violations
        assert (found.kind, [one.name for one in found.attempts]) == ("not on record", [name])
    lied = {**on_record, 34: ("stale", 34)}
    assert kinds(judged(REFUSED, NEWER, history=lied, recorded=recorded)) == ["not on record"]
    assert kinds(judged(REFUSED, NEWER, history={34: ("accepted", 34)}, recorded=("accepted",))) == []
    raw = replace(NEWER, kind="raw")
    assert kinds(judged(replace(REFUSED, kind="raw", outcome="guard"), raw, recorded=recorded)) == []


def test_ways_that_were_not_tried_are_named() -> None:
    passed, line = verdict(judged(REFUSED, NEWER), fenced=True)
    assert passed
    assert line.endswith(
        " None of them was by save() of F() or QuerySet.update() or lease.atomic() or raw SQL; "
        "give it more --seconds to try that, too."
    )
    every = [replace(REFUSED, name=kind, token=number, kind=kind) for number, kind in enumerate(KINDS, 28)]
    assert verdict(judged(*every, NEWER), fenced=True)[1].endswith("the database refused every one of them.")
