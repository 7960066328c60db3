"""Replay the model, with a change applied or without."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from kinetoscope.replay.change import Change
from kinetoscope.replay.costs import costs_of
from kinetoscope.replay.model import Model
from kinetoscope.replay.run import Run, alone
from kinetoscope.trace.trace import IntArray


@dataclass(frozen=True)
class Replayed:
    """Step times of a replay, ns."""

    step_ns: float
    host_ns: float
    device_ns: float


def simulate(model: Model, change: Change | None = None, *, deflate: float = 0.0) -> Replayed:
    """Replay the steps.

    Args:
        model: the recording.
        change: what to change first; None for the recording itself.
        deflate: 0 replays the recording as it is, 1 without the modelled profiling overhead,
            values between and beyond take off more or less of it.

    Returns:
        The pace of host and device over the replayed steps, and the slower of the two.
    """
    change = change or Change()
    return pace_of(model, alone(model, costs_of(model, change, deflate)), change)


def pace_of(model: Model, run: Run, change: Change) -> Replayed:
    """Pace of a finished replay."""
    host = typical(np.diff(run.marks), model.irregular) - model.lead_ns
    device = _device_pace(model, run)
    pace = max(host, device, float(change.step_floor_ns)) + change.extra_host_ns
    return Replayed(pace, host, device)


def typical(periods: IntArray, irregular: bool) -> float:
    """Usual length of a step: the median, or the mean where steps differ by nature."""
    if not periods.size:
        return 0.0
    return float(periods.mean() if irregular else np.median(periods))


def _device_pace(model: Model, run: Run) -> float:
    """Usual distance of the ends of consecutive steps' device work."""
    if not run.end:
        return 0.0
    end = np.asarray(run.end, dtype=np.int64)
    last = np.full(len(run.marks), np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(last, model.step, end)
    busy = np.flatnonzero(np.bincount(model.step, minlength=last.size) > 0)
    edges = np.maximum.accumulate(last[busy])
    if edges.size < 2:
        return float(end.max() - run.marks[0] - model.lead_ns) / max(len(run.marks) - 1, 1)
    return typical(np.diff(edges), model.irregular)
