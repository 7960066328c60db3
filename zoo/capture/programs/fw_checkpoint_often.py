"""A checkpoint after every step.

class: framework
also: memory
codes: FW529
"""

import io
import sys

import torch
from torch import nn


def save(model, optimizer):
    with io.BytesIO() as box:
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, box)  # PLANT


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(256, 256) for _ in range(6)])
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    inputs = torch.randn(16, 256)
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()
        save(model, optimizer)
    print(f"trained {step + 1} steps")


if __name__ == "__main__":
    main()
