"""Data of the charts: steps, launch queue, roofline, ranks side by side."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kinetoscope import units
from kinetoscope.analysis import Analysis
from kinetoscope.analysis.job import trusted, waits
from kinetoscope.metrics.hardware import Peaks
from kinetoscope.metrics.intervals import clip, measure, union
from kinetoscope.metrics.precision import Math
from kinetoscope.metrics.roofline import Bound, Roofline
from kinetoscope.result.view import (
    CommView,
    Histogram,
    QueueView,
    RankRow,
    Roof,
    RooflineView,
    RoofPoint,
    StepRow,
)
from kinetoscope.trace.kinds import Family, Kind
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray
from kinetoscope.viewdata.boxes import BoolArray
from kinetoscope.viewdata.names import shorten
from kinetoscope.viewdata.pack import pack

MOST_POINTS = 120
MOST_STEPS = 5_000
_SAMPLES = 1_200


def steps(analysis: Analysis, origin: int) -> tuple[StepRow, ...]:
    """Each step's host period and the device work launched in it; `origin` is the page's zero."""
    found = analysis.trace.steps
    times = analysis.times
    duration = analysis.trace.column("dur_ns")[times.device_rows]
    mine = times.device_step >= 0
    work = np.bincount(
        times.device_step[mine], weights=duration[mine], minlength=max(found.count, 1)
    )
    steady = set(times.steady)
    return tuple(
        StepRow(
            index=i,
            start_ns=int(found.edges[i]) - origin,
            host_ns=int(found.edges[i + 1] - found.edges[i]),
            device_ns=int(work[i]),
            steady=i in steady,
        )
        for i in range(min(found.count, MOST_STEPS))
    )


def queue(analysis: Analysis, origin: int) -> QueueView | None:
    """How long kernels stood in the queue; None without linked kernels."""
    trace = analysis.trace
    rows = rows_of(trace, Kind.KERNEL, Kind.COLLECTIVE)
    launch = trace.links.launch[rows]
    rows, launch = rows[launch >= 0], launch[launch >= 0]
    if rows.size < 2:
        return None
    ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
    issued = ts[launch] + dur[launch]
    delay = np.maximum(ts[rows] - issued, 0)
    edges = np.array([0, *(m * 10**e for e in range(3, 9) for m in (1, 3)), 10**9, 2**62])
    counts = np.histogram(delay, bins=edges)[0]
    low, high = int(ts[launch].min()), int((ts[rows] + dur[rows]).max())
    at = np.linspace(low, high, _SAMPLES).astype(np.int64)
    waiting = np.searchsorted(np.sort(ts[launch]), at, side="right") - np.searchsorted(
        np.sort(ts[rows]), at, side="right"
    )
    return QueueView(
        delay=Histogram(tuple(int(e) for e in edges), tuple(int(c) for c in counts)),
        median_ns=int(np.median(delay)),
        p90_ns=int(np.quantile(delay, 0.9)),
        empty_ratio=round(float(_found_empty(analysis, rows, issued).mean()), 4),
        time_ns=pack(at - origin, delta=True),
        depth=pack(np.maximum(waiting, 0)),
    )


def _found_empty(analysis: Analysis, rows: IntArray, issued: IntArray) -> BoolArray:
    """Kernels whose launch returned when their stream had nothing left to do."""
    trace = analysis.trace
    thread = trace.column("thread")[rows]
    end = trace.column("ts_ns")[rows] + trace.column("dur_ns")[rows]
    order = np.argsort(thread, kind="stable")
    before = np.full(rows.size, np.iinfo(np.int64).min)
    before[order[1:]] = np.where(
        thread[order[1:]] == thread[order[:-1]], end[order[:-1]], np.iinfo(np.int64).min
    )
    return issued >= before


def roofline_view(analysis: Analysis) -> RooflineView:
    """Kernels by name against the device's peaks."""
    roof = analysis.roof
    if roof.costs.rows.size == 0:
        return _no_roofline("No kernel was recorded: the roofline needs a device.")
    if roof.peaks is None:
        return _no_roofline("The recording does not name a device whose peak rates are known.")
    window = np.isin(roof.costs.rows, analysis.in_window(roof.costs.rows))
    duration = analysis.trace.column("dur_ns")[roof.costs.rows]
    known = window & (roof.costs.flop > 0) & (roof.costs.bytes > 0) & (duration > 0)
    if not known.any():
        return _no_roofline(
            "Input shapes were not recorded. Record with record_shapes=True.", roof.peaks.name
        )
    maths = np.unique(roof.costs.math[known])
    return RooflineView(
        device=roof.peaks.name,
        bytes_per_s=roof.peaks.bandwidth_gbps * 1e9,
        roofs=_roofs(roof.peaks, [Math(int(m)) for m in maths]),
        points=_points(analysis, roof, np.flatnonzero(known)),
        coverage=round(float(duration[known].sum() / max(duration[window].sum(), 1)), 4),
    )


def _no_roofline(missing: str, device: str = "") -> RooflineView:
    return RooflineView(device, 0.0, (), (), 0.0, missing)


def _roofs(peaks: Peaks, maths: Sequence[Math]) -> tuple[Roof, ...]:
    rates = {m.name: peaks.flop_per_ns(m) * 1e9 for m in maths}
    return tuple(
        Roof(name.replace("_", " "), rate)
        for name, rate in sorted(rates.items(), key=lambda item: -item[1])
        if rate > 0
    )


def _points(analysis: Analysis, roof: Roofline, which: IntArray) -> tuple[RoofPoint, ...]:
    trace, costs = analysis.trace, roof.costs
    name = trace.column("name_id")[costs.rows[which]].astype(np.int64)
    key = (name << 8) | costs.math[which]
    distinct, group = np.unique(key, return_inverse=True)
    duration = trace.column("dur_ns")[costs.rows[which]].astype(np.float64)
    time = np.bincount(group, weights=duration)
    flop = np.bincount(group, weights=costs.flop[which])
    traffic = np.bincount(group, weights=costs.bytes[which])
    useful = np.bincount(group, weights=duration * np.maximum(roof.efficiency[which], 0))
    count = np.bincount(group)
    points = []
    for g in np.argsort(-time, kind="stable")[:MOST_POINTS]:
        one = which[np.flatnonzero(group == g)[0]]
        points.append(
            RoofPoint(
                name=shorten(trace.names[int(distinct[g]) >> 8], 200),
                family=Family(int(trace.column("family")[costs.rows[one]])).name.lower(),
                precision=Math(int(distinct[g]) & 255).name.replace("_", " "),
                flop_per_byte=float(flop[g] / traffic[g]),
                flop_per_s=float(flop[g] / time[g] * 1e9),
                bytes_per_s=float(traffic[g] / time[g] * 1e9),
                ns=int(time[g] / analysis.steps),
                count=int(count[g]),
                bound=Bound(int(roof.bound[one])).name.lower(),
                efficiency=round(float(useful[g] / time[g]), 4),
            )
        )
    return tuple(points)


def communication(lead: Analysis) -> CommView:
    """Ranks side by side; says what to record when there is only one."""
    if lead.comm.row.size == 0 and not lead.peers:
        return CommView(
            (),
            False,
            None,
            "",
            missing="No collective was recorded. For a job of "
            "several ranks, record every rank and analyze the folder.",
        )
    sure = bool(lead.peers) and trusted(lead)
    caused = _caused(lead) if sure else {}
    rows = tuple(_rank_row(a, caused.get(a.place, 0)) for a in lead.ranks)
    late = max(rows, key=lambda row: row.caused_ns)
    straggler = late.rank if sure and late.caused_ns > 0.02 * max(late.step_ns, 1) else None
    traced = any(a.has("stacks") for a in lead.ranks if a.rank == straggler)
    return CommView(rows, sure, straggler, _comm_sentence(rows, sure, straggler, traced))


def _caused(lead: Analysis) -> dict[int, int]:
    """By position: how long each other rank waits for a rank, per step, mean of the others."""
    total: dict[int, int] = {}
    for analysis in lead.ranks:
        for place, stretches in waits(analysis).waiting:
            total[place] = total.get(place, 0) + measure(stretches) // analysis.steps
    others = max(len(lead.ranks) - 1, 1)
    return {place: ns // others for place, ns in total.items()}


def _comm_sentence(
    rows: tuple[RankRow, ...], sure: bool, straggler: int | None, traced: bool
) -> str:
    if len(rows) == 1:
        return (
            "One rank was recorded, so waiting for a late rank and transfer cannot be told apart. "
            "Analyze the recordings of all ranks together."
        )
    if not sure:
        return "The recordings of the ranks do not fit together well enough to compare them."
    if straggler is None:
        return "No rank makes the others wait for long."
    late = next(row for row in rows if row.rank == straggler)
    # Tracing Python slows the host of the late rank, and the others wait for that as well.
    cost = f", including what the profiler cost rank {straggler}" if traced else ""
    return (
        f"The others wait for rank {straggler}: {units.duration(late.caused_ns)} of each step, on "
        f"average, as recorded{cost}."
    )


def _rank_row(analysis: Analysis, caused_ns: int) -> RankRow:
    device = analysis.device
    if device is None:
        return _host_row(analysis)
    count = analysis.steps
    inside = device.within(*analysis.times.window)
    exposed = measure(inside.exposed_comm)
    return RankRow(
        rank=analysis.rank,
        step_ns=analysis.step_ns,
        busy_ns=measure(inside.busy) // count,
        compute_ns=measure(inside.compute) // count,
        hidden_comm_ns=(measure(inside.comm) - exposed) // count,
        exposed_comm_ns=exposed // count,
        waiting_ns=min(waits(analysis).waiting_ns, exposed) // count,
        caused_ns=caused_ns,
    )


def _host_row(analysis: Analysis) -> RankRow:
    """A rank without a device: its collectives are host ranges."""
    comm = clip(union(analysis.comm.start, analysis.comm.end), *analysis.times.host_window)
    exposed = measure(comm) // analysis.steps_on_host
    return RankRow(analysis.rank, analysis.step_ns, 0, 0, 0, exposed, 0, 0)
