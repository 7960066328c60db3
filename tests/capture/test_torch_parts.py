"""A torch that lacks something: it is said by its name, and the rest goes on."""

from __future__ import annotations

import importlib
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from kinetoscope.capture import facts, sidecar, torch_parts
from kinetoscope.capture.options import CaptureOptions
from kinetoscope.capture.sampling import FrameSampler
from kinetoscope.capture.seams import Seams
from kinetoscope.capture.session import Session
from kinetoscope.capture.torch_parts import Part
from tests.capture.support import TRAIN, environment

torch = pytest.importorskip("torch", reason="captures need torch")


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
def test_this_torch_has_every_part() -> None:
    importlib.import_module("torch._dynamo")
    parts = [part for part in vars(torch_parts).values() if isinstance(part, Part)]
    assert len(parts) > 15
    assert torch_parts.missing(parts) == []


def test_what_is_missing_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    part = Part("torch.overrides", "_no_such_class.__init__", "lines are not known")
    gone = Part("torch.no_such_module", "name", "nothing works")
    this = f"this torch ({torch.__version__})"
    assert torch_parts.missing([part, gone]) == [
        f"{this} has no torch.overrides._no_such_class.__init__: lines are not known",
        f"{this} has no torch.no_such_module.name: nothing works",
    ]


WITHOUT = """
import sys
import torch, torch.distributed
from torch.utils.data import dataloader
del dataloader._BaseDataLoaderIter, dataloader._MultiProcessingDataLoaderIter
del torch._C._profiler._EventType, torch._C._profiler._ExperimentalConfig
del torch._C._autograd._clear_callbacks, torch.overrides._get_current_function_mode
del sys.modules["torch.optim.optimizer"].register_optimizer_step_post_hook
from kinetoscope.cli import main
main()
"""


def test_a_capture_goes_on_without_what_a_newer_torch_lacks(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(TRAIN)
    (tmp_path / "without.py").write_text(WITHOUT)
    done = subprocess.run(
        [
            *(sys.executable, "without.py", "run", "--budget", "4s", "-o", "r.json"),
            *("program.py", "4000"),
        ],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout == "trained 3999\n"
    assert "Traceback" not in done.stderr
    assert (tmp_path / "r.json").exists()
    for text in (
        "dataloader._BaseDataLoaderIter.__next__: batches mark no steps",
        "dataloader._MultiProcessingDataLoaderIter.__init__: lines inside of a loader's workers",
        "torch._C._profiler._EventType: exact lines of calls are not known",
        "torch._C._profiler._ExperimentalConfig: pauses of the garbage collector",
        "torch._C._autograd._clear_callbacks: a process forked in a window",
        "torch.overrides._get_current_function_mode: lines of operators without a call",
    ):
        assert text in done.stderr
    assert "differs from what captures know" in done.stderr
    assert "register_optimizer_step_post_hook" in done.stderr


def test_what_cannot_be_asked_costs_one_fact_only(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def memory() -> dict[str, Any]:
        raise RuntimeError("this is asked in another way now")

    monkeypatch.setattr(sidecar, "memory", memory)
    said: list[str] = []
    session = Session(CaptureOptions(folder=tmp_path), said.append)
    known = facts.facts(session)["facts"]
    assert "machine" in known
    assert "memory" not in known
    told = f"memory is not known: this torch ({torch.__version__}) differs: RuntimeError: "
    assert said == [told + "this is asked in another way now"]


def test_nobody_looks_at_frames_when_nothing_says_that_dynamo_compiles(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A look at the frames of a compilation can make it fail."""
    monkeypatch.setitem(sys.modules, "torch._dynamo.convert_frame", types.ModuleType("without"))
    sampler = FrameSampler()
    sampler._sample()
    assert sampler.samples == 0


def test_each_step_of_an_optimizer_is_one_mark(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of a class, of one that inherits its step, and of one that calls its parent's."""

    class Inherits(torch.optim.SGD):  # type: ignore[misc, name-defined]
        pass

    class Calls(torch.optim.SGD):  # type: ignore[misc, name-defined]
        def step(self, closure: Any = None) -> Any:
            return super().step(closure)

    def optimizer(cls: Any) -> Any:
        return cls([torch.nn.Parameter(torch.ones(1))], lr=0.1)

    marks: list[tuple[str, str]] = []
    before = torch.optim.SGD.step, torch.optim.Optimizer.__init__
    earlier = optimizer(torch.optim.Adam)
    adam = torch.optim.Adam.step
    seams = Seams(lambda kind, _identity, label: marks.append((kind, label)))
    for install in seams.installs:
        install()
    try:
        for one in (earlier, *map(optimizer, (Calls, Inherits, torch.optim.SGD))):
            one.step()
            one.step()
    finally:
        seams.remove()
    names = ["Adam", "Adam", "Calls", "Calls", "Inherits", "Inherits", "SGD", "SGD"]
    assert marks == [("optimizer", f"{name}.step") for name in names]
    assert torch.optim.Optimizer.__init__ is before[1]
    assert torch.optim.Adam.step is adam
    optimizer(torch.optim.SGD).step()
    assert len(marks) == len(names)
