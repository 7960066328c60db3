"""A headless Chromium, and pages made from small recordings.

Without Chromium the tests skip and say so; KINETOSCOPE_CHROMIUM names one in another place.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kinetoscope import viewdata
from kinetoscope.compare import compare
from kinetoscope.compare.scaling import compare_scaling
from kinetoscope.engine import Examined, examine
from kinetoscope.report import RenderOptions, render
from kinetoscope.report.comparison import render as render_comparison
from kinetoscope.report.experiment import render as render_experiment
from kinetoscope.result.comparison import Comparison
from kinetoscope.result.profile import Mark
from kinetoscope.viewdata.difference import comparison_view
from kinetoscope.viewdata.flame import flame
from tests import recordings, results
from tests.compare import sides
from tests.experiments import samples

if TYPE_CHECKING:
    from playwright.sync_api import Browser, Page

FLAGS = (
    "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync"
).split()
_NAMES = ("chromium", "chromium-browser", "google-chrome", "chrome")


def _chromium() -> str | None:
    given = os.environ.get("KINETOSCOPE_CHROMIUM")
    return given or next((path for name in _NAMES if (path := shutil.which(name))), None)


@pytest.fixture(scope="session")
def browser() -> Iterator[Browser]:
    sync_api = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
    path = _chromium()
    if path is None:
        pytest.skip("no Chromium is installed (apt-get install chromium)")
    with sync_api.sync_playwright() as playwright:
        opened = playwright.chromium.launch(executable_path=path, args=FLAGS)
        yield opened
        opened.close()


def _page_of(found: Examined, file: Path, *, boxes: int = 10_000, **changes: Any) -> Path:
    import msgspec

    findings = found.diagnosis.findings
    view = viewdata.build(found.lead, found.ranks, findings, most_boxes=boxes)
    diagnosis = msgspec.structs.replace(found.diagnosis, **changes)
    file.write_text(render(diagnosis, "html", RenderOptions(view=view)), encoding="utf-8")
    return file


@pytest.fixture(scope="session")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """Files by what they show."""
    folder = tmp_path_factory.mktemp("pages")
    plain = recordings.examined(recordings.training(), folder)
    bad = recordings.examined(recordings.hostile(), folder)
    ranks = examine(recordings.job().write(folder / "job"))
    told = results.hostile()
    made = {
        "training": _page_of(plain, folder / "training.html"),
        "joined": _page_of(
            recordings.examined(recordings.training(steps=40), folder),
            folder / "joined.html",
            boxes=200,
        ),
        "job": _page_of(ranks, folder / "job.html"),
        "hostile": _page_of(
            bad,
            folder / "hostile.html",
            findings=told.findings + bad.diagnosis.findings,
            verdict=told.verdict,
            notes=told.notes,
            inputs=told.inputs,
            rules=told.rules,
        ),
        "result": folder / "result.html",
        "host": _page_of(recordings.examined(recordings.host_only(), folder), folder / "host.html"),
    }
    made["result"].write_text(render(results.diagnosis(), "html"), encoding="utf-8")
    made.update(_comparisons(folder))
    return made


def _comparisons(folder: Path) -> dict[str, Path]:
    """Pages of comparisons by what they show."""
    slow = recordings.examined(recordings.waiting(800), folder)
    fast = recordings.examined(recordings.waiting(0), folder)
    pair = compare(slow.diagnosis, fast.diagnosis)
    bad = recordings.examined(recordings.hostile(), folder)
    plain = recordings.examined(recordings.training(), folder)
    jobs = [[sides.run(40 + 9 * (n - 1), ranks=n)] for n in (1, 2, 4)]
    other = sides.run(30, products=(Mark("mm 7 9 11", 2.0),), operators=(Mark("conv2d", 1.0),))

    def page(name: str, comparison: Comparison, *both: Examined) -> Path:
        flames = [[flame(found.lead)] for found in both] or [[None], [None]]
        shown = RenderOptions(difference=comparison_view(*flames))
        file = folder / f"{name}.html"
        file.write_text(render_comparison(comparison, "html", shown), encoding="utf-8")
        return file

    made = {
        "comparison": page("comparison", pair, slow, fast),
        "comparison_results": page("comparison_results", pair),
        "comparison_refused": page("refused", compare(sides.run(40), other)),
        "comparison_hostile": page(
            "hostile_pair", compare(plain.diagnosis, bad.diagnosis), plain, bad
        ),
        "scaling": page("scaling", compare_scaling(jobs, "weak")),
        "loop": folder / "loop.html",
        "experiment": folder / "experiment.html",
    }
    made["experiment"].write_text(render_experiment(samples.hostile(), "html"), encoding="utf-8")
    made["loop"].write_text(render(fast.diagnosis, "html", RenderOptions(comparison=pair)))
    return made


Open = Callable[..., "Page"]


@pytest.fixture
def open_page(browser: Browser, pages: dict[str, Path]) -> Iterator[Open]:
    """Opens a page and, at the end, insists that it was quiet: no message, no request."""
    noise: list[str] = []
    contexts = []

    def open_(name: str, *, width: int = 1280, height: int = 900, **options: Any) -> Page:
        context = browser.new_context(viewport={"width": width, "height": height}, **options)
        contexts.append(context)
        page = context.new_page()
        page.on("console", lambda message: noise.append(f"{message.type}: {message.text}"))
        page.on("pageerror", lambda error: noise.append(f"error: {error}"))
        page.on("dialog", lambda dialog: noise.append(f"dialog: {dialog.message}"))
        address = pages[name].as_uri()
        page.on("request", lambda r: noise.append(r.url) if r.url.split("#")[0] != address else 0)
        page.goto(address)
        page.wait_for_selector("html[data-ready=true]")
        return page

    yield open_
    for context in contexts:
        context.close()
    assert noise == []
