"""Reads a saved result document again, of this version or an older one."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kinetoscope.errors import ResultError
from kinetoscope.result.diagnosis import SCHEMA_VERSION, Diagnosis

Document = dict[str, Any]

UPGRADES: dict[int, Callable[[Document], Document]] = {}
"""From version -> function that returns the document of the next version."""


def decode(data: bytes, *, name: str) -> Diagnosis:
    """Return the result in `data`.

    Args:
        data: the JSON text of a result document.
        name: how to call the file in an error.

    Raises:
        ResultError: not JSON, not one of our results, or written by a newer version.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ResultError(
            f"{name} is not a saved result: it is not JSON ({error})",
            hint="Save a result with `kinetoscope analyze TRACE -o result.json`.",
        ) from error
    upgraded = _upgrade(_checked(document, name), name)
    try:
        return msgspec.convert(upgraded, Diagnosis)
    except msgspec.ValidationError as error:
        raise ResultError(
            f"{name} is not a complete result: {error}",
            hint="The file was edited or cut off; save it again with `kinetoscope analyze`.",
        ) from error


def _checked(document: object, name: str) -> Document:
    if isinstance(document, dict) and "schema_version" in document and "verdict" in document:
        if "comparable" in document:
            raise ResultError(
                f"{name} is a comparison, not the result of a diagnosis",
                hint="Save a result with `kinetoscope analyze TRACE -o result.json`.",
            )
        return document
    if isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document):
        raise ResultError(
            f"{name} is a trace, not a saved result",
            hint=f"Diagnose it with `kinetoscope analyze {name}`.",
        )
    raise ResultError(
        f"{name} is JSON, but not a saved result: it has no schema_version",
        hint="Save a result with `kinetoscope analyze TRACE -o result.json`.",
    )


def _upgrade(document: Document, name: str) -> Document:
    version = document["schema_version"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultError(
            f"{name} has the unknown schema_version {version!r}",
            hint=f"This version of Kinetoscope reads 1 to {SCHEMA_VERSION}.",
        )
    if version > SCHEMA_VERSION:
        raise ResultError(
            f"{name} has schema_version {version}; this version reads up to {SCHEMA_VERSION}",
            hint="Upgrade Kinetoscope: pip install --upgrade kinetoscope",
        )
    for step in range(version, SCHEMA_VERSION):
        document = UPGRADES[step](document)
    return document
