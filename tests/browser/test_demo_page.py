"""The demo page in a browser: the whole story by one click, and by keyboard; with real processes, really stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
from playwright.sync_api import Page, expect

from inventory_demo.stage import stage
from tests.browser.conftest import SCHEMES, WIDTHS, is_as_wide_as_its_window, picture, press_tab_to, violations

pytestmark = [pytest.mark.browser, pytest.mark.slow, pytest.mark.django_db(transaction=True)]

# Milliseconds for a story, on a machine that does something else besides.
STORY = 90_000


# The labels of bars that a mark touches.
COVERED = """() => {
  const touch = (a, b) => a.left < b.right && b.left < a.right && a.top < b.bottom && b.top < a.bottom;
  const box = (one) => one.getBoundingClientRect();
  const marks = [...document.querySelectorAll(".lanes .mark circle")].map(box);
  const labels = [...document.querySelectorAll(".lanes text.in, .lanes text.above, .lanes text.lane")];
  return labels.filter((one) => marks.some((mark) => touch(mark, box(one)))).map((one) => `covered: ${one.textContent}`);
}"""


@pytest.fixture(autouse=True)
def empty_stage(settings: Any) -> Iterator[None]:
    settings.DEBUG = True
    stage.close()
    yield
    stage.close()


def test_one_click_plays_the_story_and_without_the_fence_the_other_one(open_page: Callable[..., Page]):
    page = open_page("/", viewport={"width": 1280, "height": 900})
    press_tab_to(page, "Run the story")
    page.keyboard.press("Enter")
    fenced, plain = page.locator("#numbers-fenced"), page.locator("#numbers-plain")
    expect(page.locator("#lanes-fenced .pause").first).to_be_visible(timeout=STORY)
    picture(page, "demo-paused-light-1280")
    expect(page.locator("#lanes-fenced .mark.refused")).to_be_visible(timeout=STORY)
    expect(fenced.locator(".stock")).to_have_text("2", timeout=STORY)

    expect(page.locator("#step-fencing")).not_to_have_attribute("aria-disabled", "true", timeout=STORY)
    page.locator("#step-fencing").click()
    expect(page.locator("#step-fencing")).to_have_attribute("aria-checked", "false")
    page.locator("#step-run").click()
    expect(page.locator("#lanes-plain .mark.lost")).to_be_visible(timeout=STORY)
    expect(plain.locator(".stock")).to_have_text("7", timeout=STORY)
    expect(fenced.locator(".stock")).to_have_text("2")

    found = {}
    for scheme in SCHEMES:
        for width in WIDTHS:
            shown = open_page(
                "/", color_scheme=scheme, viewport={"width": width, "height": 900}, reduced_motion="reduce"
            )
            picture(shown, f"demo-{scheme}-{width}")
            wide = [] if is_as_wide_as_its_window(shown) else ["too wide"]
            found[scheme, width] = [*violations(shown), *wide, *shown.evaluate(COVERED)]
    assert {key: wrong for key, wrong in found.items() if wrong} == {}


def test_without_javascript_the_page_is_reloaded(open_page: Callable[..., Page]):
    page = open_page("/", java_script_enabled=False)
    page.locator("#step-fencing").click()
    expect(page.locator("#step-fencing")).to_have_attribute("aria-checked", "false")
    page.get_by_role("link", name="Refresh").click()
    expect(page.locator("#step-fencing")).to_have_attribute("aria-checked", "false")
