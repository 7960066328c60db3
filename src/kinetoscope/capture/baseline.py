"""The program's true speed: some steps without any profiler."""

from __future__ import annotations

import math
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from statistics import median, stdev
from typing import Any

from kinetoscope.capture.memory_faults import Faults, faults_so_far
from kinetoscope.capture.rhythm import Rhythm, rhythm
from kinetoscope.trace.captured import Half, changed_faults_ns
from kinetoscope.units import duration

_NARROWEST = 0.005
"""Clocks and machines are not better than half a percent."""
_FEW = 10
"""Of fewer steps a slow one may be one of many, or the only one."""
_AHEAD = 0.5
"""A device that is behind by less than this part of a step waits for the host."""
_CHANGED = 0.1
"""So much must the halves differ for the program's pace to have changed."""


@dataclass(frozen=True)
class Timed:
    """Steps between two waits for the device; all in ns.

    Attributes:
        elapsed: from the first step's begin until the device has done the last one.
        host: distances of the step marks.
        device: the same by device events; [] without a device.
        cpu: processor time of the process.
        marks: what of `elapsed` our own marks took; 0 where they ran beside a busy device.
        faults: page faults of the thread that makes the steps; None where not known.
    """

    elapsed: int
    host: tuple[int, ...]
    device: tuple[int, ...] = ()
    cpu: int = 0
    marks: int = 0
    faults: Faults | None = None

    @property
    def steps(self) -> int:
        """Number of complete steps."""
        return len(self.host)

    @property
    def periods(self) -> tuple[int, ...]:
        """What each step took, by the device where there is one."""
        return self.device or self.host

    @property
    def rhythm(self) -> Rhythm:
        """Which steps are slow again and again."""
        return rhythm(self.periods)

    @property
    def step_ns(self) -> float:
        """Elapsed time / steps, over whole cycles where slow steps come regularly."""
        periods = self.periods
        plain = sum(periods) / self.steps
        return (
            (self.elapsed - self.marks)
            / self.steps
            * (self.rhythm.mean(periods) / plain if plain else 1.0)
        )

    def facts(self) -> dict[str, int]:
        """What one half alone says of a step."""
        cpu = round(self.cpu / self.steps)
        facts = {"steps": self.steps, "step_ns": round(self.step_ns), "process_cpu_ns": cpu}
        if self.faults is not None:
            facts["minor_faults"] = round(self.faults.minor / self.steps)
            facts["system_cpu_ns"] = round(self.faults.system_ns / self.steps)
        return facts

    @property
    def error_ns(self) -> float:
        """Two standard errors of the mean, from quartiles so that one slow step does not count."""
        mean, cycles = self.step_ns, self.rhythm.cycles(self.periods)
        narrowest = _NARROWEST * mean
        if cycles:
            if len(cycles) < 2:
                return 0.1 * mean
            return max(2.0 * stdev(cycles) / math.sqrt(len(cycles)), narrowest)
        if self.steps < 4:
            return 0.05 * mean
        ordered = sorted(self.periods)
        quarter = self.steps // 4
        sigma = (ordered[-1 - quarter] - ordered[quarter]) / 1.349
        apart = mean - median(ordered) if self.steps < _FEW else 0.0
        return max(2.0 * sigma / math.sqrt(self.steps), narrowest, apart)


class Baseline:
    """Times steps by the host clock, and by device events where there is a device.

    The device is waited for once before the first and once after the last step, so that
    elapsed / steps is the true, pipelined step time; in between nothing is waited for.
    """

    def __init__(self, *, device: bool) -> None:
        self._device = device
        self._at: list[int] = []
        self._events: list[Any] = []
        self._cpu = 0
        self._marks: list[int] = []
        self._faults: Faults | None = None
        self._thread = 0

    def start(self) -> None:
        """Begin at a step boundary."""
        self._synchronize()
        self._cpu = time.process_time_ns()
        self._faults = faults_so_far()
        self._thread = threading.get_ident()
        self.next_step()

    def next_step(self) -> None:
        """A step ended."""
        if threading.get_ident() != self._thread:
            self._faults = None  # they are counted by thread, and several make the steps
        self._at.append(time.perf_counter_ns())
        if self._device:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def marked(self, start: int, end: int) -> None:
        """A mark took this long (ns of `time.perf_counter_ns`), which is not the program's time."""
        if self._at:
            self._marks.append(end - max(start, self._at[0]))

    def stop(self) -> Timed | None:
        """No more steps: what the complete ones took; None without any."""
        if len(self._at) < 2:
            return None
        last = end = self._at[-1]
        if self._device:
            self._synchronize()
            end = time.perf_counter_ns()
        elapsed = end - self._at[0]
        # A device that is still busy with the last steps did not wait for the marks.
        waits = end - last < _AHEAD * elapsed / (len(self._at) - 1)
        return Timed(
            elapsed=elapsed,
            marks=self._of_marks() if waits else 0,
            host=tuple(b - a for a, b in pairwise(self._at)),
            device=tuple(round(a.elapsed_time(b) * 1e6) for a, b in pairwise(self._events)),
            cpu=time.process_time_ns() - self._cpu,
            faults=self._own_faults(),
        )

    def _own_faults(self) -> Faults | None:
        now = faults_so_far()
        return now - self._faults if now and self._faults else None

    def _of_marks(self) -> int:
        """What all marks took, by the quick ones: in the others the process was interrupted."""
        quick = sorted(self._marks)[len(self._marks) // 10] if self._marks else 0
        return quick * len(self._marks)

    def _synchronize(self) -> None:
        if self._device:
            import torch

            torch.cuda.synchronize()


def summary(halves: Sequence[Timed]) -> dict[str, Any]:
    """Step time with its own spread, all in ns; {} when nothing was timed.

    Args:
        halves: what was timed before the windows, and after them. Where both differ, the range
            covers both. Where the windows changed how many page faults a step takes, only what
            was timed before them is the program as it is without us.
    """
    halves = [half for half in halves if half.steps]
    if not halves:
        return {}
    whole = _untouched(halves)
    steps = sum(half.steps for half in whole)
    weights = [half.steps / steps for half in whole]
    means = [half.step_ns for half in whole]
    mean = sum(w * m for w, m in zip(weights, means, strict=True))
    own = math.hypot(*(w * half.error_ns for w, half in zip(weights, whole, strict=True)))
    error = max(own, _NARROWEST * mean, *(abs(m - mean) for m in means))
    host = [period for half in whole for period in half.host]
    device = [period for half in whole for period in half.device]
    facts: dict[str, Any] = {
        "steps": steps,
        "step_ns": round(mean),
        "low_ns": round(max(mean - error, min(mean, *(device or host)))),
        "high_ns": round(mean + error),
        "host_median_ns": round(median(host)),
        "process_cpu_ns": round(sum(half.cpu for half in whole) / steps),
        "halves": [half.facts() for half in halves],
    }
    if device:
        facts["device_median_ns"] = round(median(device))
    return facts


def _untouched(halves: Sequence[Timed]) -> Sequence[Timed]:
    """Those that tell what a step takes without us."""
    return halves[:1] if faults_changed(halves[0], halves[-1]) else halves


def faults_changed(before: Timed, after: Timed) -> bool:
    """Do the steps take far more, or far fewer, page faults after the windows, and other times?"""
    return changed_faults_ns(Half(**before.facts()), Half(**after.facts())) > 0


def told(halves: Sequence[Timed], full_steps: int) -> list[str]:
    """What people have to know about the last half timed; [] when it is as one expects.

    Args:
        halves: as for `summary`.
        full_steps: steps of the full window.
    """
    return [*_pauses(halves, full_steps), *_changes(halves)]


def _pauses(halves: Sequence[Timed], full_steps: int) -> Iterator[str]:
    last = halves[-1]
    found = last.rhythm
    longer = duration(found.pause)
    if found.alone:
        yield (
            f"one of {last.steps:,} steps took {longer} longer than the others, as at the start of "
            "an epoch or for a checkpoint; the stated step time leaves that out"
        )
    elif found.cycle > full_steps > 0 and len(halves) == 1:
        share = found.pause / found.cycle / last.step_ns
        yield (
            f"every {found.cycle} steps one takes {longer} longer, as at the start of an epoch or "
            f"for a checkpoint: {100 * share:.0f} % of the stated step time; the {full_steps} "
            "steps of the full window may lack it"
        )


def _changes(halves: Sequence[Timed]) -> Iterator[str]:
    before, after = halves[0], halves[-1]
    if faults_changed(before, after) and before.faults and after.faults:
        counts = [round(h.faults.minor / h.steps) for h in (before, after) if h.faults]
        yield (
            f"recording changed what the C library does with freed memory: {counts[0]:,} page "
            f"faults and {duration(before.step_ns)} a step before the windows, {counts[1]:,} and "
            f"{duration(after.step_ns)} after them; the stated step time is the one before"
        )
        return
    changed = change(before, after)
    if changed:
        how = f"by {100 * changed:+.0f} %" if changed < 2 else f"{1 + changed:.0f} times"
        yield (
            f"the program's pace changed {how} during the capture: "
            f"{duration(before.step_ns)} a step before the windows, "
            f"{duration(after.step_ns)} after them"
        )


def change(before: Timed, after: Timed) -> float:
    """By how much the steps became slower between the halves; 0 when that may be scatter."""
    difference = after.step_ns - before.step_ns
    if abs(difference) <= before.error_ns + after.error_ns:
        return 0.0
    ratio = difference / before.step_ns
    return ratio if abs(ratio) > _CHANGED else 0.0
