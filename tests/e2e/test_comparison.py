"""The page of a comparison in a browser, and a report that shows the loop."""

from __future__ import annotations

import pytest

from tests.e2e.conftest import Open

SECTIONS = ("comparable", "findings", "flame", "tables", "sides")


def test_the_first_screen_answers(open_page: Open) -> None:
    page = open_page("comparison")
    assert page.inner_text("h1").startswith("Faster")
    for selector in ("h1", ".loop .before", ".loop .predicted", ".loop .after", ".twobars"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None, selector
        assert box["y"] + box["height"] <= 900, selector
    assert "waiting for the DataLoader" in page.inner_text(".plain")
    assert page.locator(".plain .less").count()


@pytest.mark.parametrize("name", ["comparison", "comparison_results", "comparison_hostile"])
def test_no_section_is_blank(open_page: Open, name: str) -> None:
    page = open_page(name)
    for section in SECTIONS:
        assert len(page.inner_text(f"#{section}").split()) > 6, section


def test_saved_results_say_how_to_get_the_flame_graph(open_page: Open) -> None:
    page = open_page("comparison_results")
    assert "kinetoscope compare TRACE TRACE -o comparison.html" in page.inner_text("#flame")


def test_other_programs_are_not_drawn(open_page: Open) -> None:
    page = open_page("comparison_refused")
    assert "different programs" in page.inner_text("h1")
    for section in ("flame", "tables"):
        assert "different questions" in page.inner_text(f"#{section}")


def test_the_difference_is_readable_without_colour(open_page: Open) -> None:
    page = open_page("comparison")
    gone = page.locator(".flame .frame.gone", has_text="idle: waiting for the DataLoader").first
    label = gone.get_attribute("aria-label") or ""
    assert "a step before, not there after" in label
    assert "of the step before" in label
    assert (gone.text_content() or "").startswith("▼")
    page.select_option("#flame select[aria-label=Colour]", "frame")
    assert "half the time or less" in page.inner_text("#flame .scale")
    page.select_option("#flame select[aria-label=Width]", "after")
    assert not page.locator(".flame .frame.gone").count(), "no width after"
    page.select_option("#flame select[aria-label='Time on']", "host")
    assert "all host threads" in page.inner_text("#flame [role=status]")
    page.click("#flame button:has-text('Invert')")
    assert page.locator(".flame .frame[aria-level='1']").count() > 1


def test_by_keyboard(open_page: Open) -> None:
    page = open_page("comparison")
    page.locator(".flame .frame").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"
    page.keyboard.press("Enter")
    assert page.locator(".flame .frame").count()
    page.focus("#tab-operator")
    page.keyboard.press("ArrowRight")
    assert page.is_visible("#panel-kernel")


def test_the_report_shows_the_loop(open_page: Open) -> None:
    page = open_page("loop")
    text = page.inner_text("#loop")
    for word in ("Before", "Predicted: DL101", "After", "achieved", "Gone (1)"):
        assert word in text


def test_scaling_is_drawn(open_page: Open) -> None:
    page = open_page("scaling")
    assert page.locator("#scaling .ranks li").count() == 3
    assert "of perfect scaling" in page.inner_text("#scaling")


def test_an_experiment_shows_what_was_measured(open_page: Open) -> None:
    page = open_page("experiment")
    accepted = page.inner_text("#accepted")
    for word in ("2.10x (1.95x to 2.25x)", "predicted 2.20x", "num_workers=4", "losses: passed"):
        assert word in accepted
    rejected = page.inner_text("#rejected")
    for word in ("harmful", "0.62x", "changes the result", "losses: failed"):
        assert word in rejected
    assert "it is fused already" in page.inner_text("#skipped")


PAGES = (
    *("comparison", "comparison_results", "comparison_refused", "comparison_hostile"),
    *("scaling", "loop", "experiment"),
)


@pytest.mark.parametrize("name", PAGES)
@pytest.mark.parametrize("width", [380, 800, 1400])
def test_no_width_overflows(open_page: Open, name: str, width: int) -> None:
    page = open_page(name, width=width)
    for tab in page.locator("[role=tab]").all():
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_hostile_names_are_shown_as_text(open_page: Open) -> None:
    page = open_page("comparison_hostile")
    assert page.locator("img").count() == 0
    text = page.inner_text("main")
    for char in "\x1b\u202e\u2066\u2028\x00":
        assert char not in text
    assert "</script>" in text


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", PAGES)
def test_axe_finds_nothing(open_page: Open, name: str, scheme: str) -> None:
    module = pytest.importorskip("axe_playwright_python.base", reason="axe is not installed")
    page = open_page(name, color_scheme=scheme)
    page.evaluate(module.AXE_FILE_PATH.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    told = [
        f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0]['failureSummary']}"
        for v in found["violations"]
    ]
    assert told == []
