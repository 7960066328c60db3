"""The program's true speed: some steps without any profiler."""

from __future__ import annotations

import time
from statistics import median
from typing import Any


class Baseline:
    """Times steps by the host clock, and by device events where there is a device.

    The device is waited for once before the first and once after the last step, so that
    elapsed / steps is the true, pipelined step time; in between nothing is waited for.
    """

    def __init__(self, *, device: bool) -> None:
        self._device = device
        self._at: list[int] = []
        self._events: list[Any] = []
        self._end = 0
        self._cpu = 0

    def start(self) -> None:
        """Begin at a step boundary."""
        self._synchronize()
        self._cpu = time.process_time_ns()
        self._mark()

    def next_step(self) -> None:
        """A step ended."""
        self._mark()

    def stop(self) -> None:
        """The last step ended."""
        self._mark()
        self._synchronize()
        self._end = time.perf_counter_ns()
        self._cpu = time.process_time_ns() - self._cpu

    def cut_off(self) -> dict[str, Any]:
        """The summary of the complete steps, when the program ended in the middle of one."""
        if not self.steps:
            return {}
        self._end = self._at[-1]
        if self._device:
            self._synchronize()
            self._end = max(self._end, time.perf_counter_ns())
        return self.summary()

    def _mark(self) -> None:
        self._at.append(time.perf_counter_ns())
        if self._device:
            import torch

            event = torch.cuda.Event(enable_timing=True)
            event.record()
            self._events.append(event)

    def _synchronize(self) -> None:
        if self._device:
            import torch

            torch.cuda.synchronize()

    @property
    def steps(self) -> int:
        """Number of complete steps."""
        return len(self._at) - 1

    def summary(self) -> dict[str, Any]:
        """Step time with its own spread, all in ns; {} for an unfinished baseline."""
        if self.steps < 1 or not self._end:
            return {}
        host = [b - a for a, b in zip(self._at, self._at[1:], strict=False)]
        mean = (self._end - self._at[0]) / self.steps
        device = [
            round(a.elapsed_time(b) * 1e6)
            for a, b in zip(self._events, self._events[1:], strict=False)
        ]
        low, high = _range(mean, device or host)
        facts: dict[str, Any] = {
            "steps": self.steps,
            "step_ns": round(mean),
            "low_ns": round(low),
            "high_ns": round(high),
            "host_median_ns": round(median(host)),
            "process_cpu_ns": round(self._cpu / self.steps),
        }
        if device:
            facts["device_median_ns"] = round(median(device))
        return facts


def _range(mean: float, periods: list[int]) -> tuple[float, float]:
    """Two standard errors of the mean, from quartiles so that one slow step does not count.

    Never narrower than half a percent: clocks and machines are not better than that.
    """
    if len(periods) < 4:
        return 0.95 * mean, 1.05 * mean
    ordered = sorted(periods)
    quarter = len(ordered) // 4
    sigma = (ordered[-1 - quarter] - ordered[quarter]) / 1.349
    error = max(2.0 * sigma / len(periods) ** 0.5, 0.005 * mean)
    return mean - error, mean + error
