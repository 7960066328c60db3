"""What all events of a built trace share: the list, the ids, the places."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import Self

Range = tuple[int, float, float, int]
"""Thread, start, end, id."""


class EventList:
    """Events of one process, with the counters that give out ids.

    Args:
        pid: process id of the host threads.
        tid: thread that events stand on unless a call says otherwise.
        device_index: device that device events stand on unless a call says otherwise.
    """

    def __init__(self, *, pid: int, tid: int, device_index: int) -> None:
        self.pid = pid
        self.tid = tid
        self.device_index = device_index
        self._events: list[dict[str, Any]] = []
        self._ids = {"corr": 0, "ext": 0, "python": 0, "step": 0}
        self._owners: dict[int, int] = {}
        self._frames: list[Range] = []
        self._ops: list[Range] = []

    def raw(self, event: dict[str, Any]) -> Self:
        """Any event as it stands."""
        self._events.append(event)
        return self

    def _next(self, counter: str) -> int:
        self._ids[counter] += 1
        return self._ids[counter]

    def _event(self, ph: str, cat: str, name: str, start: float, **rest: Any) -> Self:
        return self.raw({"ph": ph, "cat": cat, "name": name, "ts": start, **rest})

    def _span(
        self, cat: str, name: str, start: float, dur: float, *, tid: int | None, args: Any
    ) -> Self:
        tid = self.tid if tid is None else tid
        return self._event("X", cat, name, start, dur=dur, pid=self.pid, tid=tid, args=args)


def innermost(ranges: Sequence[Range], thread: int, start: float, end: float) -> int | None:
    """Id of the shortest range of the thread that holds the given one."""
    around = [r for r in ranges if r[0] == thread and r[1] <= start and end <= r[2]]
    return min(around, key=lambda r: r[2] - r[1])[3] if around else None
