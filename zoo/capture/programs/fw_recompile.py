"""A compiled function that is compiled again for every new number.

class: framework
codes: FW511 FW512
"""

import sys

import torch
import torch._dynamo
from torch import nn


class Shifted(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(16, 16)

    def forward(self, x, shift):
        return torch.roll(self.layer(x), 1, 0) * shift  # PLANT


def main():
    torch.manual_seed(0)
    name = (
        "recompile_limit"
        if hasattr(torch._dynamo.config, "recompile_limit")
        else "cache_size_limit"
    )
    setattr(torch._dynamo.config, name, 100_000)
    setattr(torch._dynamo.config, f"accumulated_{name}", 100_000)
    model = torch.compile(Shifted(), backend="eager", dynamic=False)
    inputs = torch.randn(8, 16)
    with torch.no_grad():
        for step in range(int(sys.argv[1])):
            result = model(inputs, step // 4)
    print(f"served, {result.shape}")


if __name__ == "__main__":
    main()
