"""Python between the operators that belongs to a library: its loop over the steps, or its model."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kinetoscope.analysis import Analysis
from kinetoscope.result import Fix
from kinetoscope.trace.frames import library_of
from kinetoscope.trace.trace import IntArray


@dataclass(frozen=True)
class Library:
    """The library whose Python it is; `in_model`: that of a model, not of a loop over steps."""

    name: str
    in_model: bool


def of_library(library: Library) -> Fix:
    """What a program can do about Python that is not its own."""
    if library.in_model:
        return Fix(
            summary=f"This Python is that of `{library.name}` inside of the model: compile the "
            "model, or give each call of it more work.",
            snippet="model = torch.compile(model)",
            reference="https://docs.pytorch.org/docs/stable/generated/torch.compile.html",
        )
    return Fix(
        summary=f"This Python is that of `{library.name}` around the steps: log and call back less "
        "often, use fewer callbacks, or give each step more work.",
        snippet=_SNIPPETS.get(library.name, ""),
        reference=_SPEED,
    )


_LIGHTNING = "trainer = Trainer(..., log_every_n_steps=50)"
_SNIPPETS = {
    "lightning": _LIGHTNING,
    "pytorch_lightning": _LIGHTNING,
    "transformers": "args = TrainingArguments(..., logging_steps=50)",
}
_TRAINERS = frozenset(
    "lightning pytorch_lightning lightning_fabric transformers accelerate deepspeed".split()
)
"""Libraries that run the steps of a program, or something around each."""
_SPEED = "https://docs.pytorch.org/tutorials/recipes/recipes/tuning_guide.html"
_LOOP = 1.5
"""A frame longer than this many steps holds the loop over them."""


def library_python(
    analysis: Analysis, rows: IntArray, weights: IntArray
) -> tuple[Library | None, npt.NDArray[np.bool_]]:
    """The library that most of the Python belongs to, and which rows are not its own.

    Its loop, or its model, is called by a function of the program that cannot be moved: what runs
    in between, and in no function of the program inside the step, is the library's. What a loop of
    the program itself calls (NumPy, pandas) is its own work.
    """
    tree, names = analysis.trace.tree, analysis.trace.column("name_id")
    node = tree.node_of[rows]
    frame = np.where(node >= 0, tree.user_frame[np.maximum(node, 0)], -1)
    safe = np.maximum(frame, 0)
    loop = (frame >= 0) & (tree.end[safe] - tree.start[safe] > _LOOP * analysis.step_ns)
    package = {i: library_of(f.file) for i, f in tree.frames.items() if f is not None}
    known = np.isin(names[tree.rows], [i for i, name in package.items() if name is not None])
    at, outermost = node.copy(), np.full(node.size, -1, dtype=np.int64)
    climbing = loop & (at != frame)
    while climbing.any():
        outermost[climbing & known[at]] = at[climbing & known[at]]
        up = tree.parent[at]
        climbing &= (up >= 0) & (up != frame)
        at = np.where(climbing, up, at)
    runs_steps = np.isin(names[tree.rows], [i for i, name in package.items() if name in _TRAINERS])
    mine = (outermost >= 0) & (runs_steps[outermost] | (tree.module[node] >= 0))
    if weights[mine].sum() <= _MOST * weights.sum():
        return None, ~mine
    time: dict[str, int] = {}
    for i in np.flatnonzero(mine):
        name = str(package[int(names[tree.rows[outermost[i]]])])
        time[name] = time.get(name, 0) + int(weights[i])
    inside = mine & (tree.module[node] >= 0)
    in_model = bool(weights[inside].sum() > _MOST * weights[mine].sum())
    return Library(max(time, key=lambda p: time[p]), in_model=in_model), ~mine


_MOST = 0.5
"""Part of the Python from which on it is the library's."""
