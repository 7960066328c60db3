"""The page in a browser: every section, by mouse and keyboard, wide and narrow, light and dark."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from tests.e2e.conftest import Open

if TYPE_CHECKING:
    from playwright.sync_api import Page

SECTIONS = (
    "findings",
    "timeline",
    "flame",
    "tables",
    "memory",
    "roofline",
    "communication",
    "steps",
    "queue",
    "quality",
)


def _text(page: Page, selector: str) -> str:
    return page.inner_text(selector)


def _scene(page: Page) -> dict[str, Any]:
    found: dict[str, Any] = page.evaluate(
        "() => { const s = kinetoscopeTimeline.scene; return {t0: s.t0, scale: s.scale,"
        " scroll: s.scroll, width: s.width, gutter: s.gutter, selected: s.selected !== null,"
        " linked: s.linked.length, range: s.range}; }"
    )
    return found


def _settle(page: Page) -> None:
    page.evaluate("() => new Promise(done => requestAnimationFrame(() => setTimeout(done, 0)))")


def test_the_first_screen_answers(open_page: Open) -> None:
    page = open_page("training")
    assert page.inner_text("h1")
    for selector in ("h1", ".step .big", ".bar", ".card .message", ".card .place", ".card .gain"):
        box = page.locator(selector).first.bounding_box()
        assert box is not None, selector
        assert box["y"] + box["height"] <= 900, selector


def test_a_device_that_was_not_recorded_has_no_zeros(open_page: Open) -> None:
    page = open_page("host")
    assert "device work" not in _text(page, "#steps thead")
    assert "device" not in _text(page, "#tables thead")
    assert "device work" in _text(open_page("training"), "#steps thead")


def test_many_codes_are_shown_on_demand(open_page: Open) -> None:
    line = open_page("host").locator("#findings li", has_text="rules need device activity")
    assert "CP204" not in line.inner_text()
    line.locator("summary").press("Enter")
    assert "CP204" in line.inner_text()


@pytest.mark.parametrize("name", ["training", "job", "result", "hostile"])
def test_no_section_is_blank(open_page: Open, name: str) -> None:
    page = open_page(name)
    for section in SECTIONS:
        assert len(_text(page, f"#{section}").split()) > 8, section


def test_a_saved_result_says_how_to_get_the_rest(open_page: Open) -> None:
    page = open_page("result")
    assert "kinetoscope analyze TRACE -o report.html" in _text(page, "#timeline")


def test_numbers_are_defined(open_page: Open) -> None:
    page = open_page("training")
    page.hover(".step .num")
    assert "without the profiler" in _text(page, "#tip")
    page.keyboard.press("Escape")
    assert page.is_hidden("#tip")
    page.focus(".legend .num")
    assert "share of the step" in _text(page, "#tip")
    assert page.get_attribute(".legend .num:focus", "aria-describedby") == "tip"


def test_findings_lead_to_the_timeline(open_page: Open) -> None:
    page = open_page("training")
    before = _scene(page)
    page.click("text=Show in timeline >> nth=0")
    _settle(page)
    after = _scene(page)
    assert after["scale"] != before["scale"]
    assert page.evaluate("document.activeElement.tagName") == "CANVAS"
    assert page.inner_text(".finding .callpath >> nth=0") is not None


def test_tables_sort_and_filter(open_page: Open) -> None:
    page = open_page("training")
    table = "#panel-operators"
    first = f"{table} tbody tr:first-child td:first-child"
    page.click(f"{table} th:has-text('operator') button")
    assert page.get_attribute(f"{table} th:first-child", "aria-sort") == "ascending"
    names = page.locator(f"{table} tbody td:first-child").all_inner_texts()
    assert names == sorted(names)
    page.click(f"{table} th:has-text('operator') button")
    assert page.inner_text(first) == max(names)
    page.fill(f"{table} input[type=search]", "addmm")
    assert page.locator(f"{table} tbody tr").count() == 1
    assert page.inner_text(first) == "aten::addmm"
    page.click("#tab-steps")
    assert page.locator("#panel-steps tbody tr").count() == 4
    page.click("#tab-modules")
    assert page.is_hidden(table)
    assert "Linear_0" in _text(page, "#panel-modules")


def test_tables_show_what_they_are_sorted_by(open_page: Open) -> None:
    page = open_page("training")
    marked = "#panel-operators th[aria-sort]"
    assert page.locator(marked).all_inner_texts() == ["host own"]
    assert page.get_attribute(marked, "aria-sort") == "descending"
    page.click(f"{marked} button")
    assert page.get_attribute(marked, "aria-sort") == "ascending"


@pytest.mark.parametrize("width", [380, 1400])
def test_the_code_of_a_fix_is_shown_whole(open_page: Open, width: int) -> None:
    page = open_page("training", width=width)
    assert page.locator(".snippet pre").count()
    assert page.evaluate(
        "[...document.querySelectorAll('.snippet pre')].every(p => p.scrollWidth <= p.clientWidth)"
    )


def test_tables_copy_as_csv(open_page: Open) -> None:
    page = open_page("hostile", permissions=["clipboard-read", "clipboard-write"])
    page.click("#panel-operators button:has-text('Copy as CSV')")
    page.wait_for_selector("#panel-operators button:has-text('Copied')")
    text: str = page.evaluate("navigator.clipboard.readText()")
    assert text.splitlines()[0].startswith("operator,calls,host own (ns)")
    assert "aten::addmm" in text


def test_the_timeline_zooms_pans_and_measures(open_page: Open) -> None:
    page = open_page("training")
    canvas = page.locator("canvas.timeline")
    canvas.scroll_into_view_if_needed()
    box = canvas.bounding_box()
    assert box is not None
    middle = box["x"] + box["width"] / 2, box["y"] + box["height"] / 2
    start = _scene(page)
    page.mouse.move(*middle)
    page.keyboard.down("Control")
    page.mouse.wheel(0, -200)
    page.keyboard.up("Control")
    _settle(page)
    zoomed = _scene(page)
    assert zoomed["scale"] < start["scale"]
    page.mouse.down()
    page.mouse.move(middle[0] - 150, middle[1], steps=4)
    page.mouse.up()
    _settle(page)
    assert _scene(page)["t0"] > zoomed["t0"]
    page.keyboard.down("Shift")
    page.mouse.move(*middle)
    page.mouse.down()
    page.mouse.move(middle[0] + 100, middle[1], steps=4)
    page.mouse.up()
    page.keyboard.up("Shift")
    assert "Range of" in _text(page, ".detail")
    assert "busy" in _text(page, ".detail")


def test_two_fingers_zoom(open_page: Open) -> None:
    page = open_page("training")
    before = _scene(page)["scale"]
    page.evaluate(
        """() => {
          const canvas = document.querySelector("canvas.timeline");
          const box = canvas.getBoundingClientRect();
          canvas.setPointerCapture = () => {};
          const send = (type, id, x) => canvas.dispatchEvent(new PointerEvent(type, {
            pointerId: id, clientX: box.left + x, clientY: box.top + 100, bubbles: true}));
          send("pointerdown", 1, 500); send("pointerdown", 2, 600);
          send("pointermove", 2, 700); send("pointerup", 1, 500); send("pointerup", 2, 700);
        }"""
    )
    _settle(page)
    assert _scene(page)["scale"] == pytest.approx(before / 2, rel=0.01)


def test_the_wheel_scrolls_the_page_until_the_timeline_is_clicked(open_page: Open) -> None:
    page = open_page("training")
    page.locator("canvas.timeline").hover()
    before = _scene(page)["scale"]
    page.mouse.wheel(0, 100)
    page.wait_for_timeout(100)
    assert _scene(page)["scale"] == before


def test_the_timeline_searches_and_follows_links(open_page: Open) -> None:
    page = open_page("training")
    page.fill("#timeline input[type=search]", "sgemm")
    assert "4 results" in _text(page, "#timeline .tools")
    page.click("#timeline button[aria-label='Next result']")
    assert "of 4 results" in _text(page, "#timeline .tools")
    detail = _text(page, ".detail")
    assert "ampere_sgemm_128x64_tn" in detail
    assert "Launched by" in detail
    assert "grid 132 x 1 x 1" in detail
    assert _scene(page)["linked"] == 1
    page.focus("canvas.timeline")
    page.keyboard.press("l")
    assert "cudaLaunchKernel" in _text(page, ".detail h3")
    assert "Called from" in _text(page, ".detail")
    page.keyboard.press("Escape")
    assert not _scene(page)["selected"]
    page.fill("#timeline input[type=search]", "no such event")
    assert "Nothing found" in _text(page, "#timeline .tools")


def test_joined_events_are_counted(open_page: Open) -> None:
    page = open_page("joined")
    assert "are joined into" in _text(page, "#quality")
    assert "every event is there" in _text(page, "#quality")
    lanes = page.evaluate(
        "kinetoscopeTimeline.model.lanes.map(l => [l.lane.events,"
        " l.count.reduce((sum, n) => sum + n + 1, 0), l.lane.total_ns,"
        " l.end.reduce((sum, end, i) => sum + end - l.start[i] - l.slack[i], 0)])"
    )
    for events, counted, total, summed in lanes:
        assert events == counted
        assert total == summed
    joint = page.evaluate(
        "(() => { for (const lane of kinetoscopeTimeline.model.lanes) {"
        " const box = lane.count.findIndex(n => n > 0);"
        " if (box >= 0) { kinetoscopeTimeline.select({lane, box}, true); return true; } } })()"
    )
    assert joint
    assert "together" in _text(page, ".detail")


def test_coarse_levels_lose_nothing(open_page: Open) -> None:
    page = open_page("training")
    sums = page.evaluate(
        "kinetoscopeTimeline.model.lanes.flatMap(l => l.rows).map(r => [1, 1e3, 1e5, 1e7].map("
        "ns => r.at(ns).busy.reduce((a, b) => a + b, 0)))"
    )
    for row in sums:
        assert len(set(row)) == 1


def test_the_timeline_by_keyboard(open_page: Open) -> None:
    page = open_page("training")
    page.focus("canvas.timeline")
    start = _scene(page)
    page.keyboard.press("+")
    page.keyboard.press("ArrowRight")
    _settle(page)
    moved = _scene(page)
    assert moved["scale"] < start["scale"]
    assert moved["t0"] > start["t0"]
    page.keyboard.press("0")
    page.keyboard.press(".")
    assert _scene(page)["selected"]
    first = _text(page, ".detail")
    page.keyboard.press(".")
    assert _text(page, ".detail") != first
    page.keyboard.press("Enter")
    assert page.text_content("[role=status].offscreen")


def test_a_click_selects(open_page: Open) -> None:
    page = open_page("training")
    canvas = page.locator("canvas.timeline")
    canvas.scroll_into_view_if_needed()
    canvas.click(position={"x": 500, "y": 34 + 6 + 8})
    assert _scene(page)["selected"]
    assert "waiting for the DataLoader" in _text(page, ".detail")


def test_lanes_can_be_hidden(open_page: Open) -> None:
    page = open_page("training")
    page.click("summary:has-text('Lanes')")
    before = page.locator("canvas.timeline").bounding_box()
    page.click(".lanes label:has-text('thread') >> nth=0")
    page.wait_for_timeout(50)
    after = page.locator("canvas.timeline").bounding_box()
    assert before is not None
    assert after is not None
    assert after["height"] < before["height"]


def test_the_flame_graph_zooms_inverts_and_searches(open_page: Open) -> None:
    page = open_page("training")
    frames = page.locator(".flame .frame")
    whole = frames.count()
    assert page.locator(".flame .frame:has-text('idle: waiting for the DataLoader')").count()
    page.click(".flame .frame:has-text('step')")
    assert "width" in (page.get_attribute(".flame .frame >> nth=0", "style") or "")
    page.click("#flame button:has-text('Everything')")
    assert frames.count() == whole
    page.click("#flame button:has-text('Invert')")
    assert page.locator(".flame .frame[aria-level='1']:has-text('idle')").count()
    page.click("#flame button:has-text('Invert')")
    page.fill("#flame input[type=search]", "sgemm")
    assert "of the time lies in frames that match" in _text(page, "#flame [role=status]")
    page.fill("#flame input[type=search]", "")
    page.uncheck("#flame label:has-text('Python') input")
    assert not page.locator(".flame .frame:has-text('main')").filter(has_text="train.py").count()
    page.select_option("#flame select", "host")
    assert "all host threads" in _text(page, "#flame [role=status]")


def test_the_flame_graph_by_keyboard(open_page: Open) -> None:
    page = open_page("training")
    page.locator(".flame .frame").first.focus()
    page.keyboard.press("ArrowDown")
    assert page.evaluate("document.activeElement.getAttribute('aria-level')") == "2"
    page.keyboard.press("Enter")
    assert page.locator(".flame .frame").count()


def test_keyboard_only(open_page: Open) -> None:
    page = open_page("training")
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.className") == "skip"
    page.keyboard.press("Enter")
    assert page.evaluate("location.hash") == "#main"
    seen = set()
    for _ in range(60):
        page.keyboard.press("Tab")
        seen.add(page.evaluate("document.activeElement.closest('section')?.id ?? ''"))
    assert {"verdict", "findings", "timeline"} <= seen
    page.focus("#tab-operators")
    page.keyboard.press("ArrowRight")
    assert page.evaluate("document.activeElement.id") == "tab-kernels"
    assert page.is_visible("#panel-kernels")


def test_ranks_side_by_side(open_page: Open) -> None:
    page = open_page("job")
    assert "The others wait for rank 1" in _text(page, "#communication")
    assert page.locator(".ranks li").count() == 2
    assert "all_reduce" in _text(page, "#communication")


def test_dark_and_light(open_page: Open) -> None:
    color = "getComputedStyle(document.body).backgroundColor"
    light = open_page("training", color_scheme="light")
    dark = open_page("training", color_scheme="dark")
    assert light.evaluate(color) != dark.evaluate(color)
    dark.click("button[aria-label='Use light colours']")
    assert light.evaluate(color) == dark.evaluate(color)
    dark.click("button[aria-label='Use dark colours']")
    assert light.evaluate(color) != dark.evaluate(color)


@pytest.mark.parametrize("name", ["training", "hostile", "job", "result"])
@pytest.mark.parametrize("width", [380, 800, 1400, 2500])
def test_no_width_overflows(open_page: Open, name: str, width: int) -> None:
    page = open_page(name, width=width)
    for tab in page.locator("[role=tab]").all():
        tab.click()
        assert page.evaluate("document.documentElement.scrollWidth - innerWidth") <= 0


def test_hostile_names_are_shown_as_text(open_page: Open) -> None:
    page = open_page("hostile")
    assert page.locator("img").count() == 0
    text = page.inner_text("main")
    for char in "\x1b\u202e\u2066\u2028\x00":
        assert char not in text
    assert "\\x1b[31m" in text
    assert "</script>" in text
    page.fill("#timeline input[type=search]", "onerror")
    page.click("#timeline button[aria-label='Next result']")
    assert "</script><img src=x onerror=alert(1)>" in _text(page, ".detail")
    page.fill("#timeline input[type=search]", "kkkkkkkk")
    page.click("#timeline button[aria-label='Next result']")
    assert "kkkk…kkkk" in _text(page, ".detail")


def test_it_prints(open_page: Open) -> None:
    page = open_page("training")
    page.emulate_media(media="print")
    assert page.is_hidden(".contents")
    assert page.is_visible("h1")
    assert page.is_visible(".card .message")
    assert page.pdf(format="A4")[:4] == b"%PDF"


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("name", ["training", "job", "result", "hostile"])
def test_axe_finds_nothing(open_page: Open, name: str, scheme: str) -> None:
    module = pytest.importorskip("axe_playwright_python.base", reason="axe is not installed")
    page = open_page(name, color_scheme=scheme)
    for summary in page.locator("main summary").all():
        summary.click()
    # The page's policy stops added scripts, so axe comes in by the debugger.
    page.evaluate(module.AXE_FILE_PATH.read_text(encoding="utf-8"))
    found = page.evaluate("axe.run(document, {resultTypes: ['violations']})")
    told = [
        f"{v['id']}: {v['help']}: {v['nodes'][0]['html'][:200]} {v['nodes'][0]['failureSummary']}"
        for v in found["violations"]
    ]
    assert told == []
