"""A convolution net on images of another size in each step: cuDNN must not measure each size anew."""

from __future__ import annotations

import random

import torch
from _clock import options, repeat
from torch import nn

CHANNELS, BATCH, CLASSES = 64, 4, 10


def main() -> None:
    chosen = options(__doc__ or "")
    torch.backends.cudnn.benchmark = chosen.fixed or torch.backends.cudnn.benchmark
    layers: list[nn.Module] = [nn.Conv2d(3, CHANNELS, 3, padding=1), nn.ReLU()]
    for _ in range(6):
        layers += [nn.Conv2d(CHANNELS, CHANNELS, 3, padding=1), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(CHANNELS, CLASSES)]
    model = nn.Sequential(*layers, *head).cuda()
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    target = torch.zeros(BATCH, dtype=torch.long, device="cuda")
    images = torch.randn(BATCH, 3, 512, 512, device="cuda")

    def step(_: int) -> None:
        height, width = random.randrange(96, 512), random.randrange(96, 512)
        optimizer.zero_grad()
        answer = model(images[:, :, :height, :width].contiguous())
        nn.functional.cross_entropy(answer, target).backward()
        optimizer.step()

    repeat(step, chosen)


if __name__ == "__main__":
    main()
