"""How many steps each phase gets, and when a program is steady. Pure arithmetic."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median

from kinetoscope.capture.options import CaptureOptions

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

_WARM_UP_SHARE = 0.08
"""Largest share of the time budget for the steps before one window."""

_INFLATION = {"light": 1.6, "full": 3.5, "lines": 8.0}
"""How much longer a host-bound step takes in a phase; measured on an H200."""


@dataclass(frozen=True)
class Plan:
    """Steps of each phase.

    Attributes:
        start: index of the step at which the baseline begins.
        warm_up: steps before each window, after the profiler was set up.
        steady: whether the steps were steady when the plan was made.
    """

    start: int
    baseline: int
    light: int
    full: int
    lines: int
    samples: int
    warm_up: int = 1
    steady: bool = True

    def as_dict(self) -> dict[str, int | bool]:
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

    The longest is left out, because it may be the first batch or the first compilation.
    """
    last = sorted(periods[-_LAST:])[:-1] or periods
    return sum(last) / len(last)


def make_plan(
    period_s: float, options: CaptureOptions, *, start: int, steady: bool, ahead: int = 0
) -> Plan:
    """Steps of each phase, so that numbers are trustworthy and the budget is kept.

    The baseline takes up to two seconds, because it states the program's true speed. Windows are
    short: four steps show a cause, and each more makes the trace larger.

    While a window is written the program stands still and the loader's workers do not. The next
    steps would find `ahead` batches ready that they would otherwise wait for, so as many steps
    pass before a window.
    """
    budget = options.budget_s
    warm_up = 1 + min(ahead, int(_WARM_UP_SHARE * budget / period_s))
    plan = Plan(
        start=start,
        baseline=_count(min(2.0, 0.15 * budget) / period_s, 5, 5000),
        light=_count(0.5 / period_s, 5, 200),
        full=_count(0.2 / period_s, 4, 20),
        lines=1,
        samples=_count(min(1.5, 0.05 * budget) / period_s, 2, 2000),
        warm_up=warm_up,
        steady=steady,
    )
    if _seconds(plan, period_s) <= 0.8 * budget:
        return plan
    shorter = Plan(start, 3, 3, 2, 1, 1, steady=steady)
    if _seconds(shorter, period_s) <= 0.8 * budget:
        return shorter
    return Plan(start, 2, 1, 1, 0, 0, steady=steady)


def fitting_steps(steps: int, light_step_bytes: float, size_bytes: int) -> int:
    """Steps of the full window that keep its file under the size budget, at least one.

    Stacks, shapes and memory make a file about five times as large as the light window's.
    """
    return max(1, min(steps, int(size_bytes / max(_FULL_TO_LIGHT * light_step_bytes, 1.0))))


def brief_steps(steps: int, light_pause_ns: float) -> int:
    """Steps of the full window after which the program stands still for a second at most.

    Torch takes its events apart and writes them while it holds Python's lock. A step of the full
    window takes about as many times longer than one of the light window as its file is larger.
    Three steps are recorded whatever they take: rules want to see a thing repeat.

    Args:
        steps: steps wanted.
        light_pause_ns: how long the program stood still for each step of the light window.
    """
    most = int(_LONGEST_PAUSE_NS / max(_FULL_TO_LIGHT * light_pause_ns, 1.0))
    return max(min(steps, _LEAST_FULL), min(steps, most))


def _count(value: float, least: int, most: int) -> int:
    return max(least, min(most, math.ceil(value)))


def _seconds(plan: Plan, period_s: float) -> float:
    steps = (
        plan.baseline
        + plan.samples
        + 2 * plan.warm_up
        + _INFLATION["light"] * plan.light
        + _INFLATION["full"] * plan.full
        + _INFLATION["lines"] * plan.lines
    )
    return steps * period_s
