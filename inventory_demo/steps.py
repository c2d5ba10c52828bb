"""The buttons of the demo page: which of them make sense now, and a line for each that says what it does, or why not."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.utils.translation import gettext_lazy as _

from inventory_demo.actors import Actor, Grant, State, actor, grants
from inventory_demo.story import Story

Text = Any  # a text that is translated when it is shown


@dataclass(frozen=True, slots=True, kw_only=True)
class Cue:
    """A button: its label, whether it may be pressed, and its hint."""

    label: Text
    possible: bool
    hint: Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Scene:
    """What the buttons depend on.

    Attributes:
        stories: the tellings, by whether they are fenced.
        fenced: which of them the buttons are about.
        doing: what the stage is at by itself: "starts", "plays", "ends" or "".
        broken: whether the worker is gone, or something else went wrong, so that only a reset helps.
    """

    stories: Mapping[bool, Story]
    fenced: bool
    doing: str
    broken: bool

    @property
    def story(self) -> Story | None:
        """The telling that the buttons are about."""
        return self.stories.get(self.fenced)

    @property
    def a(self) -> Actor:
        """The sleeper."""
        return actor(self.story, "A")

    @property
    def b(self) -> Actor:
        """Who overtakes it."""
        return actor(self.story, "B")

    @property
    def is_active(self) -> bool:
        """Whether A or B is at work."""
        return self.a.state.is_active or self.b.state.is_active

    @property
    def has_lease(self) -> bool:
        """Whether somebody holds the lease, as far as the stage has seen."""
        return bool(self._live)

    @property
    def a_has_lease(self) -> bool:
        """The same of A: it does not notice at once that it has it no more."""
        return any(grant.letter == "A" for grant in self._live)

    @property
    def _live(self) -> list[Grant]:
        return [grant for grant in grants(self.story) if grant.end is None] if self.story else []


LABELS: dict[str, Text] = {
    "run": _("Run the story"),
    "start-a": _("Start A"),
    "pause-a": _("Pause A"),
    "start-b": _("Start B"),
    "resume-a": _("Resume A"),
    "kill-a": _("Kill A"),
    "flush": _("Flush the lease store"),
    "fencing": _("Fencing"),
    "reset": _("Reset"),
}


def cues(scene: Scene) -> dict[str, Cue]:
    """Every button by its step."""
    return {
        step: Cue(label=label, possible=possible, hint=hint)
        for step, label in LABELS.items()
        for possible, hint in [_judge(step, scene)]
    }


def _judge(step: str, scene: Scene) -> tuple[bool, Text]:
    if scene.doing == "ends":
        return False, _("The worker is being stopped: a moment.")
    if step == "reset":
        return _reset(scene)
    if scene.doing:
        return False, _("The worker is starting.") if scene.doing == "starts" else _("The story is playing.")
    if scene.broken:
        return False, _("Something went wrong: reset first.")
    match step:
        case "run":
            return _not_at_work(scene, _("Plays all of it with a real worker, which takes some ten seconds."))
        case "fencing":
            return _not_at_work(
                scene,
                _("Off: the same lease and a plain model. Replays the story beside this one.")
                if scene.fenced
                else _("On: the fenced model."),
            )
        case "start-a" | "start-b":
            return _start(scene, step[-1].upper())
        case "flush":
            done = scene.has_lease, _("The store forgets leases and counters; tokens go on above.")
            return done if scene.has_lease else (False, _("Nobody holds a lease."))
        case _:
            return _act_on_a(step, scene)


def _reset(scene: Scene) -> tuple[bool, Text]:
    if scene.stories or scene.doing or scene.broken:
        return True, _("Ends what is going on and clears the stage.")
    return False, _("There is nothing to clear.")


def _not_at_work(scene: Scene, hint: Text) -> tuple[bool, Text]:
    return (False, _("A or B is still at work.")) if scene.is_active else (True, hint)


def _start(scene: Scene, letter: str) -> tuple[bool, Text]:
    own = scene.a if letter == "A" else scene.b
    if own.state.is_active:
        return False, _("It is at work.")
    if own.state is not State.IDLE and scene.is_active:
        return False, _("It had its turn; the other is still at work.")
    if letter == "A":
        return True, _("Sends a task that takes 3; it stays between read and write for up to 30 s.")
    return True, _("Sends a task that takes 5; it needs the same lease.")


def _act_on_a(step: str, scene: Scene) -> tuple[bool, Text]:
    state = scene.a.state
    if step == "resume-a":
        if state is State.PAUSED:
            return True, _("SIGCONT: it goes straight on to its write.")
        return False, _("A is not paused.")
    if state is not State.HOLDS and not (step == "kill-a" and state is State.PAUSED):
        return False, _("A is paused already.") if state is State.PAUSED else _("A holds no lease.")
    if not scene.a_has_lease:
        signal = "SIGKILL" if step == "kill-a" else "SIGSTOP"
        return True, _("%(signal)s to its process, which has the lease no more.") % {"signal": signal}
    if step == "kill-a":
        return True, _("SIGKILL to its process; the lease runs out by itself.")
    return True, _("SIGSTOP to its process: its heartbeat stops as well.")
