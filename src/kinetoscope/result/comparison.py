"""The comparison of two sides, each one run or several: the document that `compare` writes."""

from __future__ import annotations

from typing import Literal

import msgspec

from kinetoscope.result.finding import Gain, Location, Severity
from kinetoscope.result.profile import CostKind
from kinetoscope.result.vocabulary import BottleneckClass, BudgetClass, FindingClass

COMPARISON_VERSION = 1

Outcome = Literal["faster", "slower", "no_difference", "inconclusive", "not_comparable", "scaling"]
"""What the step times say; `inconclusive`: noise hides the answer. `scaling`: the sides are jobs of
different numbers of ranks, and the speed-up is that of their throughput."""

Effect = Literal["noted", "corrected", "refused"]
"""What a difference of the two sides does to the comparison."""

Change = Literal["added", "gone", "faster", "slower", "same"]
"""What became of an operator, a kernel or a module; `same`: within noise."""

Fate = Literal["gone", "stayed", "new"]
"""What became of a finding."""

Kept = Literal["more", "as_predicted", "less", "unknown"]
"""How an achieved gain relates to the predicted range; `unknown`: its interval reaches
from no gain into that range, or beyond it."""

ScalingKind = Literal["weak", "strong"]
"""`weak`: every rank does the same work whatever the number of ranks."""


class Ratio(msgspec.Struct, frozen=True):
    """A speed-up, old step time / new step time, with its 95 % interval."""

    low: float
    mid: float
    high: float


class ComparisonVerdict(msgspec.Struct, frozen=True):
    """The answer.

    Attributes:
        speedup: corrected for what recording cost; None when the two are not comparable.
        recorded_speedup: of the step times as recorded, the profiler's cost included.
    """

    outcome: Outcome
    speedup: Ratio | None
    sentence: str
    recorded_speedup: float | None = None


class Difference(msgspec.Struct, frozen=True):
    """Something that is not the same on both sides, and what it means for the comparison."""

    what: str
    before: str
    after: str
    effect: Effect
    note: str = ""


class Comparable(msgspec.Struct, frozen=True):
    """Whether the two sides answer the same question.

    Attributes:
        answer: False when a difference is `refused`.
        similarity: how alike the programs are, 0 to 1; None when nothing could be compared.
        basis: what the similarity was computed from.
    """

    answer: bool
    similarity: float | None
    basis: str
    differences: tuple[Difference, ...] = ()


class Side(msgspec.Struct, frozen=True):
    """One side.

    Attributes:
        paths: the files.
        runs: how many runs.
        ranks: ranks of each run.
        steps: measured steps of all runs.
        step_ns: likely step time: the mean over the steps of a run (a diagnosis states that of a
            typical step), of several runs their geometric mean.
        low_ns, high_ns: widest bracket of a run.
        run_ns: likely step time of each run.
        bottleneck: the verdict of the first run.
        sentence: its sentence.
        healthy: whether nothing worth a fix was found.
    """

    paths: tuple[str, ...]
    runs: int
    ranks: int
    steps: int
    step_ns: int
    low_ns: int
    high_ns: int
    run_ns: tuple[int, ...]
    bottleneck: BottleneckClass
    sentence: str
    healthy: bool


class BudgetChange(msgspec.Struct, frozen=True):
    """One budget line on both sides, mean of the runs; `ns` is time a step.

    Attributes:
        noise_ns: changes smaller than this say nothing.
    """

    class_: BudgetClass = msgspec.field(name="class")
    label: str
    before_ns: int
    after_ns: int
    change_ns: int
    noise_ns: int
    change: Change


class CostChange(msgspec.Struct, frozen=True):
    """An operator, kernel or module on both sides; times a step.

    Attributes:
        shape: shape before, or `before -> after` where only that changed.
        change_ns: change of its device time where there is any, else of its host time.
        noise_ns: changes smaller than this say nothing.
        on: which time `change_ns` speaks of.
    """

    kind: CostKind
    name: str
    shape: str
    module: str
    change: Change
    change_ns: int
    noise_ns: int
    on: Literal["device", "host"]
    before_calls: float
    after_calls: float
    before_host_ns: int
    after_host_ns: int
    before_device_ns: int
    after_device_ns: int


class FindingChange(msgspec.Struct, frozen=True):
    """A finding that went away, stayed or is new."""

    code: str
    name: str
    class_: FindingClass = msgspec.field(name="class")
    fate: Fate
    severity: Severity
    message: str
    gain: Gain
    location: Location | None = None


class FindingChanges(msgspec.Struct, frozen=True):
    """Findings by what became of them."""

    gone: tuple[FindingChange, ...] = ()
    stayed: tuple[FindingChange, ...] = ()
    new: tuple[FindingChange, ...] = ()


class Prediction(msgspec.Struct, frozen=True):
    """What the diagnosis of the first side promised for a finding that is gone now."""

    code: str
    predicted: Gain
    achieved: Ratio
    kept: Kept


class ScalePoint(msgspec.Struct, frozen=True):
    """One number of ranks.

    Attributes:
        speedup: throughput relative to the smallest number of ranks.
        efficiency: speed-up / (ranks / smallest number of ranks).
        efficiency_low, efficiency_high: its 95 % interval.
        by_class: budget by class, ns a step.
    """

    ranks: int
    step_ns: int
    speedup: float
    efficiency: float
    efficiency_low: float
    efficiency_high: float
    by_class: dict[str, int]


class Scaling(msgspec.Struct, frozen=True):
    """How a job scales over numbers of ranks.

    Attributes:
        kind: whether the work of a rank stays the same.
        points: by number of ranks.
        eaten_by: class that grows most from the smallest to the largest job; "" when none does.
        eaten_ns: by how much, ns a step beyond perfect scaling.
        serial_share: share of the work that does not scale (Amdahl's law), fitted; None: unknown.
        per_rank_ns: time a step that each further rank adds, fitted; None: unknown.
        fit_error: largest relative error of the fit.
        sentence: the answer in words.
    """

    kind: ScalingKind
    points: tuple[ScalePoint, ...]
    eaten_by: str
    eaten_ns: int
    serial_share: float | None
    per_rank_ns: int | None
    fit_error: float | None
    sentence: str


class Comparison(msgspec.Struct, frozen=True):
    """The whole document.

    Attributes:
        margin: differences below this share count as none.
    """

    schema_version: int
    kinetoscope: str
    verdict: ComparisonVerdict
    comparable: Comparable
    before: Side
    after: Side
    margin: float
    budget: tuple[BudgetChange, ...] = ()
    operators: tuple[CostChange, ...] = ()
    findings: FindingChanges = FindingChanges()
    predictions: tuple[Prediction, ...] = ()
    scaling: Scaling | None = None
    notes: tuple[str, ...] = ()
