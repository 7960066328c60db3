"""How far stated step times lie from the truth, on a machine whose pace changes all the time.

python -m zoo.capture.repeats --out FILE [--limit SECONDS] [--captures 3] [NAME ...]

One process per program, forked from one that has imported torch but not touched the device. In it,
a plain loop and a capture take turns, beginning and ending with the plain loop. The error of a
capture is that of its stated step time against the mean of the plain loops on both sides of it. The
same arithmetic on the plain loops alone, each against the two around it, is what the machine's pace
makes of a loop in which there is nothing of ours.

Before each step runs a fixed piece of Python, which tells the pace. Step times divided by what that
took in the same steps can be compared though the pace changed in between: the paced error.
"""

from __future__ import annotations

import argparse
import json
import math
import multiprocessing as mp
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean, median

NAMES = """
dl_char_tokenizer dl_pad_in_loop mm_host_rescale mm_empty_cache fw_cpu_mask fw_adamw_loop
fw_moe_where fw_beam_python fw_anomaly_gnn fw_launch_gnn fw_sgd_foreach_off fw_checkpoint_often
""".split()
HEADERS = (
    *("program", "plain loops, ms", "stated, ms"),
    *("errors", "errors, paced", "of the plain loops", "of the plain loops, paced"),
)
WARM_S = 0.5
"""A device that did nothing for a while is slower at first; a capture's baseline begins later."""
PLAIN_S = 1.5
"""Of a plain loop; about that of one half of a capture's baseline."""
BUDGET_S = 12.0
LONGEST_S = 90.0
SHARE = 0.1
"""What part of a step the piece of Python before it takes, about."""


@dataclass(frozen=True)
class Timing:
    """Mean of a step and of the piece of Python before it, in ms."""

    step: float
    piece: float


@dataclass
class Measured:
    """What was timed of one program: `plain` has one more than `stated`."""

    name: str
    plain: list[Timing] = field(default_factory=list)
    stated: list[Timing] = field(default_factory=list)

    def errors(self, *, paced: bool) -> list[float]:
        """Of the stated times against the mean of the plain loops around each."""
        return _errors(self.stated, self.plain[:-1], self.plain[1:], paced)

    def plain_errors(self, *, paced: bool) -> list[float]:
        """Of the plain loops against the mean of those around each."""
        return _errors(self.plain[1:-1], self.plain[:-2], self.plain[2:], paced)

    def row(self) -> str:
        """A row of a table in Markdown."""
        cells = [self.name, _times(self.plain), _times(self.stated)]
        cells += [_shares(self.errors(paced=paced)) for paced in (False, True)]
        cells += [_shares(self.plain_errors(paced=paced)) for paced in (False, True)]
        return f"| {' | '.join(cells)} |"


class Paced:
    """A program's step with a fixed piece of Python before it, which is timed by itself."""

    def __init__(self, step: Callable[[], object]) -> None:
        self._step = step
        self.pieces: list[float] = []
        self._rounds = 1
        for _ in range(5):
            step()
        own, piece = _mean(step, 0.3), _mean(self._piece, 0.1)
        self._rounds = max(1, round(SHARE * own / piece))

    def __call__(self) -> None:
        start = time.perf_counter()
        self._piece()
        self.pieces.append((time.perf_counter() - start) * 1e3)
        self._step()

    def _piece(self) -> None:
        for _ in range(self._rounds):
            pool = [(a / math.pow(a + 2, 0.7), a) for a in range(300)]
            pool.sort(reverse=True)


def plain(step: Paced, warm_s: float = WARM_S) -> Timing:
    """Step time without any profiler."""
    _mean(step, warm_s)
    step.pieces.clear()
    return Timing(_mean(step, PLAIN_S), fmean(step.pieces))


def captured(step: Paced) -> Timing:
    """Step time as a capture of the same loop states it, and the piece's in the same steps."""
    import kinetoscope

    pieces: dict[str, list[float]] = {"baseline": [], "second": []}
    with kinetoscope.profile(budget_s=BUDGET_S) as capture:
        session = capture._session
        while not capture.done:
            phase = session.phase
            step()
            if session.phase == phase and phase in pieces:
                pieces[phase].append(step.pieces[-1])
    if capture.trace is None:
        raise RuntimeError("; ".join(capture.problems))
    baseline = session.recorder.facts()["baseline"]
    halves = baseline["halves"]
    if baseline["steps"] < sum(half["steps"] for half in halves):
        halves = halves[:1]  # the windows changed the program: only what was before them is stated
    # A second half waits for work in the background: only its last steps were timed.
    timed = [
        piece
        for half, found in zip(halves, pieces.values(), strict=False)
        for piece in found[-half["steps"] :]
    ]
    return Timing(baseline["step_ns"] / 1e6, fmean(timed))


def child(name: str, captures: int, sink: Connection) -> None:
    from zoo.capture.play import prepared

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some programs print
    step = Paced(prepared(name, fixed=False))
    measured = Measured(name, [plain(step)])
    for _ in range(captures):
        measured.stated.append(captured(step))
        measured.plain.append(plain(step))
        sink.send(measured)
    os._exit(0)


def measure(name: str, captures: int, limit_s: float) -> Measured | None:
    """What was measured of a program in this time; None when that is nothing."""
    context = mp.get_context("fork")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=child, args=(name, captures, theirs))
    process.start()
    theirs.close()
    measured, end = None, time.monotonic() + limit_s
    try:
        while ours.poll(max(0.0, end - time.monotonic())):
            measured = ours.recv()
    except EOFError:
        pass
    process.kill()
    return measured


def total(rows: Sequence[Measured]) -> str:
    """How all stated times scatter, and all plain loops."""
    lines = []
    for paced in (False, True):
        for what, found in (
            ("stated", [e for row in rows for e in row.errors(paced=paced)]),
            ("plain loops", [e for row in rows for e in row.plain_errors(paced=paced)]),
        ):
            if found:
                within = sum(abs(error) <= 0.1 for error in found)
                size = median(abs(error) for error in found)
                lines.append(
                    f"{what}{', paced' * paced}: {len(found)}, median {median(found):+.1%}, "
                    f"median without sign {size:.1%}, {within} within 10 %"
                )
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--limit", type=float, default=540.0)
    parser.add_argument("--captures", type=int, default=3)
    parser.add_argument("names", nargs="*")
    args = parser.parse_args()
    end = time.monotonic() + args.limit
    for module in ("polars", "torch", "kinetoscope.engine"):
        import_module(module)
    rows: list[Measured] = []
    print(f"| {' | '.join(HEADERS)} |", flush=True)
    for name in args.names or NAMES:
        measured = measure(name, args.captures, min(LONGEST_S, end - time.monotonic()))
        if measured is None:
            print(f"| {name} | nothing |", flush=True)
            continue
        print(measured.row(), flush=True)
        rows.append(measured)
        args.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(total(rows))


def _mean(call: Callable[[], object], seconds: float) -> float:
    """What one of the calls takes that fill some seconds, in ms."""
    from zoo import harness

    harness.sync()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < seconds:
        call()
        done += 1
    harness.sync()
    return (time.perf_counter() - start) / done * 1e3


def _errors(
    values: Sequence[Timing], before: Sequence[Timing], after: Sequence[Timing], paced: bool
) -> list[float]:
    def of(timing: Timing) -> float:
        return timing.step / timing.piece if paced else timing.step

    return [2 * of(v) / (of(a) + of(b)) - 1 for v, a, b in zip(values, before, after, strict=True)]


def _times(values: Sequence[Timing]) -> str:
    return " ".join(f"{value.step:.2f}" for value in values)


def _shares(values: Sequence[float]) -> str:
    return " ".join(f"{value:+.1%}" for value in values) or "-"


if __name__ == "__main__":
    main()
