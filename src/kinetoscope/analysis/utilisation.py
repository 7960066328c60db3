"""How much of the device's arithmetic the program uses (RULES.md, M-13)."""

from __future__ import annotations

import numpy as np

from kinetoscope.analysis.core import Analysis
from kinetoscope.metrics.recompute import recomputed_nodes
from kinetoscope.result import Utilisation
from kinetoscope.trace.kinds import Family

_MATRIX = (Family.GEMM, Family.CONV, Family.ATTENTION, Family.RNN)
COVERED = 0.8
"""Share of the matrix kernels' time with known FLOP from which on their sum stands for all."""


def utilisation(analysis: Analysis) -> Utilisation | None:
    """Model and hardware FLOP utilisation of a step.

    None without a known device, without shapes, or when no matrix kernel has known FLOP. The time
    of an operation at the peak is FLOP / P of the unit that did it, so a program of mixed types is
    measured against each type's own rate.
    """
    peaks = analysis.peaks
    if peaks is None or analysis.device is None or not analysis.has("shapes"):
        return None
    trace, costs = analysis.trace, analysis.roof.costs
    inside = np.isin(costs.rows, analysis.in_window(costs.rows))
    rows = costs.rows[inside]
    flop, math = costs.flop[inside], costs.math[inside]
    ns = trace.column("dur_ns")[rows]
    matrix = np.isin(trace.column("family")[rows], _MATRIX)
    rate = peaks.flop_rates()[math]
    counted = matrix & (flop > 0) & (rate > 0)
    if not counted.any():
        return None
    at_peak = np.divide(flop, rate, out=np.zeros(flop.size), where=counted)
    node = trace.links.node[rows]
    again = (node >= 0) & analysis.get(recomputed_nodes)[np.maximum(node, 0)]
    span = max(analysis.step_time.mid, 1) * analysis.steps
    known = float(ns[matrix & (flop >= 0)].sum() / max(int(ns[matrix].sum()), 1))
    return Utilisation(
        rank=analysis.rank,
        device=analysis.device.device,
        name=peaks.name,
        mfu=round(float(at_peak[~again].sum()) / span, 6),
        hfu=round(float(at_peak.sum()) / span, 6),
        flop_per_step=int(flop[counted & ~again].sum() / analysis.steps),
        coverage=round(float(ns[flop >= 0].sum() / max(int(ns.sum()), 1)), 4),
        lower_bound=known < COVERED,
    )
