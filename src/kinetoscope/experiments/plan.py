"""What to try, in which order."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kinetoscope.experiments.registry import all_remedies
from kinetoscope.experiments.remedy import Facts, Remedy
from kinetoscope.result import Diagnosis, Gain


@dataclass(frozen=True)
class Candidate:
    """One remedy with one parameter.

    Attributes:
        codes: rules that recommend it and fired.
        predicted: the largest gain that these rules promise.
    """

    remedy: Remedy
    value: str
    codes: tuple[str, ...] = ()
    predicted: Gain | None = None


@dataclass(frozen=True)
class Plan:
    """Candidates in the order in which to try them, and what does not apply."""

    candidates: tuple[Candidate, ...]
    skipped: tuple[tuple[Remedy, str], ...]


def plan(
    facts: Facts,
    diagnosis: Diagnosis | None,
    *,
    chosen: Sequence[tuple[Remedy, str]] = (),
    skip: Sequence[str] = (),
) -> Plan:
    """Order the remedies by what the diagnosis promises.

    Args:
        facts: what the unchanged program is like.
        diagnosis: of a recording of the program; None when there is none.
        chosen: remedies to try, all others left out; a parameter of "" means all of them.
        skip: ids to leave out.
    """
    wanted = list(chosen) or [(remedy, "") for remedy in all_remedies()]
    skipped: list[tuple[Remedy, str]] = []
    found: list[Candidate] = []
    for remedy, value in wanted:
        if remedy.id in skip:
            continue
        codes, predicted = _recommended(remedy, diagnosis)
        reason = remedy.applies(facts)
        if not reason and not chosen and not codes and not remedy.general:
            reason = "no finding recommends it"
        values = (value,) if value else (() if reason else remedy.values(facts))
        if not reason and not values:
            reason = "there is no other value to try"
        if reason:
            skipped.append((remedy, reason))
        found += [Candidate(remedy, v, codes, predicted) for v in values if not reason]
    # Python's sort is stable: remedies that no finding recommends keep their order.
    found.sort(key=lambda c: -(c.predicted.mid if c.predicted else 1.0))
    return Plan(tuple(found), tuple(skipped))


def _recommended(
    remedy: Remedy, diagnosis: Diagnosis | None
) -> tuple[tuple[str, ...], Gain | None]:
    if diagnosis is None:
        return (), None
    mine = [f for f in diagnosis.findings if remedy.id in f.remedies]
    if not mine:
        return (), None
    best = max(mine, key=lambda f: f.gain.mid)
    return tuple(dict.fromkeys(f.code for f in mine)), best.gain
