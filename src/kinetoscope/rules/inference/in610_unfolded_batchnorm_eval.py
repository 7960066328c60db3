"""Batch norm runs on its own in inference, though the convolution before it could do its work.

## What it finds
Inference in which `batch_norm` in eval mode follows a convolution, and these norms take a visible
part of the step.

## Why it matters
In eval mode batch norm multiplies each channel by a constant and adds another. Folded into the
weights and bias of the convolution it costs nothing; on its own it reads and writes the whole
result once more.

## How to fix it
`torch.nn.utils.fuse_conv_bn_eval(conv, bn)` for each pair, or `torch.compile` with
`TORCHINDUCTOR_FREEZING=1`, which folds them all.

## Limits
A convolution without a bias gets one by folding, and on a device eager mode adds it in a pass of
its own: then only compilation with freezing saves the time. Weights can no longer be trained.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of, device_ops
from kinetoscope.metrics.intervals import measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.rules.framework._waiting import calls_inside
from kinetoscope.rules.inference._requests import serves
from kinetoscope.trace.op_names import short_name
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import count, duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.pytorch.org/docs/stable/generated/torch.nn.utils.fuse_conv_bn_eval.html"
_CONVOLUTIONS = frozenset({"conv1d", "conv2d", "conv3d", "convolution"})
_TRAINING = 5
"""Position of `training` in the schema of `batch_norm`."""


class Thresholds(Options, frozen=True):
    """When folding is worth a word."""

    min_share: float = 0.03
    """Time in the norms as a share of the device's busy time, or of the step without a device."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find pairs of convolution and batch norm, and replay without the norms."""
    if not serves(analysis):
        return
    norms, biased = _pairs(analysis)
    if norms.size == 0:
        return
    host, calls = steady_extent(analysis, norms), calls_inside(analysis, norms)
    work = analysis.get(device_ops)
    kernels = work.rows[np.isin(work.call, calls)]
    steps = analysis.steps_on_host
    if analysis.device is None:
        spent, whole = measure(host) // steps, analysis.step_ns
    else:
        spent = int(analysis.trace.column("dur_ns")[kernels].sum()) // steps
        whole = analysis.busy_per_step_ns
    share = spent / max(whole, 1)
    if share < options.min_share:
        return
    yield Hit(
        message=(
            f"{count(round(norms.size / steps))} batch norms in eval mode follow a convolution "
            f"that could do their work: {duration(spent)} a step, {percent(min(share, 1.0))} of "
            + ("the step." if analysis.device is None else "the device's work.")
        ),
        evidence=(
            Evidence("norm_time", spent, "ns"),
            Evidence("norm_share", round(min(share, 1.0), 4), "ratio", "derived"),
            Evidence("norms", round(norms.size / steps, 1), "count"),
            Evidence("convolutions_with_bias", round(float(biased.mean()), 6), "ratio"),
        ),
        locations=analysis.locations(norms, calls=("batch_norm",)),
        fix=Fix(
            summary="Fold each batch norm into the convolution before it, once, after loading.",
            snippet="conv = torch.nn.utils.fuse_conv_bn_eval(conv.eval(), bn.eval())\n"
            "# or: TORCHINDUCTOR_FREEZING=1 and torch.compile(model)",
            reference=_URL,
        ),
        gain=_gain(analysis, norms, kernels, float(biased.mean())),
        confidence=0.9,
        claims=analysis.extent(analysis.in_window(kernels)) if kernels.size else host,
        # Folding is for good and seldom what limits a program: others come first.
        at_most="low",
    )


def _gain(analysis: Analysis, norms: IntArray, kernels: IntArray, biased: float) -> Gain:
    """The norms gone; on a device a convolution that gets a bias pays for it."""
    host = steady_extent(analysis, norms)
    if analysis.device is None:
        return analysis.gain(Change(host_cut=host, host_cut_factor=0.7), Change(host_cut=host))
    ns = analysis.trace.column("dur_ns")[kernels]
    changes = [
        Change(
            host_cut=host,
            host_cut_factor=gone,
            durations=(kernels, (ns * (1 - gone)).astype(np.int64)),
        )
        for gone in (biased, max(biased, 0.4), max(biased, 0.8))
    ]
    return analysis.gain(*changes)


def _pairs(analysis: Analysis) -> tuple[IntArray, np.ndarray]:
    """Batch norms in eval mode right after a convolution, and whether that had a bias."""
    trace, tree = analysis.trace, analysis.trace.tree
    nodes = np.flatnonzero(trace.tree.outer_ops)
    rows = tree.rows[nodes]
    names = trace.column("name_id")[rows]
    short = [short_name(n) for n in trace.names]
    is_norm = np.array([n == "batch_norm" for n in short], dtype=bool)[names]
    is_conv = np.array([n in _CONVOLUTIONS for n in short], dtype=bool)[names]
    at = np.flatnonzero(is_norm[1:] & is_conv[:-1]) + 1 if rows.size else np.empty(0, np.int64)
    at = at[tree.thread[nodes[at]] == tree.thread[nodes[at - 1]]]
    at = at[np.isin(rows[at], analysis.in_steps(rows[at]))]
    evaluating = np.array([_evaluates(trace, int(r)) for r in rows[at]], dtype=bool)
    at = at[evaluating] if at.size else at
    biased = np.array([_has_bias(trace, int(r)) for r in rows[at - 1]], dtype=bool)
    return rows[at], biased


def _evaluates(trace: Trace, row: int) -> bool:
    return args_of(trace, row).text(_TRAINING) == "False"


def _has_bias(trace: Trace, row: int) -> bool:
    dims = args_of(trace, row).dims
    return len(dims) > 2 and bool(dims[2])


def _network(t: TraceBuilder, training: str) -> None:
    shape = [32, 64, 56, 56]
    for step in range(4):
        at = step * 2_000.0
        t.step(at, 2_000)
        for i in range(4):
            begin = at + 10 + i * 60
            t.op("aten::conv2d", begin, 20, dims=[shape, [64, 64, 3, 3], [64]])
            t.kernel("implicit_gemm", at + 30 + i * 480, 300, launch_at=begin + 8)
            values = ["", "", "", "", "", training, "0.1", "1e-05", "True"]
            dims = [shape, [64], [64], [64], [64], [], [], [], []]
            t.op("aten::batch_norm", begin + 25, 20, dims=dims, concrete=values)
            t.kernel("bn_fw_inf", at + 331 + i * 480, 150, launch_at=begin + 33)
        t.sync(at + 300, 1_650)


def _eval(t: TraceBuilder) -> None:
    _network(t, "False")


def _train(t: TraceBuilder) -> None:
    _network(t, "True")


RULE = Rule(
    code="IN610",
    name="unfolded-batchnorm-eval",
    class_="memory",
    summary="Batch norm runs on its own in inference, though it could be folded away.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="ET",
    references=(_URL,),
    examples=(
        Example("four convolutions with a bias, each with its norm", _eval, fires=True),
        Example("norms in training mode, which cannot be folded", _train, fires=False),
    ),
)
