"""Speed-up of two sides with its 95 % interval.

A hierarchical bootstrap in three levels, with a fixed seed:

1. **Steps.** The steps of each run are drawn with replacement; the run's pace is their mean:
   a comparison asks for the time that all steps together take, slow ones included. (The step
   time of a diagnosis is that of a typical step, a median.)
2. **Recording.** A recorded step is longer than the true one. The bracket of M-18 says how much:
   its ends count as the 5 % and 95 % points. Recordings with equal options err alike, so both
   sides get the same draw; otherwise each gets its own.
3. **Runs.** Two runs of one program differ by more than their steps tell (clocks, memory layout,
   neighbours). A handful of runs is too few to draw from, so this level is parametric: Student's
   t with the pooled variance of the runs, or the prior below where that is wider.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.compare.pace import Pace, explains
from kinetoscope.result.comparison import Ratio
from kinetoscope.result.profile import Profile, RankSteps

FloatArray = npt.NDArray[np.float64]

DRAWS = 4000
SEED = 20231
PRIOR_SD = 0.02
"""Standard deviation of the pace of two runs of one program on one machine, as a share."""
PRIOR_SD_JOB = 0.10
"""The same for jobs of several ranks: two-rank recordings of one program differed by 30 %."""
PRIOR_STEPS = 0.5
"""The prior grows to this part of the variation from step to step, where that is larger."""
PRIOR_STEPS_FEW = 3.0
"""The same for few runs without a device timeline, fewer than four (or three couples): on a busy
two-core machine the processes of one CPU program differed by a factor of 8 to 17, and their steps
by 18 % within a run. With 0.5 45 % of 200 single runs, 8 % of 300 pairs and 5.5 % of 200 triples
were called faster or slower than others of the same program (`benchmarks/false_positives.py`)."""
PRIOR_SD_ALONE = 0.65
"""The same for one run a side without a device timeline, of the logarithm: runs of one CPU program
on that machine deviated by 0.62 to 0.73, and two of them differed by up to a factor of 15. With the
prior above 10 % and 19 % of 200 single runs were called faster or slower; with this one, 0.5 % and
2 %. Nothing in one recording tells how busy the machine was in the other one."""
PRIOR_DF = 8
"""The prior weighs as much as this many runs."""
SEVERAL_RUNS = 3
"""From this many runs a side on, what they differ by is measured, the device's clock included."""
LEAST_DF = 2
"""With fewer degrees of freedom the runs' own deviation says next to nothing."""
_END_OF_BRACKET = 1.645


@dataclass(frozen=True)
class Run:
    """One run, as the bootstrap sees it.

    Attributes:
        periods: the step times that set the pace, as recorded, ns.
        low, mid, high: bracket of the mean true step time, ns.
        ranks: ranks of the job.
        device: a device timeline was recorded; without one the processor does all the work, and
            shares it with whatever else runs.
    """

    periods: FloatArray
    low: float
    mid: float
    high: float
    ranks: int = 1
    device: bool = True

    @property
    def recorded(self) -> float:
        """Mean step time as recorded, ns."""
        return float(self.periods.mean())

    @property
    def cv(self) -> float:
        """Robust variation from step to step, as a share."""
        if self.periods.size < 2:
            return 0.0
        middle = float(np.median(self.periods))
        spread = 1.4826 * float(np.median(np.abs(self.periods - middle)))
        return spread / middle if middle > 0 else 0.0


@dataclass(frozen=True)
class Timing:
    """What the step times say.

    Attributes:
        speedup: old / new, corrected for what recording cost.
        recorded: the same of the step times as recorded.
        run_sd: standard deviation between runs that was used, as a share.
        identical: the two sides are the same recordings.
        device_pace: set when the device's own pace explains the change.
    """

    speedup: Ratio
    recorded: float
    run_sd: float
    identical: bool = False
    device_pace: Pace | None = None


def run_of(profile: Profile) -> Run:
    """Return the run of a result: the slower of host and device sets the pace."""
    lead = lead_steps(profile)
    sides = [np.array(p, dtype=float) for p in (lead.host_ns, lead.device_ns) if p]
    whole = np.array([float(max(lead.recorded_ns, 1))])
    periods = max(sides, key=lambda p: float(p.mean()), default=whole)
    typical = periods.mean() / max(lead.recorded_ns, 1) if periods.mean() > 0 else 1.0
    if profile.recorded.pinned:  # measured without the profiler: a mean already
        typical = 1.0
    return Run(
        periods=periods if periods.mean() > 0 else whole,
        low=float(max(lead.low_ns, 1)) * typical,
        mid=float(max(lead.mid_ns, 1)) * typical,
        high=float(max(lead.high_ns, 1)) * typical,
        ranks=profile.world_size,
        device=profile.recorded.device,
    )


def lead_steps(profile: Profile) -> RankSteps:
    """Return the steps of the rank that sets the pace."""
    return next((r for r in profile.ranks if r.rank == profile.lead_rank), profile.ranks[0])


def timing(
    before: Sequence[Run],
    after: Sequence[Run],
    *,
    same_options: bool,
    paired: bool = False,
    device_pace: Pace | None = None,
) -> Timing:
    """Return the speed-up of `after` over `before`.

    Args:
        before: the runs of the first side.
        after: the runs of the second side.
        same_options: both sides were recorded with the same options, and err alike.
        paired: run i of one side was made next to run i of the other, so that what drifts over
            the whole experiment (clocks, temperature, neighbours) cancels out.
        device_pace: by how much the device itself ran faster or slower, if it did. A single run
            a side that changed the same way tells nothing about the program.
    """
    mid = math.exp(_log_mean(before) - _log_mean(after))
    if _identical(before, after):
        return Timing(Ratio(1.0, 1.0, 1.0), 1.0, 0.0, identical=True)
    random = np.random.default_rng(SEED)
    sd, df = between_runs(before, after, paired=paired)
    clock = device_pace if min(len(before), len(after)) < SEVERAL_RUNS else None
    if clock is not None and explains(clock, math.log(mid)):
        sd = max(sd, abs(clock.log_ratio) / math.sqrt(2))
    else:
        clock = None
    shared = random.standard_normal(DRAWS) if same_options else None
    # The slower side draws first, so that both directions of one question get one answer.
    slower, faster = (before, after) if mid >= 1.0 else (after, before)
    draws = [_draws(side, sd, df, shared, random) for side in (slower, faster)]
    low, high = np.exp(np.percentile(draws[0] - draws[1], (2.5, 97.5)))
    if mid < 1.0:
        low, high = 1 / high, 1 / low
    plain = [np.mean(np.log([run.recorded for run in side])) for side in (before, after)]
    recorded = math.exp(float(plain[0] - plain[1]))
    speedup = Ratio(min(float(low), mid), mid, max(float(high), mid))
    return Timing(speedup, recorded, sd, device_pace=clock)


def between_runs(
    before: Sequence[Run], after: Sequence[Run], *, paired: bool = False
) -> tuple[float, float]:
    """Standard deviation between runs, and its degrees of freedom.

    The wider of two: the runs' own pooled deviation, and the same pulled towards the prior.
    """
    if paired and len(before) == len(after):
        squares, degrees = _pair_squares(before, after), len(before) - 1
    else:
        squares = sum(_squares(side) for side in (before, after))
        degrees = len(before) + len(after) - 2
    enough = SEVERAL_RUNS if paired else SEVERAL_RUNS + 1
    runs = [*before, *after]
    prior = _prior_sd(runs, few=len(before) < enough or len(after) < enough)
    if not paired and alone(runs):
        prior = max(prior, PRIOR_SD_ALONE)
    pulled = (PRIOR_DF * prior**2 + squares) / (PRIOR_DF + degrees)
    candidates = [(math.sqrt(pulled), float(PRIOR_DF + degrees))]
    if degrees >= LEAST_DF:
        candidates.append((math.sqrt(squares / degrees), float(degrees)))
    return max(candidates, key=lambda c: c[0] * _tail(c[1]))


def alone(runs: Sequence[Run]) -> bool:
    """Whether the runs are too few to tell what other work of the processor changes."""
    return len(runs) < 2 + LEAST_DF and not any(run.device for run in runs)


def _tail(df: float) -> float:
    """About the 97.5 % point of Student's t."""
    return 1.96 + 2.4 / df + 4.0 / df**2 + 4.3 / df**4


def _prior_sd(runs: Sequence[Run], *, few: bool) -> float:
    floor = PRIOR_SD_JOB if max(run.ranks for run in runs) > 1 else PRIOR_SD
    host_only = not any(run.device for run in runs)
    part = PRIOR_STEPS_FEW if few and host_only else PRIOR_STEPS
    return max(floor, part * float(np.median([run.cv for run in runs])))


def _squares(side: Sequence[Run]) -> float:
    logs = np.log([run.mid for run in side])
    return float(((logs - logs.mean()) ** 2).sum())


def _pair_squares(before: Sequence[Run], after: Sequence[Run]) -> float:
    """The same of the differences of neighbours, which have twice the variance of a run."""
    logs = np.log([run.mid for run in before]) - np.log([run.mid for run in after])
    return float(((logs - logs.mean()) ** 2).sum()) / 2


def _log_mean(side: Sequence[Run]) -> float:
    return float(np.mean(np.log([run.mid for run in side])))


def _identical(before: Sequence[Run], after: Sequence[Run]) -> bool:
    """Equal to the nanosecond in every step: copies of the same recordings."""
    if len(before) != len(after):
        return False
    return all(
        np.array_equal(a.periods, b.periods) and (a.low, a.mid, a.high) == (b.low, b.mid, b.high)
        for a, b in zip(before, after, strict=True)
    )


def _draws(
    side: Sequence[Run],
    sd: float,
    df: float,
    shared: FloatArray | None,
    random: np.random.Generator,
) -> FloatArray:
    """Logarithm of the side's step time, once for each draw."""
    error = shared if shared is not None else random.standard_normal(DRAWS)
    steps = [_step_noise(run, random) for run in side]
    paces = [_bracket(run, error) + noise for run, noise in zip(side, steps, strict=True)]
    total = np.mean(paces, axis=0)
    within = float(np.mean([noise.var() for noise in steps])) if len(side) > 1 else 0.0
    left = math.sqrt(max(sd**2 - within, 0.25 * sd**2) / len(side))
    return np.asarray(total + left * random.standard_t(df, DRAWS))


def _bracket(run: Run, error: FloatArray) -> FloatArray:
    down = math.log(run.mid / run.low) / _END_OF_BRACKET
    up = math.log(run.high / run.mid) / _END_OF_BRACKET
    return math.log(run.mid) + np.where(error < 0, error * down, error * up)


def _step_noise(run: Run, random: np.random.Generator) -> FloatArray:
    size = run.periods.size
    if size < 2:
        return np.zeros(DRAWS)
    pick = run.periods[random.integers(0, size, (DRAWS, size))]
    return np.asarray(np.log(np.maximum(pick.mean(axis=1), 1.0) / max(run.recorded, 1.0)))
