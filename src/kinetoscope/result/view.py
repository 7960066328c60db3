"""What a page shows beyond the result: timeline, tables, charts. Computed from the recording.

The result document does not hold these data and no other output needs them. They are plain data
all the same, versioned, so that whatever draws them needs no recording. Times are integer
nanoseconds from the start of the recording (of the common clock, for several ranks).
"""

from __future__ import annotations

from typing import Literal

import msgspec

VIEW_VERSION = 1

Unit = Literal[
    "ns", "change_ns", "bytes", "ratio", "count", "bytes_per_s", "flop_per_s", "text", "factor"
]
"""`change_ns`: a time with its sign."""


class Column(msgspec.Struct, frozen=True):
    """Integers as byte planes: all lowest bytes, then all second bytes, ...

    Deflate packs planes of differences several times better than text or whole words.

    Attributes:
        size: number of values.
        width: bytes of a value, 0 when all values are zero.
        delta: values are differences to the value before (the first one to zero).
        signed: values (or differences) v are stored as 2v, or -2v - 1 when negative.
        data: size x width bytes.
    """

    size: int
    width: int
    delta: bool
    signed: bool
    data: bytes


class Name(msgspec.Struct, frozen=True):
    """What a box is called, and which kind of event it is (a word of `BOX_KINDS`)."""

    text: str
    kind: str


DEVICE_KINDS = frozenset(
    """gemm attention elementwise reduction optimizer kernel collective copy idle_compute
    idle_memory idle_data_loading idle_communication idle_framework idle_unattributed""".split()
)
"""Kinds of boxes that stand for time of the device."""

BOX_KINDS = (
    "user",
    "python",
    "module",
    "op",
    "call",
    "launch",
    "sync",
    "copy_call",
    "range",
    "loader",
    "collective_call",
    "gemm",
    "attention",
    "elementwise",
    "reduction",
    "optimizer",
    "kernel",
    "collective",
    "copy",
    "idle_compute",
    "idle_memory",
    "idle_data_loading",
    "idle_communication",
    "idle_framework",
    "idle_unattributed",
    "other",
)
"""Kinds of boxes: they decide the colour."""


class Lane(msgspec.Struct, frozen=True):
    """One host thread, one stream, or the idle time of one device, as boxes.

    Boxes are sorted by row, then by start; boxes of one row do not overlap.

    Attributes:
        kind: `host`, `device` or `idle`.
        rank: whose lane it is.
        events: events behind the boxes.
        total_ns: their summed duration: the boxes' lengths minus `slack`.
        rows: number of boxes in each row, from the outermost call inwards.
        start, length, name: of each box; `name` indexes `Timeline.names`.
        count: events in a box, minus one.
        slack: part of a box's length in which none of its events ran.
        link: device lanes: number of the launching box among all boxes of the timeline, -1 for
            none; None for other lanes.
        detail: index into `Timeline.details`, -1 for none; None when no box has any.
    """

    kind: Literal["host", "device", "idle"]
    rank: int
    label: str
    sublabel: str
    events: int
    total_ns: int
    rows: tuple[int, ...]
    start: Column
    length: Column
    name: Column
    count: Column
    slack: Column
    link: Column | None = None
    detail: Column | None = None


class Steps(msgspec.Struct, frozen=True):
    """Edges of the steps of one rank: step i runs from edge i to edge i + 1."""

    rank: int
    edges: tuple[int, ...]
    first: int = 0


class Timeline(msgspec.Struct, frozen=True):
    """All lanes on one clock.

    Attributes:
        end_ns: length of the recording.
        window: the steady steps, where a reader starts.
        merged_below_ns: events shorter than this were joined with their neighbours; 0: none.
        merged_events: how many events that were, and into how many boxes.
        kept: the stretch in which nothing was joined.
        left_out: what is not shown at all, in words.
    """

    end_ns: int
    window: tuple[int, int]
    names: tuple[Name, ...]
    lanes: tuple[Lane, ...]
    steps: tuple[Steps, ...] = ()
    details: tuple[str, ...] = ()
    events: int = 0
    merged_below_ns: int = 0
    merged_events: int = 0
    merged_boxes: int = 0
    kept: tuple[int, int] | None = None
    left_out: tuple[str, ...] = ()


class Flame(msgspec.Struct, frozen=True):
    """Call paths of the steady steps as a tree in depth-first order.

    Attributes:
        names: of frames; `name` indexes it.
        depth: of each node; the children of a node follow it.
        host_ns: own time on the host, without that of the callees.
        device_ns: work of the device that the node itself launched; of an `idle` node idle time.
        calls: how often.
        steps: over how many steps the device times (and calls of device events) go.
        host_steps: over how many the host times go; one more than those of the device, whose
            window lies between the ends of steps.
        pruned_ns: own time of paths that were too small to keep, and now counts for their parent.
    """

    names: tuple[Name, ...]
    name: Column
    depth: Column
    host_ns: Column
    device_ns: Column
    calls: Column
    steps: int
    host_steps: int = 0
    pruned_ns: int = 0


class TableColumn(msgspec.Struct, frozen=True):
    """One column; `meaning` defines the number."""

    title: str
    unit: Unit
    meaning: str


Cell = str | int | float | None


class Table(msgspec.Struct, frozen=True):
    """Rows for people. `levels` makes a tree of them: the depth of each row."""

    id: str
    title: str
    columns: tuple[TableColumn, ...]
    rows: tuple[tuple[Cell, ...], ...]
    levels: tuple[int, ...] | None = None
    note: str = ""
    missing: str = ""
    """Why there are no rows, and what to record."""


class Holder(msgspec.Struct, frozen=True):
    """What holds memory at the peak."""

    by: Literal["module", "op", "line", "category"]
    name: str
    bytes: int
    count: int


class MemoryCurve(msgspec.Struct, frozen=True):
    """Memory of one device (-1: the host) over time."""

    rank: int
    device: int
    time_ns: Column
    allocated: Column
    reserved: Column | None
    peak_ns: int
    peak_bytes: int
    peak_reserved_bytes: int
    capacity_bytes: int | None
    holders: tuple[Holder, ...] = ()
    unknown_bytes: int = 0
    """Allocated at the peak before the recording began."""


class RoofPoint(msgspec.Struct, frozen=True):
    """Kernels of one name and precision."""

    name: str
    family: str
    precision: str
    flop_per_byte: float
    flop_per_s: float
    bytes_per_s: float
    ns: int
    count: int
    bound: str
    efficiency: float


class Roof(msgspec.Struct, frozen=True):
    """What the device can do."""

    label: str
    flop_per_s: float


class RooflineView(msgspec.Struct, frozen=True):
    """Kernels against the peaks of the device."""

    device: str
    bytes_per_s: float
    roofs: tuple[Roof, ...]
    points: tuple[RoofPoint, ...]
    coverage: float
    """Share of the kernel time whose work is known."""
    missing: str = ""


class RankRow(msgspec.Struct, frozen=True):
    """One rank of a job, per step; ns."""

    rank: int
    step_ns: int
    busy_ns: int
    compute_ns: int
    hidden_comm_ns: int
    exposed_comm_ns: int
    waiting_ns: int
    caused_ns: int


class CommView(msgspec.Struct, frozen=True):
    """Ranks side by side. Times are per step."""

    rows: tuple[RankRow, ...]
    trusted: bool
    straggler: int | None
    sentence: str
    missing: str = ""


class StepRow(msgspec.Struct, frozen=True):
    """One step; ns. `device_ns` is work of the device launched in it."""

    index: int
    start_ns: int
    host_ns: int
    device_ns: int
    steady: bool


class Histogram(msgspec.Struct, frozen=True):
    """Counts between edges."""

    edges: tuple[int, ...]
    counts: tuple[int, ...]


class QueueView(msgspec.Struct, frozen=True):
    """How far the host runs ahead of the device.

    Attributes:
        delay: kernels by time between the end of their launch and their start, ns.
        median_ns, p90_ns: of that delay.
        empty_ratio: share of kernels that found the queue empty.
        time_ns, depth: launched and not finished, over time.
    """

    delay: Histogram
    median_ns: int
    p90_ns: int
    empty_ratio: float
    time_ns: Column
    depth: Column


class Focus(msgspec.Struct, frozen=True):
    """Where to look for one finding: a stretch of the timeline and the call path there."""

    finding: int
    rank: int
    start_ns: int
    end_ns: int
    search: str
    path: tuple[Name, ...] = ()


class Fact(msgspec.Struct, frozen=True):
    """One thing about the recording."""

    title: str
    text: str
    good: bool | None = None
    """False: something is lacking; None: neither good nor bad."""


class View(msgspec.Struct, frozen=True):
    """Everything that a page shows beyond the result. None: not recorded."""

    version: int
    lead_rank: int
    timeline: Timeline | None
    flame: Flame | None
    tables: tuple[Table, ...]
    memory: tuple[MemoryCurve, ...]
    memory_missing: str
    roofline: RooflineView | None
    comm: CommView | None
    steps: tuple[StepRow, ...]
    queue: QueueView | None
    focus: tuple[Focus, ...]
    facts: tuple[Fact, ...]
