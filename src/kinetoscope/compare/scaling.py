"""How a job scales over numbers of ranks: efficiency, what eats it, and two fits.

The step time is fitted as `T(n) = work / n + serial + per_rank * (n - 1)` for strong scaling
(Amdahl's law with a communication term) and as `T(n) = work + per_rank * (n - 1)` for weak
scaling. With as many unknowns as points a fit says nothing, so terms are dropped until one point
is left over.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

import kinetoscope
from kinetoscope import units
from kinetoscope.compare.comparable import comparable
from kinetoscope.compare.findings import finding_changes
from kinetoscope.compare.sides import side_of
from kinetoscope.compare.similarity import likeness
from kinetoscope.compare.timing import run_of, timing
from kinetoscope.compare.where import budget_changes
from kinetoscope.errors import UsageError
from kinetoscope.result import Diagnosis
from kinetoscope.result.comparison import (
    COMPARISON_VERSION,
    Comparison,
    ComparisonVerdict,
    Ratio,
    ScalePoint,
    Scaling,
    ScalingKind,
)

GOOD_AT_TWO = 1.8
"""Speed-up at two ranks below which people look for a reason."""
_CLASS_WORDS = {
    "compute": "compute",
    "memory": "memory",
    "data_loading": "data loading",
    "communication": "communication",
    "framework": "host work",
    "unattributed": "time that the recordings do not explain",
}


def scaling(sides: Sequence[Sequence[Diagnosis]], kind: ScalingKind | None = None) -> Scaling:
    """Return how the step time depends on the number of ranks.

    Args:
        sides: one entry for each number of ranks, with one result or several repetitions.
        kind: weak or strong; found by the sizes of the work of a rank when not given.

    Raises:
        UsageError: fewer than two different numbers of ranks, or a result without a profile.
    """
    ordered = sorted(sides, key=_ranks)
    numbers = [_ranks(side) for side in ordered]
    if len(set(numbers)) < len(numbers) or len(numbers) < 2:
        raise UsageError(
            "scaling needs results of different numbers of ranks, each number once",
            hint="Give repeated runs of one number of ranks as a folder.",
        )
    kind = kind or _kind(ordered[0][0], ordered[-1][0])
    points = tuple(_point(ordered[0], side, kind) for side in ordered)
    eaten_by, eaten = _eaten(points, kind)
    serial, per_rank, error = fit([p.ranks for p in points], [p.step_ns for p in points], kind)
    sentence = _sentence(points, kind, _reasons(ordered))
    return Scaling(kind, points, eaten_by, eaten, serial, per_rank, error, sentence)


def compare_scaling(
    sides: Sequence[Sequence[Diagnosis]], kind: ScalingKind | None = None
) -> Comparison:
    """Return the scaling as a document: the smallest job before, the largest one after.

    Raises:
        UsageError: as for `scaling`.
    """
    found = scaling(sides, kind)
    ordered = sorted(sides, key=_ranks)
    first, last = ordered[0], ordered[-1]
    ratio = found.points[-1]
    factor = ratio.speedup / ratio.efficiency if ratio.efficiency else 1.0
    speedup = Ratio(ratio.efficiency_low * factor, ratio.speedup, ratio.efficiency_high * factor)
    return Comparison(
        schema_version=COMPARISON_VERSION,
        kinetoscope=kinetoscope.__version__,
        verdict=ComparisonVerdict("scaling", speedup, found.sentence),
        comparable=comparable(first, last, allow=frozenset({"ranks", "shapes"})),
        before=side_of(first),
        after=side_of(last),
        margin=0.0,
        budget=budget_changes(first, last),
        findings=finding_changes(first, last),
        scaling=found,
    )


def _ranks(side: Sequence[Diagnosis]) -> int:
    profile = side[0].profile
    if profile is None:
        raise UsageError(
            f"{side[0].inputs[0].path} holds no profile", hint="Diagnose the traces again."
        )
    return profile.world_size


def _kind(small: Diagnosis, large: Diagnosis) -> ScalingKind:
    """Weak when a rank of the large job does what the only rank of the small one does."""
    a, b = small.profile, large.profile
    if a is None or b is None:
        return "weak"
    work = likeness(a.fingerprint, b.fingerprint).work_ratio
    return "strong" if work is not None and work < 0.75 else "weak"


def _point(base: Sequence[Diagnosis], side: Sequence[Diagnosis], kind: ScalingKind) -> ScalePoint:
    factor = _ranks(side) / _ranks(base)
    times = timing(
        [run_of(r.profile) for r in base if r.profile],
        [run_of(r.profile) for r in side if r.profile],
        same_options=True,
    )
    ratio = times.speedup
    scale = 1.0 if kind == "weak" else 1.0 / factor
    step = np.exp(np.mean(np.log([max(r.step.time_ns.mid, 1) for r in side])))
    return ScalePoint(
        ranks=_ranks(side),
        step_ns=round(float(step)),
        speedup=round(ratio.mid * (factor if kind == "weak" else 1.0), 4),
        efficiency=round(ratio.mid * scale, 4),
        efficiency_low=round(ratio.low * scale, 4),
        efficiency_high=round(ratio.high * scale, 4),
        by_class=_by_class(side),
    )


def _by_class(side: Sequence[Diagnosis]) -> dict[str, int]:
    total: dict[str, float] = {}
    for run in side:
        for line in run.budget:
            total[line.class_] = total.get(line.class_, 0.0) + line.ns / len(side)
    return {name: round(ns) for name, ns in total.items()}


def _eaten(points: Sequence[ScalePoint], kind: ScalingKind) -> tuple[str, int]:
    """The class that grows most beyond perfect scaling."""
    first, last = points[0], points[-1]
    factor = 1.0 if kind == "weak" else last.ranks / first.ranks
    names = dict.fromkeys([*first.by_class, *last.by_class])
    growth = {n: last.by_class.get(n, 0) - first.by_class.get(n, 0) / factor for n in names}
    worst = max(growth, key=lambda n: growth[n], default="")
    return (worst, round(growth[worst])) if worst and growth[worst] > 0 else ("", 0)


@dataclass(frozen=True)
class _Term:
    name: str
    values: list[float]


def fit(
    ranks: Sequence[int], step_ns: Sequence[int], kind: ScalingKind
) -> tuple[float | None, int | None, float | None]:
    """Fit the step times; returns (serial share, ns that each further rank adds, worst error).

    None for what the points cannot tell.
    """
    further = _Term("per_rank", [float(n - 1) for n in ranks])
    even = _Term("work", [1.0 / n if kind == "strong" else 1.0 for n in ranks])
    terms = (
        [even, _Term("serial", [1.0] * len(ranks)), further]
        if kind == "strong"
        else [even, further]
    )
    terms = terms[: len(ranks) - 1]
    if len(terms) < 2:
        return None, None, None
    found = _least_squares(terms, step_ns)
    model = sum(found[t.name] * np.array(t.values) for t in terms)
    error = float(np.max(np.abs(model / np.array(step_ns, float) - 1.0)))
    serial = None
    if "serial" in found:
        whole = found["work"] + found["serial"]
        serial = round(found["serial"] / whole, 4) if whole > 0 else None
    per_rank = round(found["per_rank"]) if "per_rank" in found else None
    return serial, per_rank, round(error, 4)


def _least_squares(terms: Sequence[_Term], step_ns: Sequence[int]) -> dict[str, float]:
    """Relative least squares without negative coefficients: the worst term goes until none is."""
    kept = list(terms)
    target = np.array(step_ns, float)
    while True:
        matrix = np.array([t.values for t in kept]).T / target[:, None]
        solved = np.linalg.lstsq(matrix, np.ones(target.size), rcond=None)[0]
        if len(kept) == 1 or solved.min() >= 0:
            break
        kept.pop(int(np.argmin(solved)))
    values = {t.name: 0.0 for t in terms}
    values.update({t.name: max(float(v), 0.0) for t, v in zip(kept, solved, strict=True)})
    return values


def _reasons(ordered: Sequence[Sequence[Diagnosis]]) -> dict[int, str]:
    """For each number of ranks the budget line that grew most, with its class's finding."""
    return {_ranks(side): _reason(ordered[0], side) for side in ordered[1:]}


def _reason(base: Sequence[Diagnosis], side: Sequence[Diagnosis]) -> str:
    grown = [row for row in budget_changes(base, side) if row.change in ("added", "slower")]
    if not grown:
        return ""
    row = max(grown, key=lambda r: r.change_ns)
    found = next((f.code for f in side[0].findings if f.class_ == row.class_), None)
    return row.label + (f"; {found} says what to change" if found else "")


def _sentence(points: Sequence[ScalePoint], kind: ScalingKind, reasons: Mapping[int, str]) -> str:
    first, last = points[0], points[-1]
    two = next((p for p in points if p.ranks == 2 * first.ranks), None)
    parts = [(_GROWS if last.speedup >= 1 else _FALLS).format(**_words(first, last, kind))]
    if two is not None and two.speedup < GOOD_AT_TWO:
        parts.append(_less_than_people_expect(first, two, kind, reasons.get(two.ranks, "")))
    eaten_by, eaten = _eaten(points, kind)
    if eaten_by and last is not two and last.efficiency < NEARLY_PERFECT:
        parts.append(_LOSS.format(**_loss(last, eaten_by, eaten, reasons.get(last.ranks, ""))))
    if last.efficiency_high > HARDLY_KNOWN * last.efficiency_low:
        parts.append(_HARDLY_KNOWN)
    return " ".join(parts)


def _less_than_people_expect(
    first: ScalePoint, two: ScalePoint, kind: ScalingKind, reason: str
) -> str:
    eaten_by, eaten = _eaten((first, two), kind)
    text = _TWO.format(two=two.ranks, at_two=units.times(two.speedup), good=GOOD_AT_TWO)
    if not eaten_by:
        return f"{text}."
    return f"{text}: {_WHY.format(**_loss(two, eaten_by, eaten, reason))}"


def _words(first: ScalePoint, last: ScalePoint, kind: ScalingKind) -> dict[str, object]:
    return {
        "first": units.plural(first.ranks, "rank"),
        "last": last.ranks,
        "times": units.times(last.speedup),
        "share": units.percent(last.efficiency),
        "kind": kind,
    }


def _loss(point: ScalePoint, eaten_by: str, eaten: int, reason: str) -> dict[str, object]:
    return {
        "ranks": point.ranks,
        "eaten_by": _CLASS_WORDS.get(eaten_by, eaten_by),
        "eaten": units.duration(eaten),
        "reason": f" ({reason})" if reason else "",
    }


NEARLY_PERFECT = 0.97
HARDLY_KNOWN = 3.0
"""An efficiency whose interval spans this factor is hardly known."""
_GROWS = "From {first} to {last} the throughput grows {times}, {share} of perfect {kind} scaling."
_FALLS = (
    "From {first} to {last} the throughput falls to {times}, {share} of perfect {kind} scaling."
)
_TWO = "{two} ranks give {at_two}, less than the {good}x that people expect"
_WHY = "{eaten_by} takes {eaten} a step more than with perfect scaling{reason}."
_LOSS = "At {ranks} ranks most of the loss is {eaten_by}: {eaten} a step{reason}."
_HARDLY_KNOWN = "How much is hardly known from so few runs: record three or more of each."
