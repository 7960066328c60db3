"""One cause, one finding: which finding absorbs which (RULES.md, Appendix F).

A finding is absorbed when a stronger one explains most of the same stretch of time, or the same
place when neither claims time. The absorbed rule is reported as silent, with the reason.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from kinetoscope.metrics.intervals import Intervals, intersect, measure
from kinetoscope.rules.api import Hit, Outcome

_ALWAYS = 0.0
_OVERLAP = 0.5

#: (winner, losers, share of the loser's claim that the winner must explain).
ABSORBS: tuple[tuple[str, tuple[str, ...], float], ...] = (
    ("PR914", ("FW50", "FW51", "FW52", "FW530", "FW531", "FW532", "FW534"), _ALWAYS),
    ("FW521", ("FW502", "FW503", "FW505", "FW501", "FW517", "FW504", "FW531"), 0.3),
    ("FW511", ("FW501", "FW502", "FW503", "FW504", "FW505", "FW506", "FW507"), 0.3),
    ("FW511", ("FW515", "FW516", "FW517", "FW520", "FW522", "FW523", "FW531", "FW532"), 0.3),
    ("FW512", ("FW534",), _ALWAYS),
    ("FW512", ("FW510", "FW513", "FW515", "FW501", "FW502", "FW516", "CP212"), 0.3),
    ("FW512", ("FW517", "FW522"), 0.3),
    ("FW512", ("FW511",), _ALWAYS),
    ("FW534", ("FW501", "FW502", "FW503", "FW510", "FW513"), 0.3),
    # Compiling it is no advice for what is compiled and runs eagerly.
    ("FW534", ("CP212", "CP219", "MM311", "MM312"), _OVERLAP),
    ("FW510", ("CP212", "MM311"), _OVERLAP),
    ("FW514", ("FW501", "FW517", "FW523", "MM309"), 0.3),
    ("FW532", ("FW523", "FW517", "FW501", "FW503", "FW505"), 0.3),
    ("CP210", ("FW523", "FW517", "FW501", "FW503", "FW505", "MM302", "MM303"), 0.3),
    ("FW510", ("FW501", "FW513"), _OVERLAP),
    ("FW510", ("FW515",), 0.3),
    ("FW513", ("FW501", "FW502"), 0.3),
    # What surrounds operators is the cause of a slow host only where it is most of it.
    ("FW531", ("FW522", "FW517", "FW515"), 0.3),
    ("FW531", ("FW501", "FW502"), _OVERLAP),
    ("FW522", ("FW517",), 0.3),
    ("FW522", ("FW501", "FW502"), _OVERLAP),
    ("FW515", ("FW517",), 0.3),
    ("FW515", ("FW501", "FW513"), _OVERLAP),
    ("FW526", ("FW503",), 0.3),
    ("FW527", ("FW503",), 0.3),
    ("DL103", ("DL101", "DL102", "DL108", "FW501", "FW517"), 0.3),
    ("FW528", ("FW517",), 0.3),
    ("DL109", ("DL101", "DL108", "DL113", "FW506", "FW520"), 0.3),
    ("DL110", ("DL101", "DL102"), 0.3),
    ("DL117", ("CM406", "CM401", "CM402", "DL101", "DL102", "DL116"), 0.3),
    ("DL116", ("FW501", "FW517", "FW516", "FW520"), _OVERLAP),
    ("DL101", ("FW501", "FW517", "FW516", "FW520"), _OVERLAP),
    ("DL102", ("FW501", "FW517"), _OVERLAP),
    ("DL104", ("FW501", "FW517", "FW516", "DL105", "DL107", "IN612"), 0.3),
    ("IN612", ("FW501", "FW517", "FW516", "DL105", "DL107"), 0.3),
    ("MM309", ("DL105", "DL107", "FW503", "FW517", "DL104", "IN612"), 0.3),
    ("FW520", ("DL105", "DL107", "FW517", "FW501"), 0.3),
    ("DL105", ("DL107",), 0.3),
    ("DL108", ("DL101", "FW501", "FW517"), 0.3),
    # A loop over samples that lie on the host cannot be one call on the device.
    ("DL113", ("FW506", "FW501", "FW517", "FW516", "DL105", "DL106", "DL107"), 0.3),
    ("DL113", ("IN604",), 0.3),
    ("FW529", ("FW501", "FW503", "FW505", "FW517", "MM309"), 0.3),
    # What makes some steps long is why they vary; inputs of equal size would not change it.
    *((cause, ("PR908",), _OVERLAP) for cause in ("FW529", "DL103", "DL110", "FW511", "FW518")),
    ("MM305", ("MM302",), _ALWAYS),
    ("MM303", ("MM302", "FW505", "FW503"), 0.3),
    ("FW516", ("FW501", "FW502", "FW503", "CP212", "CP214"), 0.3),
    ("FW507", ("FW502", "FW501", "FW516", "CP212"), _OVERLAP),
    ("FW504", ("FW503", "FW502"), 0.3),
    ("FW503", ("FW505", "FW501"), 0.3),
    ("FW525", ("CP221", "MM312"), 0.3),
    ("FW506", ("DL105", "DL107"), 0.3),
    ("FW502", ("FW501",), 0.3),
    ("FW509", ("MM307",), _ALWAYS),
    ("FW501", ("FW519",), 0.3),
    ("CP206", ("CP212", "CP221", "CP222", "CP207", "CP204"), 0.3),
    ("CP207", ("CP212", "CP221", "CP222", "CP204", "MM312", "CP203", "CP219"), 0.3),
    ("CP201", ("CP204", "CP205", "CP213", "CP203"), 0.3),
    ("CP202", ("CP204", "CP205", "CP203", "CP213"), 0.3),
    ("CP211", ("CP201", "CP204", "CP205"), 0.3),
    ("CP228", ("CP204", "FW519"), 0.5),
    ("CP229", ("CP204", "CP205", "MM310", "MM309", "MM312", "CP221"), 0.5),
    ("CP203", ("CP204", "CP205"), 0.5),
    ("CP208", ("CP222", "CP204", "CP205"), 0.3),
    ("CP222", ("MM309", "CP204", "MM312"), 0.3),
    ("CP206", ("MM312", "CP203"), 0.3),
    ("MM309", ("MM312",), 0.3),
    ("CP212", ("MM312",), 0.5),
    ("MM312", ("CP204",), 0.5),
    ("CP216", ("CP204", "CP203", "MM312"), 0.3),
    ("CP205", ("CP204",), 0.5),
    ("MM316", ("CP204", "MM312", "MM309"), 0.3),
    ("MM317", ("MM310", "CP216", "CP204", "CP227", "FW508"), 0.5),
    ("MM318", ("CP222", "MM309", "CP204", "MM312"), 0.5),
    ("CP214", ("FW501", "FW502", "CP203", "CP205"), 0.5),
    ("MM319", ("MM309", "DL105", "DL106", "DL107", "DL113", "FW503"), 0.3),
    ("MM314", ("FW501", "FW517", "MM302"), 0.5),
    ("MM313", ("MM301", "MM304"), _ALWAYS),
    ("MM313", ("MM303", "MM302"), 0.3),
    ("MM307", ("FW501", "FW502", "MM310"), 0.5),
    ("MM310", ("CP204",), 0.5),
    ("FW516", ("MM310", "MM318", "CP216"), 0.3),
    ("FW507", ("CP227",), _ALWAYS),
    ("FW508", ("CP227",), _ALWAYS),
    ("CP219", ("CP212", "CP221", "CP204"), 0.5),
    ("CP212", ("CP204", "CP219", "CP221"), 0.3),
    ("CM406", ("CM401", "CM402", "CM410", "FW517"), 0.3),
    ("CM408", ("CM401", "CM402", "CM403", "CM411"), 0.3),
    ("CM412", ("CM401", "CM402", "CM403", "CM422", "FW501"), 0.3),
    ("CM418", ("CM401", "CM402", "CM403", "CM417", "FW501", "FW517"), 0.3),
    ("CM403", ("CM401", "CM402"), 0.3),
    ("CM405", ("CM401", "CM402", "CM404", "CM420", "CM428"), 0.3),
    ("CM404", ("CM401", "CM402", "CM420"), 0.3),
    ("CM424", ("CM401", "CM402"), 0.3),
    ("CM425", ("CM401", "CM422"), 0.3),
    ("CM426", ("CM403", "CM422"), 0.3),
    ("CM417", ("CM401", "CM402"), 0.3),
    ("CM423", ("CM401", "CM402", "CM406"), 0.3),
    ("CM415", ("CM401", "CM402", "CM405", "DL105", "DL106", "DL107", "FW501", "FW517"), 0.3),
    ("CM416", ("CM401", "CM402", "FW501", "FW517"), 0.3),
    ("CM414", ("CM413", "CM403", "CM412", "FW503", "FW505", "FW517"), 0.3),
    ("CM409", ("FW517",), 0.3),
    ("CM410", ("FW517",), 0.3),
    ("CM411", ("FW517", "FW502", "CM420"), 0.3),
    ("CM419", ("FW503", "FW505", "FW517", "CM417"), 0.3),
    ("CM413", ("CM401", "FW505"), 0.5),
    ("CM402", ("CM401",), 0.3),
    ("IN605", ("MM309", "MM316", "MM302", "CP204", "CP222"), 0.3),
    ("IN610", ("CP204", "CP212"), 0.3),
    ("IN611", ("IN610", "CP212"), 0.3),
    ("IN604", ("DL105", "DL106", "IN619"), 0.3),
    ("IN613", ("MM302", "FW523", "FW514"), 0.3),
    ("IN614", ("FW503", "FW504"), 0.3),
    ("IN615", ("MM311",), 0.3),
    ("IN620", ("DL105", "DL106", "DL107", "DL113", "MM309", "FW503", "CP221"), 0.3),
    ("IN620", ("FW525", "FW507"), 0.3),
    ("IN622", ("CP204", "CP205", "CP213", "MM312"), 0.5),
    ("IN623", ("CP204", "CP205", "CP213", "MM312"), 0.5),
    ("IN602", ("FW501", "FW502", "IN603"), 0.3),
    ("IN603", ("CP203", "CP214", "FW501", "FW502"), 0.3),
)


def apply_precedence(outcomes: Sequence[Outcome]) -> tuple[Outcome, ...]:
    """Drop hits that a stronger hit explains; the outcome then says which one."""
    by_code = {outcome.rule.code: outcome for outcome in outcomes}
    result = dict(by_code)
    for winner, losers, share in ABSORBS:
        strong = result.get(winner)
        if strong is None or not strong.hits:
            continue
        for code in list(result):
            if code != winner and code.startswith(losers) and result[code].hits:
                result[code] = _absorb(strong, result[code], share)
    return tuple(result[outcome.rule.code] for outcome in outcomes)


def _absorb(strong: Outcome, weak: Outcome, share: float) -> Outcome:
    kept = tuple(
        hit for hit in weak.hits if not any(_explains(by, hit, share) for by in strong.hits)
    )
    if kept == weak.hits:
        return weak
    if kept:
        return replace(weak, hits=kept)
    return weak.explained_by(strong.rule.code)


def _explains(strong: Hit, weak: Hit, share: float) -> bool:
    if not strong.explains:
        return False
    if share == _ALWAYS:
        return True
    claimed = _length(weak.claims)
    if claimed and _length(strong.claims):
        return measure(intersect(weak.claims, strong.claims)) >= share * claimed
    return _same_place(strong, weak)


def _same_place(a: Hit, b: Hit) -> bool:
    places = {(p.file, p.function) for p in a.locations if p.function}
    return any((p.file, p.function) in places for p in b.locations)


def _length(claims: Intervals) -> int:
    return measure(claims)
