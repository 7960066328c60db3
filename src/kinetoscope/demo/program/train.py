"""Train a small image classifier on the CPU. Something in it is slow."""

from __future__ import annotations

import argparse
import time

import numpy as np
import torch
from torch import nn
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
    """Read a photograph; the disk takes four milliseconds for it."""
    time.sleep(0.004)
    return np.random.default_rng(index).random((3, 32, 32), dtype=np.float32)


def augment(photo):
    """Blur and change the colours."""
    photo = (np.roll(photo, 1, 2) + photo + np.roll(photo, -1, 2)) / 3
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
    """Train until the steps are done."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--steps", type=int, default=5000)
    args = parser.parse_args()
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model = build_model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Photos(), batch_size=8, num_workers=0)
    batches = iter(loader)
    for _ in range(args.steps):
        train_step(model, optimizer, batches)
    print(f"trained {args.steps} steps")


if __name__ == "__main__":
    main()
