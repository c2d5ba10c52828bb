"""The stage of the demo page: one worker with its processes, what is being told, and who may do what now.

There is one stage in the process that serves the page: every tab and every thread of the server sees the same.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from uuid import uuid4

from django.db import connections
from django.utils.translation import gettext as _
from redis.exceptions import RedisError

from fencing import FencingError
from inventory_demo import lease_store, witness
from inventory_demo.actors import State, actor, is_active
from inventory_demo.gate import Gate
from inventory_demo.steps import Cue, Scene, cues
from inventory_demo.story import Event, Story
from inventory_demo.worker import Worker

# Seconds that people are left to look on: before the pause and before its end, and while a holder works.
PACE, WORK = 1.2, 1.0


class RefusedStepError(Exception):
    """A step that makes no sense now; the message says why."""


class Stage:
    """See the module. Every public method may be called by any thread.

    Attributes:
        fenced: which of the two stories the buttons are about.
        stories: the newest telling of each, by whether it is fenced.
        doing: what a thread of the stage's own is at: "starts", "plays", "ends" or "".
        trouble: what went wrong with the worker, or "".
        live: the lease of the story that the buttons are about, as it was last looked at.
    """

    def __init__(self) -> None:
        self.fenced = True
        self.stories: dict[bool, Story] = {}
        self.doing = ""
        self.trouble = ""
        self.live: lease_store.Live | None = None
        self._lock = threading.RLock()
        self._thread: threading.Thread | None = None
        self._worker: Worker | None = None
        self._gate: Gate | None = None

    @property
    def story(self) -> Story | None:
        """The telling that the buttons are about."""
        return self.stories.get(self.fenced)

    def cues(self) -> dict[str, Cue]:
        """Every button by its step: whether it may be pressed now, and its hint."""
        return cues(Scene(stories=self.stories, fenced=self.fenced, doing=self.doing, broken=bool(self.trouble)))

    def take(self, step: str) -> None:
        """Take a step.

        Raises:
            RefusedStepError: there is no such step, or it makes no sense now.
        """
        steps: dict[str, Callable[[], None]] = {
            "run": self._run, "start-a": lambda: self._start("A"), "start-b": lambda: self._start("B"),
            "pause-a": self._pause, "resume-a": self._resume, "kill-a": self._kill, "flush": self._flush,
            "fencing": self._switch, "reset": self._reset,
        }  # fmt: skip
        with self._lock:
            self.look()
            if step not in steps:
                raise RefusedStepError(_("There is no such step."))
            cue = self.cues()[step]
            if not cue.possible:
                raise RefusedStepError(f"{cue.label}: {cue.hint}")
            try:
                steps[step]()
            except RuntimeError as error:  # a process that is gone by now, or none of the worker's
                raise RefusedStepError(f"{cue.label}: {error}") from error

    def look(self) -> None:
        """Follow what the worker has reported meanwhile, and look at the lease and at what others wrote."""
        with self._lock:
            try:
                if self._worker is not None and not self.doing:
                    self._follow(self._worker)
                self._look_at_lease()
                for story in self.stories.values():
                    witness.note_writes(story)
            except (RedisError, FencingError) as error:
                self.trouble = str(error)

    def close(self) -> None:
        """End the worker and clear the stage, which can be used again."""
        with self._lock:
            self._clear()
            worker, gate, self._worker, self._gate = self._worker, self._gate, None, None
            _leave(worker, gate)

    def _follow(self, worker: Worker) -> None:
        while self._gate and (report := self._gate.report_now()) is not None:
            for story in self.stories.values():
                story.follow(report)
        if worker.has_ended():
            self.trouble = self.trouble or _("The worker has ended.")

    def _look_at_lease(self) -> None:
        story = self.story
        if story is None or not story.began:
            return
        before, self.live = self.live, lease_store.live_lease(story.resource)
        witness.note_ends(story, before, self.live)

    def _run(self) -> None:
        story = self._new_story()

        def play(worker: Worker, gate: Gate) -> None:
            self._now("plays")
            story.play(worker, gate)

        self._with_worker(play)

    def _start(self, letter: str) -> None:
        story = self.story
        # A begins a telling, so that B can overtake it; B joins that of A, even if that has ended or was killed.
        begins = letter == "A" and not is_active(story)
        if story is None or begins or actor(story, letter).state is not State.IDLE:
            story = self._new_story()
        telling = story

        def send(worker: Worker, gate: Gate) -> None:
            if not telling.began:
                telling.begin()
            telling.start(letter, worker, gate)

        self._with_worker(send)

    def _pause(self) -> None:
        story, worker, gate, sleeper = self._scene()
        story.stop(sleeper, worker, gate)
        self._follow(worker)
        if not actor(story, "A").state.is_active:
            story.wake(sleeper, worker)
            raise RefusedStepError(_("A had just finished."))

    def _resume(self) -> None:
        story, worker, _gate, sleeper = self._scene()
        story.wake(sleeper, worker)

    def _kill(self) -> None:
        story, worker, _gate, sleeper = self._scene()
        story.kill(sleeper, worker)

    def _flush(self) -> None:
        lease_store.flush()
        self.live = None
        if self.story is not None:
            self.story.note("flushed")

    def _switch(self) -> None:
        """Turn to the other story; what was told to its end is replayed, so that both stand side by side."""
        told = self.story is not None
        self.fenced, self.live = not self.fenced, None
        if told and self.story is None:
            self._run()

    def _reset(self) -> None:
        busy = self.doing or self.trouble or any(map(is_active, self.stories.values()))
        self._clear()
        if busy and self._worker is not None:
            worker, gate, self._worker, self._gate = self._worker, self._gate, None, None
            self._begin("ends", lambda: _leave(worker, gate))

    def _clear(self) -> None:
        self.stories, self.fenced, self.doing, self.trouble, self.live = {}, True, "", "", None
        # What a thread still does is about a story that nobody sees any more.
        self._thread = None

    def _new_story(self) -> Story:
        story = self.stories[self.fenced] = Story(fenced=self.fenced, tell=_ignore, pace=PACE)
        self.live = None
        return story

    def _scene(self) -> tuple[Story, Worker, Gate, int]:
        """What a step needs that is about the process of A."""
        story, sleeper = self.story, actor(self.story, "A").pid
        if story is None or self._worker is None or self._gate is None or sleeper is None:
            raise RefusedStepError(_("There is no process of A."))
        return story, self._worker, self._gate, sleeper

    def _with_worker(self, work: Callable[[Worker, Gate], None]) -> None:
        """Start a worker, if there is none, and do something with it, in a thread: it takes seconds."""
        self._begin("starts", lambda: work(*self._ready()))

    def _ready(self) -> tuple[Worker, Gate]:
        """The worker and its gate. A worker that is up too late, after a reset, ends at once."""
        if self._worker is not None and self._gate is not None:
            return self._worker, self._gate
        run = f"stage-{uuid4().hex[:8]}"
        environment = {"STORY_RUN": run, "STORY_WORK": str(WORK)}
        worker, gate = Worker(run, include=["inventory_demo.story_worker"], environment=environment), Gate(run)
        worker.__enter__()
        with self._lock:
            if threading.current_thread() is self._thread:
                self._worker, self._gate = worker, gate
                return worker, gate
        _leave(worker, gate)
        raise RefusedStepError("The stage was reset meanwhile.")

    def _begin(self, doing: str, work: Callable[[], None]) -> None:
        def run() -> None:
            trouble = ""
            try:
                work()
            except Exception as error:  # shown on the page, whatever it is
                trouble = str(error)
            finally:
                connections.close_all()
                self._now("", trouble)

        self.doing = doing
        self._thread = threading.Thread(target=run, name="stage", daemon=True)
        self._thread.start()

    def _now(self, doing: str, trouble: str = "") -> None:
        """Say what this thread is at, unless the stage was reset meanwhile."""
        with self._lock:
            if threading.current_thread() is self._thread:
                self.doing, self.trouble = doing, trouble


def _leave(worker: Worker | None, gate: Gate | None) -> None:
    """End a worker, whatever its processes are at, and leave nothing of it in the store."""
    if worker is not None and gate is not None:
        gate.open()
        worker.stop()
        gate.remove()


def _ignore(event: Event) -> None:
    """The page reads the story's events when it is asked for them."""


# However this process ends, the worker does, too: see `inventory_demo.worker_main`.
stage = Stage()
