"""The words that the text formats of a comparison share."""

from __future__ import annotations

from collections.abc import Sequence

from kinetoscope import units
from kinetoscope.report import phrases
from kinetoscope.report.text import clean, shorten
from kinetoscope.result import Gain
from kinetoscope.result.comparison import (
    Comparable,
    Comparison,
    ComparisonVerdict,
    CostChange,
    Difference,
    FindingChange,
    Kept,
    Outcome,
    Prediction,
    Ratio,
    ScalePoint,
    Scaling,
    Side,
)

OUTCOMES: dict[Outcome, str] = {
    "faster": "faster",
    "slower": "slower",
    "no_difference": "no difference",
    "inconclusive": "inconclusive",
    "not_comparable": "not comparable",
    "scaling": "scaling",
}

STYLES: dict[Outcome, str] = {
    "faster": "green",
    "slower": "red",
    "no_difference": "cyan",
    "inconclusive": "yellow",
    "not_comparable": "yellow",
    "scaling": "cyan",
}

KEPT: dict[Kept, str] = {
    "more": "more than predicted",
    "as_predicted": "as predicted",
    "less": "less than predicted",
    "unknown": "too noisy to tell",
}
_EFFECTS = {"noted": "", "corrected": "", "refused": "refused"}
_LONGEST_NAME = 60
_SEVERAL_RUNS = 3
_HARDLY_KNOWN = 3.0
"""An efficiency whose interval spans this factor says nothing."""


def side(given: Side) -> str:
    """Return step time, runs and verdict of one side."""
    time = units.duration(given.step_ns)
    bracket = units.duration_range(given.low_ns, given.high_ns)
    if bracket != time:
        time = f"{time} a step (between {bracket.replace(' to ', ' and ')})"
    else:
        time = f"{time} a step"
    runs = f"{units.plural(given.runs, 'run')}, {units.plural(given.steps, 'step')}"
    ranks = f", {given.ranks} ranks" if given.ranks > 1 else ""
    state = "healthy, " if given.healthy else ""
    limit = phrases.CLASSES[given.bottleneck]
    verdict = "undetermined" if given.bottleneck == "undetermined" else f"limited by {limit}"
    return f"{time}; {runs}{ranks}; {state}{verdict}"


def paths(given: Side) -> str:
    """Return the files of a side, the first two by name."""
    shown = [clean(path) for path in given.paths[:2]]
    more = len(given.paths) - len(shown)
    return ", ".join(shown) + (f" and {more} more" if more else "")


def after_badge(verdict: ComparisonVerdict) -> str:
    """Return the sentence without the outcome, for where a badge or heading has just said it."""
    sentence, said = clean(verdict.sentence), f"{OUTCOMES[verdict.outcome]}: "
    if not sentence.lower().startswith(said):
        return sentence
    return sentence[len(said)].upper() + sentence[len(said) + 1 :]


def likeness(comparable: Comparable) -> str:
    """Return how alike the programs are."""
    if comparable.similarity is None:
        return f"not checked: {comparable.basis}"
    return f"{units.percent(comparable.similarity)} of the {comparable.basis} agree"


def difference(item: Difference) -> str:
    """Return one difference in a line."""
    effect = _EFFECTS[item.effect]
    comma = ";" if "," in item.before + item.after else ","
    parts = [f"{item.what}: {clean(item.before)} before{comma} {clean(item.after)} after"]
    note = ": ".join(part for part in (effect, clean(item.note)) if part)
    return "; ".join([*parts, note] if note else parts)


def signed(ns: int) -> str:
    """Return a change of time with its sign."""
    text = units.duration(abs(ns))
    return f"-{text}" if ns < 0 else f"+{text}"


def changed(rows: Sequence[CostChange], most: int) -> list[CostChange]:
    """Return the rows that changed, largest first over all kinds."""
    kept = [row for row in rows if row.change != "same"]
    return sorted(kept, key=lambda row: -abs(row.change_ns))[:most]


def cost(row: CostChange) -> str:
    """Return what a row speaks of."""
    name = shorten(clean(row.name), _LONGEST_NAME)
    shape = f" [{clean(row.shape)}]" if row.shape else ""
    module = f" in {clean(row.module)}" if row.module and row.kind != "module" else ""
    return f"{row.kind} {name}{shape}{module}"


def cost_times(row: CostChange) -> str:
    """Return what became of it and its times, by the clock that the change speaks of."""
    device = row.on == "device"
    before = row.before_device_ns if device else row.before_host_ns
    after = row.after_device_ns if device else row.after_host_ns
    word = "" if 0 in (before, after) else f"{row.change}, "
    return f"{word}{times(before, after)} on the {row.on}"


def times(before_ns: int, after_ns: int) -> str:
    """Return both times of what changed; what one side does not have took no 0 ns there."""
    if not before_ns:
        return f"new, {units.duration(after_ns)}"
    if not after_ns:
        return f"gone, {units.duration(before_ns)} before"
    return f"{units.duration(before_ns)} -> {units.duration(after_ns)}"


def finding(item: FindingChange) -> str:
    """Return a finding in one line, with its place."""
    place = f" at {phrases.place(item.location)}" if item.location else ""
    return f"{clean(item.code)} {clean(item.name)}{place}"


def speedup(ratio: Ratio | None) -> str:
    """Return a measured speed-up with its interval; "" when there is none."""
    return _range(ratio.low, ratio.mid, ratio.high) if ratio else ""


def promised(gain: Gain) -> str:
    """Return a predicted speed-up with its range; no finer than it is known."""
    if gain.basis == "none":
        return "no time gain"
    return units.speedup(gain.low, gain.mid, gain.high)


def _range(low: float, mid: float, high: float) -> str:
    if low == high:
        return units.factor(mid)
    return f"{units.factor(mid)} ({units.factor(low)} to {units.factor(high)})"


def prediction(item: Prediction) -> str:
    """Return what was promised and what came."""
    return (
        f"{clean(item.code)} predicted {promised(item.predicted)}; achieved "
        f"{speedup(item.achieved)}: {KEPT[item.kept]}"
    )


def loop(comparison: Comparison) -> list[tuple[str, str]]:
    """Return the way from the first side to the second, in labelled lines.

    For a report of the second side: what was, what was promised, what came of it.
    """
    lines = [
        ("Before", f"{side(comparison.before)}. {clean(comparison.before.sentence)}"),
        ("Now", clean(comparison.verdict.sentence)),
    ]
    lines += [("Promised", prediction(item)) for item in comparison.predictions]
    promised_codes = {item.code for item in comparison.predictions}
    gone = [item for item in comparison.findings.gone if item.code not in promised_codes]
    for label, items in (("Gone", gone), ("New", comparison.findings.new)):
        lines += [(label, finding(item)) for item in items]
    return lines


def scale_row(point: ScalePoint) -> str:
    """Return one number of ranks in a line."""
    ranks = units.plural(point.ranks, "rank")
    return (
        f"{ranks:>8}  {units.duration(point.step_ns):>9} a step  "
        f"{units.times(point.speedup):>6}  {units.percent(point.efficiency):>6} "
        f"({efficiency_range(point)})"
    )


def efficiency_range(point: ScalePoint) -> str:
    """Return the interval of an efficiency; so wide that it says nothing, it says so."""
    low, high = point.efficiency_low, point.efficiency_high
    if high > _HARDLY_KNOWN * low:
        return "hardly known"
    return "the measure" if low == high else f"{units.percent(low)} to {units.percent(high)}"


def scale_fit(scaling: Scaling) -> str:
    """Return the fit in words; "" where the points cannot tell."""
    parts = []
    if scaling.serial_share is not None:
        parts.append(f"{units.percent(scaling.serial_share)} of the work does not scale")
    if scaling.per_rank_ns is not None:
        parts.append(f"each further rank adds {units.duration(scaling.per_rank_ns)} a step")
    if not parts:
        return ""
    error = f" (fit within {units.percent(scaling.fit_error)})" if scaling.fit_error else ""
    return f"{' and '.join(parts)}{error}"


def next_step(comparison: Comparison) -> str:
    """Return what to do now."""
    outcome = comparison.verdict.outcome
    if comparison.scaling is not None:
        return _next_for_scaling(comparison)
    if outcome == "not_comparable":
        return "Compare recordings of one program, on one kind of device, with the same shapes."
    if outcome == "inconclusive":
        return _next_for_more(comparison)
    if outcome == "slower":
        return "Take the change back, or look at what became slower above."
    remaining = [*comparison.findings.stayed, *comparison.findings.new]
    timed = [f for f in remaining if f.gain.basis != "none"]
    if timed:
        best = max(timed, key=lambda f: f.gain.mid)
        return f"Next candidate: {clean(best.code)} {clean(best.name)}."
    return "Nothing else was found; measure without the profiler to be sure."


def _next_for_more(comparison: Comparison) -> str:
    sides = (comparison.before, comparison.after)
    again = "Record each side three times or more, in turns, and compare the folders"
    if min(side.runs for side in sides) >= _SEVERAL_RUNS:
        again = "Record more runs of each side, in turns, while the machine does nothing else"
    if all(side.low_ns == side.high_ns for side in sides):
        return f"{again}."
    return f"{again}; or give the unprofiled step times: --real-step-ms BEFORE AFTER."


def _next_for_scaling(comparison: Comparison) -> str:
    """Return the finding of the largest job that speaks of what eats its time, else where to look.

    `Comparison.findings` are those of the smallest job against those of the largest one.
    """
    eaten_by = comparison.scaling.eaten_by if comparison.scaling else ""
    left = [*comparison.findings.new, *comparison.findings.stayed]
    found = next((item for item in left if item.class_ == eaten_by), None)
    if found is not None:
        return f"Next candidate: {finding(found)}."
    return "Look at the report of the largest job: `kinetoscope analyze FOLDER -o report.html`."
