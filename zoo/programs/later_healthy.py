"""Programs with something that looks like a mistake and has next to nothing to gain."""

import itertools
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, compiled, pick, replayed

BF16 = torch.bfloat16


class Wide(nn.Module):
    """Two large products and little else."""

    def __init__(self, dim):
        super().__init__()
        self.up, self.down = nn.Linear(dim, dim), nn.Linear(dim, dim)

    def forward(self, x):
        return x + self.down(F.relu(self.up(x)))


def wide_net(dim, depth):
    with DEV:
        return nn.Sequential(*(Wide(dim) for _ in range(depth))).to(BF16)


def descend(opt, loss):
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.detach()


class Notes:
    """Prints nothing, but wants each number at once."""

    def __init__(self):
        self.rows = []

    def add(self, **numbers):
        self.rows.append({name: value.item() for name, value in numbers.items()})
        del self.rows[:-100]


# Four numbers are read after a step of about 35 ms; the device then waits some 0.2 ms.
@case("four numbers read after each step of large products", "compute", active=3)
def h_ok_four_numbers(_):
    dim, rows = pick(8192, 8), pick(8192, 4)
    net, notes = wide_net(dim, pick(3, 1)), Notes()
    opt = torch.optim.SGD(net.parameters(), 1e-3, fused=True)
    x, y = torch.randn(2, rows, dim, device=DEV, dtype=BF16)

    def train_and_note():
        out = net(x)
        loss = descend(opt, F.mse_loss(out, y))
        first = out.detach()[0].float()
        notes.add(loss=loss, mean=first.mean(), low=first.min(), high=first.max())
        return loss

    return train_and_note


class Routes(Dataset):
    """Routes of ships, each short."""

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        make = torch.Generator().manual_seed(i)
        return torch.rand(pick(64, 4), pick(128, 8), generator=make)


def slow_collate(routes):
    """Sorts and pads with great care: 80 ms."""
    time.sleep(pick(0.08, 0.001))
    return torch.stack(sorted(routes, key=lambda r: float(r.sum())))


# 80 ms of collation in eight workers: 10 ms a batch, behind a step of about 35 ms.
@case("a costly collate function that eight workers hide behind large products", "compute")
def h_ok_collate_hidden(_):
    dim, rows = pick(8192, 8), pick(128, 2)
    net = wide_net(dim, pick(3, 1))
    with DEV:
        stem = nn.Linear(pick(128, 8), dim).to(BF16)
    opt = torch.optim.SGD([*stem.parameters(), *net.parameters()], 1e-3, fused=True)
    loader = DataLoader(
        Routes(), rows, num_workers=pick(8, 1), collate_fn=slow_collate, pin_memory=not DRY
    )
    batches = iter(loader)

    def sail():
        routes = next(batches).to(DEV, non_blocking=True).to(BF16).flatten(0, 1)
        return descend(opt, net(stem(routes)).square().mean())

    return sail


# Tiny kernels of 2 to 3 us, each waiting for the one before, all of them in one CUDA graph.
@case(
    "a small net that steers a valve, trained by replays of a CUDA graph",
    "compute",
    also=("memory", "framework"),
)
def h_ok_valve_replayed(_):
    wide, rows = pick(256, 4), pick(512, 3)
    torch.set_float32_matmul_precision("high")
    with DEV:
        sizes = [16, wide, wide, wide, wide]
        layers = [nn.Linear(a, b) for a, b in itertools.pairwise(sizes)]
        net = nn.Sequential(*itertools.chain(*((a, nn.Tanh()) for a in layers)), nn.Linear(wide, 1))
        state, wanted = torch.randn(rows, 16), torch.randn(rows, 1)
    opt = torch.optim.Adam(net.parameters(), 1e-3, fused=True, capturable=True)

    def steer():
        return descend(opt, F.mse_loss(net(state), wanted))

    tick = replayed(steer)

    def train_valve():
        for _ in range(pick(20, 2)):
            tick()
        return state

    return train_valve


# 250 tensors, but one fused kernel over all of them: 1 ms of about 45 ms.
@case("an optimizer over many tensors, which is fused already", "compute", active=3)
def h_ok_many_tensors_fused(_):
    dim, parts, rows = pick(4096, 8), pick(24, 2), pick(16384, 4)
    with DEV:
        net = nn.Sequential(*(nn.Linear(dim, dim) for _ in range(parts))).to(BF16)
        gains = nn.ParameterList(nn.Parameter(torch.ones(8)) for _ in range(pick(200, 3)))
    opt = torch.optim.SGD([*net.parameters(), *gains.parameters()], 1e-3, fused=True)
    x = torch.randn(rows, dim, device=DEV, dtype=BF16)

    def train_parts():
        spread = torch.stack(list(gains)).square().mean()
        return descend(opt, net(x).square().mean() + 0.01 * spread)

    return train_parts


class Relight(nn.Module):
    """Ten operators on each value of an image."""

    def forward(self, image, light):
        y = (image * light).clamp_min(1e-4).log2()
        y = (y + 1.5) * 1.2 - 1.5
        y = torch.exp2(y) / (1.0 + torch.exp2(y))
        return (y - 0.02).clamp(0, 1)


# Compiled to one kernel that reads and writes each value once: there is nothing left to fuse.
@case("large images relit by a chain of operators that is compiled already", "memory", marks=False)
def h_ok_relit_compiled(_):
    relight = compiled(Relight().eval())
    with DEV:
        images = torch.rand(pick(4, 1), pick(32, 1), 3, pick(1080, 8), pick(1920, 8), dtype=BF16)
        light = torch.rand(1, 3, 1, 1, dtype=BF16)

    @torch.inference_mode()
    def relight_all():
        for image in images:
            out = relight(image, light)
        return out

    return relight_all


# A Python loop, but each turn is two products of 1.1 TFLOP: 3.5 ms of tensor cores.
@case("long manuscripts read one after the other in a Python loop", "compute", marks=False)
def h_ok_manuscripts_in_loop(_):
    dim, lines, count = pick(8192, 8), pick(8192, 4), pick(8, 2)
    with DEV:
        net = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, dim)).to(BF16).eval()
        manuscripts = torch.randn(count, lines, dim, dtype=BF16)

    @torch.inference_mode()
    def read_all():
        ends = []
        for i in range(count):
            read = net(manuscripts[i])
            ends.append(read[-1])
        return torch.stack(ends)

    return read_all
