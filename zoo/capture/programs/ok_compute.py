"""Healthy: large matrix products.

class: compute
codes:
"""

import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1024, 1024), nn.ReLU(), nn.Linear(1024, 1024))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    inputs = torch.randn(256, 1024)
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
    print(f"trained {step + 1} steps")


if __name__ == "__main__":
    main()
