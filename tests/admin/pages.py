"""Pages as a browser has them: their text, and what their forms would send back."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser
from typing import Any


class _Form(HTMLParser):
    """Collects the values of inputs, of the selected options and of text areas."""

    def __init__(self) -> None:
        super().__init__()
        self.values: dict[str, list[str]] = {}
        self._select = self._area = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = {name: value or "" for name, value in attrs}
        if tag == "select":
            self._select = given.get("name", "")
        elif tag == "textarea":
            self._area = given["name"]
            self.values[self._area] = [""]
        elif tag == "option" and "selected" in given:
            self.values.setdefault(self._select, []).append(given.get("value", ""))
        elif tag == "input" and given.get("name") and self._is_sent(given):
            self.values.setdefault(given["name"], []).append(
                given.get("value", "on" if given.get("type") == "checkbox" else "")
            )

    def _is_sent(self, given: dict[str, str]) -> bool:
        kind = given.get("type", "text")
        return kind not in ("submit", "file") and (kind not in ("checkbox", "radio") or "checked" in given)

    def handle_endtag(self, tag: str) -> None:
        if tag == "textarea":
            self._area = ""

    def handle_data(self, data: str) -> None:
        if self._area:
            self.values[self._area][0] += data


def form_of(response: Any) -> dict[str, Any]:
    """What the page's form would send, untouched."""
    parser = _Form()
    content = response.content.decode()
    parser.feed(content[content.index('id="content-main"') :] if 'id="content-main"' in content else content)
    parser.values.pop("csrfmiddlewaretoken", None)
    return {name: values if len(values) > 1 else values[0] for name, values in parser.values.items()}


def text_of(response: Any) -> str:
    """The page's text without tags, with every run of white space as one space."""
    assert response.status_code == 200, response
    return re.sub(r"\s+", " ", unescape(re.sub(r"<[^>]+>", " ", response.content.decode())))
