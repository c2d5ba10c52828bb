"""The documents agree with the code: names, keys, ids, words, links, tests; and what is Python in them is Python."""

from __future__ import annotations

import argparse
import ast
import inspect
import pydoc
import re
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest
from django.apps import apps
from django.db import migrations, models
from django.db.migrations.autodetector import MigrationAutodetector
from django.db.migrations.graph import MigrationGraph
from django.db.migrations.state import ModelState, ProjectState
from django.dispatch import Signal
from django.test.utils import isolate_apps

import fencing
from fencing import conf, exceptions, signals, testing
from fencing.management.commands.fencing import Command
from fencing.models import FencedModel
from tests.documents import DOCUMENTS, ROOT, marked, section_of

README, REFERENCE = ROOT / "README.md", ROOT / "docs" / "reference.md"
CHECKS, GLOSSARY = ROOT / "docs" / "checks.md", ROOT / "docs" / "glossary.md"


def first_cells(text: str) -> list[str]:
    """What stands in code style at the begin of each line of tables."""
    return re.findall(r"^\| `([^`]+)`", text, re.MULTILINE)


@pytest.mark.parametrize("path", [README, REFERENCE], ids=lambda path: path.name)
def test_every_key_of_the_setting_is_there_with_its_default(path: Path, settings: Any) -> None:
    rows = re.findall(r"^\| `([A-Z_]+)` \| ([^|]+) \|", section_of(path, "Settings"), re.MULTILINE)
    assert {key for key, _ in rows} == conf.TOP_KEYS | conf.BACKEND_KEYS
    assert len(rows) == len(conf.TOP_KEYS | conf.BACKEND_KEYS)
    settings.FENCING = {"BACKENDS": {"default": {"BACKEND": "x"}}}
    config = conf.backend_config("default")
    defaults = {key: value.strip("`") for key, value in rows if value.startswith("`")}
    for key in conf.BACKEND_KEYS - {"BACKEND"}:
        assert ast.literal_eval(defaults[key]) == getattr(config, key.lower())
    assert ast.literal_eval(defaults["RECORD"]) == conf.record()


def test_every_exception_is_there() -> None:
    found = {
        name for name, value in vars(exceptions).items() if isinstance(value, type) and issubclass(value, Exception)
    }
    assert set(first_cells(section_of(REFERENCE, "Exceptions"))) == found


def test_attributes_of_exceptions_are_there() -> None:
    rows = re.findall(r"^\| `(\w+Error)` \| [^|]*: ((?:`\w+`(?:, )?)+) \|", REFERENCE.read_text(), re.MULTILINE)
    assert len(rows) > 10
    for name, attributes in rows:
        code = getattr(exceptions, name).__init__.__code__
        assert re.findall(r"`(\w+)`", attributes) == list(code.co_varnames[1 : code.co_argcount]), name


def test_every_public_name_is_there() -> None:
    text = REFERENCE.read_text()
    for name in (*fencing.__all__, "FencedModel", "fenced_task", "leased_task"):
        assert re.search(rf"`{name}\b", text), name
    described = {
        name
        for cell in re.findall(r"^\| (`.+?`(?:, `.+?`)*) \|", text, re.MULTILINE)
        for name in re.findall(r"`(\w+)", cell)
    }
    public = {name for name in dir(fencing.Lease) if not name.startswith("_")}
    documented_methods = {"remaining", "is_held", "ensure_held", "renew", "advance", "release", "atomic", "once"}
    assert documented_methods <= public & described


@pytest.mark.parametrize("name", ["fencing.admin", "fencing.celery", "fencing.testing"])
def test_every_name_of_the_other_modules_is_there(name: str) -> None:
    text = section_of(REFERENCE, f"Names in `{name}`")
    assert [one for one in import_module(name).__all__ if not re.search(rf"`{one}\b", text)] == []


def test_helpers_for_tests_take_what_is_said() -> None:
    rows = re.findall(r"^\| `(\w+)(\(.*?\))` \|", (ROOT / "docs" / "testing.md").read_text(), re.MULTILINE)
    assert len(rows) == len(testing.__all__) - 1, "all but the clock"
    for name, arguments in rows:
        taken = inspect.signature(inspect.unwrap(getattr(testing, name)))
        plain = [one.replace(annotation=inspect.Parameter.empty) for one in taken.parameters.values()]
        assert arguments.replace('"', "'") == str(inspect.Signature(plain)), name


def test_every_command_is_there_with_its_options() -> None:
    known = Command().create_parser("manage.py", "fencing")._actions
    subs: Any = next(one for one in known if isinstance(one.choices, dict))
    text = section_of(REFERENCE, "Commands")
    for name, parser in subs.choices.items():
        rows = "".join(re.findall(rf"^\| `{name}.*$", text, re.MULTILINE))
        told = (ROOT / "docs" / "drill.md").read_text() if name == "drill" else f"{rows} --json --using"
        own = [one for one in parser._actions if one.help != argparse.SUPPRESS and one.dest != "help"]
        options = {option for one in own for option in one.option_strings}
        assert rows and [one for one in sorted(options) if one not in told] == [], name


def test_every_signal_is_there() -> None:
    found = {name for name, value in vars(signals).items() if isinstance(value, Signal)}
    assert set(first_cells(section_of(REFERENCE, "Signals"))) == found


def test_every_table_and_outcome_is_there() -> None:
    text = section_of(REFERENCE, "Names in `fencing.models`")
    for model in apps.get_app_config("fencing").get_models():
        assert f"`{model.__name__}`" in text
    outcomes = apps.get_model("fencing", "FencedWrite").Outcome.values
    assert [cell for cell in first_cells(text) if not cell.startswith("fence_")] == outcomes


def test_every_check_is_there() -> None:
    sources = "".join(path.read_text() for path in (ROOT / "fencing").rglob("*.py"))
    ids = set(re.findall(r"fencing\.([EW]\d{3})", sources)) | set(re.findall(r'"([EW]\d{3})": ', sources))
    text = CHECKS.read_text()
    assert set(re.findall(r"^### fencing\.([EW]\d{3}): ", text, re.MULTILINE)) == ids
    assert {anchor.upper() for anchor in re.findall(r"^\(fencing-([ew]\d{3})\)=", text, re.MULTILINE)} == ids


def test_the_glossary_holds_the_words_of_the_code() -> None:
    words = set(re.findall(r"^\| \*\*(\w+)\*\*", GLOSSARY.read_text(), re.MULTILINE))
    assert {
        "resource",
        "lease",
        "holder",
        "grant",
        "token",
        "last_token",
        "fence",
        "operation",
        "guard",
        "reign",
    } <= words
    lease = set(dir(fencing.Lease)) | set(fencing.Lease.__init__.__code__.co_names)
    assert {"resource", "holder", "token", "ttl", "renew", "release"} <= words & lease | {"resource"}


def test_other_words_for_the_same_are_no_names() -> None:
    models = apps.get_app_config("fencing").get_models()
    names = {field.name for model in models for field in model._meta.get_fields()}
    names |= {*fencing.__all__, *dir(exceptions), *dir(signals), *conf.TOP_KEYS, *conf.BACKEND_KEYS}
    parts = {part.lower() for name in names for part in re.findall(r"[A-Z]?[a-z]+|[A-Z]+", name)}
    assert not parts & {"lock", "locked", "owner", "version", "epoch"}


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_links_lead_somewhere(path: Path) -> None:
    for target in re.findall(r"\]\(([^)]+)\)", path.read_text()):
        if target.startswith("https://"):
            continue
        name, _, anchor = target.partition("#")
        linked = path if not name else (path.parent / name).resolve()
        assert linked.is_file(), target
        headings = re.findall(r"^#+ (.+)$", linked.read_text(), re.MULTILINE)
        slugs = {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}
        assert not anchor or anchor in slugs, target


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_tests_that_are_named_exist(path: Path) -> None:
    for name, test in re.findall(r"`(tests/[\w/]+\.py)::(?:\w+::)?(\w+)", path.read_text()):
        assert f"def {test}(" in (ROOT / name).read_text(), test


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_dotted_names_lead_somewhere(path: Path) -> None:
    for name in re.findall(r"[`\"](fencing(?:\.[A-Za-z_]\w+)+)", path.read_text()):
        if not re.fullmatch(r"fencing\.[EW]\d{3}", name):
            assert pydoc.locate(name), name


@pytest.mark.parametrize("path", DOCUMENTS, ids=lambda path: path.name)
def test_python_is_python(path: Path) -> None:
    for block in re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL):
        ast.parse(block)


def test_each_invariant_has_a_test_in_both_tables() -> None:
    for path in (README, ROOT / "docs" / "design.md"):
        rows = re.findall(r"^\| (I\d) \|.*`tests/[\w/]+\.py::\w+", path.read_text(), re.MULTILINE)
        assert rows == ["I1", "I2", "I3", "I4", "I5", "I6", "I7"]


def test_migrations_of_a_table_in_use_leave_nothing_to_make() -> None:
    [(_, code)] = marked(section_of(ROOT / "docs" / "howto.md", "Fence a table that is in use"), "run")
    printed: dict[str, Any] = {}
    exec(code, printed)  # noqa: S102  # what the document prints
    state = ProjectState()
    fields: list[tuple[str, Any]] = [("id", models.BigAutoField(primary_key=True, serialize=False))]
    migrations.CreateModel("Stock", fields).state_forwards("shop", state)
    for name in ("Migration0002", "Migration0003"):
        state = printed[name](name, "shop").mutate_state(state)

    with isolate_apps():

        class Stock(FencedModel):
            id = models.BigAutoField(primary_key=True)

            class Meta(FencedModel.Meta):
                app_label = "shop"

        fenced = ProjectState()
        fenced.add_model(ModelState.from_model(Stock))
        graph = MigrationGraph()
        graph.add_node(("shop", "0003_fence"), None)  # else the app would count as one without migrations
        left = MigrationAutodetector(state, fenced).changes(graph)
    assert left == {}
