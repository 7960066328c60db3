"""How far stated step times lie from the truth, on a machine whose pace changes all the time.

python -m zoo.capture.repeats --out FILE [--limit SECONDS] [--captures 3] [NAME ...]

One process per program, forked from one that has imported torch but not touched the device. In it,
a plain loop and a capture take turns, beginning and ending with the plain loop. The error of a
capture is that of its stated step time against the mean of the plain loops on both sides of it. The
same arithmetic on the plain loops alone, each against the two around it, is what the machine's pace
makes of a loop in which there is nothing of ours.
"""

from __future__ import annotations

import argparse
import gzip
import json
import multiprocessing as mp
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from importlib import import_module
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import median

NAMES = """
dl_char_tokenizer dl_pad_in_loop mm_host_rescale mm_empty_cache fw_cpu_mask fw_adamw_loop
fw_moe_where fw_beam_python fw_anomaly_gnn fw_launch_gnn fw_sgd_foreach_off fw_checkpoint_often
""".split()
WARM_S = 1.0
"""A device that did nothing for a while is slower at first; a capture's baseline begins later."""
PLAIN_S = 2.0
"""Of a plain loop; of one half of a capture's baseline as well."""
LONGEST_S = 90.0


@dataclass
class Measured:
    """Step times of one program in ms: `plain` has one more than `stated`."""

    name: str
    plain: list[float] = field(default_factory=list)
    stated: list[float] = field(default_factory=list)

    @property
    def errors(self) -> list[float]:
        """Of the stated times against the mean of the plain loops around each."""
        return _errors(self.stated, self.plain[:-1], self.plain[1:])

    @property
    def plain_errors(self) -> list[float]:
        """Of the plain loops against the mean of those around each."""
        return _errors(self.plain[1:-1], self.plain[:-2], self.plain[2:])

    def row(self) -> str:
        """A row of a table in Markdown."""
        return (
            f"| {self.name} | {_times(self.plain)} | {_times(self.stated)} "
            f"| {median(self.errors):+.1%} | {_shares(self.errors)} "
            f"| {_shares(self.plain_errors)} |"
        )


def plain(step: Callable[[], object], warm_s: float = WARM_S) -> float:
    """Step time without any profiler, in ms."""
    from zoo import harness

    end = time.perf_counter() + warm_s
    while time.perf_counter() < end:
        step()
    harness.sync()
    start, done = time.perf_counter(), 0
    while time.perf_counter() - start < PLAIN_S:
        step()
        done += 1
    harness.sync()
    return (time.perf_counter() - start) / done * 1e3


def captured(step: Callable[[], object]) -> float:
    """Step time as a capture of the same loop states it, in ms."""
    import kinetoscope
    from kinetoscope.capture.files import KEY

    with kinetoscope.profile(budget_s=16.0) as capture:
        while not capture.done:
            step()
    if capture.trace is None:
        raise RuntimeError("; ".join(capture.problems))
    text = gzip.decompress(capture.trace.read_bytes())
    facts = text[text.rindex(f'"{KEY}":'.encode()) :].split(b":", 1)[1].rstrip().removesuffix(b"}")
    return float(json.loads(facts)["baseline"]["step_ns"]) / 1e6


def child(name: str, captures: int, sink: Connection) -> None:
    from zoo.capture.play import prepared

    os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # some programs print
    step = prepared(name, fixed=False)
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
    for what, found in (
        ("stated", [error for row in rows for error in row.errors]),
        ("plain loops", [error for row in rows for error in row.plain_errors]),
    ):
        if found:
            within = sum(abs(error) <= 0.1 for error in found)
            size = median(abs(error) for error in found)
            lines.append(
                f"{what}: {len(found)}, median {median(found):+.1%}, median without sign "
                f"{size:.1%}, {within} within 10 %"
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
    print("| program | plain loops, ms | stated, ms | median error | errors | of the plain loops |")
    for name in args.names or NAMES:
        measured = measure(name, args.captures, min(LONGEST_S, end - time.monotonic()))
        if measured is None:
            print(f"| {name} | nothing |", flush=True)
            continue
        print(measured.row(), flush=True)
        rows.append(measured)
        args.out.write_text(json.dumps([asdict(row) for row in rows], indent=1))
    print(total(rows))


def _errors(
    values: Sequence[float], before: Sequence[float], after: Sequence[float]
) -> list[float]:
    return [2 * v / (a + b) - 1 for v, a, b in zip(values, before, after, strict=True)]


def _times(values: Sequence[float]) -> str:
    return " ".join(f"{value:.2f}" for value in values)


def _shares(values: Sequence[float]) -> str:
    return " ".join(f"{value:+.1%}" for value in values) or "-"


if __name__ == "__main__":
    main()
