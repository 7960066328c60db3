"""DDP that looks for unused parameters and sends small buckets; start it with torchrun."""

from __future__ import annotations

import os

import torch
from _clock import options, repeat
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, ROWS = 512, 60, 1024


def main() -> None:
    chosen = options(__doc__ or "")
    torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    distributed.init_process_group("nccl")
    layers = [nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU()) for _ in range(LAYERS)]
    model = DistributedDataParallel(
        nn.Sequential(*layers).cuda(),
        find_unused_parameters=not chosen.fixed,
        bucket_cap_mb=25 if chosen.fixed else 1,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(ROWS, WIDTH, device="cuda")

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    repeat(step, chosen)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
