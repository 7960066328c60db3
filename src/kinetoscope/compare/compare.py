"""The comparison of two sides, each one result or several repetitions."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import kinetoscope
from kinetoscope import units
from kinetoscope.compare.comparable import comparable
from kinetoscope.compare.findings import finding_changes, predictions
from kinetoscope.compare.order import Order, in_order, order_of, paired
from kinetoscope.compare.outcome import MARGIN, refused, verdict
from kinetoscope.compare.pace import pace
from kinetoscope.compare.scaling import scaling
from kinetoscope.compare.sides import side_of
from kinetoscope.compare.timing import SEVERAL_RUNS, Timing, alone, lead_steps, run_of, timing
from kinetoscope.compare.where import budget_changes, cost_changes
from kinetoscope.errors import UsageError
from kinetoscope.result import Diagnosis
from kinetoscope.result.comparison import (
    COMPARISON_VERSION,
    Comparable,
    Comparison,
    ComparisonVerdict,
    FindingChanges,
    Side,
)
from kinetoscope.result.profile import Profile


@dataclass(frozen=True)
class CompareOptions:
    """What a caller may set.

    Attributes:
        margin: differences below this share count as none.
        allow: kinds of differences to accept: program, shapes, devices, ranks, steps.
    """

    margin: float = MARGIN
    allow: frozenset[str] = field(default_factory=frozenset)


def compare(
    before: Diagnosis | Sequence[Diagnosis],
    after: Diagnosis | Sequence[Diagnosis],
    *,
    options: CompareOptions | None = None,
) -> Comparison:
    """Compare two results, or two sets of results of repeated runs.

    Raises:
        UsageError: a side is empty.
    """
    options = options or CompareOptions()
    a = [before] if isinstance(before, Diagnosis) else list(before)
    b = [after] if isinstance(after, Diagnosis) else list(after)
    if not a or not b:
        raise UsageError("a comparison needs at least one run a side")
    given = len(a) + len(b)
    a, b = _distinct(a), _distinct(b)
    copies = given - len(a) - len(b)
    same = comparable(a, b, allow=options.allow)
    order = order_of(a, b)
    a, b = in_order(a), in_order(b)
    sides = side_of(a), side_of(b)
    changes = finding_changes(a, b)
    if not same.answer:
        scaled = scaling([a, b]) if _other_ranks(same) else None
        told = changes if scaled else FindingChanges()  # of another program nothing went away
        return _document(refused(same), same, sides, options, findings=told, scaling=scaled)
    profiles = [_profiles(side) for side in (a, b)]
    times = timing(
        [run_of(p) for p in profiles[0]],
        [run_of(p) for p in profiles[1]],
        same_options=not any(d.what == "options" for d in same.differences),
        paired=paired(order, a),
        device_pace=pace(*profiles),
    )
    answer = verdict(times, *sides, options.margin)
    return _document(
        answer,
        same,
        sides,
        options,
        budget=budget_changes(a, b),
        operators=cost_changes(*profiles),
        findings=changes,
        predictions=predictions(changes, answer.speedup),
        notes=(*_notes(a, b, times, order), *[_COPIES] * bool(copies)),
    )


def _distinct(runs: Sequence[Diagnosis]) -> list[Diagnosis]:
    """Runs without copies: no two runs take the same time to the nanosecond."""
    found: list[Diagnosis] = []
    for run in runs:
        if run.profile is None or all(run.profile != other.profile for other in found):
            found.append(run)
    return found


def _document(
    answer: ComparisonVerdict,
    same: Comparable,
    sides: tuple[Side, Side],
    options: CompareOptions,
    **parts: Any,
) -> Comparison:
    return Comparison(
        schema_version=COMPARISON_VERSION,
        kinetoscope=kinetoscope.__version__,
        verdict=answer,
        comparable=same,
        before=sides[0],
        after=sides[1],
        margin=options.margin,
        **parts,
    )


def _other_ranks(same: Comparable) -> bool:
    refused_for = {d.what for d in same.differences if d.effect == "refused"}
    return "ranks" in refused_for and refused_for <= {"ranks", "shapes"}


def _profiles(runs: Sequence[Diagnosis]) -> list[Profile]:
    return [run.profile for run in runs if run.profile is not None]


def _notes(
    a: Sequence[Diagnosis], b: Sequence[Diagnosis], times: Timing, order: Order
) -> tuple[str, ...]:
    if times.identical:
        return ()
    measured = min(len(a), len(b)) >= SEVERAL_RUNS
    notes = [
        _RUNS_DIFFER.format(
            share=units.percent(times.run_sd),
            source="from the runs" if measured else "mostly an assumption",
        )
    ]
    if alone([run_of(p) for p in _profiles([*a, *b])]):
        notes.append(_ALONE)
    elif not measured:
        notes.append(_FEW_RUNS.format(before=units.plural(len(a), "run"), after=len(b)))
    if order == "one_side_first":
        notes.append(_ONE_SIDE_FIRST)
    if times.device_pace is not None:
        notes.append(
            _OTHER_CLOCK.format(
                longer=units.percent(times.device_pace.slower_ratio),
                when="before" if times.device_pace.log_ratio > 0 else "after",
            )
        )
    if any(len(lead_steps(p).host_ns) < 5 for p in _profiles([*a, *b])):
        notes.append("A run has fewer than five steady steps: record more of them.")
    return tuple(notes)


_COPIES = "Copies of one recording are one run."
_RUNS_DIFFER = (
    "Two runs of one program are taken to differ by {share} (standard deviation), {source}."
)
_FEW_RUNS = (
    "{before} before and {after} after: three or more a side, made in turns (before, after, "
    "before, ...), narrow the interval."
)
_ALONE = (
    "Hardly a run a side, and the processor does all the work: on a busy machine two such runs of "
    "one program differed by up to 15x, and nothing in a recording tells how busy it was. Record "
    "three a side or more, in turns (before, after, before, ...)."
)
_ONE_SIDE_FIRST = (
    "All runs of one side were made before those of the other: what drifts meanwhile (clocks, "
    "temperature, neighbours) counts as a difference. Make them in turns."
)
_OTHER_CLOCK = (
    "The same kernels take {longer} longer {when}: the device ran at another clock or was shared, "
    "which explains the change without the program. Record three runs a side or more, in turns."
)
