"""A comparison as the page's program reads it: the document, its words, its tables."""

from __future__ import annotations

from typing import Any

import msgspec

from kinetoscope import units
from kinetoscope.report import phrases
from kinetoscope.report.comparison import words
from kinetoscope.report.page_data import tidy
from kinetoscope.result.comparison import (
    Change,
    Comparison,
    CostChange,
    FindingChange,
    Prediction,
    Side,
)
from kinetoscope.result.profile import CostKind
from kinetoscope.result.view import Cell, Table, TableColumn

MOST_PATHS = 64
"""Files of a side that are listed; the page says how many more there are."""


def document(comparison: Comparison) -> dict[str, Any]:
    """Return what the page shows, strict JSON with visible texts."""
    shown = msgspec.structs.replace(
        comparison, operators=(), before=_cut(comparison.before), after=_cut(comparison.after)
    )
    return {
        "kind": "comparison",
        "comparison": tidy(msgspec.to_builtins(shown)),
        "words": tidy(_words(comparison)),
        "tables": tidy(msgspec.to_builtins(_tables(comparison))),
    }


def _cut(side: Side) -> Side:
    return msgspec.structs.replace(side, paths=side.paths[:MOST_PATHS])


def _words(comparison: Comparison) -> dict[str, Any]:
    changes = comparison.findings
    scaling = comparison.scaling
    return {
        "classes": phrases.CLASSES,
        "outcome": words.OUTCOMES[comparison.verdict.outcome],
        "speedup": words.speedup(comparison.verdict.speedup),
        "next": words.next_step(comparison),
        "likeness": words.likeness(comparison.comparable),
        "differences": [
            {"text": words.difference(item), "effect": item.effect}
            for item in comparison.comparable.differences
        ],
        "before": _side(comparison.before),
        "after": _side(comparison.after),
        "findings": {
            "gone": [_finding(item) for item in changes.gone],
            "stayed": [_finding(item) for item in changes.stayed],
            "new": [_finding(item) for item in changes.new],
        },
        "predictions": [_prediction(comparison, item) for item in comparison.predictions],
        "fit": words.scale_fit(scaling) if scaling else "",
        "efficiency": [words.efficiency_range(p) for p in scaling.points] if scaling else [],
    }


def _side(side: Side) -> dict[str, Any]:
    return {
        "paths": words.paths(side),
        "side": words.side(side),
        "more_paths": max(len(side.paths) - MOST_PATHS, 0),
    }


def _finding(item: FindingChange) -> dict[str, str]:
    return {
        "place": phrases.place(item.location) if item.location else "",
        "gain": words.promised(item.gain),
    }


def _prediction(comparison: Comparison, item: Prediction) -> dict[str, Any]:
    """What was promised, and the step time that it would have given."""
    step, gain = comparison.before.step_ns, item.predicted
    low, mid, high = (step / max(value, 1e-9) for value in (gain.high, gain.mid, gain.low))
    return {
        "text": words.prediction(item),
        "code": item.code,
        "kept": words.KEPT[item.kept],
        "achieved": words.speedup(item.achieved),
        "gain": words.promised(gain),
        "step": units.duration_range(low, high),
        "step_ns": {"low": round(low), "mid": round(mid), "high": round(high)},
    }


# ---- tables ------------------------------------------------------------------------------

_TITLES: dict[CostKind, str] = {
    "operator": "Operators",
    "kernel": "Kernels",
    "module": "Modules",
}
_MISSING: dict[CostKind, str] = {
    "operator": "One side recorded no operators.",
    "kernel": "One side recorded no kernels.",
    "module": "One side recorded no modules: record both with with_stack=True.",
}
_NAME = TableColumn("Name", "text", "Name, with the shapes where both sides recorded them.")
_MODULE = TableColumn("In", "text", "Modules around it.")
_COLUMNS = (
    TableColumn(
        "Became",
        "text",
        "added, gone, faster, slower. noise: two runs of one program differ by as much. not "
        "listed: a result lists the costliest rows only, so one side may leave this one out.",
    ),
    TableColumn("Change", "change_ns", "After minus before, time a step, by the clock named last."),
    TableColumn("Noise", "ns", "Changes smaller than this say nothing."),
    TableColumn("Before", "ns", "Time a step before."),
    TableColumn("After", "ns", "Time a step after."),
    TableColumn("Calls before", "count", "Calls a step before."),
    TableColumn("Calls after", "count", "Calls a step after."),
    TableColumn("Clock", "text", "Whether these are times of the device or of the host."),
)
_NOTE = (
    "Time a step, as recorded. Matched by name, shape and module; what is left of one name, by the "
    "order of the first call."
)


def _tables(comparison: Comparison) -> list[Table]:
    if not comparison.comparable.answer or comparison.scaling is not None:
        return []
    found = []
    for kind, title in _TITLES.items():
        rows = [row for row in comparison.operators if row.kind == kind]
        modules = kind != "module" and any(row.module for row in rows)
        columns = (_NAME, *([_MODULE] if modules else []), *_COLUMNS)
        rows.sort(key=lambda row: any(_unlisted(row)))
        cells = tuple(_row(row, modules=modules) for row in rows)
        found.append(Table(kind, title, columns, cells, note=_NOTE, missing=_MISSING[kind]))
    return found


def _row(row: CostChange, *, modules: bool) -> tuple[Cell, ...]:
    device = row.on == "device"
    before, after = (
        (row.before_device_ns, row.after_device_ns)
        if device
        else (row.before_host_ns, row.after_host_ns)
    )
    first, second = _unlisted(row)
    return (
        f"{row.name} [{row.shape}]" if row.shape else row.name,
        *([row.module] if modules else []),
        _became(row.change, before=first, after=second),
        None if first or second else row.change_ns,
        row.noise_ns,
        None if first or row.change == "added" else before,
        None if second or row.change == "gone" else after,
        None if first else row.before_calls,
        None if second else row.after_calls,
        row.on,
    )


def _unlisted(row: CostChange) -> tuple[bool, bool]:
    """Whether the first, the second side shows nothing of a row: it is not in its list."""
    same = row.change == "same"
    return same and not row.before_calls, same and not row.after_calls


def _became(change: Change, *, before: bool, after: bool) -> str:
    if before or after:
        return f"not listed {'before' if before else 'after'}"
    return {"same": "noise", "added": "new"}.get(change, change)
