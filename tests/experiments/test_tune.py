"""`tune` on tiny programs, in real processes; needs torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from kinetoscope.experiments.registry import remedies_for
from kinetoscope.experiments.runner import ProgramError
from kinetoscope.experiments.tune import TuneOptions, tune
from kinetoscope.result.experiment import Experiment
from tests import results

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

HEAD = """
import time, torch
from torch import nn
from torch.utils.data import DataLoader, Dataset, TensorDataset
torch.set_num_threads(1)
"""
TRAIN = """
model = nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 10))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
while True:
    for x, y in loader:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()
"""
SLOW_LOADER = """
class Slow(Dataset):
    def __len__(self):
        return 100_000
    def __getitem__(self, i):
        time.sleep(0.004)
        return torch.full((16,), float(i % 7)), i % 10
loader = DataLoader(Slow(), batch_size=8)
"""
TINY_DATA = """
data = TensorDataset(torch.randn(256, 16), torch.randint(0, 10, (256,)))
loader = DataLoader(data, batch_size=16)
"""
SENSITIVE = """
class Sensitive(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = nn.Linear(64, 64, bias=False)
    def forward(self, x):
        return self.a(x + 1000.0) - self.a(torch.full_like(x, 1000.0))
model = Sensitive()
x = torch.randn(32, 64)
with torch.no_grad():
    while True:
        model(x)
"""

SLEEPS_UNDER_AUTOCAST = """
class Sleepy(nn.Linear):
    def forward(self, x):
        time.sleep(0.32 if torch.is_autocast_enabled("cpu") else 0.02)
        return super().forward(x)
model = Sleepy(16, 16)
x = torch.randn(4, 16)
with torch.no_grad():
    while True:
        model(x)
"""


def measured(folder: Path, text: str, *remedies: str) -> Experiment:
    script = folder / "program.py"
    script.write_text(HEAD + text)
    options = TuneOptions(
        budget_s=600,
        seconds=0.3,
        chosen=tuple(remedies_for(remedies)),
        diagnosis=results.diagnosis(),
        together=False,
    )
    return tune([str(script)], options)


def test_workers_help_a_slow_loader(tmp_path: Path) -> None:
    found = measured(tmp_path, SLOW_LOADER + TRAIN, "dataloader-workers=2")
    trial = found.trials[0]
    assert trial.status == "accepted", trial
    assert trial.codes == ("DL101",)
    assert trial.predicted is not None
    assert {g.name: g.status for g in trial.guards}["loss"] == "passed"
    assert "num_workers=2" in trial.snippet
    assert found.step_mark == "optimizer"


def test_workers_hurt_a_tiny_data_set(tmp_path: Path) -> None:
    found = measured(tmp_path, TINY_DATA + TRAIN, "dataloader-workers=2")
    assert found.trials[0].status in ("harmful", "no_gain"), found.trials[0]
    assert found.combination is None


def test_a_remedy_that_changes_the_result_is_rejected(tmp_path: Path) -> None:
    found = measured(tmp_path, SENSITIVE, "autocast=bfloat16")
    trial = found.trials[0]
    assert trial.status == "changes_result", trial
    assert trial.reason.startswith("outputs: differs by")
    assert "Rejected, as the result changes" in found.sentence


def test_a_hopeless_remedy_is_ended(tmp_path: Path) -> None:
    found = measured(tmp_path, SLEEPS_UNDER_AUTOCAST, "autocast=bfloat16")
    trial = found.trials[0]
    assert trial.status == "harmful", trial
    assert trial.ended_early
    # A usual step takes 20 ms, one with the remedy 300 ms more: 16x; three steps and one run.
    assert trial.speedup is not None
    assert 10 < 1 / trial.speedup.mid < 20
    assert trial.runs <= 2
    assert 0.2e9 < trial.after_ns < 0.5e9


def test_a_program_that_fails_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ProgramError, match="cannot be measured: RuntimeError: broken"):
        measured(tmp_path, "raise RuntimeError('broken')", "zero-grad")
