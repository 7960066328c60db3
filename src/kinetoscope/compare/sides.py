"""One side of a comparison in a few numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence

from kinetoscope.compare.timing import lead_steps, run_of
from kinetoscope.result import Diagnosis
from kinetoscope.result.comparison import Side


def side_of(runs: Sequence[Diagnosis]) -> Side:
    """Summarise the runs of one side."""
    first = runs[0]
    paces = [run_of(run.profile) for run in runs if run.profile]
    mids = [round(p.mid) for p in paces] or [max(run.step.time_ns.mid, 1) for run in runs]
    lows = [round(p.low) for p in paces] or [run.step.time_ns.low for run in runs]
    highs = [round(p.high) for p in paces] or [run.step.time_ns.high for run in runs]
    ranks = first.profile.world_size if first.profile else len(first.inputs)
    return Side(
        paths=tuple(dict.fromkeys(info.path for run in runs for info in run.inputs)),
        runs=len(runs),
        ranks=ranks,
        steps=sum(_steps(run) for run in runs),
        step_ns=round(math.exp(sum(math.log(m) for m in mids) / len(mids))),
        low_ns=min(lows),
        high_ns=max(highs),
        run_ns=tuple(mids),
        bottleneck=first.verdict.bottleneck,
        sentence=first.verdict.sentence,
        healthy=first.verdict.healthy,
    )


def _steps(run: Diagnosis) -> int:
    return len(lead_steps(run.profile).host_ns) if run.profile else run.step.count
