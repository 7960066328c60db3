"""A compiled model with a print in the loop over its layers: one graph a layer.

class: framework
also: memory compute
codes: FW510 FW534
"""

import sys

import torch
from torch import nn


class Guarded(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(16, 16) for _ in range(24)])

    def forward(self, x):
        for layer in self.layers:
            x = torch.relu(layer(x))
            if x.abs().max() > 1e6:  # PLANT
                x = x.clamp(-1, 1)
        return x


def main():
    torch.manual_seed(0)
    model = torch.compile(Guarded(), backend="eager")
    inputs = torch.randn(8, 16)
    with torch.no_grad():
        for _ in range(int(sys.argv[1])):
            result = model(inputs)
    print(f"served, {result.shape}")


if __name__ == "__main__":
    main()
