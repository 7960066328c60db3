"""A comparison in every format, and its schema."""

from __future__ import annotations

import json

import jsonschema
import pytest

from kinetoscope.compare import compare
from kinetoscope.compare.scaling import compare_scaling
from kinetoscope.report import RenderOptions
from kinetoscope.report.comparison import COMPARISON_FORMATS, render
from kinetoscope.result import schema
from kinetoscope.result.comparison import Comparison
from tests import results
from tests.compare.sides import run


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
