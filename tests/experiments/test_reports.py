"""An experiment in every format."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest

from kinetoscope.report import RenderOptions
from kinetoscope.report.experiment import EXPERIMENT_FORMATS, render
from kinetoscope.result import schema
from kinetoscope.result.comparison import Ratio
from tests.experiments import samples


@pytest.mark.parametrize("form", EXPERIMENT_FORMATS)
def test_every_format_answers(form: str) -> None:
    for made in (samples.experiment(), samples.hostile()):
        text = render(made, form, RenderOptions(width=100, verbose=True))
        assert text.endswith("\n")
        assert "\x1b" not in text
        for word in ("dataloader-workers=4", "num_workers=4", "compile"):
            assert word in text


def test_the_text_of_a_remedy_stands_in_one_column() -> None:
    long = msgspec.structs.replace(samples.OTHER_RESULT, reason="the losses differ " * 9)
    made = msgspec.structs.replace(samples.experiment(), trials=(samples.WORKERS, long))
    lines = render(made, "terminal", RenderOptions(width=100)).splitlines()
    at = next(n for n, line in enumerate(lines) if line.startswith("autocast=fp16"))
    column = lines[at].index("changes the result")
    assert column == len("dataloader-workers=4") + 2
    assert len(lines[at + 1]) - len(lines[at + 1].lstrip()) == column


def test_the_table_of_markdown_holds_what_was_measured() -> None:
    text = render(samples.experiment(), "markdown")
    assert "| fused-optimizer" not in text
    assert "<summary>1 do not apply</summary>\n\n* fused-optimizer: it is fused already" in text


def test_a_remedy_that_was_ended_early_shows_its_bound() -> None:
    early = msgspec.structs.replace(
        samples.HARMFUL, ended_early=True, speedup=Ratio(0.02, 0.05, 0.08)
    )
    made = msgspec.structs.replace(samples.experiment(), trials=(early,), combination=None)
    for form in ("terminal", "markdown", "html"):
        assert "at least 12x slower" in " ".join(render(made, form).split()), form


def test_the_document_obeys_its_schema() -> None:
    document = json.loads(render(samples.experiment(), "json"))
    jsonschema.validate(document, schema.published("experiment-schema.json"))


def test_the_sentence_names_each_kind_of_answer_once() -> None:
    from kinetoscope.experiments.sentences import sentence_of

    made = samples.experiment()
    rejected = msgspec.structs.replace(samples.HARMFUL, status="too_much_memory", remedy="big")
    found = msgspec.structs.replace(
        made, combination=None, trials=(samples.HARMFUL, rejected, samples.SKIPPED)
    )
    assert sentence_of(found) == (
        "Harmful here: compile. Rejected, as it needs much more memory: big."
    )
    nothing = msgspec.structs.replace(found, trials=(samples.SKIPPED,) * 4)
    assert sentence_of(nothing) == "No remedy applies to this program."
    one = msgspec.structs.replace(found, trials=(samples.SKIPPED,))
    assert sentence_of(one) == "fused-optimizer does not apply: it is fused already."
