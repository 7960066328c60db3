"""Each request copies megabytes of results to the host.

## What it finds
Inference in which copies of at least 1 MiB to the host take a visible part of the step.

## Why it matters
Full logits of a language model are the number of tokens times the vocabulary, in 32 bits: hundreds
of megabytes, of which the program uses one row or one number.

## How to fix it
Choose on the device what is needed: `argmax`, `topk`, the last position only (transformers:
`logits_to_keep=1`), and return it in 16 bits.

## Limits
A preview. A service whose product is large (embeddings, images) needs its copies.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.ownership import roundtrip_rows
from kinetoscope.metrics.transfers import Purpose, transfers
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.inference._requests import serves
from kinetoscope.units import count, duration, percent, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When results are large."""

    min_bytes: int = 1 << 20
    """Bytes of one copy."""
    min_share: float = 0.03
    """Time of the copies as a share of the step."""
    left: tuple[float, float, float] = (0.5, 0.1, 0.02)
    """Part of the copies' time that remains: half the bits; a few columns; a few numbers."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Replay the steps with smaller results."""
    if not serves(analysis):
        return
    copies = analysis.get(transfers)
    large = copies.of(Purpose.TO_HOST) & (copies.bytes >= options.min_bytes)
    large &= np.isin(copies.row, analysis.in_window(copies.row))
    large &= ~np.isin(copies.row, roundtrip_rows(analysis.trace))  # MM309
    rows, ns = copies.row[large], copies.ns[large]
    spent = int(ns.sum()) // analysis.steps
    share = spent / max(analysis.step_ns, 1)
    if rows.size == 0 or share < options.min_share:
        return
    nbytes = int(copies.bytes[large].sum()) // analysis.steps
    yield Hit(
        message=(
            f"Each step copies {size(nbytes)} of results to the host in "
            f"{count(max(round(rows.size / analysis.steps), 1))} copies: {duration(spent)}, "
            f"{percent(min(share, 1.0))} of it."
        ),
        evidence=(
            Evidence("bytes_per_step", nbytes, "bytes"),
            Evidence("copy_time", spent, "ns"),
            Evidence("copies_per_step", round(rows.size / analysis.steps, 1), "count"),
        ),
        locations=analysis.locations(rows, calls=("cpu", "numpy", "tolist", "to")),
        fix=Fix(
            summary="Choose on the device what is needed, and copy only that.",
            snippet="token = logits[:, -1].argmax(-1).cpu()   # in place of logits.cpu()",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.argmax.html",
        ),
        gain=analysis.gain(
            *(Change(durations=(rows, (ns * left).astype(np.int64))) for left in options.left)
        ),
        confidence=0.7,
        claims=analysis.extent(rows),
    )


def _serving(t: TraceBuilder, nbytes: int, copy_us: float) -> None:
    for step in range(4):
        at = step * 4_000.0
        t.step(at, 4_000)
        t.kernel("gemm", at + 30, 1_900, launch_at=at + 10)
        t.op("aten::to", at + 40, 1_900 + copy_us)
        launch = at + 50
        t.copy("DtoH Pageable", nbytes, at + 1_931, copy_us, launch_at=launch, launch_dur=10)
        t.sync(at + 65, 1_870 + copy_us)


def _logits(t: TraceBuilder) -> None:
    _serving(t, 24 << 20, 2_000)


def _token(t: TraceBuilder) -> None:
    _serving(t, 1024, 3)


RULE = Rule(
    code="IN619",
    name="large-output-d2h",
    class_="memory",
    summary="Each request copies megabytes of results to the host.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches"}),
    evidence="L",
    references=("https://docs.pytorch.org/docs/stable/generated/torch.argmax.html",),
    examples=(
        Example("24 MiB of logits in each request", _logits, fires=True),
        Example("the chosen tokens only", _token, fires=False),
    ),
    preview=True,
)
