"""A convolution adds a bias that the following batch norm takes away again.

## What it finds
Convolutions with a bias whose result goes straight into a batch norm in training.

## Why it matters
Batch norm subtracts the mean of each channel, and with it any constant that was added to the
channel. The bias changes nothing, yet it costs a pass over the activations, a reduction in the
backward pass and a parameter for the optimizer.

## How to fix it
`nn.Conv2d(..., bias=False)` in front of `nn.BatchNorm2d`.

## Limits
Usually less than 1 % of the step. Where batch norm runs with fixed statistics (evaluation) the
bias counts; group norm and layer norm do not remove it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of, device_ops
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.result.finding import NO_GAIN
from kinetoscope.rules._inside import owner_of
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.trace.calltree import nearest
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration, several

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_CONVS = frozenset("conv1d conv2d conv3d convolution".split())
_BIAS, _TRAINING = 2, 5
"""Position of the bias among a convolution's arguments, of the mode among a batch norm's."""
_GUIDE = (
    "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
    "#disable-bias-for-convolutions-directly-followed-by-a-batch-norm"
)


class Thresholds(Options, frozen=True):
    """When a useless bias is worth a word."""

    min_layers: int = 1
    """Layers with one in a step."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the pairs, and replay without adding the bias and without its gradient."""
    trace = analysis.trace
    nodes = _pairs(trace)
    each = nodes.size / max(trace.steps.count, 1)
    if nodes.size == 0 or each < options.min_layers:
        return
    gain, spent = _gain(analysis, nodes)
    cost = f" {duration(spent)} a step goes into it." if spent else ""
    yield Hit(
        message=(
            f"{several(each, 'convolution adds', 'convolutions add')} a bias in each step that the "
            f"next batch norm takes away again.{cost}"
        ),
        evidence=(
            Evidence("convolutions_per_step", round(each, 1), "count"),
            Evidence("bias_time", spent, "ns"),
        ),
        locations=analysis.locations(trace.tree.rows[nodes], calls=("conv2d", "conv1d", "conv3d")),
        fix=Fix(
            summary="Build these convolutions without a bias.",
            snippet="nn.Conv2d(c_in, c_out, 3, padding=1, bias=False)  # nn.BatchNorm2d follows",
            reference=_GUIDE,
        ),
        gain=gain,
        confidence=0.9,
        at_most="low",
        keep=True,
    )


def _pairs(trace: Trace) -> IntArray:
    """Call-tree nodes of convolutions with a bias whose next operator is a training batch norm."""
    tree = trace.tree
    short = [short_name(name) for name in trace.names]
    if "batch_norm" not in short or not _CONVS & set(short):
        return np.empty(0, dtype=np.int64)
    ops = np.flatnonzero(tree.outer_ops)
    ids = trace.column("name_id")[tree.rows[ops]]
    conv = np.array([name in _CONVS for name in short], dtype=bool)[ids]
    norm = np.array([name == "batch_norm" for name in short], dtype=bool)[ids]
    same = np.append(tree.thread[ops[1:]] == tree.thread[ops[:-1]], False)
    first = np.flatnonzero(conv & np.append(norm[1:], False) & same)
    found = [
        int(ops[i])
        for i in first
        if _has_bias(trace, int(tree.rows[ops[i]]))
        and args_of(trace, int(tree.rows[ops[i + 1]])).text(_TRAINING) == "True"
    ]
    return np.array(found, dtype=np.int64)


def _has_bias(trace: Trace, row: int) -> bool:
    args = args_of(trace, row)
    return args.is_tensor(_BIAS) and len(args.shape(_BIAS)) == 1


def _gain(analysis: Analysis, nodes: IntArray) -> tuple[Gain, int]:
    """Without the addition of the bias and the reduction for its gradient."""
    if analysis.device is None:
        return NO_GAIN, 0
    work, tree = analysis.get(device_ops), analysis.trace.tree
    flag = np.zeros(tree.rows.size, dtype=bool)
    flag[nodes] = True
    around = nearest(flag, tree.parent)
    forward = (owner_of(work, around) >= 0) & work.named("add_")
    anchor = np.where(work.anchor >= 0, around[np.maximum(work.anchor, 0)], -1)
    backward = work.backward & (anchor >= 0) & work.named("sum")
    mine = np.flatnonzero(forward | backward)
    calls = work.call[mine]
    if mine.size == 0:
        return NO_GAIN, 0
    inside = analysis.in_window(work.rows[mine])
    spent = int(analysis.trace.column("dur_ns")[inside].sum()) // analysis.steps
    gain = analysis.gain(
        Change(durations=(work.rows[mine], np.zeros(mine.size, dtype=np.int64))),
        Change(drop_calls=calls[calls >= 0], host_cut=analysis.extent(np.unique(work.op[mine]))),
    )
    return gain, spent


def _layers(t: TraceBuilder, *, bias: bool) -> None:
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        third = [64] if bias else []
        t.op("aten::conv2d", at + 10, 40, dims=[[32, 64, 56, 56], [64, 64, 3, 3], third])
        t.op("aten::cudnn_convolution", at + 12, 10, dims=[[32, 64, 56, 56], [64, 64, 3, 3]])
        t.kernel("implicit_gemm", at + 30, 900, launch_at=at + 15)
        if bias:
            t.op("aten::add_", at + 30, 15, dims=[[32, 64, 56, 56], [1, 64, 1, 1], []])
            t.kernel("elementwise_kernel", at + 930, 60, launch_at=at + 34)
        dims = [[32, 64, 56, 56], [64], [64], [64], [64], [], [], [], []]
        values = ["", "", "", "", "", "True", "0.1", "1e-05", "True"]
        t.op("aten::batch_norm", at + 60, 20, dims=dims, concrete=values)
        t.kernel("bn_fw", at + 990, 500, launch_at=at + 65)
        t.sync(at + 90, 1_390)


def _biased(t: TraceBuilder) -> None:
    _layers(t, bias=True)


def _plain(t: TraceBuilder) -> None:
    _layers(t, bias=False)


RULE = Rule(
    code="CP218",
    name="conv-bias-before-batchnorm",
    class_="compute",
    summary="A convolution adds a bias that the following batch norm takes away again.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="E",
    references=(_GUIDE,),
    examples=(
        Example("a convolution with a bias in front of a batch norm", _biased, fires=True),
        Example("a convolution without", _plain, fires=False),
    ),
)
