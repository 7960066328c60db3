"""The timeline: threads, streams and idle time of the ranks on one clock."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from kinetoscope.analysis import Analysis
from kinetoscope.result.view import Lane, Steps, Timeline
from kinetoscope.trace.calltree import TREE_KINDS
from kinetoscope.trace.kinds import DEVICE_WORK
from kinetoscope.trace.links import rows_of
from kinetoscope.trace.trace import IntArray, Thread
from kinetoscope.viewdata.boxes import Boxes, Reduction, make_boxes, reduce
from kinetoscope.viewdata.depth import depths
from kinetoscope.viewdata.details import Details
from kinetoscope.viewdata.idle import idle_stretches
from kinetoscope.viewdata.names import NamePool
from kinetoscope.viewdata.own_events import own_frames, own_threads, parents_without
from kinetoscope.viewdata.pack import pack

MOST_BOXES = 500_000
"""About 4 MB in the page, whatever the size of the recording."""
MOST_RANKS = 4
MOST_THREADS = 16
"""Host threads and streams of a rank that are shown, each."""


@dataclass(frozen=True)
class _LaneInfo:
    kind: str
    rank: int
    label: str
    sublabel: str
    thread: int


def timeline(lead: Analysis, ranks: Sequence[Analysis], *, most: int = MOST_BOXES) -> Timeline:
    """Build the timeline of the leading rank and a few others.

    Args:
        lead: the rank that the diagnosis speaks of; it comes first.
        ranks: all ranks.
        most: boxes that the page may carry.
    """
    shown = shown_ranks(lead, ranks)
    pool, details = NamePool(), Details()
    parts = [_Rank(a, pool, details) for a in shown]
    origin = zero_of(lead, ranks)
    lanes: list[Lane] = []
    reductions: list[Reduction] = []
    offset = 0
    for part in parts:
        reduction = reduce(part.boxes, max(most // len(parts), 1), part.analysis.trace.steps.edges)
        reductions.append(reduction)
        lanes += part.lanes(reduction.boxes, origin, offset)
        offset += len(reduction.boxes)
    end = max((p.high for p in parts), default=0) - origin
    return Timeline(
        end_ns=max(end, 1),
        window=parts[0].moved_window(origin),
        names=pool.names(),
        lanes=tuple(lanes),
        steps=tuple(p.steps(origin) for p in parts if p.analysis.trace.steps.count),
        details=details.texts(),
        events=sum(len(p.boxes) for p in parts),
        merged_below_ns=max(r.limit_ns for r in reductions),
        merged_events=sum(r.joined for r in reductions),
        merged_boxes=sum(r.joint for r in reductions),
        kept=_moved(reductions[0].kept, parts[0].clock + origin),
        left_out=tuple(_left_out(ranks, shown, parts)),
    )


def _moved(stretch: tuple[int, int] | None, by: int) -> tuple[int, int] | None:
    return None if stretch is None else (stretch[0] - by, stretch[1] - by)


def _left_out(
    ranks: Sequence[Analysis], shown: Sequence[Analysis], parts: Sequence[_Rank]
) -> list[str]:
    lines = []
    if len(ranks) > len(shown):
        lines.append(
            f"{len(ranks) - len(shown)} of {len(ranks)} ranks; shown are "
            + ", ".join(f"rank {a.rank}" for a in shown)
        )
    lines += [
        f"rank {p.analysis.rank}: {p.hidden} lanes with the fewest events"
        for p in parts
        if p.hidden
    ]
    return lines


class _Rank:
    """Boxes of one rank, on its own clock until they are written."""

    def __init__(self, analysis: Analysis, pool: NamePool, details: Details) -> None:
        self.analysis = analysis
        self.details = details
        trace = analysis.trace
        self.clock = clock(analysis)
        tree = trace.tree
        device = rows_of(trace, *DEVICE_WORK)
        ts, dur = trace.column("ts_ns"), trace.column("dur_ns")
        thread = trace.column("thread")
        idle = idle_stretches(analysis)
        self.idle = idle
        self.infos, lane_of_thread, idle_lane, self.hidden = _lanes(analysis, idle.start.size > 0)
        used = set(np.unique(idle.reason).tolist())
        labels = np.array(
            [
                pool.add(label, f"idle_{class_}") if number in used else -1
                for number, (class_, label) in enumerate(idle.reasons)
            ],
            dtype=np.int64,
        )
        own = own_frames(trace)
        parents = parents_without(tree.parent, own)
        lane = np.concatenate(
            (
                np.where(own, -1, lane_of_thread[tree.thread]),
                lane_of_thread[thread[device]],
                np.full(idle.start.size, idle_lane, dtype=np.int64),
            )
        )
        boxes = make_boxes(
            lane,
            np.concatenate((depths(parents), np.zeros(device.size + idle.start.size, np.int64))),
            np.concatenate((tree.start, ts[device], idle.start)),
            np.concatenate((tree.end, ts[device] + dur[device], idle.end)),
            np.concatenate(
                (
                    pool.of_rows(trace, tree.rows),
                    pool.of_rows(trace, device),
                    labels[idle.reason] if labels.size else np.empty(0, np.int64),
                )
            ),
            np.concatenate((tree.rows, device, -2 - np.arange(idle.start.size))),
        )
        self.boxes = boxes.take(boxes.lane >= 0)
        own_high = int(self.boxes.end.max()) if len(self.boxes) else 1
        self.high = own_high - self.clock

    def moved_window(self, origin: int) -> tuple[int, int]:
        """The steady steps, on the page's clock."""
        low, high = self.analysis.window
        by = self.clock + origin
        return low - by, high - by

    def steps(self, origin: int) -> Steps:
        """Step marks, on the page's clock."""
        edges = self.analysis.trace.steps.edges - self.clock - origin
        return Steps(self.analysis.rank, tuple(int(e) for e in edges))

    def lanes(self, boxes: Boxes, origin: int, offset: int) -> list[Lane]:
        """Write the lanes; `offset` is the number of boxes of the ranks before."""
        link = self._links(boxes, offset)
        detail = self.details.of(self.analysis, boxes, self.idle)
        result = []
        for number, info in enumerate(self.infos):
            low, high = np.searchsorted(boxes.lane, [number, number + 1])
            mine = boxes.take(np.arange(low, high))
            result.append(
                Lane(
                    kind=info.kind,  # type: ignore[arg-type]
                    rank=info.rank,
                    label=info.label,
                    sublabel=info.sublabel,
                    events=int(mine.count.sum()),
                    total_ns=int(mine.busy.sum()),
                    rows=tuple(int(n) for n in np.bincount(mine.row)),
                    start=pack(mine.start - self.clock - origin, delta=True),
                    length=pack(mine.end - mine.start),
                    name=pack(mine.name),
                    count=pack(mine.count - 1),
                    slack=pack(mine.end - mine.start - mine.busy),
                    link=pack(link[low:high], delta=True) if info.kind == "device" else None,
                    detail=pack(detail[low:high], delta=True)
                    if np.any(detail[low:high] >= 0)
                    else None,
                )
            )
        return result

    def _links(self, boxes: Boxes, offset: int) -> IntArray:
        """Number of the box that launched each device box; -1: none."""
        trace = self.analysis.trace
        of_event = np.full(len(trace) + 1, -1, dtype=np.int64)
        real = boxes.event >= 0
        of_event[boxes.event[real]] = np.flatnonzero(real) + offset
        launch = np.where(real, trace.links.launch[np.maximum(boxes.event, 0)], -1)
        return np.where(launch >= 0, of_event[launch], -1)


def shown_ranks(lead: Analysis, ranks: Sequence[Analysis]) -> list[Analysis]:
    """The ranks that the page draws, the leading one first."""
    return [lead, *(a for a in ranks if a is not lead)][:MOST_RANKS]


def zero_of(lead: Analysis, ranks: Sequence[Analysis]) -> int:
    """Where the page's time begins, on the common clock: the first event of the shown ranks."""
    starts = []
    for rank in shown_ranks(lead, ranks):
        rows = rows_of(rank.trace, *TREE_KINDS, *DEVICE_WORK)
        if rows.size:
            first = int(rank.trace.column("ts_ns")[rows].min())
            starts.append(min(first, rank.trace.steps.start) - clock(rank))
    return min(starts, default=0)


def clock(analysis: Analysis) -> int:
    """What to subtract from this rank's times to get the common clock."""
    if not analysis.peers:
        return 0
    return int(analysis.matches.clock[analysis.place])


def _lanes(analysis: Analysis, idle: bool) -> tuple[list[_LaneInfo], IntArray, int, int]:
    """Lanes in the order of the page: idle time, streams, host threads; and who is on which.

    Returns:
        The lanes, the lane of each thread (-1: not shown), the lane of idle time, and how many
        lanes are not shown.
    """
    trace, rank = analysis.trace, analysis.rank
    count = np.bincount(trace.tree.thread, minlength=len(trace.threads))
    device = rows_of(trace, *DEVICE_WORK)
    busy = np.bincount(trace.column("thread")[device], minlength=len(trace.threads))
    infos: list[_LaneInfo] = []
    if idle and analysis.device is not None:
        label = f"device {analysis.device.device} idle"
        infos.append(_LaneInfo("idle", rank, label, "coloured by what the host did", -1))
    streams = [i for i in np.argsort(-busy, kind="stable") if busy[i]]
    infos += [
        _LaneInfo("device", rank, *_stream(trace.threads[i]), int(i))
        for i in streams[:MOST_THREADS]
    ]
    main = trace.steps.thread
    count[own_threads(trace)[: count.size]] = 0
    hosts = sorted((i for i in np.flatnonzero(count)), key=lambda i: (i != main, -count[i]))
    infos += [
        _LaneInfo("host", rank, *_thread(trace.threads[i], main=bool(i == main)), int(i))
        for i in hosts[:MOST_THREADS]
    ]
    lane_of = np.full(max(len(trace.threads), 1), -1, dtype=np.int64)
    for number, info in enumerate(infos):
        if info.thread >= 0:
            lane_of[info.thread] = number
    hidden = max(len(streams) - MOST_THREADS, 0) + max(len(hosts) - MOST_THREADS, 0)
    return infos, lane_of, 0 if infos and infos[0].kind == "idle" else -1, hidden


def _stream(thread: Thread) -> tuple[str, str]:
    return f"stream {thread.stream}", f"device {thread.device}"


def _thread(thread: Thread, *, main: bool) -> tuple[str, str]:
    label = thread.name or f"thread {thread.tid}"
    if main:
        return label, "carries the steps"
    return label, f"thread {thread.tid}" if thread.name else ""
