"""Many calls into the runtime have no name.

## What it finds
At least 5 % of the runtime calls are called `INVALID`.

## Why it matters
The driver is newer than the table of names that torch was built with. Such calls cannot be told to
be launches, copies or synchronisations.

## How to fix it
Upgrade torch to a version built for the installed CUDA.

## Limits
Calls that launch a kernel are recognised by their kernel all the same.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.result import Evidence
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import healthy
from kinetoscope.rules.quality._notice import notice
from kinetoscope.trace.kinds import RUNTIME_KINDS
from kinetoscope.units import percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://github.com/pytorch/kineto"


class Thresholds(Options, frozen=True):
    """When to speak."""

    min_share: float = 0.05
    """Part of the runtime calls."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Many calls into the runtime have no name."""
    rows = analysis.rows(*RUNTIME_KINDS)
    names = np.array([name.upper() == "INVALID" for name in analysis.trace.names], dtype=bool)
    share = float(names[analysis.trace.column("name_id")[rows]].mean()) if rows.size else 0.0
    if share < options.min_share:
        return
    yield notice(
        f"{percent(share)} of the runtime calls have no name: the driver is newer than torch.",
        fix="Upgrade torch to a version built for the installed CUDA.",
        reference=REFERENCE,
        evidence=(Evidence("nameless_calls", round(share, 4), "ratio"),),
    )


def _bad(t: TraceBuilder) -> None:
    healthy(t, steps=4)
    for i in range(4):
        t.runtime("INVALID", i * 1_000 + 700, 5)


def _good(t: TraceBuilder) -> None:
    healthy(t, steps=4)


RULE = Rule(
    code="PR916",
    name="invalid-runtime-names",
    class_="quality",
    summary="Runtime calls have no name: torch is older than the driver.",
    check=check,
    options=Thresholds(),
    evidence="T",
    references=(REFERENCE,),
    examples=(
        Example("as many nameless calls as launches", _bad, fires=True),
        Example("a healthy recording", _good, fires=False),
    ),
)
