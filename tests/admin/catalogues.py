"""Catalogues of translations as gettext's own programs read them, and templates as translators see them."""

from __future__ import annotations

import ast
import re
import shutil
import subprocess
from html.parser import HTMLParser
from pathlib import Path
from typing import NamedTuple

from django.template.base import Lexer, TokenType

from tests.services import missing

PROGRAMS = ("xgettext", "msgcat", "msgfmt", "msgunfmt", "msgmerge", "msgattrib", "msguniq")
# What a reader sees or hears of a tag besides its text; ``value`` only of buttons.
SPOKEN = {"alt", "aria-label", "aria-description", "placeholder", "title"}
BUTTONS = {"button", "reset", "submit"}
PLACEHOLDER = re.compile(r"%\(\w+\)[^a-zA-Z]*[a-zA-Z]|%[sdr]|\{\w*\}|</?\w+>|FENCING\[\"\w+\"\]")


class Message(NamedTuple):
    """A text of the code, singular and plural, with what a catalogue has for it."""

    texts: tuple[str, ...]
    translations: tuple[str, ...]
    fuzzy: bool


def need_gettext() -> None:
    """Skip the test where gettext is missing."""
    if lacking := [name for name in PROGRAMS if shutil.which(name) is None]:
        missing(f"GNU gettext ({', '.join(lacking)}) is not installed; .ci/install-servers installs Debian's")


def run(*command: str | Path) -> str:
    """What one of gettext's programs prints."""
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def messages(catalogue: Path) -> dict[tuple[str, ...], Message]:
    """All messages of a .po or .pot file by their texts, without its header."""
    found = {}
    for block in run("msgcat", "--no-wrap", catalogue).split("\n\n"):
        lines = re.findall(r'^(msgctxt|msgid(?:_plural)?|msgstr(?:\[\d\])?) (".*")$', block, re.M)
        texts = tuple(ast.literal_eval(value) for name, value in lines if not name.startswith("msgstr"))
        translations = tuple(ast.literal_eval(value) for name, value in lines if name.startswith("msgstr"))
        if texts and texts != ("",):
            found[texts] = Message(texts, translations, bool(re.search(r"^#,.*\bfuzzy\b", block, re.M)))
    return found


def placeholders(text: str) -> list[str]:
    """What a text leaves for the program to fill in, and the tags and names in it."""
    return sorted(PLACEHOLDER.findall(text))


class _Untranslated(HTMLParser):
    """Collects texts with words in them."""

    def __init__(self) -> None:
        super().__init__()
        self.words: list[str] = []

    def handle_data(self, data: str) -> None:
        if re.search(r"[^\W\d_]", data):
            self.words.append(data.strip())

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        spoken = SPOKEN | ({"value"} if given.get("type") in BUTTONS else set())
        for name in spoken & given.keys():
            self.handle_data(given[name] or "")


def untranslated(source: str) -> list[str]:
    """What a template shows in its own words, outside ``translate`` and ``blocktranslate``."""
    html, end = [], ""
    for token in Lexer(source).tokenize():
        name = token.contents.split(maxsplit=1)[0] if token.token_type == TokenType.BLOCK else ""
        if end:
            end = "" if name == end else end
        elif name in ("blocktranslate", "blocktrans", "comment"):
            end = f"end{name}"
        elif token.contents == "block bodyclass":  # names for style sheets, which the browser never shows
            end = "endblock"
        elif token.token_type == TokenType.TEXT:
            html.append(token.contents)
    parser = _Untranslated()
    parser.feed("".join(html))
    parser.close()
    return parser.words
