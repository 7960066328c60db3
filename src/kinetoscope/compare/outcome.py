"""From an interval to a word and a sentence."""

from __future__ import annotations

from kinetoscope import units
from kinetoscope.compare.timing import SEVERAL_RUNS, Timing
from kinetoscope.result.comparison import (
    Comparable,
    ComparisonVerdict,
    Outcome,
    Ratio,
    Side,
)

MARGIN = 0.03
"""Differences below this share count as none (equivalence margin)."""
RELEVANT = 0.01
"""Smaller differences are no news even when they are certain."""


def outcome_of(speedup: Ratio, margin: float = MARGIN) -> Outcome:
    """Decide: certain and relevant first, then certainly small, else open."""
    if speedup.low > 1.0 and speedup.mid >= 1.0 + RELEVANT:
        return "faster"
    if speedup.high < 1.0 and speedup.mid <= 1.0 / (1.0 + RELEVANT):
        return "slower"
    if speedup.low >= 1.0 / (1.0 + margin) and speedup.high <= 1.0 + margin:
        return "no_difference"
    return "inconclusive"


def verdict(timing: Timing, before: Side, after: Side, margin: float = MARGIN) -> ComparisonVerdict:
    """Return the verdict of two sides that are comparable."""
    speedup = timing.speedup
    outcome = outcome_of(speedup, margin)
    return ComparisonVerdict(
        outcome=outcome,
        speedup=Ratio(_rounded(speedup.low), _rounded(speedup.mid), _rounded(speedup.high)),
        sentence=sentence(outcome, timing, before, after, margin),
        recorded_speedup=_rounded(timing.recorded),
    )


def _rounded(value: float) -> float:
    return float(f"{value:.6g}")


def refused(comparable: Comparable) -> ComparisonVerdict:
    """Return the verdict of two sides that are not comparable."""
    first = next(d for d in comparable.differences if d.effect == "refused")
    detail = first.note or f"{first.before} against {first.after}"
    what = "these are different programs" if first.what == "program" else _DIFFER[first.what]
    return ComparisonVerdict("not_comparable", None, f"Not comparable: {what}; {detail}.")


_DIFFER = {
    "profile": "a side has no profile",
    "shapes": "the shapes differ",
    "devices": "the devices differ",
    "ranks": "the numbers of ranks differ",
    "steps": "steps are not the same thing on both sides",
    "runs": "the runs of one side differ",
}


def sentence(outcome: Outcome, timing: Timing, before: Side, after: Side, margin: float) -> str:
    """Return the answer in one or two sentences."""
    if timing.identical:
        return "No difference: both sides are the same recording."
    speedup = timing.speedup
    span = (
        f"{units.factor(speedup.mid)}, between {units.factor(speedup.low)} and "
        f"{units.factor(speedup.high)}"
    )
    values = {
        "times": f"{units.duration(before.step_ns)} before, {units.duration(after.step_ns)} after",
        "span": span,
        "less": units.percent(1 - 1 / speedup.mid),
        "more": units.percent(1 / speedup.mid - 1),
        "margin": units.percent(margin),
        "recorded": _as_recorded(timing),
        "again": _MORE if min(before.runs, after.runs) >= SEVERAL_RUNS else _THREE,
    }
    return _SENTENCES[outcome].format(**values)


_SENTENCES: dict[str, str] = {
    "faster": "Faster: a step takes {less} less time ({times}{recorded}). Speed-up {span}.",
    "slower": "Slower: a step takes {more} more time ({times}{recorded}). Speed-up {span}.",
    "no_difference": "No difference beyond {margin}: speed-up {span} ({times}).",
    "inconclusive": "Inconclusive: speed-up {span} ({times}{recorded}). {again}",
}
_THREE = "Run each side three times or more, interleaved, to tell."
_MORE = "More runs a side, on a machine that does nothing else, tell more."


def _as_recorded(timing: Timing) -> str:
    """The plain change of what was recorded, where the correction changed it."""
    recorded = timing.recorded
    if abs(recorded / timing.speedup.mid - 1) < RELEVANT:
        return ""
    change = (
        f"{100 * (1 - 1 / recorded):.1f} % less"
        if recorded >= 1
        else (f"{100 * (1 / recorded - 1):.1f} % more")
    )
    return f"; as recorded, profiler included, {change} time"
