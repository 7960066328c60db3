"""Convolutions on the CPU work on NCHW tensors, which are converted for each of them.

## What it finds
A recording without a device in which convolutions with NCHW inputs take at least a fifth of the
step.

## Why it matters
oneDNN computes convolutions in channels-last or blocked layouts. With NCHW tensors it converts
input and output of every layer, and the operators in between run on the slower layout.

## How to fix it
`model = model.to(memory_format=torch.channels_last)` and the same for the input. `torch.compile`
with freezing packs the weights as well.

## Limits
What it brings depends on channels, sizes and the CPU, from nothing to about 40 %: measure it.
Convolutions of a few channels, and of 1x1, gain little and are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.rules.inference._requests import ops_named
from kinetoscope.trace.trace import Trace
from kinetoscope.units import duration, percent, several

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html"


class Thresholds(Options, frozen=True):
    """When the layout is worth a word."""

    min_share: float = 0.2
    """Time in these convolutions as a share of the step."""
    min_channels: int = 16
    """Channels of the input from which on the layout matters; oneDNN's blocks hold 8 or 16."""
    saved: tuple[float, float, float] = (0.05, 0.2, 0.4)
    """Part of their time that channels-last saves; 56 against 93 ms was the most seen."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look for convolutions of the host whose input is NCHW."""
    if analysis.device is not None:
        return
    trace = analysis.trace
    rows = analysis.in_steps(ops_named(trace, "conv2d", "conv3d"))
    keys = np.stack([trace.column(c)[rows] for c in ("dims_id", "strides_id")], axis=1)
    _, first, which = np.unique(keys, axis=0, return_index=True, return_inverse=True)
    planar = np.array([_planar(trace, int(rows[i]), options) for i in first], dtype=bool)
    rows = rows[planar[which.ravel()]] if first.size else rows
    spent = steady_extent(analysis, rows)
    per_step = measure(spent) // analysis.steps_on_host
    share = per_step / max(analysis.step_ns, 1)
    if rows.size == 0 or share < options.min_share:
        return
    yield Hit(
        message=(
            f"{several(rows.size / analysis.steps_on_host, 'convolution')} a step on NCHW tensors "
            f"on the CPU: {duration(per_step)}, {percent(min(share, 1.0))} of the step."
        ),
        evidence=(
            Evidence("convolution_time", per_step, "ns"),
            Evidence("convolution_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("convolutions", round(rows.size / analysis.steps_on_host, 1), "count"),
        ),
        locations=analysis.locations(rows, calls=("conv2d", "conv3d")),
        fix=Fix(
            summary="Keep the model and its input in channels-last layout, and measure.",
            snippet="model = model.to(memory_format=torch.channels_last)\n"
            "x = x.to(memory_format=torch.channels_last)",
            reference=_URL,
        ),
        gain=analysis.gain(
            *(Change(host_cut=spent, host_cut_factor=part) for part in options.saved)
        ),
        confidence=0.7,
        claims=spent,
        at_most="medium",
    )


def _planar(trace: Trace, row: int, options: Thresholds) -> bool:
    """Is the input of this convolution NCHW, with channels and a kernel that matter?"""
    args = args_of(trace, row)
    try:
        shape = [int(n) for n in args.dims[0]]
        kernel = [int(n) for n in args.dims[1][2:]]
        strides = [int(n) for n in args.strides[0]]
    except (TypeError, ValueError, IndexError):
        return False
    contiguous = [prod(shape[i + 1 :]) for i in range(len(shape))]
    plane = prod(shape[2:])
    return (
        len(shape) >= 4
        and shape[1] >= options.min_channels
        and max(kernel, default=1) > 1
        and plane > 1
        and strides == contiguous
    )


def _network(t: TraceBuilder, *, planar: bool) -> None:
    shape, weight = [8, 64, 56, 56], [64, 64, 3, 3]
    strides = [200704, 3136, 56, 1] if planar else [200704, 1, 3584, 64]
    for step in range(4):
        at = step * 10_000.0
        t.step(at, 10_000)
        for i in range(4):
            begin = at + 10 + i * 2_400
            t.op(
                "aten::conv2d",
                begin,
                2_000,
                dims=[shape, weight, [64]],
                strides=[strides, [576, 9, 3, 1], [1]],
            )
            t.op("aten::relu", begin + 2_010, 300, dims=[shape])


def _nchw(t: TraceBuilder) -> None:
    _network(t, planar=True)


def _nhwc(t: TraceBuilder) -> None:
    _network(t, planar=False)


RULE = Rule(
    code="IN607",
    name="cpu-conv-layout",
    class_="compute",
    summary="Convolutions on the CPU work on NCHW tensors and convert them each time.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="E",
    references=(_URL,),
    examples=(
        Example("four NCHW convolutions of 2 ms", _nchw, fires=True),
        Example("the same convolutions in channels-last layout", _nhwc, fires=False),
    ),
)
