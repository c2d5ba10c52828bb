"""A sleeping worker is overtaken, woken up, and refused by the database."""

from __future__ import annotations

import json
from argparse import ArgumentParser
from typing import Any
from uuid import uuid4

from django.core.management import call_command
from django.core.management.base import BaseCommand, CommandError

from inventory_demo.alone import alone
from inventory_demo.gate import Gate, GateError
from inventory_demo.story import Story
from inventory_demo.story_report import as_object, console_for, line, problems, table
from inventory_demo.worker import Worker, WorkerError


class Command(BaseCommand):
    """Play the story with a real Celery worker: without a fence, and with one."""

    help = (
        "Stop a real Celery worker between read and write, let another overtake it, wake it up: unfenced, and fenced."
    )

    def add_arguments(self, parser: ArgumentParser) -> None:
        """Add --json."""
        parser.add_argument("--json", action="store_true", help="print one object on stdout, and progress on stderr")

    def handle(self, *args: Any, **options: Any) -> None:
        """Play both stories; CommandError, and so exit status 1, if the fenced one did not go right."""
        output = console_for(self.stdout._out)
        progress = console_for(self.stderr._out) if options["json"] else output
        with alone(progress.print):
            call_command("migrate", verbosity=0)
        stories = {
            fenced: Story(fenced=fenced, tell=lambda event: progress.print(line(event))) for fenced in (False, True)
        }
        try:
            self._play(stories, progress)
        except (GateError, WorkerError) as error:
            raise CommandError(str(error)) from error
        outcome = as_object(stories[True], stories[False])
        if options["json"]:
            self.stdout.write(json.dumps(outcome))
        else:
            for story in stories.values():
                output.print(table(story, console=output))
        if found := problems(outcome):
            raise CommandError("; ".join(found))
        progress.print("The stale write was refused by the database, once; the fenced stock is right.")

    def _play(self, stories: dict[bool, Story], progress: Any) -> None:
        run = f"story-{uuid4().hex[:8]}"
        gate = Gate(run)
        progress.print("Starting a Celery worker with two processes ...")
        try:
            with Worker(run, include=["inventory_demo.story_worker"], environment={"STORY_RUN": run}) as worker:
                for story in stories.values():
                    progress.print(f"{'Fenced' if story.fenced else 'Unfenced'}:")
                    story.play(worker, gate)
                progress.print("Stopping the worker ...")
        finally:
            gate.remove()
