"""Debian's Chromium, driven by Playwright against the pages as a server gives them out."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from threading import enumerate as enumerate_threads
from typing import Any

import pytest
from axe_playwright_python.sync_playwright import Axe
from django.contrib.auth.models import User
from django.test import Client
from playwright.sync_api import Browser, BrowserContext, ConsoleMessage, Page, expect

from tests.concurrency import wait_until
from tests.services import missing

SCREENSHOTS = Path(__file__).parents[2] / ".screenshots"
SCHEMES = ("light", "dark")
WIDTHS = (1280, 400)
# Seconds that a page may take to become what a test waits for.
PATIENCE = 30.0


def chromium() -> str:
    """Where the browser is; "" where there is none."""
    return os.environ.get("CHROMIUM") or shutil.which("chromium") or ""


@pytest.fixture(scope="session", autouse=True)
def _needs_chromium() -> Iterator[None]:
    if not chromium():
        missing("Chromium is not installed, or not named by CHROMIUM; .ci/install-servers installs Debian's")
    # Playwright keeps an event loop in this thread, which is no reason for Django not to use the database here. Only
    # another `Context` would have other connections, which nobody closes: let a second holder have a thread.
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("DJANGO_ALLOW_ASYNC_UNSAFE", "true")
        yield


@pytest.fixture(scope="session", autouse=True)
def _patience() -> None:
    """Playwright's own is five seconds."""
    expect.set_options(timeout=PATIENCE * 1000)


@pytest.fixture(scope="session")
def browser_type_launch_args(browser_type_launch_args: dict[str, Any]) -> dict[str, Any]:
    """The browser of the machine, which asks nobody outside of it for anything."""
    return {
        **browser_type_launch_args,
        "executable_path": chromium(),
        "args": [
            "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
            "--disable-component-update", "--disable-sync",
        ],
    }  # fmt: skip


@pytest.fixture
def open_page(browser: Browser, live_server: Any) -> Iterator[Callable[..., Page]]:
    """Return a function that opens a path in a window of its own, as a user who is logged in, if one is given.

    What a page says on the browser's console as an error, a refused style or script included, fails the test.
    """
    contexts: list[BrowserContext] = []
    errors: list[str] = []

    def note(line: ConsoleMessage) -> None:
        if line.type == "error" and not line.location["url"].endswith("/favicon.ico"):
            errors.append(f"{line.text} ({line.location['url']})")

    def open_(path: str, *, user: User | None = None, **options: Any) -> Page:
        context = browser.new_context(base_url=live_server.url, **options)
        contexts.append(context)
        context.set_default_timeout(PATIENCE * 1000)
        if user is not None:
            client = Client()
            client.force_login(user)
            context.add_cookies(
                [{"name": "sessionid", "value": client.cookies["sessionid"].value, "url": live_server.url}]
            )
        page = context.new_page()
        page.on("console", note)
        page.on("pageerror", lambda error: errors.append(str(error)))
        page.goto(path)
        return page

    yield open_
    for context in contexts:
        context.close()
    # Each answers one connection of the browser, and has one to the test's database, which is emptied now.
    wait_until(
        lambda: not any("process_request" in one.name for one in enumerate_threads()), "the server's threads end"
    )
    assert errors == []


def picture(page: Page, name: str) -> None:
    """Keep a picture of the whole page, for people to look at."""
    SCREENSHOTS.mkdir(exist_ok=True)
    page.screenshot(path=SCREENSHOTS / f"{name}.png", full_page=True)


def violations(page: Page, *, within: str = "") -> list[str]:
    """What axe finds wrong with the page, or with a part of it."""
    found = Axe().run(page, context=within or None)
    return [
        f"{one['id']}: {one['help']}: {', '.join(str(node['target']) for node in one['nodes'])}"
        for one in found.response["violations"]
    ]


def is_as_wide_as_its_window(page: Page) -> bool:
    """Whether nothing sticks out, so that nobody has to scroll sideways."""
    return bool(page.evaluate("document.documentElement.scrollWidth <= document.documentElement.clientWidth"))


def press_tab_to(page: Page, text: str, *, field: str = "") -> None:
    """Press Tab until the link or button with this text, or the field with this name, has the focus."""
    wanted = {"name": field} if field else {"text": text}
    for _ in range(100):
        page.keyboard.press("Tab")
        focused = page.evaluate(
            "e => ({text: e.textContent.trim(), name: e.getAttribute('name')})",
            page.evaluate_handle("document.activeElement"),
        )
        if wanted.items() <= focused.items():
            return
    raise AssertionError(f"nothing with {wanted} is reached by Tab")
