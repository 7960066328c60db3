"""The table of the critical path: what the median step consists of, end to end."""

from __future__ import annotations

from kinetoscope.analysis import Analysis
from kinetoscope.analysis.path import whole_path
from kinetoscope.result.view import Cell, Table, TableColumn
from kinetoscope.viewdata.names import shorten

MOST_ROWS = 200


def critical_path_table(analysis: Analysis) -> Table:
    """Time on the longest chain of the median step, without the profiler's cost."""
    columns = (
        TableColumn(
            "on the critical path",
            "text",
            "What the longest chain of waiting passes through: an operator or a kernel at work, "
            "or what the host does. Making anything else faster gains nothing.",
        ),
        TableColumn("where", "text", "Whether the host or the device is busy with it."),
        TableColumn("class", "text", "Class, as in the budget."),
        TableColumn("time", "ns", "Time on the path in the median step; the rows sum to the step."),
        TableColumn("share", "ratio", "Share of the step."),
    )
    found = whole_path(analysis)
    if found is None:
        return Table(
            "path",
            "Critical path",
            columns,
            (),
            missing="No whole step was recorded. Record several steps with prof.step().",
        )
    rows: list[tuple[Cell, ...]] = [
        (
            shorten(part.name),
            "host" if part.on_host else "device",
            part.class_.replace("_", " "),
            part.ns,
            round(part.ns / max(found.step_ns, 1), 6),
        )
        for part in found.parts[:MOST_ROWS]
    ]
    return Table(
        "path",
        "Critical path",
        columns,
        tuple(rows),
        note="From the replay of the recording, with the profiler's likely cost taken off.",
    )
