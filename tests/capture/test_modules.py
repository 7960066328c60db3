"""Which module is the outermost one, also when the look begins inside of a call."""

from __future__ import annotations

from typing import Any

import pytest

from kinetoscope.capture.modules import ModuleSeam

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
