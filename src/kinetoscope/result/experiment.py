"""What was measured on the user's own program: the document of `verify` and `tune`."""

from __future__ import annotations

from typing import Literal

import msgspec

from kinetoscope.result.comparison import Ratio
from kinetoscope.result.finding import Gain

EXPERIMENT_VERSION = 1

TrialStatus = Literal[
    "accepted",
    "no_gain",
    "harmful",
    "changes_result",
    "too_much_memory",
    "failed",
    "undecided",
    "not_applicable",
]
"""What became of a remedy. `no_gain`: measured, and not worth it. `harmful`: certainly slower.
`changes_result`: a guard says that the program computes something else; `too_much_memory`: that it
needs much more memory.
`undecided`: the time budget was spent before the interval was narrow enough."""

GuardStatus = Literal["passed", "failed", "not_compared"]


class Guard(msgspec.Struct, frozen=True):
    """Something that must not get worse, and whether it did."""

    name: str
    status: GuardStatus
    detail: str


class Trial(msgspec.Struct, frozen=True):
    """One remedy, or several together, measured against the program without it.

    Attributes:
        remedy: its id with its parameter, `dataloader-workers=4`; of several joined by ` + `.
        title: what it does.
        codes: rules that recommend it and fired in this program's diagnosis.
        status: what became of it.
        reason: why.
        speedup: old step time / new step time; None when it was not measured.
        ended_early: its runs were ended after a few settled steps, as each was three times as long
            as usual or more: `speedup.high` is a bound, and `compile_s` is not part of it.
        predicted: gain that the diagnosis promised, if one of its rules fired.
        runs: runs of each side.
        before_ns: mean step time of the interleaved runs without it.
        after_ns: mean step time with it.
        compile_s: what the first steps took longer with it than without it (compilation, capture),
            in the first run, which finds nothing compiled.
        compile_again_s: the same in later runs, which find what the first one has compiled; None
            when there was none.
        memory_ratio: peak memory with it / without it; None when not known.
        throughput: steps' worth of work a second, with it; only where a step does other work.
        guards: what must not get worse.
        snippet: lines to put into the program.
    """

    remedy: str
    title: str
    status: TrialStatus
    reason: str
    codes: tuple[str, ...] = ()
    speedup: Ratio | None = None
    predicted: Gain | None = None
    runs: int = 0
    before_ns: int = 0
    after_ns: int = 0
    compile_s: float = 0.0
    compile_again_s: float | None = None
    memory_ratio: float | None = None
    throughput: float | None = None
    guards: tuple[Guard, ...] = ()
    snippet: str = ""
    ended_early: bool = False


class Experiment(msgspec.Struct, frozen=True):
    """The whole document.

    Attributes:
        program: the script and its arguments.
        device: what it ran on.
        torch: version.
        sentence: the answer.
        step_ns: step time of the unchanged program.
        step_mark: what counts as a step: optimizer, loader or module.
        trials: one a remedy, in the order in which they were tried.
        combination: the accepted ones together; None when fewer than one was accepted.
        snippet: lines to put into the program for the combination.
        spent_s: time that all runs took.
        runs: how many runs.
        notes: what a reader should know.
    """

    schema_version: int
    kinetoscope: str
    program: str
    device: str
    torch: str
    sentence: str
    step_ns: int
    step_mark: str
    trials: tuple[Trial, ...]
    combination: Trial | None = None
    snippet: str = ""
    spent_s: float = 0.0
    runs: int = 0
    notes: tuple[str, ...] = ()
