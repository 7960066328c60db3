"""What a capture costs a step outside of its windows: the time of its marks.

python -m benchmarks.capture_marks
"""

from __future__ import annotations

import time

from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.session import Session

MARKS = 3


def mark_ns(session: Session, count: int) -> float:
    """Processor time of one mark, ns: a busy machine does not count."""
    start = time.process_time_ns()
    for _ in range(count):
        session.note("optimizer", 1, "SGD.step")
    return (time.process_time_ns() - start) / count


def main() -> None:
    """Print the cost of a mark while waiting and when all is done, and of a step's marks."""
    waiting = Session(CaptureOptions(budget_s=1e9, find_steps=False), print)
    steady = waiting.finder.steady
    waiting.finder.steady = lambda: steady() and False  # type: ignore[method-assign]
    cost = mark_ns(waiting, 20_000)
    print(f"waiting for steady steps: {cost:,.0f} ns a mark")
    share = MARKS * cost / 1e6
    print(f"the {MARKS} marks of a step of 1 ms (batch, backward, optimizer): {share:.2%} of it")
    waiting.phase = "done"
    print(f"when all is recorded:     {mark_ns(waiting, 200_000):,.0f} ns a mark, until unwrapped")


if __name__ == "__main__":
    main()
