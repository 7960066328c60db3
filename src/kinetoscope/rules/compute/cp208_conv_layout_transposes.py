"""Convolutions convert between NCHW and NHWC around their kernels.

## What it finds
Layout kernels of the convolution library (`nchwToNhwc`, `nhwcToNchw`, batched transposes) that
take a sizeable part of the busy time.

## Why it matters
The tensor-core kernels of cuDNN and MIOpen work on channels-last (NHWC) data. A model in the
default NCHW layout has its inputs converted before and its outputs after each convolution: two
more passes over the activations for every layer, forward and backward. Batch norm in NCHW is slow
too when the layer has few channels.

## How to fix it
`model = model.to(memory_format=torch.channels_last)` and the same for the input batch, with
autocast. All layers must keep the layout: look for `view` and `reshape` between convolutions.
The channels-last format has four dimensions: signals of `Conv1d` get it as (N, C, 1, L), with
`Conv2d` and kernels of (1, k); volumes have `torch.channels_last_3d`.

## Limits
For `Conv1d` that is a change of the model, so the finding is of medium severity at most; so it is
where a CUDA graph hides what is convolved. Images of less than eight channels are padded in either
layout, and gain little.
Some conversions at the borders of the model are normal. Depthwise convolutions and float32
without TF32 may be faster in NCHW. Measure once with `torch.backends.cudnn.benchmark = True`.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._batch_norms import slow_batch_norms
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    per_step_ns,
    places,
)
from kinetoscope.trace.kinds import Family
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder


class Thresholds(Options, frozen=True):
    """When layout conversions are worth a word."""

    min_share: float = 0.03
    """Share of the busy time in layout kernels."""
    removed: tuple[float, float, float] = (0.5, 0.85, 1.0)
    """Part of the conversions that channels-last removes; borders stay."""
    padded: tuple[float, float, float] = (1.0, 0.7, 0.4)
    """Part that stays where an image has few channels, as at the borders of a model: the library
    pads them in channels-last as well (`nhwcAddPadding`)."""
    norm_over_roof: tuple[float, float, float] = (4.0, 2.2, 1.3)
    """Time of channels-last batch norm over that of its traffic at full bandwidth; 1.4 (backward)
    and 2.8 (forward) were seen on an H200, and 7 to 10 for NCHW with few channels."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Add up the layout kernels and replay without them."""
    work = device_work(analysis)
    layout = np.flatnonzero(work.of_family(Family.LAYOUT))
    convolutions = np.flatnonzero(work.of_family(Family.CONV))
    rows = work.rows[layout]
    if rows.size == 0 or convolutions.size == 0:
        return
    share = busy_share(analysis, rows)
    if share < options.min_share:
        return
    spent = per_step_ns(analysis, rows)
    norms, roof = slow_batch_norms(analysis, work)
    both = np.concatenate((layout, norms))
    dimensions, narrow = _convolved(analysis, work, layout)

    def change(removed: float, padded: float, over_roof: float) -> Change:
        norm_ns = np.minimum(work.ns[norms], over_roof * roof)
        stays = np.where(narrow, padded, 1 - removed)
        new = np.concatenate((work.ns[layout] * np.maximum(stays, 1 - removed), norm_ns))
        return Change(durations=(work.rows[both], new.astype(np.int64)))

    levels = zip(options.removed, options.padded, options.norm_over_roof, strict=True)
    changes = [change(*level) for level in levels]
    surely = dimensions >= _IMAGES
    yield Hit(
        message=(
            f"{'1-d convolutions' if dimensions == _SIGNALS else 'Convolutions'} convert between "
            "NCHW and NHWC: "
            f"{duration(spent)} a step, {percent(share)} of the device's busy time."
        ),
        evidence=(
            Evidence("layout_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence(
                "conversions_per_convolution",
                round(rows.size / convolutions.size, 2),
                "count",
                "derived",
            ),
        ),
        locations=places(analysis, rows, calls=("conv1d", "conv2d", "conv3d"), whole_step=True),
        fix=_FIXES.get(dimensions, _FIXES[_IMAGES]),
        gain=analysis.gain(*(changes if surely else [Change(), *changes[1:]])),
        confidence=0.9 if surely else 0.7,
        claims=extent_of(analysis, rows),
        at_most="critical" if surely else "medium",
    )


_SIGNALS, _IMAGES, _VOLUMES = 1, 2, 3
"""Dimensions of what is convolved."""
_TUTORIAL = "https://docs.pytorch.org/tutorials/intermediate/memory_format_tutorial.html"
_FIXES = {
    _SIGNALS: Fix(
        summary="Channels-last needs four dimensions: hold the signals as (N, C, 1, L) and use "
        "Conv2d with kernels of (1, k).",
        snippet="conv = nn.Conv2d(c, c, (1, 3), padding=(0, 1))\n"
        "conv = conv.to(memory_format=torch.channels_last)\n"
        "x = x.unsqueeze(2).contiguous(memory_format=torch.channels_last)  # once",
        reference=_TUTORIAL,
    ),
    _IMAGES: Fix(
        summary="Keep the model and its input in channels-last layout.",
        snippet="model = model.to(memory_format=torch.channels_last)\n"
        "x = x.to(memory_format=torch.channels_last)",
        reference=_TUTORIAL,
    ),
    _VOLUMES: Fix(
        summary="Keep the model and its input in channels-last layout, that of volumes.",
        snippet="model = model.to(memory_format=torch.channels_last_3d)\n"
        "x = x.to(memory_format=torch.channels_last_3d)",
        reference=_TUTORIAL,
    ),
}


def _convolved(
    analysis: Analysis, work: DeviceOps, layout: IntArray
) -> tuple[int, npt.NDArray[np.bool_]]:
    """How many dimensions most of these events convolve (0: unknown), and which have few channels.

    Inside of `Conv1d` the library's operators see a height of 1.
    """
    time = np.zeros(_VOLUMES + 1)
    narrow = np.zeros(layout.size, dtype=bool)
    time[0] = work.ns[layout[work.op[layout] < 0]].sum()
    for group in work.groups(layout[work.op[layout] >= 0]):
        args = args_of(analysis.trace, int(work.op[group[0]]))
        shapes = [shape for shape in map(args.shape, args.tensors()) if len(shape) >= 3]
        rank = max(map(len, shapes), default=2)
        flat = rank == 4 and all(shape[2] == 1 for shape in shapes)
        time[min(_SIGNALS if flat else rank - 2, _VOLUMES)] += work.ns[group].sum()
        backward = "backward" in work.op_name(int(group[0]))
        if len(shapes) >= 2:
            channels = shapes[0][1], shapes[1][1 if backward else 0]
            narrow[np.isin(layout, group)] = min(channels) < _ALIGNED
    return int(time.argmax()), narrow


_ALIGNED = 8
"""Channels that the matrix units' kernels take at least: fewer are padded, in either layout."""


def _network(t: TraceBuilder, layout_us: float) -> None:
    shape = [[64, 128, 56, 56], [128, 128, 3, 3]]
    for step in range(4):
        at = step * 3_000
        t.step(at, 2_990)
        for i in range(4):
            begin = at + 100 + i * (2 * layout_us + 500)
            t.op("aten::cudnn_convolution", at + 10 + 20 * i, 18, dims=shape)
            t.kernel(
                "void cudnn::ops::nchwToNhwcKernel", begin, layout_us, launch_at=at + 11 + 20 * i
            )
            t.kernel(
                "sm90_xmma_fprop_implicit_gemm", begin + layout_us, 500, launch_at=at + 16 + 20 * i
            )
            t.kernel(
                "void cudnn::ops::nhwcToNchwKernel",
                begin + layout_us + 500,
                layout_us,
                launch_at=at + 21 + 20 * i,
            )
        t.sync(at + 110, 4 * (2 * layout_us + 500))


def _many(t: TraceBuilder) -> None:
    _network(t, 120)


def _few(t: TraceBuilder) -> None:
    _network(t, 3)


RULE = Rule(
    code="CP208",
    name="conv-layout-transposes",
    class_="compute",
    summary="Convolutions convert between NCHW and NHWC around their kernels.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device"}),
    evidence="T",
    remedies=("channels-last",),
    references=(
        _TUTORIAL,
        "https://docs.nvidia.com/deeplearning/performance/dl-performance-convolutional/index.html",
    ),
    examples=(
        Example("two conversions of 120 microseconds around each convolution", _many, fires=True),
        Example("conversions of 1 % of the time", _few, fires=False),
    ),
)
