"""Shapes or Python stacks were not recorded.

## What it finds
A recording without input shapes, or without Python stacks.

## Why it matters
Without stacks no finding can name a function or line; without shapes nothing can be said about
padding, precision and arithmetic intensity.

## How to fix it
`profile(record_shapes=True, with_stack=True)` for one or two steps. Both slow the host down, so
measure times without them.

## Limits
For pure timing a light recording is the right one.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kinetoscope.analysis import Analysis
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.quality._examples import launch
from kinetoscope.rules.quality._notice import notice

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

REFERENCE = "https://docs.pytorch.org/docs/stable/profiler.html"


class Thresholds(Options, frozen=True):
    """When to speak."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Shapes or Python stacks were not recorded."""
    del options
    if analysis.trace.cut_off:  # what it lacks may have stood in what is lost: PR905
        return
    missing = [
        (text, flag)
        for need, text, flag in (
            ("stacks", "Python stacks", "with_stack=True"),
            ("shapes", "input shapes", "record_shapes=True"),
        )
        if not analysis.has(need)  # type: ignore[arg-type]
    ]
    # Torch before 1.12 kept the stack with the operator.
    if any('"Call stack"' in text for text in analysis.trace.texts):
        missing = [entry for entry in missing if entry[1] != "with_stack=True"]
    if not missing:
        return
    flags = ", ".join(flag for _, flag in missing)
    yield notice(
        f"{' and '.join(text for text, _ in missing).capitalize()} were not recorded: "
        + (
            "places in the program are unknown."
            if "with_stack=True" in flags
            else "sizes of the operations are unknown."
        ),
        fix=f"Record one or two more steps with {flags}.",
        snippet=f"torch.profiler.profile(..., {flags})",
        reference=REFERENCE,
    )


def _bad(t: TraceBuilder) -> None:
    for step in range(4):
        t.step(step * 1_000, 1_000)
        t.op("aten::mm", step * 1_000 + 10, 80)
        launch(t, step * 1_000)


def _good(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 1_000
        t.step(at, 1_000)
        t.python("train.py(3): step", at + 1, 990)
        t.op("aten::mm", at + 10, 80, dims=[[64, 64], [64, 64]])
        launch(t, at)


RULE = Rule(
    code="PR906",
    name="missing-recording-flags",
    class_="quality",
    summary="Input shapes or Python stacks were not recorded.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops"}),
    evidence="S",
    references=(REFERENCE,),
    examples=(
        Example("operators without shapes and stacks", _bad, fires=True),
        Example("operators with both", _good, fires=False),
    ),
)
