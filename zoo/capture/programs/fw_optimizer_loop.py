"""An optimizer that updates one small tensor after another.

class: framework
codes: FW507
"""

import sys

import torch
from torch import nn


def main():
    torch.manual_seed(0)
    model = nn.Sequential(*[nn.Linear(16, 16) for _ in range(120)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, foreach=False)
    inputs = torch.randn(8, 16)
    for step in range(int(sys.argv[1])):
        optimizer.zero_grad()
        model(inputs).square().mean().backward()
        optimizer.step()  # PLANT
    print(f"trained {step + 1} steps")


if __name__ == "__main__":
    main()
