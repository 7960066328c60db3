"""An experiment in every format."""

from __future__ import annotations

import json

import jsonschema
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
