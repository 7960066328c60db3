"""An activation written out as a chain of pointwise operators over large tensors."""

from __future__ import annotations

import math

import torch
from _clock import options, repeat
from torch import nn

WIDTH, ROWS = 1024, 16384


class Activation(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        inner = math.sqrt(2 / math.pi) * (x + 0.044715 * x * x * x)
        y = 0.5 * x * (1 + torch.tanh(inner))
        return torch.where(y > 4, 4 + 0.1 * (y - 4), y) * torch.sigmoid(0.1 * x + 1)


class Network(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.act = Activation()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = x + self.act(layer(x))
        return x


def main() -> None:
    chosen = options(__doc__ or "")
    model = Network().cuda().bfloat16()
    if chosen.fixed:
        model.compile()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(ROWS, WIDTH, device="cuda", dtype=torch.bfloat16)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).float().square().mean().backward()
        optimizer.step()

    repeat(step, chosen)


if __name__ == "__main__":
    main()
