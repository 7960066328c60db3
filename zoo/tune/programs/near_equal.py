"""Scores that are differences of nearly equal numbers; the data set is tiny and in memory."""

from __future__ import annotations

import torch
from _clock import options, repeat
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Differences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(512, 512)
        self.weight = nn.Parameter(torch.full((512, 512), 1.0))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.first(x)
        return 100 * ((100 + x) @ self.weight - 100 * self.weight.sum(0))


def main() -> None:
    chosen = options(__doc__ or "")
    model = Differences().cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, fused=True)
    rows = TensorDataset(torch.randn(2048, 512), torch.zeros(2048, 512))

    def batches():
        while True:
            yield from DataLoader(rows, batch_size=256, shuffle=True)

    stream = batches()

    def step(_: int) -> None:
        x, target = (part.cuda() for part in next(stream))
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), target).backward()
        optimizer.step()

    repeat(step, chosen)


if __name__ == "__main__":
    main()
