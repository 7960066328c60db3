"""Training whose large temporary tensors get new memory from the system in each step.

class: memory
codes: MM321
steps: optimizer
"""

import sys

import torch
from torch import nn


def views(pictures):
    """The same pictures in three kinds of light."""
    return [pictures * light for light in (0.8, 1.0, 1.2)]  # PLANT


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.AvgPool2d(16), nn.Flatten(), nn.Linear(300, 8))
    optimizer = torch.optim.SGD(model.parameters(), 1e-3)
    pictures = torch.rand(64, 3, 160, 160)
    labels = torch.arange(64) % 8
    for _ in range(int(sys.argv[1])):
        loss = sum(nn.functional.cross_entropy(model(view), labels) for view in views(pictures))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    print(f"loss {loss.item():.3f}")


if __name__ == "__main__":
    main()
