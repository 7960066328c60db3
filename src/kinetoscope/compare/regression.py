"""Is it a regression? The decision of `check`, with its sentence."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kinetoscope import units
from kinetoscope.result.comparison import Comparison, Outcome

MAX_REGRESSION = 0.03

Status = Literal["passed", "improved", "regressed", "undecided", "not_comparable"]


@dataclass(frozen=True)
class Check:
    """What CI should do.

    Attributes:
        passed: False for a regression only.
        decided: False when the answer is not known.
    """

    status: Status
    sentence: str

    @property
    def passed(self) -> bool:
        """Whether nothing speaks against the change."""
        return self.status in ("passed", "improved")

    @property
    def decided(self) -> bool:
        """Whether there is an answer."""
        return self.status not in ("undecided", "not_comparable")


def judge(
    comparison: Comparison, *, max_regression: float = MAX_REGRESSION, strict: bool = False
) -> Check:
    """Decide about a change.

    * regressed: certainly slower, and likely by more than allowed,
    * undecided: likely slower by more than allowed, but noise could explain it; with `strict`
      also whenever a slow-down beyond what is allowed is still possible,
    * improved: certainly faster,
    * passed: the rest.
    """
    speedup = comparison.verdict.speedup
    if speedup is None:
        return Check("not_comparable", comparison.verdict.sentence)
    likely, worst = 1 / speedup.mid - 1, max(1 / speedup.low - 1, 0.0)
    status, text = _decided(comparison.verdict.outcome, likely, worst, max_regression, strict)
    return Check(
        status,
        text.format(
            likely=_percent(likely),
            worst=_percent(worst),
            allowed=units.percent(max_regression),
            sentence=comparison.verdict.sentence,
        ),
    )


def _decided(
    outcome: Outcome, likely: float, worst: float, allowed: float, strict: bool
) -> tuple[Status, str]:
    if likely > allowed:
        return ("regressed", _REGRESSED) if outcome == "slower" else ("undecided", _UNDECIDED)
    if outcome == "faster":
        return "improved", "Improved. {sentence}"
    if worst > allowed:
        return ("undecided", _POSSIBLE) if strict else ("passed", _HIDDEN)
    return "passed", "Passed: a step takes at most {worst} more time; {allowed} are allowed."


_REGRESSED = "Regression: a step takes {likely} more time, more than the {allowed} allowed."
_UNDECIDED = (
    "Undecided: a step takes {likely} more time, more than the {allowed} allowed, but noise may be "
    "all of it. Measure more runs."
)
_POSSIBLE = (
    "Undecided: a step may take up to {worst} more time, more than the {allowed} allowed. Measure "
    "more runs."
)
_HIDDEN = (
    "Passed: no regression seen. Up to {worst} more time a step would hide in the noise; more runs "
    "find less."
)


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
