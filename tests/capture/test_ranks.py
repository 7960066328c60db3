"""Two ranks under torchrun, with Gloo. Skipped without torch."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.capture.support import environment

pytest.importorskip("torch", reason="captures need torch")

PROGRAM = """
import sys, time
import torch, torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

def load(rank):
    if rank == 1:
        time.sleep(0.04)
    return torch.randn(32, 64)

def main(steps):
    dist.init_process_group("gloo")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for _ in range(steps):
        x = load(dist.get_rank())
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

main(int(sys.argv[1]))
"""


def test_the_straggling_rank_is_named(tmp_path: Path) -> None:
    (tmp_path / "program.py").write_text(PROGRAM)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    ours = ["-m", "kinetoscope", "run", "--budget", "12s", "--stop-after", "-o", "r.json"]
    done = subprocess.run(
        [*torchrun, "--nproc-per-node", "2", *ours, "program.py", "1000000"],
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=240,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    result = json.loads((tmp_path / "r.json").read_text())
    assert [row["rank"] for row in result["inputs"]] == [0, 1]
    finding = next(f for f in result["findings"] if f["code"] == "CM406")
    assert finding["message"].startswith("Rank 1 arrives last")
    place = finding["locations"][0]
    assert (place["function"], place["line"], place["exact"]) == ("load", 9, True)
