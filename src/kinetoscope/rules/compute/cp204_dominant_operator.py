"""One operator with one shape takes a third of the device's busy time.

## What it finds
Kernels of one operator with equal shapes that take 30 % or more of the busy time, while the device
is busy nearly all the time. Says how close they come to what the device can do.

## Why it matters
When the device is the limit, the step can only get faster where its time goes. One operator that
dominates is the place to look, and its distance from the roofline says whether looking pays.

## How to fix it
Far from the roofline: other shapes, another layout, autotuning, a fused form. At the roofline only
less work helps: lower precision, a smaller or sparser layer, another algorithm.

## Limits
A finding without a gain is information, not a fault: a large matrix product at 70 % of the peak is
what a well-tuned program looks like. Operators that only copy are left to the rules about copies.
A sort is a fault where half of it or less is cut off right after; sorts of which all is used are of
medium severity at most.
Lookups and scattered writes (`_embedding_bag`, `gather`, `index_add_`) have no gain here: they do
not reach the speed of reading in order.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.metrics.cost_args import Args, NotRecordedError
from kinetoscope.metrics.device_ops import DeviceOps, args_of
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.roofline import Roofline
from kinetoscope.replay import Change
from kinetoscope.result import Evidence, Fix, Gain
from kinetoscope.result.finding import NO_GAIN, Severity
from kinetoscope.rules.api import Example, Hit, Options, Rule
from kinetoscope.rules.compute._kernels import (
    busy_share,
    device_work,
    extent_of,
    peaks,
    per_step_ns,
    places,
    shrunk,
)
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.op_names import op_family, short_name
from kinetoscope.trace.trace import IntArray, Trace
from kinetoscope.units import duration, percent

if TYPE_CHECKING:
    from kinetoscope.testing import TraceBuilder

_SORTS = frozenset({"sort", "argsort", "msort"})
_LOOKUPS = frozenset(
    "embedding _embedding_bag index index_select gather scatter_ scatter_add_ index_add index_add_ "
    "index_put_ _index_put_impl_ embedding_dense_backward".split()
)
"""Operators that go where their indices point. The speed of reading in order is not their roof;
what can be done about them, CP216 and MM317 say."""


class Thresholds(Options, frozen=True):
    """When an operator dominates."""

    min_share: float = 0.3
    """Share of the device's busy time (two of the articles that the rules come from use it)."""
    min_busy: float = 0.85
    """Share of the step in which the device is busy; below, the host is the limit."""
    headroom_below: float = 0.35
    """Efficiency against the data sheet below which there is something to gain; good kernels reach
    0.6 to 0.8."""
    reached: tuple[float, float, float] = (0.4, 0.6, 0.8)
    """Share of the achievable rate that the operator may reach after tuning."""


def check(analysis: Analysis, options: Thresholds) -> Iterator[Hit]:
    """Find the operator with most time and compare it with the roofline."""
    busy = analysis.busy_per_step_ns / max(analysis.step_ns, 1)
    if busy < options.min_busy:
        return
    work = device_work(analysis)
    top = _heaviest(analysis, work)
    rows = work.rows[top]
    share = busy_share(analysis, rows)
    if rows.size == 0 or share < options.min_share:
        return
    device = peaks(analysis)
    roof = analysis.roof
    name = work.op_name(int(top[0]))
    if name in _LOOKUPS:
        efficiency, gain = -1.0, NO_GAIN
    elif device is not None and name in _SORTS:
        efficiency, gain = _sorting(analysis, options, device, (work, top))
    else:
        efficiency, gain = _headroom(analysis, options, device, roof, rows)
    dims = " x ".join(str(d) for d in args_of(analysis.trace, int(work.op[top[0]])).dims[:3] if d)
    spent = per_step_ns(analysis, rows)
    seen = efficiency >= 0
    tail = f" It reaches {percent(efficiency)} of the roofline." if seen else ""
    yield Hit(
        message=(
            f"`{name}` {dims} takes {duration(spent)} a step, {percent(min(share, 1.0))} of the "
            f"device's busy time.{tail}"
        ),
        evidence=(
            Evidence("operator_time", spent, "ns"),
            Evidence("busy_share", round(min(share, 1.0), 4), "ratio", "derived"),
            *((Evidence("roofline_efficiency", round(efficiency, 6), "ratio", "derived"),) * seen),
        ),
        locations=places(analysis, rows),
        fix=_fix(efficiency, options, name),
        gain=gain,
        confidence=0.7 if seen else 0.4,
        claims=extent_of(analysis, rows),
        at_most=_at_most(analysis, work, top, gain),
        keep=True,
    )


def _at_most(analysis: Analysis, work: DeviceOps, top: IntArray, gain: Gain) -> Severity:
    """A sort of which a few are used is a fault; one that orders everything may be the purpose."""
    if gain is NO_GAIN:
        return "info"
    sorts = work.op_name(int(top[0])) in _SORTS
    return "high" if sorts and _few_used(analysis.trace, int(work.op[top[-1]])) else "medium"


_REACH = 24
"""Events after a sort among which a program cuts off what it needs."""


def _few_used(trace: Trace, sort: int) -> bool:
    """Is half of what this operator sorts, or less, cut off right after?"""
    kind, name = trace.column("kind"), trace.column("name_id")
    shape = args_of(trace, sort).dims[:1]
    for row in range(sort + 1, min(sort + _REACH, len(trace))):
        cut = short_name(trace.names[name[row]]) if kind[row] == Kind.CPU_OP else ""
        if cut in ("slice", "narrow"):
            args = args_of(trace, row)
            if args.dims[:1] == shape and _half_kept(args, cut):
                return True
    return False


def _half_kept(args: Args, cut: str) -> bool:
    """Does `slice(x, dim, start, end)` or `narrow(x, dim, start, length)` keep half at most?"""
    try:
        size = args.shape(0)[int(args.text(1))]
        start, end = int(args.text(2) or 0), int(args.text(3) or size)
    except (ValueError, IndexError, NotRecordedError):
        return False
    kept = end if cut == "narrow" else len(range(size)[start:end])
    return 2 * kept <= size


def _heaviest(analysis: Analysis, work: DeviceOps) -> IntArray:
    """Positions of the events of the operator and shape with most time."""
    compute = analysis.trace.column("kind")[work.rows] == Kind.KERNEL
    compute &= (work.op >= 0) & ~work.optimizer
    compute &= ~work.by_op_name(lambda name: op_family(name) == Family.COPY)
    known = np.flatnonzero(compute)
    if known.size == 0:
        return known
    key = work.args_key[known]
    total = np.bincount(key, weights=work.ns[known])
    return np.asarray(known[key == int(total.argmax())], dtype=np.int64)


def _headroom(
    analysis: Analysis,
    options: Thresholds,
    device: Peaks | None,
    roof: Roofline,
    rows: IntArray,
) -> tuple[float, Gain]:
    """Efficiency of these kernels (-1: unknown), and what tuning them may gain."""
    at = np.searchsorted(roof.costs.rows, rows)
    at = at[(at < roof.costs.rows.size)]
    known = at[np.isin(roof.costs.rows[at], rows) & (roof.efficiency[at] >= 0)]
    ns = analysis.trace.column("dur_ns")[roof.costs.rows[known]]
    if device is None or ns.sum() < 0.8 * analysis.trace.column("dur_ns")[rows].sum():
        return -1.0, NO_GAIN
    efficiency = float(roof.t_roof_ns[known].sum() / max(ns.sum(), 1))
    if efficiency >= options.headroom_below:
        return min(efficiency, 1.0), NO_GAIN
    best = roof.achievable_ns[known]
    kernels = roof.costs.rows[known]
    gain = analysis.gain(
        *(Change(durations=(kernels, shrunk(ns, best / part))) for part in options.reached)
    )
    return efficiency, gain


def _sorting(
    analysis: Analysis,
    options: Thresholds,
    device: Peaks,
    sorts: tuple[DeviceOps, IntArray],
) -> tuple[float, Gain]:
    """A sort passes over its data many times; choosing the largest few takes about one pass."""
    work, top = sorts
    args = args_of(analysis.trace, int(work.op[top[0]]))
    calls = np.unique(work.op[top]).size
    nbytes = max((args.bytes(i) for i in args.tensors()), default=0)
    pass_ns = nbytes / device.achievable_bytes_per_ns
    ns = work.ns[top]
    efficiency = min(pass_ns * calls / max(int(ns.sum()), 1), 1.0)
    if nbytes == 0 or efficiency >= options.headroom_below:
        return (efficiency if nbytes else -1.0), NO_GAIN
    gain = analysis.gain(
        *(
            Change(
                durations=(
                    work.rows[top],
                    shrunk(ns, np.multiply(ns, min(efficiency / part, 1.0), dtype=np.float64), 500),
                )
            )
            for part in options.reached
        )
    )
    return efficiency, gain


def _fix(efficiency: float, options: Thresholds, name: str) -> Fix:
    if name in _SORTS:
        return Fix(
            summary="Do not sort everything: torch.topk finds the largest k in about one pass.",
            snippet="values, indices = torch.topk(scores, k, dim=-1)",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.topk.html",
        )
    if 0 <= efficiency < options.headroom_below:
        return Fix(
            summary=f"`{name}` is far from what the device can do: try other shapes or layouts, "
            'torch.compile(mode="max-autotune"), or a fused form.',
            snippet='module = torch.compile(module, mode="max-autotune")',
            reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        )
    return Fix(
        summary=f"Only less work in `{name}` helps: lower precision, smaller or sparser layers.",
        reference="https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",
    )


def _copying(t: TraceBuilder, copy_us: float, product_us: float) -> None:
    shape = [2048, 2048]
    for step in range(4):
        at = step * 2_000
        t.step(at, 1_990)
        t.op("aten::add", at + 10, 12, dims=[shape, shape, []])
        t.kernel("elementwise_kernel", at + 30, copy_us, launch_at=at + 14)
        t.op("aten::mm", at + 40, 12, dims=[shape, [2048, 2048]])
        t.kernel("sm90_xmma_gemm_tf32f32", at + 30 + copy_us, product_us, launch_at=at + 44)
        t.sync(at + 60, copy_us + product_us - 20)


def _slow(t: TraceBuilder) -> None:
    _copying(t, 1_500, 400)


def _even(t: TraceBuilder) -> None:
    _copying(t, 200, 200)


RULE = Rule(
    code="CP204",
    name="dominant-operator",
    class_="compute",
    summary="One operator with one shape takes a third of the device's busy time.",
    check=check,
    options=Thresholds(),
    needs=frozenset({"device", "launches", "shapes"}),
    evidence="T",
    references=("https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html",),
    examples=(
        Example("an addition at 2 % of the memory's bandwidth", _slow, fires=True),
        Example("a device that is idle most of the time", _even, fires=False),
    ),
)
