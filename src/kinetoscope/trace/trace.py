"""One rank's recording: the event table, its string pools, and what the header says."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import polars as pl

from kinetoscope.result.diagnosis import Damage

if TYPE_CHECKING:
    from kinetoscope.trace.calltree import CallTree
    from kinetoscope.trace.captured import Sidecar
    from kinetoscope.trace.links import Links
    from kinetoscope.trace.steps import Steps

IntArray = npt.NDArray[np.int64]


@dataclass(frozen=True)
class Thread:
    """A host thread or a device lane (stream). `Trace.threads[i]` for `thread == i`.

    Attributes:
        pid, tid: as written in the trace, as text.
        device: device index for a device lane, -1 for a host thread.
        stream: stream id for a device lane, -1 for a host thread.
    """

    pid: str
    tid: str
    name: str = ""
    device: int = -1
    stream: int = -1


@dataclass(frozen=True)
class DeviceProperties:
    """One entry of the header's `deviceProperties`; None is "not recorded"."""

    id: int
    name: str | None = None
    total_memory_bytes: int | None = None
    compute_capability: tuple[int, int] | None = None
    multiprocessors: int | None = None


@dataclass(frozen=True)
class Header:
    """What the file says about the recording; None is "not recorded"."""

    devices: tuple[DeviceProperties, ...] = ()
    rank: int | None = None
    world_size: int | None = None
    backend: str | None = None
    torch: str | None = None
    vendor: str | None = None
    """"nvidia", "amd", "intel", ...; inferred from names when the header is silent."""
    base_time_ns: int = 0
    record_shapes: bool | None = None
    with_stack: bool | None = None
    profile_memory: bool | None = None
    metadata: dict[str, Any] = field(default_factory=dict)
    """Every other small top-level value, as read; and what our own capture wrote, of any size."""


@dataclass(frozen=True)
class Trace:
    """One rank.

    `events` has one row per event, sorted by (ts_ns, -dur_ns, file order); all integer columns
    are without nulls and use -1 for "not recorded". Text is pooled: a `*_id` column indexes the
    tuple of the same name, -1 is "not recorded".

    | column | type | meaning |
    |---|---|---|
    | ts_ns | i64 | start, ns since `Header.base_time_ns` |
    | dur_ns | i64 | length, ns, >= 0 |
    | kind | u8 | `Kind` |
    | family | u8 | kernel `Family` |
    | copy_kind | u8 | `CopyKind` |
    | name_id | i32 | into `names` |
    | thread | i32 | into `threads`; of a device event: its lane |
    | device | i16 | device index of a device event, else -1 |
    | stream | i32 | stream of a device event, else -1 |
    | corr | i64 | correlation of launch and device event; 0 and negative values read as -1 |
    | ext_id | i64 | `External id` |
    | seq | i64 | autograd sequence number |
    | py_id, py_parent | i32 | `Python id`, `Python parent id` |
    | bytes | i64 | size of a copy or memset |
    | dims_id, types_id, strides_id, concrete_id | i32 | into `texts`: raw JSON of `Input Dims`,
      `Input type`, `Input Strides`, `Concrete Inputs` |
    | launch_id | i32 | into `texts`: raw JSON `[grid, block, "blocks per SM", "registers per
      thread", "shared memory", "est. achieved occupancy %"]` of a kernel, null where missing |
    | extra_id | i32 | into `texts`: raw JSON object with the remaining useful args
      (collective args, `Call stack`, `Module Hierarchy`, `CallFrom`, triton args) |

    `memory` has one row per `[memory]` instant: ts_ns i64, thread i32, bytes i64 (negative: free),
    addr i64 (as signed 64 bit), device i16 (-1: host), allocated i64, reserved i64 (-1: not
    recorded). `failed_requests` has one row per `[OutOfMemory]` instant and the same columns but
    for `addr`; there -1 is "not recorded" in all of them, the time included.
    """

    path: str
    events: pl.DataFrame
    names: tuple[str, ...]
    texts: tuple[str, ...]
    threads: tuple[Thread, ...]
    memory: pl.DataFrame
    failed_requests: pl.DataFrame
    header: Header
    damage: tuple[Damage, ...] = ()
    kind: str = "kineto"

    def __len__(self) -> int:
        """Number of events."""
        return self.events.height

    def column(self, name: str) -> npt.NDArray[Any]:
        """One column of `events` as a read-only numpy array without a copy."""
        if name not in self._arrays:
            self._arrays[name] = self.events.get_column(name).to_numpy()
        return self._arrays[name]

    @cached_property
    def _arrays(self) -> dict[str, npt.NDArray[Any]]:
        return {}

    def name_flags(self, test: Callable[[str], bool]) -> npt.NDArray[np.bool_]:
        """Which names pass a test: index with `name_id`, of which -1 (no name) gives False."""
        flags = np.fromiter((test(name) for name in self.names), bool, len(self.names))
        return np.append(flags, False)

    @cached_property
    def rows_by_kind(self) -> dict[int, IntArray]:
        """Rows of the event table with each `Kind` that occurs, in time order, read-only."""
        kinds = self.column("kind")
        order = np.argsort(kinds, kind="stable")  # counts, for bytes
        order.flags.writeable = False
        ends = np.cumsum(np.bincount(kinds, minlength=1))
        rows = np.split(order, ends[:-1])
        return {kind: mine for kind, mine in enumerate(rows) if mine.size}

    @property
    def cut_off(self) -> bool:
        """Whether the file ends before the recording does: what it lacks may have been recorded."""
        return any(damage.kind.startswith("truncated") for damage in self.damage)

    @cached_property
    def sidecar(self) -> Sidecar | None:
        """What our own capture measured and wrote into the file; None for other recordings."""
        from kinetoscope.trace.captured import sidecar_of

        return sidecar_of(self.header.metadata)

    @property
    def torch(self) -> str | None:
        """Version of torch, by the header or by our own capture; None: not recorded."""
        return self.header.torch or (self.sidecar.torch if self.sidecar else None)

    @cached_property
    def tree(self) -> CallTree:
        """The host events as a forest, computed on first use."""
        from kinetoscope.trace.calltree import CallTree

        return CallTree(self)

    @cached_property
    def links(self) -> Links:
        """Launches, operators and forward calls of each event, computed on first use."""
        from kinetoscope.trace.links import Links

        return Links(self, self.tree)

    @cached_property
    def steps(self) -> Steps:
        """The step windows, computed on first use."""
        from kinetoscope.trace.steps import find_steps

        return find_steps(self)
