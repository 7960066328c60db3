"""DDP that looks for unused parameters and sends small buckets; start it with torchrun."""

from __future__ import annotations

import os

import torch
from _clock import options, repeat
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

WIDTH, LAYERS, ROWS = 512, 60, 1024
ON_CPU = 128, 20, 16


def main() -> None:
    chosen = options(__doc__ or "")
    device, backend = torch.device("cpu"), "gloo"
    if torch.cuda.is_available():
        device, backend = torch.device("cuda", int(os.environ["LOCAL_RANK"])), "nccl"
        torch.cuda.set_device(device)
    distributed.init_process_group(backend)
    width, count, rows = (WIDTH, LAYERS, ROWS) if device.type == "cuda" else ON_CPU
    layers = [nn.Sequential(nn.Linear(width, width), nn.ReLU()) for _ in range(count)]
    model = DistributedDataParallel(
        nn.Sequential(*layers).to(device),
        find_unused_parameters=not chosen.fixed,
        bucket_cap_mb=25 if chosen.fixed else 1,
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    x = torch.randn(rows, width, device=device)

    def step(_: int) -> None:
        optimizer.zero_grad()
        model(x).square().mean().backward()
        optimizer.step()

    repeat(step, chosen)
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
