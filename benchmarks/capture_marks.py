"""What a capture costs a step outside of its windows: the time of one mark.

python benchmarks/capture_marks.py
"""

from __future__ import annotations

import time

from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.session import Session


def mark_ns(session: Session, count: int) -> float:
    """Nanoseconds of one mark."""
    start = time.perf_counter_ns()
    for _ in range(count):
        session.note("optimizer", 1, "SGD.step")
    return (time.perf_counter_ns() - start) / count


def main() -> None:
    """Print the cost of a mark while waiting, and when all is done."""
    waiting = Session(CaptureOptions(budget_s=1e9, find_steps=False), print)
    waiting.finder.steady = lambda: False  # type: ignore[method-assign]
    print(f"waiting for steady steps: {mark_ns(waiting, 20_000):,.0f} ns a mark")
    waiting.phase = "done"
    print(f"when all is recorded:     {mark_ns(waiting, 200_000):,.0f} ns a mark, until unwrapped")


if __name__ == "__main__":
    main()
