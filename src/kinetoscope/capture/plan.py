"""How many steps each phase gets, and when a program is steady. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from statistics import median

from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.rhythm import rhythm, whole

STEADY_PERIODS = 6
"""So many last periods must resemble each other."""
_SPREAD = 0.15
"""Median absolute deviation / median below which periods resemble each other."""
_DRIFT = 0.20
"""Largest difference of the medians of the older and the newer half."""
_LAST = 8
_MANY = 40
_SHORT = 1.5
"""Seconds above which a step is long: fewer of them are enough."""

_FULL_TO_LIGHT = 5.0
"""A step of the full window has about so many times the events of one of the light window."""
_LONGEST_PAUSE_NS = 1e9
_LEAST_FULL = 3
_WORK_NS = 0.4e9
_MOST_WORK_NS = 1.5e9

_WARM_UP_SHARE = 0.08
"""Largest share of the time budget for the steps before one window."""

_INFLATION = {"light": 1.6, "full": 3.5, "lines": 8.0}
"""How much longer a host-bound step takes in a phase; measured on an H200."""

_LONGEST = {
    "baseline": 0.25,
    "light": 0.15,
    "full": 0.15,
    "lines": 0.1,
    "samples": 0.1,
    "second": 0.15,
}
"""Share of the time budget after which a phase ends, however few steps it has."""
_PLANNED = 2.0
"""Unless it was planned to be so long: then it may take so many times that."""

_FAR = 0.3
"""Steps that take less than this part of what was planned with get a new plan."""

_MOST_LIGHT = 200
_MOST_FULL = 20
_TWICE = 10
"""A cycle of so few steps is recorded twice: rules want to see it repeat."""


@dataclass(frozen=True)
class Plan:
    """Steps of each phase.

    Attributes:
        start: index of the step at which the baseline begins.
        second: steps of the second half of the baseline, after all windows.
        warm_up: steps before each window, after the profiler was set up.
        steady: whether the steps were steady when the plan was made.
        period_s: what a step took then.
        cycle: steps from one slow step to the next; 0 when none come regularly.
    """

    start: int
    baseline: int
    light: int
    full: int
    lines: int
    samples: int
    second: int = 0
    warm_up: int = 1
    steady: bool = True
    period_s: float = 0.0
    cycle: int = 0

    def longest_s(self, phase: str, budget_s: float) -> float:
        """Seconds after which a phase ends before it has all its steps."""
        planned = getattr(self, phase) * _INFLATION.get(phase, 1.0) * self.period_s
        return float(max(_LONGEST[phase] * budget_s, _PLANNED * planned))

    def far_too_slow(self, period_s: float) -> bool:
        """Do steps take far less than was planned with? A program that was compiling did more."""
        return 0 < period_s < _FAR * self.period_s

    def timed_before(self) -> Plan:
        """The same with the whole baseline before the windows, where they leave a cost behind."""
        return replace(self, baseline=self.baseline + self.second, second=0)

    def as_dict(self) -> dict[str, float]:
        """The plan as it is sent to other ranks."""
        return asdict(self)


def spread(periods: Sequence[float]) -> float:
    """Median absolute deviation of the periods, as a share of their median."""
    middle = median(periods)
    if middle <= 0:
        return math.inf
    return median(abs(p - middle) for p in periods) / middle


def is_steady(periods: Sequence[float]) -> bool:
    """Do the last periods resemble each other, without a trend?

    Long steps are steady after three: waiting for more would cost the user minutes. Short steps
    on a busy machine scatter; they count as steady when the median of many of them stands still.
    """
    if len(periods) < 3:
        return False
    wanted = STEADY_PERIODS if median(periods[-3:]) < _SHORT else 3
    if len(periods) < wanted:
        return False
    last = list(periods[-wanted:])
    if spread(last) <= _SPREAD and _drift(last) <= _DRIFT:
        return True
    return len(periods) >= _MANY and _drift(periods) <= _DRIFT / 2


def _drift(periods: Sequence[float]) -> float:
    """Difference of the medians of the older and the newer half, as a share."""
    half = len(periods) // 2
    older, newer = median(periods[:half]), median(periods[-half:])
    return abs(older - newer) / max(older, newer, 1e-12)


def typical_period(periods: Sequence[float]) -> float:
    """Mean of the last periods but the longest: what a step takes where one in a few is slow.

    The longest is left out, because it may be the first batch or the first compilation. Where
    slow steps come regularly, whole cycles count.
    """
    found = rhythm(periods)
    if found.cycle:
        return found.mean(periods)
    last = sorted(periods[-_LAST:])[:-1] or periods
    return sum(last) / len(last)


def make_plan(
    period_s: float,
    options: CaptureOptions,
    *,
    start: int,
    steady: bool,
    ahead: int = 0,
    cycle: int = 0,
) -> Plan:
    """Steps of each phase, so that numbers are trustworthy and the budget is kept.

    The baseline takes up to four seconds, because it states the program's true speed: half of them
    before the windows and half after them, so that a machine whose pace drifts shows. Windows are
    short: four steps show a cause, and each more makes the trace larger. Where every n-th step is
    slow, windows have whole cycles.

    While a window is written the program stands still and the loader's workers do not. The next
    steps would find `ahead` batches ready that they would otherwise wait for, so as many steps
    pass before a window.
    """
    budget = options.budget_s
    warm_up = 1 + min(ahead, int(_WARM_UP_SHARE * budget / period_s))
    timed = _count(min(4.0, 0.15 * budget) / period_s, 5, 5000)
    twice = 2 * cycle if cycle <= _TWICE else 0
    plan = Plan(
        start=start,
        baseline=timed - timed // 2,
        light=whole(max(_count(0.5 / period_s, 5, _MOST_LIGHT), twice), cycle, _MOST_LIGHT),
        full=whole(max(_count(0.2 / period_s, 4, _MOST_FULL), twice), cycle, _MOST_FULL),
        lines=1,
        samples=_count(min(1.5, 0.05 * budget) / period_s, 2, 2000),
        second=timed // 2,
        warm_up=warm_up,
        steady=steady,
        period_s=period_s,
        cycle=cycle,
    )
    if _seconds(plan, period_s) <= 0.8 * budget:
        return plan
    if cycle:
        return make_plan(period_s, options, start=start, steady=steady, ahead=ahead)
    shorter = Plan(start, 3, 3, 2, 1, 1, steady=steady, period_s=period_s)
    if _seconds(shorter, period_s) <= 0.8 * budget:
        return shorter
    return Plan(start, 2, 1, 1, 0, 0, steady=steady, period_s=period_s)


def fitting_steps(steps: int, light_step_bytes: float, size_bytes: int) -> int:
    """Steps of the full window that keep its file under the size budget, at least one.

    Stacks, shapes and memory make a file about five times as large as the light window's.
    """
    return max(1, min(steps, int(size_bytes / max(_FULL_TO_LIGHT * light_step_bytes, 1.0))))


def brief_steps(steps: int, light_pause_ns: float, cycle: int = 0) -> int:
    """Steps of the full window after which the program stands still for a second at most.

    Torch takes its events apart and writes them while it holds Python's lock. A step of the full
    window takes about as many times longer than one of the light window as its file is larger.
    Three steps are recorded whatever they take: rules want to see a thing repeat.

    Args:
        steps: steps wanted.
        light_pause_ns: how long the program stood still for each step of the light window.
        cycle: steps from one slow step to the next; 0 when there are none.
    """
    most = int(_LONGEST_PAUSE_NS / max(_FULL_TO_LIGHT * light_pause_ns, 1.0))
    if cycle:
        most -= most % cycle
    return max(min(steps, max(_LEAST_FULL, cycle)), min(steps, most))


def enough(steps: int, worked_ns: float, cycle: int = 0) -> bool:
    """Has the full window enough steps for what it will take to write them?

    Python and launches give some hundred thousand events a second, and torch needs six to nine
    times as long to take them apart as the thread needed to make them.

    Args:
        steps: complete steps so far.
        worked_ns: processor time of the thread of the steps in the window.
        cycle: steps from one slow step to the next; 0 when there are none.
    """
    if steps < max(_LEAST_FULL, cycle):
        return steps > 0 and worked_ns > _MOST_WORK_NS
    return worked_ns > _WORK_NS


def _count(value: float, least: int, most: int) -> int:
    return max(least, min(most, math.ceil(value)))


def _seconds(plan: Plan, period_s: float) -> float:
    steps = (
        plan.baseline
        + plan.samples
        + plan.second
        + 2 * plan.warm_up
        + _INFLATION["light"] * plan.light
        + _INFLATION["full"] * plan.full
        + _INFLATION["lines"] * plan.lines
    )
    return steps * period_s
