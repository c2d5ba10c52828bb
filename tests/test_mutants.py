"""The mutants themselves: each removes what is really there."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.mutants import MUTANTS, Mutant

ROOT = Path(__file__).resolve().parent.parent


@pytest.mark.parametrize("mutant", MUTANTS, ids=lambda mutant: mutant.name)
def test_text_of_a_mutant_stands_once_in_its_file(mutant: Mutant) -> None:
    """`make mutants` takes minutes; that a mutant has gone stale shall show at once."""
    assert (ROOT / mutant.file).read_text().count(mutant.old) == 1
    assert mutant.old != mutant.new


def test_names_of_mutants_are_unique() -> None:
    names = [mutant.name for mutant in MUTANTS]
    assert len(set(names)) == len(names)
