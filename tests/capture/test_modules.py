"""Which module is the outermost one, also when the look begins inside of a call."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kinetoscope.capture.modules import ModuleSeam
from tests.capture.support import capture

torch = pytest.importorskip("torch")


def test_a_look_that_begins_inside_of_a_call_finds_the_whole_model() -> None:
    marks: list[str] = []
    seam = ModuleSeam(lambda _kind, _identity, label: marks.append(label))

    class Model(torch.nn.Module):  # type: ignore[misc, name-defined]
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = torch.nn.Linear(2, 2), torch.nn.ReLU()

        def forward(self, x: Any) -> Any:
            seam.discover()  # the watcher's thread comes whenever it comes
            return self.second(self.first(x))

    model = Model()
    try:
        for _ in range(5):
            model(torch.ones(1, 2))
    finally:
        seam.remove()
    assert set(marks) == {"Model"}


def test_nobody_looks_at_modules_of_a_program_that_compiles(tmp_path: Path) -> None:
    """One that takes long before its first step has hooks by then, and torch warned of them."""
    source = """
import sys, time
import torch
from torch import nn
from torch.nn.modules.module import _global_forward_hooks as hooks
torch.set_num_threads(1)
net = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
until = time.monotonic() + 30
while not hooks and time.monotonic() < until: time.sleep(0.1)
print("looks", bool(hooks))
compiled = torch.compile(net, backend="eager")
print("looks", bool(hooks))
with torch.no_grad():
    for _ in range(int(sys.argv[1])): compiled(torch.ones(2, 8))
print("served")
"""
    ran = capture(tmp_path, source, "3000", options=("--budget", "3s"))
    assert ran.code == 0, ran.err
    assert ran.out == "looks True\nlooks False\nserved\n"
    assert "global hooks" not in ran.err
    assert ran.result is not None
    assert ran.result["capture"]["step_label"] == "Sequential"
