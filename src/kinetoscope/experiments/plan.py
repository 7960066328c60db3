"""What to try, in which order."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from kinetoscope.experiments.registry import all_remedies
from kinetoscope.experiments.remedy import Facts, Remedy
from kinetoscope.result import Diagnosis, Gain
from kinetoscope.rules.api import as_known
from kinetoscope.rules.registry import all_rules


@dataclass(frozen=True)
class Candidate:
    """One remedy with one parameter.

    Attributes:
        codes: rules that recommend it and fired.
        predicted: the largest gain that these rules promise it; None where they promise it to
            another remedy, and only recommend this one.
        order: the factor that it is tried by, the largest first.
    """

    remedy: Remedy
    value: str
    codes: tuple[str, ...] = ()
    predicted: Gain | None = None
    order: float = 1.0


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
    promises = _promises(diagnosis)
    skipped: list[tuple[Remedy, str]] = []
    found: list[Candidate] = []
    for remedy, value in wanted:
        if remedy.id in skip:
            continue
        reason = remedy.applies(facts)
        if not reason and not chosen and remedy.id not in promises and not remedy.general:
            reason = "no finding recommends it"
        values = (value,) if value else (() if reason else remedy.values(facts))
        if not reason and not values:
            reason = "there is no other value to try"
        if reason:
            skipped.append((remedy, reason))
        found += [
            _candidate(remedy, v, facts, promises.get(remedy.id, ())) for v in values if not reason
        ]
    # Python's sort is stable: remedies that no finding recommends keep their order.
    found.sort(key=lambda c: -c.order)
    return Plan(tuple(found), tuple(skipped))


@dataclass(frozen=True)
class _Promise:
    """What one rule says of one remedy.

    Attributes:
        value: "" where it means all parameters of the remedy.
        gain: of the rule's fix.
        own: the gain is that of this remedy.
    """

    value: str
    code: str
    gain: Gain
    own: bool


def _promises(diagnosis: Diagnosis | None) -> Mapping[str, Sequence[_Promise]]:
    """What the rules that found something promise, by remedy.

    A rule counts also where another finding explains the same time: a graph makes single requests
    faster although the finding advises to batch them.
    """
    found: dict[str, list[_Promise]] = {}
    gain_of = {rule.code: rule.gain_of for rule in all_rules()}
    for code, names, gain in _gains(diagnosis) if diagnosis else ():
        for name in names:
            remedy, _, value = name.partition("=")
            own = name in (gain_of.get(code) or names)
            found.setdefault(remedy, []).append(_Promise(value, code, gain, own))
    return found


def _gains(diagnosis: Diagnosis) -> Iterator[tuple[str, tuple[str, ...], Gain]]:
    """Code, remedies and gain of each fix alone; of older documents those of the findings."""
    rules = {rule.code: rule.remedies for rule in all_rules()}
    alone = {outcome.code: outcome.gain for outcome in diagnosis.rules if outcome.gain}
    for finding in diagnosis.findings:
        yield finding.code, finding.remedies, alone.pop(finding.code, finding.gain)
    for code, gain in alone.items():
        yield code, rules.get(code, ()), gain


def _candidate(remedy: Remedy, value: str, facts: Facts, promises: Sequence[_Promise]) -> Candidate:
    """A parameter with the rules that recommend it, and the largest gain that they promise."""
    mine = [p for p in promises if p.value in ("", value)]
    if not mine:
        return Candidate(remedy, value)
    codes = tuple(dict.fromkeys(p.code for p in mine))
    own = [p.gain for p in mine if p.own]
    best = max(own, key=lambda gain: gain.mid, default=None)
    predicted = _at_most(best, remedy.most(value, facts)) if best else None
    order = predicted.mid if predicted else max(p.gain.mid for p in mine)
    return Candidate(remedy, value, codes, predicted, order)


def _at_most(gain: Gain, factor: float) -> Gain:
    """The gain when what goes away with it only becomes `factor` times faster.

    A gain g takes 1 - 1/g of the step away. Run beside the rest, that part still takes its time
    over `factor`, and the step is no shorter: 1 / ((1 - 1/g) / factor) = factor x g / (g - 1).
    """
    if gain.mid <= 1.0 or math.isinf(factor):
        return gain
    ends = [min(g, factor * g / (g - 1)) if g > 1.0 else g for g in (gain.low, gain.mid, gain.high)]
    if ends == [gain.low, gain.mid, gain.high]:
        return gain
    low, mid, high = (round(end, 3) for end in (min(ends), ends[1], max(ends)))
    return as_known(msgspec.structs.replace(gain, low=low, mid=mid, high=high))
