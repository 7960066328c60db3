"""A comparison in every format, and its schema."""

from __future__ import annotations

import json

import jsonschema
import pytest

from kinetoscope.compare import compare
from kinetoscope.compare.scaling import compare_scaling
from kinetoscope.report import RenderOptions
from kinetoscope.report.comparison import COMPARISON_FORMATS, render
from kinetoscope.result import Budget, schema
from kinetoscope.result.comparison import Comparison
from kinetoscope.result.profile import Cost, Recorded
from tests import results
from tests.compare.sides import MS, run


def _comparisons() -> dict[str, Comparison]:
    return {
        "faster": compare(run(40, findings=(results.LOADER,)), run(20, findings=())),
        "same": compare(run(40), run(40)),
        "ranks": compare(run(40), run(45, ranks=2)),
        "scaling": compare_scaling([[run(40)], [run(45, ranks=2)], [run(48, ranks=4)]]),
        "hostile": compare(run(40, findings=(_hostile(),)), run(20, findings=())),
    }


def _hostile() -> object:
    import msgspec

    text = results.HOSTILE
    place = msgspec.structs.replace(results.LOADER.locations[0], file=text, function=text)
    return msgspec.structs.replace(results.LOADER, name=text, locations=(place,))


@pytest.mark.parametrize("form", COMPARISON_FORMATS)
@pytest.mark.parametrize("name", list(_comparisons()))
def test_every_format_renders(name: str, form: str) -> None:
    comparison = _comparisons()[name]
    text = render(comparison, form)
    assert text.endswith("\n")
    assert "\x1b" not in text
    assert form != "markdown" or "<script>" not in text
    for width in (40, 120):
        render(comparison, form, RenderOptions(width=width, verbose=True))


@pytest.mark.parametrize("name", list(_comparisons()))
def test_documents_obey_the_schema(name: str) -> None:
    document = json.loads(render(_comparisons()[name], "json"))
    jsonschema.validate(document, schema.published("comparison-schema.json"))
    assert set(document) >= {
        *("schema_version", "verdict", "comparable", "budget", "operators", "findings"),
    }
    assert set(document["findings"]) == {"gone", "stayed", "new"}


def test_the_published_schemas_are_current() -> None:
    for name, text in schema.other_texts().items():
        assert json.loads(text) == schema.published(name), "run: python docs/generate.py --write"


def test_what_is_gone_or_new_took_no_time_on_the_other_side() -> None:
    def cost(name: str, ms: int) -> Cost:
        return Cost(name=name, device_ns=ms * MS, calls=2.0)

    waiting = (Budget("data_loading", "waiting", 30 * MS, 0.75), Budget("compute", "k", 10 * MS, 1))
    copying = (Budget("memory", "copies", 5 * MS, 0.3), Budget("compute", "k", 10 * MS, 0.7))
    before = run(40, costs=(cost("old_op", 9), cost("kept_op", 4)), budget=waiting)
    after = run(15, costs=(cost("new_op", 3), cost("kept_op", 1)), budget=copying)
    comparison = compare(before, after)
    page = " ".join(render(comparison, "terminal", RenderOptions(width=100)).split())
    assert "data loading: waiting (gone, 30.0 ms before)" in page
    assert "memory: copies (new, 5.00 ms)" in page
    assert "operator old_op: gone, 9.00 ms before on the device" in page
    assert "operator new_op: new, 3.00 ms on the device" in page
    assert "operator kept_op: faster, 4.00 ms -> 1.00 ms on the device" in page
    note = render(comparison, "markdown")
    assert "| -30.0 ms | 30.0 ms | gone | data loading | waiting |" in note
    assert "| +5.00 ms | new | 5.00 ms | memory | copies |" in note
    for text in (page, note, render(comparison, "html")):
        assert "0 ns" not in text.replace("10 ns", "")


def test_the_outcome_is_said_once_above_a_sentence() -> None:
    """A badge or a heading says the word; the sentence in JSON stands alone and keeps it."""
    found = compare(run(40), run(20, findings=()))
    assert found.verdict.sentence.startswith("Faster: a step takes 50 % less time")
    for form in ("terminal", "markdown"):
        text = " ".join(render(found, form).split())
        assert "Faster:" not in text
        assert "A step takes 50 % less time" in text
    assert render(compare(run(40), run(40)), "terminal").startswith(" NO DIFFERENCE  ")


def test_lists_of_two_sides_do_not_run_together() -> None:
    before = run(40, recorded=Recorded(operators=True, shapes=True, stacks=True))
    after = run(40, recorded=Recorded(operators=True, shapes=True))
    text = " ".join(render(compare(before, after), "terminal").split())
    assert "options: shapes, stacks before; shapes after; times were corrected" in text
