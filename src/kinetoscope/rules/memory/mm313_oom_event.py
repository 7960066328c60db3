"""The device ran out of memory during the recording.

## What it finds
`[OutOfMemory]` events, which the allocator writes when a request fails.

## Why it matters
The request raised `torch.OutOfMemoryError`. Unless the program catches it, it ends there.

## How to fix it
Less memory at the peak: a smaller micro-batch with gradient accumulation, activation
checkpointing, sharded parameters. If much is held but unused, the pieces are the reason:
`PYTORCH_ALLOC_CONF=expandable_segments:True`.

## Limits
A program that searches for the largest batch size runs out of memory on purpose. The recording
has no size of the request; a memory snapshot does.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.growth import growth
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.units import count, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_NOTES = "https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"


class Thresholds(Options, frozen=True):
    """When running out of memory is worth a word."""

    unused: float = 0.30
    """Share of the held memory that tensors do not use, from which on it is in pieces."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Report the events; peaks of held and used memory tell what kind of shortage it was."""
    events = analysis.trace.header.metadata.get("out_of_memory_events")
    if not isinstance(events, int) or events < 1:
        return
    found = analysis.get(growth)
    known = found is not None and found.device >= 0
    held, used = (found.reserved, found.peak) if known and found else (0, 0)
    pieces = held > 0 and used < (1 - options.unused) * held
    tail = f" The allocator held {size(held)} and tensors used {size(used)}." if held > 0 else ""
    yield Hit(
        message=f"The device ran out of memory: {count(events)} failed request"
        f"{'s' if events > 1 else ''}.{tail}",
        evidence=(
            Evidence("out_of_memory_events", events, "count"),
            *(
                (Evidence("held", held, "bytes"), Evidence("used", used, "bytes"))
                if held > 0
                else ()
            ),
        ),
        fix=_fix(pieces),
        confidence=0.9,
        keep=True,
        at_least="critical",
    )


def _fix(pieces: bool) -> Fix:
    if pieces:
        return Fix(
            summary="Let segments grow: memory was free, but in pieces.",
            snippet="os.environ['PYTORCH_ALLOC_CONF'] = 'expandable_segments:True'  # before "
            "import torch",
            reference=_NOTES,
        )
    return Fix(
        summary="Lower the peak: a smaller micro-batch with accumulation, or checkpointing.",
        snippet="torch.utils.checkpoint.checkpoint(block, x, use_reentrant=False)",
        reference=_NOTES,
    )


def _steps(t: TraceBuilder, *, fails: bool) -> None:
    for step in range(3):
        at = step * 1_000
        t.step(at, 1_000)
        t.memory(1 << 30, 130 << 30, at + 20, reserved=138 << 30)
        t.memory(-(1 << 30), 129 << 30, at + 600, reserved=138 << 30)
    if fails:
        event: dict[str, Any] = {"ph": "i", "cat": "cpu_instant_event", "s": "t"}
        event.update({"name": "[OutOfMemory]", "pid": 1000, "tid": 1000, "ts": 2_500, "args": {}})
        t.raw(event)


def _failing(t: TraceBuilder) -> None:
    _steps(t, fails=True)


def _tight(t: TraceBuilder) -> None:
    _steps(t, fails=False)


RULE = Rule(
    code="MM313",
    name="oom-event",
    class_="memory",
    summary="The device ran out of memory during the recording.",
    check=check,
    options=Thresholds(),
    evidence="S",
    references=(_NOTES,),
    examples=(
        Example("a failed request", _failing, fires=True),
        Example("memory that is nearly full", _tight, fires=False),
    ),
)
