"""The device ran out of memory during the recording.

## What it finds
`[OutOfMemory]` events, which the allocator writes when a request fails. Where the program went on
afterwards and does so in most steps, what it had begun before the failure is counted: work in vain.

## Why it matters
The request raised `torch.OutOfMemoryError`. Unless the program catches it, it ends there. A program
that catches it and tries again with less has computed for nothing up to the failure and has emptied
the allocator's cache, which must be filled again from the driver.

## How to fix it
Less memory at the peak: a smaller micro-batch with gradient accumulation, activation
checkpointing, sharded parameters. If much is held but unused, the pieces are the reason:
`PYTORCH_ALLOC_CONF=expandable_segments:True`. Where the program tries again: remember what fitted,
and begin with that in the next step.

## Limits
A program that looks for the largest batch that fits runs out of memory on purpose: a failure in the
first recorded step that is not repeated is not reported. What was in vain is known from Python
stacks only: the frame that the exception ended. Work before it in the same step may be in vain too;
that is the upper end of the gain, and the likely one where the backward pass failed.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.growth import growth
from kinetoscope.metrics.intervals import Intervals, empty, measure, merge
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import with_step
from kinetoscope.rules.memory._allocator import driver_calls
from kinetoscope.rules.memory._retried import Retries, calls_in, retries
from kinetoscope.rules.spread import spread
from kinetoscope.units import count, duration, size

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_NOTES = "https://docs.pytorch.org/docs/stable/torch_cuda_memory.html"


class Thresholds(Options, frozen=True):
    """When running out of memory is worth a word."""

    unused: float = 0.30
    """Share of the held memory that tensors do not use, from which on it is in pieces."""
    min_steps: float = 0.6
    """Share of the steps, two at least, in which a program tries again as a habit (MM303)."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Report the failures; peaks of held and used memory tell what kind of shortage it was."""
    events = analysis.trace.failed_requests.height
    if events < 1:
        return
    found = retries(analysis)
    if found is None:
        yield _ended(analysis, options)
        return
    steps = analysis.trace.steps.count
    if found.steps.size >= max(2, options.min_steps * steps):
        if found.frames.size:
            yield _habit(analysis, found)
        else:
            yield replace(_ended(analysis, options), at_least="low", at_most="low")
    elif found.steps.max(initial=0) > 0 or steps < 2:
        yield replace(_ended(analysis, options), at_least="info", at_most="low")


def _ended(analysis: Analysis, options: Thresholds) -> Hit:
    """A failure that ended the program, or after which nothing is known."""
    found = analysis.get(growth)
    known = found is not None and found.device >= 0
    held, used = (found.reserved, found.peak) if known and found else (0, 0)
    pieces = held > 0 and used < (1 - options.unused) * held
    tail = f" The allocator held {size(held)} and tensors used {size(used)}." if held > 0 else ""
    return Hit(
        message=f"{_failed(analysis)}.{tail}",
        evidence=(
            *_requests(analysis),
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


def _habit(analysis: Analysis, found: Retries) -> Hit:
    """Failures step after step, each of which the program caught to try again."""
    vain = merge(found.tried, found.before) if found.backward else found.tried
    driver = driver_calls(analysis)
    refilled = np.concatenate((driver.taken, driver.returned, driver.waits))
    around = analysis.extent(np.concatenate((refilled, driver.flushes)))

    def without(tried: Intervals, driver_time: Intervals) -> Change:
        rows = calls_in(analysis, merge(tried, driver_time))
        return Change(host_cut=merge(tried, driver_time), drop_calls=rows)

    spent = measure(merge(vain, around)) // max(found.steps.size, 1)
    return Hit(
        message=f"{_failed(analysis)}, and the program tried again each time: "
        f"{duration(spent)} of host time a step are in vain, and so is what was launched in it.",
        evidence=(
            *_requests(analysis),
            Evidence("steps_that_retry", int(found.steps.size), "count"),
            Evidence("tried_in_vain", measure(vain) // max(found.steps.size, 1), "ns"),
        ),
        locations=with_step(analysis, analysis.locations(found.frames), found.frames),
        fix=Fix(
            summary="Remember the size that fitted and begin the next step with it, instead of "
            "trying what failed before.",
            snippet="parts = fits  # of the step before; 1 only in the first\n"
            "while True: ...\nfits = parts",
            reference="https://docs.pytorch.org/docs/stable/notes/faq.html"
            "#my-out-of-memory-exception-handler-can-t-allocate-memory",
        ),
        gain=spread(
            analysis.gain(
                without(found.tried, empty()),
                without(vain, around),
                without(merge(found.tried, found.before), around),
            )
        ),
        confidence=0.9,
        claims=merge(found.tried, around),
        keep=True,
        at_least="low",
    )


def _failed(analysis: Analysis) -> str:
    """How often a request failed, and how large it was."""
    table = analysis.trace.failed_requests
    events, asked = table.height, int(table["bytes"].max())  # type: ignore[arg-type]
    largest = f" (up to {size(asked)})" if asked > 0 else ""
    return (
        f"The device ran out of memory: {count(events)} failed request"
        f"{'s' if events > 1 else ''}{largest}"
    )


def _requests(analysis: Analysis) -> tuple[Evidence, ...]:
    """Number and size of the failed requests."""
    table = analysis.trace.failed_requests
    asked = int(table["bytes"].max())  # type: ignore[arg-type]
    return (
        Evidence("out_of_memory_events", table.height, "count"),
        *((Evidence("largest_request", asked, "bytes"),) if asked > 0 else ()),
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
        t.failed_request(2 << 30, 137 << 30, 2_500, reserved=138 << 30)


def _failing(t: TraceBuilder) -> None:
    _steps(t, fails=True)


def _tight(t: TraceBuilder) -> None:
    _steps(t, fails=False)


def _retrying(t: TraceBuilder) -> None:
    for step in range(4):
        at = step * 10_000
        t.step(at, 10_000)
        t.python("train.py(10): learn", at + 5, 9_900)
        t.python("train.py(30): whole", at + 10, 2_000)
        t.kernel("gemm", at + 50, 3_000, launch_at=at + 40)
        t.failed_request(2 << 30, 137 << 30, at + 1_900, reserved=138 << 30)
        t.kernel("gemm", at + 3_050, 6_000, launch_at=at + 2_100)
        t.sync(at + 2_200, 6_855)


def _searching(t: TraceBuilder) -> None:
    for step in range(4):
        t.step(step * 10_000, 10_000)
        t.kernel("gemm", step * 10_000 + 50, 9_000, launch_at=step * 10_000 + 40)
    t.failed_request(2 << 30, 137 << 30, 500, reserved=138 << 30)


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
        Example("a whole batch that is tried in vain in each step", _retrying, fires=True),
        Example("memory that is nearly full", _tight, fires=False),
        Example("a failure in the first step, of a program that goes on", _searching, fires=False),
    ),
)
