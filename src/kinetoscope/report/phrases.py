"""The words that the text formats share: classes, confidence, steps, gains, places, next step."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence

from kinetoscope import units
from kinetoscope.report.text import clean, shorten
from kinetoscope.result import (
    CriticalPath,
    DeviceTimeline,
    Diagnosis,
    Evidence,
    Finding,
    Gain,
    InputInfo,
    Location,
    StepTime,
)

CLASSES = {
    "compute": "compute",
    "memory": "memory",
    "data_loading": "data loading",
    "communication": "communication",
    "framework": "framework",
    "quality": "recording",
    "unattributed": "unattributed",
    "undetermined": "undetermined",
}

_SOURCES = {
    "profiler_step": "marked by the profiler",
    "annotation": "marked by an annotation",
    "graph_launch": "one for each replay of a captured graph",
    "periodic": "found from a repeating pattern",
    "whole_trace": "no steps found: the whole recording counts as one",
}

_BASES = {
    "replay": "simulated by replaying the recording",
    "bound": "from a formula, capped by the next bottleneck",
    "measured": "measured",
}

_UNIT_ENDINGS = ("_ns", "_bytes", "_ratio", "_count", "_bytes_per_s", "_flop_per_s")


def confidence(value: float) -> str:
    """Return a confidence of 0..1 in words with its number."""
    words = "high" if value >= 0.85 else "moderate" if value >= 0.6 else "low"
    return f"{words} confidence ({value:.2f})"


def standing(diagnosis: Diagnosis) -> str:
    """Return what the verdict means, in one line."""
    verdict = diagnosis.verdict
    sure = confidence(verdict.confidence)
    if verdict.bottleneck == "undetermined":
        return f"the recording cannot tell what limits this program, {sure}"
    limit = f"limited by {CLASSES[verdict.bottleneck]}"
    if verdict.healthy:
        return f"healthy: {limit}, {sure}"
    return f"{limit}, {sure}"


def step_time(step: StepTime) -> str:
    """Return the step time with its bracket."""
    time = step.time_ns
    if step.count == 0 and time.mid == 0:
        return "not known"
    bracket = units.duration_range(time.low, time.high)
    mid = units.duration(time.mid)
    return mid if bracket == mid else f"{mid} (between {bracket.replace(' to ', ' and ')})"


def step_detail(step: StepTime) -> str:
    """Return where the step time comes from."""
    parts = []
    if step.source == "whole_trace":
        parts.append(_SOURCES[step.source])
    else:
        parts.append(f"{units.plural(step.count, 'step')} {_SOURCES[step.source]}")
    recorded = units.duration(step.recorded_ns)
    if step.recorded_ns and recorded != units.duration(step.time_ns.mid):
        cost = ", with the profiler's cost" if step.recorded_ns > step.time_ns.mid else ""
        parts.append(f"{recorded} as recorded{cost}")
    return "; ".join(parts)


def utilisation(diagnosis: Diagnosis, row: DeviceTimeline | None = None) -> str:
    """Return `MFU 41 %`, for one device when `row` is given; empty when it is not known."""
    use = diagnosis.utilisation
    if use is None or (row is not None and (row.rank, row.device) != (use.rank, use.device)):
        return ""
    if use.lower_bound and use.mfu < _LEAST_BOUND:
        return ""  # most of the arithmetic is not known
    return f"MFU {'at least ' if use.lower_bound else ''}{units.percent(use.mfu)}"


_LEAST_BOUND = 0.01


def evidence_name(evidence: Evidence) -> str:
    """Return `loader share` for `loader_share` and `wait` for `wait_ns`."""
    name = evidence.name
    for ending in _UNIT_ENDINGS:
        if name.endswith(ending) and len(name) > len(ending):
            name = name.removesuffix(ending)
            break
    return clean(name.replace("_", " "))


def gain(finding: Finding) -> str:
    """Return the gain range in words; a fix without time gain says so."""
    value = finding.gain
    if value.basis == "none":
        if finding.class_ == "memory" and finding.severity != "info":
            return "no time gain; the benefit is in memory"
        if finding.class_ == "quality":
            return "no time gain; the next recording tells more"
        return "no time gain expected"
    words = units.speedup_words(value.low, value.mid, value.high)
    return f"{words} ({_BASES[value.basis]})"


def then(finding: Finding) -> str:
    """Return what limits the step after the fix; "" where that is not known."""
    limit = finding.then
    if limit is None:
        return ""
    return (
        f"then limited by {CLASSES[limit.class_]}, {units.percent(limit.share)} of the step, "
        f"mostly {clean(limit.label)}"
    )


def together(diagnosis: Diagnosis) -> str:
    """Return what the first few fixes gain at once: `all three (...): step 2x to 3x faster`."""
    if not diagnosis.together:
        return ""
    most = diagnosis.together[-1]
    count = len(most.codes)
    who = "both" if count == 2 else f"all {_NUMBERS.get(count, str(count))}"
    words = units.speedup_words(most.gain.low, most.gain.mid, most.gain.high)
    names = (
        clean(code) if times == 1 else f"{clean(code)} {_TIMES.get(times, f'{times} times')}"
        for code, times in Counter(most.codes).items()
    )
    return f"{who} ({', '.join(names)}): {words}"


_TIMES = {2: "twice"}
_NUMBERS = {3: "three", 4: "four", 5: "five"}


def critical_path(path: CriticalPath, most: int = 6) -> str:
    """Return who the longest chain of waiting passes through: `host 96 %, device 4 %: ...`."""
    step = max(path.step_ns, 1)
    host = path.host_ns / step
    longest = (
        f"{clean(shorten(part.label, 60))} {units.percent(part.ns / step)}"
        for part in path.parts[:most]
    )
    return (
        f"host {units.percent(host)}, device {units.percent(1 - host)} of "
        f"{units.duration(path.step_ns)}; longest: {', '.join(longest)}"
    )


def place(location: Location) -> str:
    """Return `file:line function (module)` of what is known."""
    parts = []
    if location.file:
        line = f":{location.line}" if location.line is not None else ""
        parts.append(f"{clean(location.file)}{line}")
    if location.function:
        parts.append(clean(location.function))
    if location.module:
        module = clean(location.module)
        parts.append(f"({module})" if parts else module)
    return " ".join(parts) or "place not recorded"


def _short_place(location: Location) -> str:
    line = f":{location.line}" if location.line is not None else ""
    return f"{shorten(clean(location.file or ''), 60)}{line}".replace("`", "'")


def place_detail(location: Location) -> str:
    """Return how exact a place is, and how many events lead there."""
    parts = []
    if location.file and location.line is not None:
        parts.append("exact line" if location.exact else "first line of the function")
    if location.count > 1:
        parts.append(units.plural(location.count, "event"))
    return ", ".join(parts)


def counted(outcomes: Counter[str]) -> str:
    """Return how many rules said what."""
    words = (
        ("fired", "fired"),
        ("silent", "found nothing"),
        ("skipped", "could not look"),
        ("errored", "failed"),
    )
    parts = [f"{outcomes[status]:,} {word}" for status, word in words if outcomes[status]]
    return f"{units.plural(sum(outcomes.values()), 'rule')}: {', '.join(parts) or 'none ran'}"


_LACKS = "the recording lacks "


def skipped(diagnosis: Diagnosis) -> list[tuple[str, list[str]]]:
    """Return why rules could not look, with their codes, most frequent first.

    A rule that lacks two things counts for both: each line is something to record next time.
    """
    reasons: dict[str, list[str]] = {}
    for outcome in diagnosis.rules:
        if outcome.status == "skipped":
            for reason in _reasons(outcome.reason or "no reason given"):
                reasons.setdefault(reason, []).append(clean(outcome.code))
    return sorted(reasons.items(), key=lambda item: (-len(item[1]), item[0]))


def _reasons(reason: str) -> list[str]:
    if not reason.startswith(_LACKS):
        return [clean(reason)]
    return [_LACKS + clean(need) for need in reason.removeprefix(_LACKS).split("; ")]


def skipped_line(reason: str, codes: Sequence[str]) -> str:
    """Return `12 rules need input shapes (record_shapes=True)`."""
    number = units.plural(len(codes), "rule")
    if reason.startswith(_LACKS):
        return f"{number} {'needs' if len(codes) == 1 else 'need'} {reason.removeprefix(_LACKS)}"
    return f"{number}: {reason}"


def withheld(diagnosis: Diagnosis, *, small: bool = True) -> list[str]:
    """Return what was found and not reported, and why: `FW503: .... Not reported (...)`.

    What a reported finding explains is left out: it is not withheld. So is what gains too little,
    unless `small`.
    """
    return [
        f"{clean(o.code)}: {clean(o.withheld)} Not reported ({clean(o.reason)})."
        for o in diagnosis.rules
        if o.status == "silent"
        and o.withheld
        and o.reason
        and not o.reason.startswith(_EXPLAINED)
        and (small or not o.reason.startswith(_TOO_LITTLE))
    ]


_EXPLAINED = "explained by "
_TOO_LITTLE = "the fix would gain less than"


def inputs(infos: Sequence[InputInfo]) -> list[str]:
    """Return a line for each input; more than four become one line."""
    if len(infos) > 4:
        events = sum(info.events for info in infos)
        ranks = sorted({info.rank for info in infos if info.rank is not None})
        which = f", ranks {ranks[0]} to {ranks[-1]}" if ranks else ""
        return [f"{len(infos):,} files{which}, {events:,} events{_hardware(infos)}"]
    return [
        clean(info.path)
        + (f" (rank {info.rank})" if info.rank is not None and len(infos) > 1 else "")
        + f" · {units.plural(info.events, 'event')}{_hardware([info])}"
        for info in infos
    ]


def _hardware(infos: Iterable[InputInfo]) -> str:
    names: dict[str, int] = {}
    torch: dict[str, None] = {}
    for info in infos:
        for device in info.devices:
            if device.name:
                names[clean(device.name)] = names.get(clean(device.name), 0) + 1
        if info.torch:
            torch[clean(info.torch)] = None
    parts = [f"{n} x {name}" if n > 1 else name for name, n in names.items()]
    parts += [f"torch {version}" for version in torch]
    return "".join(f" · {part}" for part in parts)


def damage(diagnosis: Diagnosis) -> list[str]:
    """Return a line for everything odd in the inputs; what was lost comes first."""
    lines = []
    several = len(diagnosis.inputs) > 1
    for info in diagnosis.inputs:
        for item in info.damage:
            kind = clean(item.kind.replace("_", " "))
            number = f" ({item.count:,} times)" if item.count > 1 else ""
            detail = f": {clean(item.detail)}" if item.detail else ""
            where = f"{clean(info.path)}: " if several else ""
            what = "lost" if item.lossy else "handled"
            lines.append((not item.lossy, f"{what}: {where}{kind}{number}{detail}"))
    return [line for _, line in sorted(lines, key=lambda pair: pair[0])]


def expected_step(step: StepTime, value: Gain) -> str:
    """Return the step time that a fix should give, `7.2 to 13.4 ms`."""
    if value.basis == "none" or min(value.low, value.high) <= 0 or not step.time_ns.mid:
        return ""
    return units.duration_range(step.time_ns.mid / value.high, step.time_ns.mid / value.low)


def next_step(diagnosis: Diagnosis) -> str:
    """Return what to do now, in one or two sentences."""
    verdict = diagnosis.verdict
    todo = [f for f in diagnosis.findings if _worth_doing(f)]
    if verdict.bottleneck == "undetermined":
        return (
            "Record again with what is named above, then run `kinetoscope analyze` on the new file."
        )
    if verdict.healthy:
        return "Nothing here is worth a fix. Save this result (-o result.json) as a reference."
    if not todo:
        more = " A recording with what is missing above lets more rules look."
        return (
            "No rule names a cause with a gain. The largest line of the budget says where to look."
            + (more if skipped(diagnosis) else "")
        )
    first = todo[0]
    if _asks_for_more(first):
        return (
            f"{clean(first.fix.summary)} `kinetoscope rules {clean(first.code)}` explains the rule."
        )
    where = next((f" at {_short_place(at)}" for at in first.locations if at.file), "")
    expected = expected_step(diagnosis.step, first.gain)
    promise = f": a step should then take {expected}" if expected else ""
    return (
        f"Change one thing, {clean(first.code)}{where}, then record and analyze again{promise}. "
        f"`kinetoscope rules {clean(first.code)}` explains the rule." + _measured_by(first)
    )


def _worth_doing(finding: Finding) -> bool:
    """Does its fix make the step shorter, or keep the program from ending?"""
    if finding.class_ == "quality" or finding.severity == "info":
        return False
    return units.is_gain(finding.gain.high) or finding.severity == "critical"


def _asks_for_more(finding: Finding) -> bool:
    """Is there nothing to change yet, but something to record and look at?"""
    return (finding.fix.snippet or "").startswith("kinetoscope analyze")


def _measured_by(finding: Finding) -> str:
    if not finding.remedies:
        return ""
    return f" `kinetoscope verify --fix {clean(finding.code)} SCRIPT` measures it without an edit."
