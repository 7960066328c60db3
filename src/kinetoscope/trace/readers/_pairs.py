"""`B` and `E` events -> spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from msgspec import Raw

from kinetoscope.trace.readers import _times
from kinetoscope.trace.readers._repair import Repairs
from kinetoscope.trace.readers._schema import EXACT


def pair_up(events: Sequence[Any], repairs: Repairs) -> list[Any]:
    """One span for each `B` with the next unused `E` of its thread; they nest.

    A `B` that never ends has no known length and is dropped, as is an `E` without a `B`.
    """
    spans: list[Any] = []
    waiting: dict[tuple[Any, Any], list[tuple[int, Any]]] = {}
    timed = sorted(((_start_ns(e), e) for e in events), key=lambda pair: pair[0])
    lost = 0
    for time, event in timed:
        stack = waiting.setdefault((event.pid, event.tid), [])
        if event.__struct_config__.tag == "B":
            stack.append((time, event))
        elif stack:
            start, begin = stack.pop()
            spans.append(_span(begin, start, time))
        else:
            lost += 1
    lost += sum(map(len, waiting.values()))
    if lost:
        repairs.add("unpaired_event", "a begin without an end, or an end without a begin", lost)
    return spans


def _start_ns(event: Any) -> int:
    if isinstance(event.ts, float):
        return round(event.ts * 1000)
    return int(_times.from_texts([bytes(event.ts)])[0])


def _span(begin: Any, start: int, end: int) -> Any:
    return EXACT.span(
        cat=begin.cat,
        name=begin.name,
        pid=begin.pid,
        tid=begin.tid,
        ts=Raw(_microseconds(start)),
        dur=Raw(_microseconds(end - start)),
        args=begin.args,
    )


def _microseconds(nanoseconds: int) -> bytes:
    sign, size = ("-", -nanoseconds) if nanoseconds < 0 else ("", nanoseconds)
    return f"{sign}{size // 1000}.{size % 1000:03d}".encode()
