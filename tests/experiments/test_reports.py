"""An experiment in every format."""

from __future__ import annotations

import json

import jsonschema
import msgspec
import pytest

from kinetoscope.report import RenderOptions
from kinetoscope.report.experiment import EXPERIMENT_FORMATS, render
from kinetoscope.result import schema
from tests.experiments import samples


@pytest.mark.parametrize("form", EXPERIMENT_FORMATS)
def test_every_format_answers(form: str) -> None:
    for made in (samples.experiment(), samples.hostile()):
        text = render(made, form, RenderOptions(width=100, verbose=True))
        assert text.endswith("\n")
        assert "\x1b" not in text
        for word in ("dataloader-workers=4", "num_workers=4", "compile"):
            assert word in text


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
    nothing = msgspec.structs.replace(found, trials=(samples.SKIPPED,))
    assert sentence_of(nothing) == "No remedy applies to this program."
