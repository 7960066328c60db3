"""The model serves in training mode: its results are random, or depend on the batch.

## What it finds
Inference in which dropout is switched on, or batch norm uses the statistics of the batch although
the module keeps running ones.

## Why it matters
First of all the results are wrong: dropout removes values at random, and batch norm makes each
answer depend on the other requests of its batch, and changes the model with each of them. It also
costs time that eval mode does not need.

## How to fix it
`model.eval()` after loading, before the first request.

## Limits
Dropout in inference can be on purpose (Monte-Carlo estimates of uncertainty). Norms that keep no
running statistics, such as instance norm, are not counted.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.device_ops import args_of, device_ops
from kinetoscope.metrics.intervals import Intervals, measure
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.framework._surroundings import steady_extent
from kinetoscope.rules.framework._waiting import calls_inside
from kinetoscope.rules.inference._requests import ops_named, serves
from kinetoscope.trace.trace import IntArray
from kinetoscope.units import duration, several

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_URL = "https://docs.pytorch.org/docs/stable/generated/torch.nn.Module.html#torch.nn.Module.eval"
_DROPOUT_TRAIN, _NORM_TRAIN, _RUNNING_MEAN = 2, 5, 3
"""Positions in the schemas of `dropout` and `batch_norm`."""


class Thresholds(Options, frozen=True):
    """What counts as training mode."""

    norm_saved: tuple[float, float, float] = (0.0, 0.4, 0.75)
    """Part of the time of batch norm that eval mode saves: it need not compute statistics."""
    norm_saved_on_cpu: tuple[float, float, float] = (0.4, 0.85, 0.95)
    """The same for operators of `long_ns` without a device, where statistics are what takes long:
    with torch 2.13 on one thread 0.87 to 0.95 was saved of contiguous images, 0.5 to 0.85 of
    channels-last ones, and 0.1 to 0.45 of calls of 30 to 70 us."""
    long_ns: int = 100_000
    """Shorter norms are mostly the call, which stays."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Look at the flags that dropout and batch norm were called with."""
    if not serves(analysis):
        return
    drops = _with_flag(analysis, ("dropout", "native_dropout"), _DROPOUT_TRAIN)
    norms = _with_statistics(analysis, _with_flag(analysis, ("batch_norm",), _NORM_TRAIN))
    if drops.size == 0 and norms.size == 0:
        return
    steps = analysis.steps_on_host
    host = steady_extent(analysis, np.concatenate((drops, norms)))
    parts = []
    if drops.size:
        parts.append(several(drops.size / steps, "dropout is", "dropouts are") + " switched on")
    if norms.size:
        uses = several(norms.size / steps, "batch norm uses", "batch norms use")
        parts.append(f"{uses} the batch's statistics")
    yield Hit(
        message=(
            f"The model serves in training mode: {' and '.join(parts)} in each step. Results are "
            + ("random" if drops.size else "dependent on the batch")
            + f"; it also takes the host {duration(measure(host) // steps)} a step."
        ),
        evidence=(
            Evidence("dropouts", round(drops.size / steps, 1), "count"),
            Evidence("norms_in_training_mode", round(norms.size / steps, 1), "count"),
            Evidence("host_time", measure(host) // steps, "ns"),
        ),
        locations=analysis.locations(np.concatenate((norms, drops))),
        fix=Fix(
            summary="Switch the model to eval mode before it serves.",
            snippet="model.eval()\nwith torch.inference_mode():\n    output = model(batch)",
            reference=_URL,
        ),
        gain=_gain(analysis, drops, norms, options),
        confidence=0.9 if norms.size else 0.7,
        claims=host,
        at_least="medium",
        keep=True,
    )


def _gain(analysis: Analysis, drops: IntArray, norms: IntArray, options: Thresholds) -> Gain:
    """Dropout gone, batch norm shorter."""
    gone = calls_inside(analysis, drops)
    work = analysis.get(device_ops)
    slow = np.isin(work.call, calls_inside(analysis, norms))
    rows, ns = work.rows[slow], work.ns[slow]
    dropping, norming = steady_extent(analysis, drops), steady_extent(analysis, norms)
    if analysis.device is None:
        return _gain_on_cpu(analysis, dropping, norming, options)

    def change(saved: float) -> Change:
        shorter = (ns * (1 - saved)).astype(np.int64)
        return Change(host_cut=dropping, drop_calls=gone, durations=(rows, shorter))

    return analysis.gain(*(change(saved) for saved in options.norm_saved))


def _gain_on_cpu(
    analysis: Analysis, dropping: Intervals, norming: Intervals, options: Thresholds
) -> Gain:
    start, end = norming
    long = end - start >= options.long_ns
    short = start[~long], end[~long]
    parts = zip(options.norm_saved, options.norm_saved_on_cpu, strict=True)
    return analysis.gain(
        *(
            Change(
                host_cut=dropping,
                more_cuts=(((start[long], end[long]), most), (short, some)),
            )
            for some, most in parts
        )
    )


def _with_flag(analysis: Analysis, names: tuple[str, ...], position: int) -> IntArray:
    """Outermost operators of these names whose argument at this position is True."""
    trace = analysis.trace
    rows = analysis.in_steps(ops_named(trace, *names))
    rows = rows[trace.tree.outer_ops[trace.tree.node_of[rows]]] if rows.size else rows
    ids = trace.column("concrete_id")[rows]
    _, first, which = np.unique(ids, return_index=True, return_inverse=True)
    flags = [args_of(trace, int(rows[i])).text(position) == "True" for i in first]
    return rows[np.array(flags, dtype=bool)[which]] if first.size else rows


def _with_statistics(analysis: Analysis, norms: IntArray) -> IntArray:
    """Those that were given running statistics."""
    dims = [args_of(analysis.trace, int(row)).dims for row in norms]
    given = [len(d) > _RUNNING_MEAN and bool(d[_RUNNING_MEAN]) for d in dims]
    return norms[np.array(given, dtype=bool)] if norms.size else norms


def _serving(t: TraceBuilder, flag: str) -> None:
    for step in range(4):
        at = step * 1_000.0
        t.step(at, 1_000)
        for i in range(4):
            begin = at + 10 + i * 240
            t.op("aten::linear", begin, 100, dims=[[64, 256], [256, 256], [256]])
            t.op(
                "aten::dropout",
                begin + 110,
                60,
                dims=[[64, 256], [], []],
                concrete=["", "0.1", flag],
            )


def _train(t: TraceBuilder) -> None:
    _serving(t, "True")


def _eval(t: TraceBuilder) -> None:
    _serving(t, "False")


RULE = Rule(
    code="IN611",
    name="train-mode-in-inference",
    class_="compute",
    summary="The model serves in training mode: dropout is on, or batch norm uses the batch.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"ops", "shapes"}),
    evidence="E",
    references=(_URL,),
    examples=(
        Example("dropout that is switched on in each request", _train, fires=True),
        Example("dropout that is switched off", _eval, fires=False),
    ),
)
