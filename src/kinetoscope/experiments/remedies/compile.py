"""Compile the model.

Patch point: `nn.Module.compile` before the first outermost call of a module. The time that this
takes is reported apart. Random numbers (dropout) are drawn in another order.
"""

from __future__ import annotations

from kinetoscope.experiments._hooks import TOP
from kinetoscope.experiments.remedy import Facts, Remedy

MODES = ("default", "reduce-overhead", "max-autotune-no-cudagraphs")


def _applies(facts: Facts) -> str:
    if facts.compiled:
        return "the model is compiled already"
    return "" if facts.parameters else "the program calls no module with parameters"


def _values(facts: Facts) -> tuple[str, ...]:
    if facts.on_gpu:
        return MODES
    return ("default",)


def _patch(value: str) -> None:
    mode = None if value in ("", "default") else value
    TOP.first.append(lambda module: module.compile(mode=mode))
    if value == "reduce-overhead":
        # Outputs live in the graph's memory and are overwritten by the next replay.
        from kinetoscope.experiments._hooks import mapped

        TOP.outputs.append(lambda output: mapped(output, lambda tensor: tensor.clone()))


def _snippet(value: str) -> str:
    return "model.compile()" if value == "default" else f'model.compile(mode="{value}")'


REMEDY = Remedy(
    id="compile",
    title="compile the model",
    tolerance="reordered",
    applies=_applies,
    takes=MODES,
    values=_values,
    patch=_patch,
    snippet=_snippet,
)
