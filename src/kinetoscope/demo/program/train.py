"""Train a small image classifier on the CPU. Something in it is slow.

Prints the time of a step without the profiler, then records a few steps with it.
"""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset


class Photos(Dataset):
    """Made-up photographs that lie on a slow disk and need some work after reading."""

    def __len__(self):
        """Enough for a long run."""
        return 100_000

    def __getitem__(self, index):
        """Return one photograph and its label."""
        photo = read_file(index)
        return torch.from_numpy(augment(photo)), index % 10


def read_file(index):
    """Read a photograph; the disk takes three milliseconds for it."""
    time.sleep(0.003)
    return np.random.default_rng(index).random((3, 32, 32), dtype=np.float32)


def augment(photo):
    """Blur and change the colours."""
    for axis in (1, 2):
        photo = (np.roll(photo, 1, axis) + photo + np.roll(photo, -1, axis)) / 3
    return np.power(photo, 0.9).astype(np.float32)


def build_model():
    """Return a small convolutional network."""
    return nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(16, 32, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(32, 10),
    )


def train_step(model, optimizer, batches):
    """Do one step of training."""
    photos, labels = next(batches)
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(photos), labels)
    loss.backward()
    optimizer.step()


def main():
    """Measure, then record."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trace", default="trace.json.gz")
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Photos(), batch_size=16, num_workers=0)
    batches = iter(loader)

    for _ in range(10):
        train_step(model, optimizer, batches)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        for _ in range(20):
            train_step(model, optimizer, batches)
        times.append((time.perf_counter() - start) / 20)
    print(f"step_ms {1000 * sorted(times)[1]:.3f}")

    with profile(
        activities=[ProfilerActivity.CPU],
        schedule=schedule(wait=1, warmup=2, active=8, repeat=1),
        on_trace_ready=lambda prof: prof.export_chrome_trace(args.trace),
        record_shapes=True,
        with_stack=True,
    ) as prof:
        for _ in range(11):
            train_step(model, optimizer, batches)
            prof.step()


if __name__ == "__main__":
    main()
