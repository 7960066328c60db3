"""Whether two sides answer the same question, and what differs between them."""

from __future__ import annotations

from collections.abc import Sequence

from kinetoscope import units
from kinetoscope.compare.similarity import PADDED, SAME_WORK, Likeness, likeness
from kinetoscope.result import Diagnosis
from kinetoscope.result.comparison import Comparable, Difference, Effect
from kinetoscope.result.profile import Profile, Recorded

ALLOWABLE = ("program", "shapes", "devices", "ranks", "steps")
"""Differences that a caller may allow although they are refused."""

_OPTIONS = (("shapes", "shapes"), ("stacks", "stacks"), ("memory", "memory"), ("device", "device"))


def comparable(
    before: Sequence[Diagnosis], after: Sequence[Diagnosis], *, allow: frozenset[str] = frozenset()
) -> Comparable:
    """Compare what must be equal; `allow` turns refusals of these kinds into notes."""
    first, second = before[0], after[0]
    a, b = first.profile, second.profile
    if a is None or b is None:
        return Comparable(False, None, "", (_no_profile(a, b),))
    alike = likeness(a.fingerprint, b.fingerprint)
    found = [
        *_program(alike, steps=min(first.step.count, second.step.count)),
        *_devices(first, second),
        *_ranks(a, b),
        *_step_definition(first, second, alike),
        *_options(a.recorded, b.recorded),
        *_versions(first, second),
        *_mixed(before, "before"),
        *_mixed(after, "after"),
    ]
    differences = tuple(_allowed(item, allow) for item in found)
    return Comparable(
        answer=not any(d.effect == "refused" for d in differences),
        similarity=None if alike.similarity is None else round(alike.similarity, 3),
        basis=alike.basis,
        differences=differences,
    )


def _allowed(item: Difference, allow: frozenset[str]) -> Difference:
    if item.effect != "refused" or item.what not in allow:
        return item
    return Difference(item.what, item.before, item.after, "noted", "allowed by the caller")


def _no_profile(before: Profile | None, after: Profile | None) -> Difference:
    words = ("yes" if before else "no", "yes" if after else "no")
    note = "a result without a profile holds no steps; diagnose the trace again"
    return Difference("profile", *words, "refused", note)


def _program(alike: Likeness, *, steps: int) -> list[Difference]:
    if alike.similarity is None:
        note = "nothing that both recordings hold tells whether this is one program"
        return [Difference("program", "not checked", "not checked", "noted", note)]
    if not alike.same:
        text = f"{units.percent(alike.similarity)} of the {alike.basis} agree"
        return [Difference("program", "one program", "another one", "refused", text)]
    ratio = alike.size_ratio
    if ratio == 1.0:
        return []
    effect, note = _other_sizes(ratio, alike.work_ratio or 0.0, steps)
    return [Difference("shapes", "1", f"{ratio:.4g}", effect, note)]


def _other_sizes(ratio: float, work: float, steps: int) -> tuple[Effect, str]:
    """What it means that one size of every product differs by `ratio`."""
    if 1 / PADDED < ratio < PADDED:
        return "noted", "one size was padded or cut"
    if 1 / SAME_WORK < work < SAME_WORK:
        return "noted", "the same arithmetic in other pieces"
    if 1 / SAME_WORK < work / ratio < SAME_WORK:
        return (
            "refused",
            f"a step does {units.times(work)} the work: another batch or sequence length",
        )
    # A single step may be one of many shapes.
    effect: Effect = "refused" if steps > 1 else "noted"
    return effect, "sizes differ, and the work of a step in another proportion"


def _devices(first: Diagnosis, second: Diagnosis) -> list[Difference]:
    a, b = _device_names(first), _device_names(second)
    if not a or not b or a == b:
        return []
    note = "times of different devices say nothing about a change of the program"
    return [Difference("devices", ", ".join(a), ", ".join(b), "refused", note)]


def _device_names(result: Diagnosis) -> list[str]:
    names = {d.name for info in result.inputs for d in info.devices if d.name}
    return sorted(names)


def _ranks(a: Profile, b: Profile) -> list[Difference]:
    if a.world_size == b.world_size:
        if len(a.ranks) == len(b.ranks):
            return []
        given = (f"{len(a.ranks)} of {a.world_size}", f"{len(b.ranks)} of {b.world_size}")
        return [Difference("rank files", *given, "noted", "not all ranks were given")]
    note = "other numbers of ranks do other work; see the scaling"
    return [Difference("ranks", str(a.world_size), str(b.world_size), "refused", note)]


def _step_definition(first: Diagnosis, second: Diagnosis, alike: Likeness) -> list[Difference]:
    """Steps that were found by other marks must at least do the same work."""
    a, b = first.step.source, second.step.source
    if a == b:
        return []
    if "whole_trace" in (a, b):
        note = "one side has no steps: record both with the same options, or mark the steps"
        return [Difference("steps", a, b, "refused", note)]
    often = alike.shared_ratio or alike.work_ratio
    if not often or not 1 / SAME_WORK < often < SAME_WORK:
        work = "nothing tells whether they do the same work"
        if often:
            work = f"one after does {units.times(often)} the work of one before"
        note = f"steps were found by other marks: {work}"
        return [Difference("steps", a, b, "refused", note)]
    return [Difference("steps", a, b, "noted", "steps were found by other marks")]


def _options(a: Recorded, b: Recorded) -> list[Difference]:
    words = [
        [word for field, word in _OPTIONS if getattr(side, field)] or ["plain"] for side in (a, b)
    ]
    if words[0] == words[1]:
        return []
    note = "times were corrected for what each recording cost"
    if a.device != b.device:
        note = "one side has no device timeline; host times are compared"
    return [Difference("options", ", ".join(words[0]), ", ".join(words[1]), "corrected", note)]


def _versions(first: Diagnosis, second: Diagnosis) -> list[Difference]:
    torch = [next((i.torch for i in r.inputs if i.torch), None) for r in (first, second)]
    found = []
    if torch[0] and torch[1] and torch[0] != torch[1]:
        found.append(Difference("torch", torch[0], torch[1], "noted"))
    if first.kinetoscope != second.kinetoscope:
        found.append(
            Difference(
                "kinetoscope",
                first.kinetoscope,
                second.kinetoscope,
                "noted",
                "diagnosed by different versions",
            )
        )
    return found


def _mixed(runs: Sequence[Diagnosis], side: str) -> list[Difference]:
    """Runs of one side that are not repetitions of each other."""
    first = runs[0].profile
    for run in runs[1:]:
        other = run.profile
        if first is None or other is None or first.world_size != other.world_size:
            note = f"the runs of '{side}' are not repetitions of one run"
            return [Difference("runs", runs[0].inputs[0].path, run.inputs[0].path, "refused", note)]
        if not likeness(first.fingerprint, other.fingerprint).same:
            note = f"the runs of '{side}' are different programs"
            return [Difference("runs", runs[0].inputs[0].path, run.inputs[0].path, "refused", note)]
    return []
