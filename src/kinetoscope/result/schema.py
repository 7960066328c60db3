"""The JSON Schema of the result document, generated from the structs and published as a file."""

from __future__ import annotations

import json
from importlib.resources import files
from inspect import cleandoc
from typing import Any

import msgspec

from kinetoscope.result.diagnosis import SCHEMA_VERSION, Diagnosis

PUBLISHED = "schema.json"
"""Name of the published file, next to this module."""


def generate() -> dict[str, Any]:
    """Return the JSON Schema (draft 2020-12) of a result document.

    Fields may be added to a document without a new version, so unknown fields are allowed.
    """
    schema = msgspec.json.schema(Diagnosis)
    name = schema["$ref"].rpartition("/")[2]
    version = schema["$defs"][name]["properties"]["schema_version"]
    version.clear()
    version["const"] = SCHEMA_VERSION
    for definition in schema["$defs"].values():  # docstrings, which not every version cleans
        if "description" in definition:
            definition["description"] = cleandoc(definition["description"])
    document = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": f"Kinetoscope result, version {SCHEMA_VERSION}",
        **schema,
    }
    plain: dict[str, Any] = json.loads(json.dumps(document))  # defaults that are tuples
    return plain


def text() -> str:
    """Return the generated schema as the published file must read."""
    return json.dumps(generate(), indent=2) + "\n"


def published() -> dict[str, Any]:
    """Return the schema that is shipped with this version."""
    data = files("kinetoscope.result").joinpath(PUBLISHED).read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(data)
    return schema
