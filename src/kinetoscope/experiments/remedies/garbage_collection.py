"""Keep Python's garbage collector away from what lives long.

Patch point: the first outermost call of a module; `gc.freeze` and a longer interval.
"""

from __future__ import annotations

from typing import Any

from kinetoscope.experiments._hooks import TOP
from kinetoscope.experiments.remedy import Facts, Remedy

INTERVAL = 50_000


def _applies(facts: Facts) -> str:
    return "" if facts.settings.get("gc_enabled", True) else "the collector is off already"


def _patch(value: str) -> None:
    import gc

    def freeze(_module: Any) -> None:
        gc.collect()
        gc.freeze()
        gc.set_threshold(int(value))

    TOP.first.append(freeze)


REMEDY = Remedy(
    id="garbage-collection",
    title="freeze what lives long, collect less often",
    applies=_applies,
    takes="number",
    values=lambda _: (str(INTERVAL),),
    patch=_patch,
    snippet=lambda value: (
        f"gc.collect(); gc.freeze(); gc.set_threshold({value})  # before the loop"
    ),
    general=False,
)
