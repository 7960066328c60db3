"""The ranks of a job replayed together, on one clock.

A collective that was found on several ranks begins when the last of them arrives and ends on all
of them after its transfer, which is the time that the fastest rank took (the last one to arrive
does not wait). What the wait delays on each rank, events on the same stream and calls that wait
for them, follows.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from kinetoscope.replay.change import Change
from kinetoscope.replay.costs import Costs, costs_of, given
from kinetoscope.replay.model import Model
from kinetoscope.replay.run import Run, run
from kinetoscope.replay.simulate import pace_of, typical
from kinetoscope.replay.timeline import Timeline, timeline_of
from kinetoscope.trace.trace import IntArray


@dataclass(frozen=True)
class JobModel:
    """The models of several ranks and what joins them.

    Attributes:
        models: one a rank, all on one clock.
        event: event of each rank (row) for each collective instance (column); -1: not in its
            model.
        transfer: cost of each instance without waiting, ns.
        steps: steps of the first rank whose collectives are joined as usual.
    """

    models: tuple[Model, ...]
    event: IntArray
    transfer: IntArray
    steps: IntArray


def join(
    models: Sequence[Model], event: IntArray, transfer: IntArray, *, clock: IntArray
) -> JobModel:
    """Put models on one clock and join their collectives.

    Args:
        models: one a rank.
        event: (ranks x instances) position in each model; -1: none. Instances that fewer than
            two models hold are left out.
        transfer: cost of each instance without waiting, ns.
        clock: what to subtract from each rank's times.
    """
    several = (event >= 0).sum(axis=0) >= 2
    event, transfer = event[:, several], transfer[several]
    shifted = tuple(
        replace(m, origin=m.origin - int(c), initial_free=m.initial_free - int(c))
        for m, c in zip(models, clock.tolist(), strict=True)
    )
    mine = event[0][event[0] >= 0]
    count = np.bincount(shifted[0].step[mine], minlength=max(shifted[0].mark.size - 1, 0))
    # Windows of the ranks differ: at the edges a step has fewer joined collectives than usual.
    usual = np.median(count[count > 0]) if mine.size else 1
    return JobModel(shifted, event, transfer, np.flatnonzero(count >= usual))


def simulate_job(
    job: JobModel, changes: Mapping[int, Change] | None = None, *, deflate: float = 0.0
) -> float:
    """Replay all ranks.

    Args:
        job: the models.
        changes: of the ranks (positions in `job.models`) that change.
        deflate: part of the modelled profiling overhead to take off, as in `simulate`.

    Returns:
        Step time of the job, ns: the distance of the moments at which the ranks leave the last
        collective of consecutive steps, the same on all of them; or what the slowest host
        needs for a step, where the devices still work on what it issued before.
    """
    chosen = _of_all(job, changes)
    return _step_ns(job, replay_job(job, chosen, deflate=deflate), chosen)


def timeline_job(
    job: JobModel, changes: Mapping[int, Change] | None = None, *, deflate: float = 0.0
) -> Timeline:
    """Replay all ranks and keep when everything happened on the first one."""
    chosen = _of_all(job, changes)
    runs = replay_job(job, chosen, deflate=deflate)
    first = job.models[0]
    costs = costs_of(first, chosen[0], deflate)
    return timeline_of(first, costs, runs[0], step_ns=_step_ns(job, runs, chosen))


def _of_all(job: JobModel, changes: Mapping[int, Change] | None) -> list[Change]:
    return [(changes or {}).get(r, Change()) for r in range(len(job.models))]


def _step_ns(job: JobModel, runs: Sequence[Run], changes: Sequence[Change]) -> float:
    irregular = job.models[0].irregular
    periods = _periods(job, runs[0])
    pace = typical(periods, irregular)
    if not periods.size:
        pace = pace_of(job.models[0], runs[0], Change()).step_ns
    hosts = [typical(np.diff(r.marks), irregular) for r in runs]
    floor = max(float(c.step_floor_ns) for c in changes)
    return max(pace, floor, *hosts) + max(c.extra_host_ns for c in changes)


def _periods(job: JobModel, run: Run) -> IntArray:
    """Distance of the last shared ends of consecutive joined steps on the first rank."""
    shared = np.fromiter(run.arrived, np.int64, len(run.arrived))
    step = job.models[0].step[shared]
    last = np.full(job.models[0].mark.size, np.iinfo(np.int64).min, dtype=np.int64)
    np.maximum.at(last, step, np.asarray(run.end, dtype=np.int64)[shared])
    steps = np.intersect1d(job.steps, step)
    together = np.flatnonzero(np.diff(steps) == 1)
    return np.asarray(np.diff(last[steps])[together], dtype=np.int64)


def replay_job(job: JobModel, changes: Sequence[Change], *, deflate: float) -> list[Run]:
    """Replay all ranks and keep when everything happened."""
    costs = [costs_of(m, c, deflate) for m, c in zip(job.models, changes, strict=True)]
    return _Together(job, costs, _transfers(job, changes)).finish()


def _transfers(job: JobModel, changes: Sequence[Change]) -> list[int]:
    """Transfer of each instance; the shortest that a change gives, where one does."""
    far = np.iinfo(np.int64).max
    changed = np.full(job.transfer.size, far, dtype=np.int64)
    for model, mine, change in zip(job.models, job.event, changes, strict=True):
        if change.transfers is None or not job.transfer.size:
            continue
        at, new = given(model, change.transfers)
        value = np.full(model.event_row.size, far, dtype=np.int64)
        value[at] = new
        changed = np.minimum(changed, np.where(mine >= 0, value[np.maximum(mine, 0)], far))
    result: list[int] = np.where(changed < far, changed, job.transfer).tolist()
    return result


class _Together:
    """Runs the ranks in turn; a rank stops at a collective until the others have come to it."""

    def __init__(self, job: JobModel, costs: Sequence[Costs], transfer: list[int]) -> None:
        self.transfer = transfer
        self.members = [0] * len(transfer)
        self.instance: list[list[int]] = []
        self.replays = []
        for model, cost, mine in zip(job.models, costs, job.event, strict=True):
            instance = np.full(model.event_row.size, -1, dtype=np.int64)
            instance[mine[mine >= 0]] = np.flatnonzero(mine >= 0)
            owner = np.repeat(np.arange(model.call_row.size), np.diff(model.first_event))
            instance[cost.gone[owner]] = -1
            for j in instance[instance >= 0].tolist():
                self.members[j] += 1
            self.instance.append(instance.tolist())
            self.replays.append(run(model, cost, (instance >= 0).tolist()))
        self.arrived: dict[int, dict[int, int]] = {}
        self.runs: dict[int, Run] = {}
        self.ready: deque[tuple[int, int | None]] = deque((r, None) for r in range(len(costs)))

    def finish(self) -> list[Run]:
        """Replay to the end."""
        while self.ready or self.arrived:
            while self.ready:
                self._go_on(*self.ready.popleft())
            if self.arrived:
                # The ranks launch their collectives in different orders; on the devices they
                # need not wait for each other's order, so the first that can go, goes.
                first = min(self.arrived, key=lambda j: max(self.arrived[j].values()))
                self.members[first] -= len(self.arrived[first])
                self._release(first)
        return [self.runs[r] for r in range(len(self.replays))]

    def _go_on(self, rank: int, end: int | None) -> None:
        try:
            event, begin = self.replays[rank].send(end)  # type: ignore[arg-type]
        except StopIteration as done:
            self.runs[rank] = done.value
            return
        instance = self.instance[rank][event]
        here = self.arrived.setdefault(instance, {})
        here[rank] = begin
        if len(here) == self.members[instance]:
            self._release(instance)

    def _release(self, instance: int) -> None:
        here = self.arrived.pop(instance)
        end = max(here.values()) + self.transfer[instance]
        self.ready.extend((rank, end) for rank in here)
