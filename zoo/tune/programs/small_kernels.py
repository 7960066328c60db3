"""Inference, one request at a time, of a network whose layers are too small for the host."""

from __future__ import annotations

import torch
from _clock import options, repeat
from torch import nn

WIDTH, LAYERS = 256, 40


class Gated(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.up, self.gate, self.down = (nn.Linear(WIDTH, WIDTH) for _ in range(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(x)
        return x + self.down(self.up(y) * torch.sigmoid(self.gate(y)))


def main() -> None:
    chosen = options(__doc__ or "")
    model = nn.Sequential(*(Gated() for _ in range(LAYERS)), nn.Linear(WIDTH, 16)).cuda().eval()
    request = torch.randn(1, WIDTH, device="cuda")
    answer = model
    with torch.inference_mode():
        if chosen.fixed:
            for _ in range(3):
                model(request)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                output = model(request)

            def answer(_: torch.Tensor) -> torch.Tensor:
                graph.replay()
                return output

        repeat(lambda _: answer(request), chosen)


if __name__ == "__main__":
    main()
