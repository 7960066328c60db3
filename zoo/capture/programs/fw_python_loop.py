"""Bookkeeping in plain Python between the steps.

class: framework
codes: FW517
"""

import sys

import torch
from torch import nn


def count_words(history):
    seen = {}
    for number in history:
        seen[number % 97] = seen.get(number % 97, 0) + number  # PLANT
    return max(seen.values())


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    inputs = torch.randn(32, 64)
    history = list(range(40_000))
    for step in range(int(sys.argv[1])):
        best = count_words(history)
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    print(f"trained {step + 1} steps, best {best}")


if __name__ == "__main__":
    main()
