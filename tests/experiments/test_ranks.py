"""`tune` on two ranks over gloo, in real processes; needs torch."""

from __future__ import annotations

from importlib.util import find_spec
from pathlib import Path

import pytest

from kinetoscope.experiments.registry import remedies_for
from kinetoscope.experiments.runner import Runner
from kinetoscope.experiments.tune import TuneOptions, tune

pytestmark = pytest.mark.skipif(find_spec("torch") is None, reason="torch is not installed")

HEAD = """
import os, time, torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel
torch.set_num_threads(1)
rank = int(os.environ["RANK"])
distributed.init_process_group("gloo")
model = DistributedDataParallel(nn.Linear(16, 16), find_unused_parameters=True)
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
x = torch.randn(8, 16)
def step():
    optimizer.zero_grad()
    model(x).square().mean().backward()
    optimizer.step()
"""
PLAIN = """
while True:
    step()
"""
UNEVEN = """
# One rank has had steps of its own before the joint ones: by its clock it could end long before.
if rank == {ahead}:
    for _ in range(40):
        time.sleep(0.02)
        optimizer.step()
# As on a device: nothing tells a rank that another one has left, it waits. So does a last barrier.
try:
    while True:
        step()
        time.sleep(0.005)
except RuntimeError:
    time.sleep(600)
finally:
    distributed.barrier()
"""
SECOND_FAILS = """
for _ in range(5):
    step()
if rank == 1:
    raise ValueError("broken on one rank")
while True:
    step()
"""


def _runner(folder: Path, text: str, limit_s: float = 40.0) -> Runner:
    script = folder / "program.py"
    script.write_text(HEAD + text)
    return Runner([str(script)], limit_s, seconds=0.2, processes=2)


@pytest.mark.parametrize("ahead", [0, 1])
def test_ranks_that_would_wait_for_each_other_end(
    ahead: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kinetoscope.experiments.runner.GRACE_S", 0.0)
    with _runner(tmp_path, UNEVEN.format(ahead=ahead)) as runner:
        outcome = runner.run()
    assert outcome.error == ""
    assert len(outcome.steps) >= 10
    assert outcome.report is not None
    assert outcome.report["mark"] == "optimizer"


def test_the_rank_that_failed_first_is_named(tmp_path: Path) -> None:
    with _runner(tmp_path, SECOND_FAILS) as runner:
        outcome = runner.run()
    assert outcome.error == "ValueError: broken on one rank"


def test_a_remedy_of_ddp_is_measured_on_two_ranks(tmp_path: Path) -> None:
    script = tmp_path / "program.py"
    script.write_text(HEAD + PLAIN)
    chosen = tuple(remedies_for(["ddp-no-unused-search"]))
    keep = tmp_path / "trace.json.gz"
    options = TuneOptions(
        budget_s=1, seconds=0.2, processes=2, chosen=chosen, together=False, recording=keep
    )
    found = tune([str(script)], options)
    first = found.trials[0]
    assert {t.status for t in found.trials} <= {"accepted", "no_gain", "harmful", "undecided"}
    assert first.runs >= 1, first
    assert [g.status for g in first.guards] == ["passed"] * 3
    assert sorted(file.name for file in tmp_path.glob("*.gz")) == [
        "trace.rank0.json.gz",
        "trace.rank1.json.gz",
    ]
