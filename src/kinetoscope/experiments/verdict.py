"""From the runs of two sides to an interval, guards, and what becomes of the remedy."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean, median, pstdev
from typing import Any

import numpy as np

from kinetoscope import units
from kinetoscope.compare.outcome import RELEVANT, outcome_of
from kinetoscope.compare.timing import Run, timing
from kinetoscope.experiments.remedy import RELATIVE, Tolerance
from kinetoscope.result.comparison import Outcome, Ratio
from kinetoscope.result.experiment import Guard, TrialStatus

MEMORY_MORE = 1.25
"""A remedy may need this much of the memory that the program needed."""
MEMORY_ALWAYS = 256 << 20
"""More memory of a device than this must be at stake for the guard to speak."""
HOST_ALWAYS = 1 << 30
"""The same for the memory of a process, in which a compiler alone takes half a GiB."""
NARROW = 0.02
"""Half width of an interval, as a share, at which measuring ends."""
BEYOND_DOUBT = 1.5
"""An interval that stays beyond this factor needs no third run."""
CLEAR = 0.10
"""Half width of an interval that leaves one far out, at which measuring ends."""
CLEAR_BEYOND_DOUBT = 0.35
"""The same for an effect that is beyond doubt: whether it is 3x or 4x changes no decision."""


def interval(
    before: Sequence[Sequence[int]], after: Sequence[Sequence[int]], *, work: float = 1.0
) -> Ratio:
    """Return the speed-up with its 95 % interval.

    Args:
        before: steady step times of each run, ns.
        after: the same; run i of both was made side by side.
        work: how many times the work of a plain step one step of `after` does.
    """
    sides = [[_run(steps) for steps in side] for side in (before, after)]
    found = timing(sides[0], sides[1], same_options=True, paired=True).speedup
    return Ratio(*(float(f"{value * work:.6g}") for value in (found.low, found.mid, found.high)))


def _run(steps: Sequence[int]) -> Run:
    periods = np.array(steps, dtype=float)
    mean = float(periods.mean())
    return Run(periods=periods, low=mean, mid=mean, high=mean, device=False)


def outcome(ratio: Ratio) -> Outcome:
    """Return the word for an interval."""
    return outcome_of(ratio)


def narrow_enough(ratio: Ratio, runs: int) -> bool:
    """Whether more runs would change nothing that matters."""
    if runs < 3:
        return False
    half = math.log(ratio.high / ratio.low) / 2 if ratio.low > 0 else math.inf
    word = outcome_of(ratio)
    if half <= NARROW or word == "no_difference":
        return True
    away = abs(math.log(ratio.mid))
    clear = CLEAR_BEYOND_DOUBT if beyond_doubt(ratio) else CLEAR
    return word in ("faster", "slower") and away > 2 * half and half < clear


def beyond_doubt(ratio: Ratio) -> bool:
    """Whether an effect is so large that two interleaved runs show it."""
    return ratio.low >= BEYOND_DOUBT or ratio.high <= 1 / BEYOND_DOUBT


def status_of(ratio: Ratio, guards: Sequence[Guard]) -> tuple[TrialStatus, str]:
    """Return what becomes of a remedy, and why."""
    broken = [guard for guard in guards if guard.status == "failed"]
    why = "; ".join(f"{g.name}: {g.detail}" for g in broken)
    if any(guard.name != "memory" for guard in broken):
        return "changes_result", why
    word = outcome_of(ratio)
    low, mid, high = (units.factor(value) for value in (ratio.low, ratio.mid, ratio.high))
    span = f"{mid}, between {low} and {high}"
    if broken and word != "slower":
        return "too_much_memory", why
    if word == "faster":
        return "accepted", f"faster: {span}"
    if word == "slower":
        return "harmful", "; ".join(part for part in (f"slower: {span}", why) if part)
    if word == "no_difference" or ratio.mid < 1 + RELEVANT:
        return "no_gain", f"no gain: {span}"
    return "undecided", f"noise hides the answer: {span}"


# ---- guards ------------------------------------------------------------------------------


@dataclass(frozen=True)
class Computed:
    """What a run computed.

    Attributes:
        losses: the first losses.
        outputs: samples of the first outputs, one list a call.
        peak_bytes: peak memory.
        device: on which device.
        precision: of the program's own arithmetic, when it is less than that of float32.
    """

    losses: Sequence[float]
    outputs: Sequence[Sequence[float]]
    peak_bytes: int
    device: str
    precision: Tolerance | None = None

    @classmethod
    def of(cls, report: Mapping[str, Any]) -> Computed:
        """Return what a run's report says."""
        return cls(
            report["losses"],
            report["outputs"],
            report["peak_bytes"],
            report["device"],
            _own_precision(report.get("facts", {})),
        )


def _own_precision(facts: Mapping[str, Any]) -> Tolerance | None:
    dtypes, settings = facts.get("dtypes", ()), facts.get("settings", {})
    if "bfloat16" in dtypes or facts.get("autocast"):
        return "bf16"
    if "float16" in dtypes:
        return "fp16"
    # cuDNN may use TF32 unless a program forbids it; matrix products when it allows them to.
    convolutions = facts.get("convolutions") and settings.get("cudnn_tf32", False)
    products = settings.get("matmul_precision", "highest") != "highest"
    on_gpu = facts.get("device") == "cuda"
    return "tf32" if on_gpu and (convolutions or products) else None


def _fitting(tolerance: Tolerance, before: Sequence[Computed]) -> Tolerance:
    """Sums in another order differ by what the program's own arithmetic rounds."""
    own = before[0].precision
    return own if tolerance == "reordered" and own is not None else tolerance


def guards(
    before: Sequence[Computed],
    after: Computed,
    *,
    tolerance: Tolerance,
    watched: Sequence[str],
) -> tuple[Guard, ...]:
    """Hold a run with a remedy against the runs without it.

    Args:
        before: at least one run; how far several of them differ is what the program allows itself.
        after: a run with the remedy.
        tolerance: how far results may differ.
        watched: of loss, outputs, memory.
    """
    tolerance = _fitting(tolerance, before)
    checks = {
        "loss": lambda: _loss(before, after, tolerance),
        "outputs": lambda: _outputs(before, after, tolerance),
        "memory": lambda: _memory(before, after),
    }
    return tuple(checks[name]() for name in watched)


def _loss(before: Sequence[Computed], after: Computed, tolerance: Tolerance) -> Guard:
    first = before[0].losses
    if not first or not after.losses:
        return Guard("loss", "not_compared", "the program computes no loss")
    if not all(map(math.isfinite, after.losses)) and all(map(math.isfinite, first)):
        return Guard("loss", "failed", "the loss is not finite any more")
    if tolerance == "statistical":
        return _average_loss(first, after.losses)
    own = max((_distance(first, other.losses) for other in before[1:]), default=0.0)
    allowed = max(RELATIVE[tolerance], 3 * own)
    return _held("loss", _distance(first, after.losses), allowed, "of the loss")


def _average_loss(before: Sequence[float], after: Sequence[float]) -> Guard:
    """Other random numbers: averages must agree within their own noise and the tolerance."""
    size = min(len(before), len(after))
    noise = 3 * math.hypot(pstdev(before), pstdev(after)) / math.sqrt(max(size, 1))
    scale = max(abs(fmean(before)), 1e-12)
    difference = abs(fmean(before[:size]) - fmean(after[:size])) / scale
    allowed = RELATIVE["statistical"] + noise / scale
    return _held("loss", difference, allowed, "of the average loss")


def _outputs(before: Sequence[Computed], after: Computed, tolerance: Tolerance) -> Guard:
    first = before[0].outputs
    if not first or not after.outputs or not any(first):
        return Guard("outputs", "not_compared", "no floating-point outputs were seen")
    if tolerance == "statistical":
        return Guard("outputs", "not_compared", "other random numbers are drawn")
    if any(len(a) != len(b) for a, b in zip(first, after.outputs, strict=False)):
        return Guard("outputs", "failed", "the outputs have another shape")
    own = max((_worst(first, other.outputs) for other in before[1:]), default=0.0)
    allowed = max(RELATIVE[tolerance], 3 * own)
    return _held("outputs", _worst(first, after.outputs), allowed, "of the outputs")


def _worst(first: Sequence[Sequence[float]], second: Sequence[Sequence[float]]) -> float:
    return max((_distance(a, b) for a, b in zip(first, second, strict=False) if a), default=0.0)


def _distance(first: Sequence[float], second: Sequence[float]) -> float:
    """Relative distance of two lists, as vectors; infinite when one holds what is no number."""
    size = min(len(first), len(second))
    a, b = np.array(first[:size], dtype=float), np.array(second[:size], dtype=float)
    if not np.isfinite(b).all():
        return 0.0 if np.array_equal(a, b, equal_nan=True) else math.inf
    norm = float(np.linalg.norm(a))
    return float(np.linalg.norm(a - b)) / max(norm, 1e-12) if size else 0.0


def _held(name: str, difference: float, allowed: float, what: str) -> Guard:
    text = f"differs by {difference:.1e} {what}, {allowed:.1e} allowed"
    return Guard(name, "passed" if difference <= allowed else "failed", text)


def memory_ratio(before: Sequence[Computed], after: Computed) -> float | None:
    """Peak memory with / without the remedy."""
    usual = median(run.peak_bytes for run in before)
    return round(after.peak_bytes / usual, 3) if usual and after.peak_bytes else None


def _memory(before: Sequence[Computed], after: Computed) -> Guard:
    usual = int(median(run.peak_bytes for run in before))
    if not usual or not after.peak_bytes:
        return Guard("memory", "not_compared", "peak memory is not known")
    more = after.peak_bytes - usual
    text = f"{units.size(after.peak_bytes)} at the peak, {units.size(usual)} before"
    always = HOST_ALWAYS if after.device == "CPU" else MEMORY_ALWAYS
    worse = after.peak_bytes > MEMORY_MORE * usual and more > always
    return Guard("memory", "failed" if worse else "passed", text)
