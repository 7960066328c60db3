"""Healthy controls: they look guilty, and no change is worth 5 % of the step."""

import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, pick, pinned, replayed
from zoo.programs.unseen_data import BF16


def wide(dim, depth):
    with DEV:
        layers = [m for _ in range(depth) for m in (nn.Linear(dim, dim), nn.ReLU())]
        return nn.Sequential(*layers).to(BF16)


def sgd(net):
    return torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)


@case("healthy: gradients read back one by one at the end of a GPU-bound step", "compute", active=3)
def d_ok_many_items(fixed):
    net = wide(pick(8192, 8), 3)
    opt = sgd(net)
    x = torch.randn(pick(16384, 4), pick(8192, 8), device=DEV, dtype=BF16)
    log = {}

    def train_watched():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
        for name, p in net.named_parameters():
            log[name] = p.grad.flatten()[0].item()

    return train_watched


class SlowSource(Dataset):
    def __init__(self, dim):
        self.dim = dim

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        time.sleep(pick(0.002, 0.001))  # a remote store
        return torch.full((self.dim,), i % 7, dtype=torch.float32), i % 7


@case("healthy: a slow store behind workers, hidden by the GPU", "compute", active=3)
def d_ok_slow_store_hidden(fixed):
    dim = pick(8192, 8)
    net = nn.Sequential(wide(dim, 2), nn.Linear(dim, 7, device=DEV, dtype=BF16))
    opt = sgd(net)
    loader = DataLoader(
        SlowSource(dim), pick(64, 2), num_workers=pick(12, 1), pin_memory=not DRY, prefetch_factor=4
    )
    source = iter(loader)

    def train_from_store():
        rows, kind = (t.to(DEV, non_blocking=True) for t in next(source))
        opt.zero_grad()
        x = rows.to(BF16).repeat(pick(256, 2), 1)
        F.cross_entropy(net(x).float(), kind.repeat(pick(256, 2))).backward()
        opt.step()

    return train_from_store


@case("healthy: a whole training step replayed as one CUDA graph", "compute", also=("memory",))
def d_ok_replayed_training(fixed):
    net = wide(pick(4096, 8), 4)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4)
    x = torch.randn(pick(8192, 4), pick(4096, 8), device=DEV, dtype=BF16)

    def train_step():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()

    return replayed(train_step)


@case(
    "healthy: many small steps of a simulator in one CUDA graph",
    "compute",
    also=("framework", "memory"),
    active=3,
)
def d_ok_small_simulator(fixed):
    net = nn.Sequential(nn.Linear(32, 64), nn.Tanh(), nn.Linear(64, 32)).to(DEV)
    state = torch.randn(pick(512, 4), 32, device=DEV)

    @torch.no_grad()
    def simulate():
        for _ in range(pick(240, 3)):
            state.add_(net(state), alpha=0.01)

    return replayed(simulate)


@case(
    "healthy: large pinned copies on a side stream, all under the GPU's work",
    "compute",
    also=("memory",),
    active=3,
)
def d_ok_copies_hidden(fixed):
    rows, dim = pick(16384, 4), pick(8192, 8)
    net = wide(dim, 2)
    opt = sgd(net)
    hosts = [pinned(torch.randn(4, dim).to(BF16).repeat(rows // 4, 1)) for _ in range(2)]
    rooms = [torch.empty(rows, dim, dtype=BF16, device=DEV) for _ in range(2)]
    side = None if DRY else torch.cuda.Stream()
    turn = [0]

    def train_streamed():
        now, after = rooms[turn[0] % 2], rooms[(turn[0] + 1) % 2]
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            after.copy_(hosts[turn[0] % 2], non_blocking=True)
        opt.zero_grad()
        net(now).square().mean().backward()
        opt.step()
        turn[0] += 1

    return train_streamed


@case(
    "healthy: two thirds of the memory in use, steady, GPU-bound",
    "compute",
    also=("memory",),
    active=3,
)
def d_ok_much_memory(fixed):
    share = 0 if DRY else int(torch.cuda.mem_get_info()[1] * 0.62)
    table = torch.ones(share, dtype=torch.uint8, device=DEV)
    net = wide(pick(8192, 8), 2)
    opt = sgd(net)
    rows, dim = pick(16384, 4), pick(8192, 8)

    def train_beside_table():
        part = table[: rows * dim] if not DRY else torch.zeros(rows * dim, device=DEV)
        opt.zero_grad()
        net(part.view(rows, dim).to(BF16)).square().mean().backward()
        opt.step()

    return train_beside_table


@case(
    "healthy: two large checkpoints averaged, at the memory's roof",
    "memory",
    also=("compute",),
)
def d_ok_averaged_weights(fixed):
    size = pick(1 << 29, 64)
    pairs = [torch.full((2, size), 0.5, device=DEV, dtype=BF16) for _ in range(4)]
    mean = torch.empty(size, device=DEV, dtype=BF16)

    @torch.inference_mode()
    def average():
        for first, second in pairs:
            torch.lerp(first, second, 0.5, out=mean)

    return average
