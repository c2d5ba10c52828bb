"""All ways to write, by family, in the order of the documentation."""

from __future__ import annotations

from tests.writes.paths import Path
from tests.writes.ways_around import AROUND
from tests.writes.ways_of_creating import CREATIONS
from tests.writes.ways_of_many import DELETES, MANY, RELATED
from tests.writes.ways_of_one import SAVES, SHAPES

FAMILIES: dict[str, tuple[Path, ...]] = {
    "Saving a row": SAVES,
    "Rows of unusual shapes": SHAPES,
    "Creating": CREATIONS,
    "Many rows": MANY,
    "Deleting": DELETES,
    "Related rows": RELATED,
    "Transactions, databases, files and other programs": AROUND,
}
