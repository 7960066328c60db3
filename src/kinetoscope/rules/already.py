"""No advice for what is already on: what the capture saw of the program outweighs a rule.

A rule judges by events. When our own capture recorded the program's settings as well, a finding
whose fix is already in place is withdrawn, and the rule says why.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from kinetoscope.rules.api import Outcome

Facts = dict[str, Any]


def without_what_is_on(outcomes: Sequence[Outcome], facts: Facts | None) -> list[Outcome]:
    """The outcomes, with fired rules silenced where the facts say that the fix is in place."""
    if not facts:
        return list(outcomes)
    kept = []
    for outcome in outcomes:
        reason = _contradiction(outcome.rule.code, facts) if outcome.status == "fired" else None
        kept.append(outcome if reason is None else outcome.silenced(reason))
    return kept


def _contradiction(code: str, facts: Facts) -> str | None:
    test = _TESTS.get(code)
    return test(facts) if test is not None else None


def _all_optimizers(facts: Facts, *flags: str) -> str | None:
    optimizers = _entries(facts, "optimizers")
    for flag in flags:
        if optimizers and all(entry.get(flag) is True for entry in optimizers):
            return f"already on: every optimizer has {flag}=True"
    return None


def _loaders_with_workers(facts: Facts) -> str | None:
    loaders = _entries(facts, "loaders")
    if loaders and all(_positive(entry.get("num_workers")) for entry in loaders):
        return "already on: every DataLoader has workers"
    return None


def _loaders_persistent(facts: Facts) -> str | None:
    loaders = _entries(facts, "loaders")
    if loaders and all(entry.get("persistent_workers") is True for entry in loaders):
        return "already on: every DataLoader has persistent_workers=True"
    return None


def _launches_asynchronous(facts: Facts) -> str | None:
    environment = facts.get("environment")
    machine = facts.get("machine")
    if not isinstance(environment, dict) or not isinstance(machine, dict) or machine.get("hip"):
        return None
    value = environment.get("CUDA_LAUNCH_BLOCKING", "0")
    return "CUDA_LAUNCH_BLOCKING is not set" if value in ("", "0") else None


def _precision_on(facts: Facts) -> str | None:
    """Autocast over most of the program's calls, or TF32 on a device that has it."""
    modes, settings = facts.get("modes"), facts.get("settings")
    if isinstance(modes, dict):
        for cast in _entries(modes, "autocast"):
            if cast.get("device") == "cuda" and _number(cast.get("ratio")) >= _MOST_CALLS:
                return f"already on: most calls run under autocast in {cast.get('dtype')}"
    if not isinstance(settings, dict) or not _has_tf32(facts):
        return None
    precision = settings.get("float32_matmul_precision")
    if precision in ("high", "medium"):
        return f'already on: float32_matmul_precision is "{precision}"'
    return None


def _has_tf32(facts: Facts) -> bool:
    machine = facts.get("machine")
    devices = _entries(machine, "devices") if isinstance(machine, dict) else []
    return bool(devices) and all(
        _number(str(device.get("capability")).partition(".")[0]) >= _AMPERE for device in devices
    )


def _gradients_off(facts: Facts) -> str | None:
    modes = facts.get("modes")
    if not isinstance(modes, dict) or "grad_ratio" not in modes:
        return None
    if _number(modes["grad_ratio"]) > 1 - _MOST_CALLS:
        return None
    return "already on: the steps run without gradients"


_MOST_CALLS = 0.6
"""Part of a step's calls under a mode from which on the program counts as run under it."""
_AMPERE = 8
"""First compute capability with TF32."""


def _number(value: object) -> float:
    try:
        return float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        return 0.0


def _entries(facts: Facts, name: str) -> list[dict[str, Any]]:
    value = facts.get(name)
    return [e for e in value if isinstance(e, dict)] if isinstance(value, list) else []


def _positive(value: object) -> bool:
    return isinstance(value, int) and value > 0


_TESTS: dict[str, Callable[[Facts], str | None]] = {
    "FW507": lambda facts: _all_optimizers(facts, "fused", "foreach"),
    "FW508": lambda facts: _all_optimizers(facts, "fused"),
    "CP201": _precision_on,
    "IN601": _gradients_off,
    "DL101": _loaders_with_workers,
    "DL103": _loaders_persistent,
    "FW533": _launches_asynchronous,
    "PR914": _launches_asynchronous,
}
