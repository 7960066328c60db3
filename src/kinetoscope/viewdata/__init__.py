"""From analyses to what a page shows beyond the result."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from kinetoscope.analysis import Analysis
from kinetoscope.result import Finding
from kinetoscope.result.view import VIEW_VERSION, Table, View
from kinetoscope.viewdata import (
    charts,
    facts,
    flame,
    focus,
    memory,
    path,
    tables,
    timeline,
    traffic,
)

__all__ = ["build"]


def build(
    lead: Analysis,
    ranks: Sequence[Analysis],
    findings: Sequence[Finding],
    *,
    most_boxes: int = timeline.MOST_BOXES,
) -> View:
    """Compute the view of a diagnosis.

    Args:
        lead: the rank that the diagnosis speaks of.
        ranks: all ranks of the job.
        findings: of the diagnosis, in its order.
        most_boxes: how much timeline the page may carry.
    """
    zero = timeline.zero_of(lead, ranks)
    origin = zero + timeline.clock(lead)
    curves = tuple(
        curve
        for rank in timeline.shown_ranks(lead, ranks)
        for curve in memory.memory(rank, zero + timeline.clock(rank))
    )
    return View(
        version=VIEW_VERSION,
        lead_rank=lead.rank,
        timeline=timeline.timeline(lead, ranks, most=most_boxes),
        flame=flame.flame(lead),
        tables=(
            _known(lead, tables.operators(lead)),
            tables.kernels(lead),
            _known(lead, tables.modules(lead)),
            path.critical_path_table(lead),
            traffic.copies(lead),
            traffic.collectives_table(lead),
            traffic.synchronisations(lead),
        ),
        memory=curves,
        memory_missing="" if curves else memory.MISSING,
        roofline=charts.roofline_view(lead),
        comm=charts.communication(lead),
        steps=charts.steps(lead, origin),
        queue=charts.queue(lead, origin),
        focus=focus.focuses(findings, lead, {lead.rank: origin}),
        facts=facts.facts(lead),
    )


def _known(analysis: Analysis, table: Table) -> Table:
    """The table without the columns of the device where none was recorded: that is not 0."""
    if analysis.device is not None:
        return table
    kept = [i for i, column in enumerate(table.columns) if not column.title.startswith("device")]
    return msgspec.structs.replace(
        table,
        columns=tuple(table.columns[i] for i in kept),
        rows=tuple(tuple(row[i] for i in kept) for row in table.rows),
    )
