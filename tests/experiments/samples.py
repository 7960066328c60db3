"""An experiment made by hand, for the tests of its outputs."""

from __future__ import annotations

from kinetoscope.result.comparison import Ratio
from kinetoscope.result.experiment import EXPERIMENT_VERSION, Experiment, Guard, Trial
from kinetoscope.result.finding import Gain
from tests import results

MS = 1_000_000
LINES = "loader = DataLoader(\n    dataset,\n    num_workers=4,\n)"

WORKERS = Trial(
    remedy="dataloader-workers=4",
    title="load batches in worker processes",
    status="accepted",
    reason="faster: 2.10x, between 1.95x and 2.25x",
    codes=("DL101",),
    speedup=Ratio(1.95, 2.1, 2.25),
    predicted=Gain(1.8, 2.2, 2.6, "replay"),
    runs=4,
    before_ns=40 * MS,
    after_ns=19 * MS,
    guards=(
        Guard("losses", "passed", "within 1e-06"),
        Guard("memory", "not_compared", "no device"),
    ),
    snippet=LINES,
)
HARMFUL = Trial(
    remedy="compile",
    title="compile the model",
    status="harmful",
    reason="slower: 0.62x, between 0.58x and 0.66x",
    speedup=Ratio(0.58, 0.62, 0.66),
    runs=3,
    before_ns=40 * MS,
    after_ns=65 * MS,
    compile_s=12.5,
)
OTHER_RESULT = Trial(
    remedy="autocast=fp16",
    title="compute in half precision",
    status="changes_result",
    reason="losses: differ by 0.3",
    speedup=Ratio(1.3, 1.4, 1.5),
    runs=3,
    before_ns=40 * MS,
    after_ns=28 * MS,
    guards=(Guard("losses", "failed", "differ by 0.3"),),
)
SKIPPED = Trial("fused-optimizer", "one kernel", "not_applicable", "it is fused already")


def experiment(program: str = "train.py --epochs 1") -> Experiment:
    """One of each kind of answer."""
    return Experiment(
        schema_version=EXPERIMENT_VERSION,
        kinetoscope="0.1.0",
        program=program,
        device="cpu",
        torch="2.13.0",
        sentence="dataloader-workers=4 makes a step 2.10x faster (between 1.95x and 2.25x).",
        step_ns=40 * MS,
        step_mark="optimizer",
        trials=(WORKERS, HARMFUL, OTHER_RESULT, SKIPPED),
        combination=WORKERS,
        snippet=LINES,
        spent_s=90.0,
        runs=14,
        notes=("The machine was busy.",),
    )


def hostile() -> Experiment:
    """The same with a program whose name wants to be more than text."""
    return experiment(results.HOSTILE)
