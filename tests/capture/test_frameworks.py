"""Loops of Lightning, the Hugging Face Trainer and Accelerate, unchanged.

Each test is skipped where its package is not installed. The programs import the package before
torch: all three look whether there is a torch, without importing it.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.capture.support import capture

pytest.importorskip("torch", reason="captures need torch")

DATA = """
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset

class Data(Dataset):
    def __len__(self):
        return 10**5

    def __getitem__(self, i):
        x = torch.zeros(64)
        for k in range(40):
            x = torch.sin(x + k)
        return x, torch.tensor(float(i % 2))

def net():
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
"""

LIGHTNING = """
import lightning

class Module(lightning.LightningModule):
    def __init__(self):
        super().__init__()
        self.net = net()

    def training_step(self, batch, index):
        x, y = batch
        return (self.net(x).squeeze(1) - y).square().mean()

    def configure_optimizers(self):
        return torch.optim.SGD(self.parameters(), lr=0.01)

def train():
    trainer = lightning.Trainer(
        accelerator="cpu", max_steps=100000, logger=False, enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False)
    trainer.fit(Module(), DataLoader(Data(), batch_size=8))
"""

TRANSFORMERS = """
from transformers import Trainer, TrainingArguments

class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = net()

    def forward(self, x, labels):
        return {"loss": (self.net(x).squeeze(1) - labels).square().mean()}

def collate(rows):
    return {"x": torch.stack([x for x, _ in rows]), "labels": torch.stack([y for _, y in rows])}

def train():
    args = TrainingArguments(
        output_dir="out", max_steps=100000, per_device_train_batch_size=8, report_to=[],
        save_strategy="no", use_cpu=True, disable_tqdm=True, logging_strategy="no",
        gradient_accumulation_steps=2)
    Trainer(model=Model(), args=args, train_dataset=Data(), data_collator=collate).train()
"""

ACCELERATE = """
from accelerate import Accelerator

def train():
    accelerator = Accelerator(cpu=True)
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    model, optimizer, loader = accelerator.prepare(model, optimizer, DataLoader(Data(), 8))
    for x, y in loader:
        optimizer.zero_grad()
        accelerator.backward((model(x).squeeze(1) - y).square().mean())
        optimizer.step()
"""

PLAIN = "\ntrain()\n"
LOOPS = [
    ("lightning", LIGHTNING, "SGD.step"),
    ("transformers", TRANSFORMERS, "AdamW.step"),
    ("accelerate", ACCELERATE, "SGD.step"),
]


@pytest.mark.parametrize(("package", "loop", "label"), LOOPS, ids=[row[0] for row in LOOPS])
def test_the_loop_is_found_and_the_input_is_named(
    tmp_path: Path, package: str, loop: str, label: str
) -> None:
    pytest.importorskip(package)
    ran = capture(tmp_path, f"import {package}\n{DATA}{loop}{PLAIN}", options=("--stop-after",))
    assert ran.code == 0, ran.err
    assert ran.result is not None, ran.err
    found = ran.result["capture"]
    assert found["step_label"] == label
    assert [w["name"] for w in found["windows"]] == ["light", "full"]
    assert found["baseline_steps"] >= 3
    assert ran.result["verdict"]["bottleneck"] == "data_loading"
    finding = ran.result["findings"][0]
    assert finding["code"] == "DL101"
    lines = (tmp_path / "program.py").read_text().splitlines()
    place = finding["locations"][0]
    assert place["exact"]
    assert lines[place["line"] - 1].strip() == "x = torch.sin(x + k)"


GENERATE = """
from transformers import GPT2Config, GPT2LMHeadModel
import torch
import torch._dynamo

model = GPT2LMHeadModel(GPT2Config(n_layer=2, n_head=2, n_embd=32)).eval()
prompt = torch.zeros(1, 4, dtype=torch.long)
while True:
    model.generate(prompt, max_new_tokens=20, pad_token_id=0)
"""


def test_calls_of_a_model_are_steps_soon_although_nothing_is_compiled(tmp_path: Path) -> None:
    """Dynamo is there in most programs: it is no reason to wait for compiled modules."""
    pytest.importorskip("transformers")
    ran = capture(tmp_path, GENERATE, options=("--stop-after",))
    assert ran.code == 0, ran.err
    assert ran.result is not None, ran.err
    assert ran.result["capture"]["step_label"] == "GPT2LMHeadModel"
