"""The JSON Schema of the result document, generated from the structs and published as a file."""

from __future__ import annotations

import json
from importlib.resources import files
from inspect import cleandoc
from typing import Any

import msgspec

from kinetoscope.result.comparison import COMPARISON_VERSION, Comparison
from kinetoscope.result.diagnosis import SCHEMA_VERSION, Diagnosis
from kinetoscope.result.experiment import EXPERIMENT_VERSION, Experiment

PUBLISHED = "schema.json"
"""Name of the published file, next to this module."""

OTHERS: dict[str, tuple[type[msgspec.Struct], str, int]] = {
    "comparison-schema.json": (Comparison, "comparison", COMPARISON_VERSION),
    "experiment-schema.json": (Experiment, "experiment", EXPERIMENT_VERSION),
}
"""Published file -> document, its name and its version."""


def generate(
    document: type[msgspec.Struct] = Diagnosis, name: str = "result", version: int = SCHEMA_VERSION
) -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a document, of the result when none is named.

    Fields may be added to a document without a new version, so unknown fields are allowed.
    """
    schema = msgspec.json.schema(document)
    struct = schema["$ref"].rpartition("/")[2]
    field = schema["$defs"][struct]["properties"]["schema_version"]
    field.clear()
    field["const"] = version
    for definition in schema["$defs"].values():  # docstrings, which not every version cleans
        if "description" in definition:
            definition["description"] = cleandoc(definition["description"])
    titled = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Kinetoscope {name}, version {version}",
        **schema,
    }
    plain: dict[str, Any] = json.loads(json.dumps(titled))  # defaults that are tuples
    return plain


def text() -> str:
    """Return the generated schema as the published file must read."""
    return json.dumps(generate(), indent=2) + "\n"


def other_texts() -> dict[str, str]:
    """Return the other published files with their text."""
    return {
        file: json.dumps(generate(*document), indent=2) + "\n" for file, document in OTHERS.items()
    }


def published(file: str = PUBLISHED) -> dict[str, Any]:
    """Return a schema that is shipped with this version, that of the result by default."""
    data = files("kinetoscope.result").joinpath(file).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(data)
    return schema
