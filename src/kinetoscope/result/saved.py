"""Reads a saved document again, of this version or an older one: a diagnosis, a comparison, an
experiment."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from kinetoscope.errors import ResultError
from kinetoscope.result.comparison import COMPARISON_VERSION, Comparison
from kinetoscope.result.diagnosis import SCHEMA_VERSION, Diagnosis
from kinetoscope.result.experiment import EXPERIMENT_VERSION, Experiment

Document = dict[str, Any]

UPGRADES: dict[int, Callable[[Document], Document]] = {}
"""From version -> function that returns the document of the next version."""


Saved = Diagnosis | Comparison | Experiment


def decode(data: bytes, *, name: str) -> Diagnosis:
    """Return the result in `data`.

    Args:
        data: the JSON text of a result document.
        name: how to call the file in an error.

    Raises:
        ResultError: not JSON, not one of our results, or written by a newer version.
    """
    found = decode_any(data, name=name)
    if isinstance(found, Diagnosis):
        return found
    what = "a comparison" if isinstance(found, Comparison) else "what verify or tune measured"
    raise ResultError(
        f"{name} is {what}, not the result of a diagnosis",
        hint=f"`kinetoscope report {name}` shows it again; a diagnosis is saved by "
        "`kinetoscope analyze TRACE -o result.json`.",
    )


def decode_any(data: bytes, *, name: str) -> Saved:
    """Return the document in `data`, of whichever command.

    Raises:
        ResultError: as for `decode`.
    """
    try:
        document = msgspec.json.decode(data)
    except (msgspec.DecodeError, RecursionError) as error:
        raise ResultError(
            f"{name} is not a saved result: it is not JSON ({error})",
            hint="Save a result with `kinetoscope analyze TRACE -o result.json`.",
        ) from error
    kind = _kind(document, name)
    upgraded = _upgrade(document, name, _VERSIONS[kind], UPGRADES if kind is Diagnosis else {})
    try:
        return msgspec.convert(upgraded, kind)
    except msgspec.ValidationError as error:
        raise ResultError(
            f"{name} is not a complete result: {error}",
            hint="The file was edited or cut off; save it again.",
        ) from error


_VERSIONS: dict[type[Saved], int] = {
    Diagnosis: SCHEMA_VERSION,
    Comparison: COMPARISON_VERSION,
    Experiment: EXPERIMENT_VERSION,
}


def _kind(document: object, name: str) -> type[Saved]:
    if isinstance(document, dict) and "schema_version" in document:
        if "trials" in document:
            return Experiment
        if "verdict" in document:
            return Comparison if "comparable" in document else Diagnosis
    if isinstance(document, list) or (isinstance(document, dict) and "traceEvents" in document):
        raise ResultError(
            f"{name} is a trace, not a saved result",
            hint=f"Diagnose it with `kinetoscope analyze {name}`.",
        )
    raise ResultError(
        f"{name} is JSON, but not a saved result: it has no schema_version, or no known content",
        hint="Save a result with `kinetoscope analyze TRACE -o result.json`.",
    )


def _upgrade(
    document: Document, name: str, newest: int, upgrades: dict[int, Callable[[Document], Document]]
) -> Document:
    version = document["schema_version"]
    if not isinstance(version, int) or isinstance(version, bool) or version < 1:
        raise ResultError(
            f"{name} has the unknown schema_version {version!r}",
            hint=f"This version of Kinetoscope reads 1 to {newest}.",
        )
    if version > newest:
        raise ResultError(
            f"{name} has schema_version {version}; this version reads up to {newest}",
            hint="Upgrade Kinetoscope: pip install --upgrade kinetoscope",
        )
    for step in range(version, newest):
        document = upgrades[step](document)
    return document
