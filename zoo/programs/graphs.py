"""Graphs and molecules: scatter-style message passing."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick, replayed


class Messages(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.send, self.mix = nn.Linear(dim, dim), nn.Linear(2 * dim, dim)
        self.norm = nn.LayerNorm(dim)

    def forward(self, x, src, dst):
        m = F.silu(self.send(x))[src]
        pooled = torch.zeros_like(x).index_add(0, dst, m)
        return x + self.norm(self.mix(torch.cat([x, pooled], 1)))


class GraphNet(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.layers = nn.ModuleList(Messages(dim) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x, src, dst):
        for layer in self.layers:
            x = layer(x, src, dst)
        return self.out(x)


def small_graph(nodes, edges, dim):
    x = torch.randn(nodes, dim, device=DEV)
    src, dst = torch.randint(0, nodes, (2, edges), device=DEV)
    return x, src, dst


@case(
    "launch-bound training of a small graph net",
    "framework",
    codes=("FW501",),
    functions=("forward", "train_graph"),
    light=True,
)
def fw_launch_gnn(fixed):
    model = GraphNet(64, pick(8, 2)).to(DEV)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    x, src, dst = small_graph(pick(1500, 10), pick(6000, 20), 64)
    y = torch.randn(x.shape[0], 1, device=DEV)

    def train_graph():
        opt.zero_grad()
        loss = F.mse_loss(model(x, src, dst), y)  # PLANT
        loss.backward()
        opt.step()

    return replayed(train_graph) if fixed else train_graph


@case(
    "autograd anomaly detection left on",
    "framework",
    codes=("FW521",),
    functions=("train_checked",),
    active=2,
)
def fw_anomaly_gnn(fixed):
    torch.autograd.set_detect_anomaly(not fixed)  # PLANT
    model = GraphNet(128, pick(4, 2)).to(DEV)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3)
    x, src, dst = small_graph(pick(20_000, 10), pick(80_000, 20), 128)

    def train_checked():
        opt.zero_grad()
        model(x, src, dst).square().mean().backward()
        opt.step()

    return train_checked


@case(
    "distance features in float64 through NumPy constants",
    "compute",
    also=("memory",),
    codes=("CP211",),
    functions=("radial_basis",),
    plant_in="radial_basis",
)
def cp_float64_rbf(fixed):
    nodes, edges = pick(30_000, 10), pick(600_000, 20)
    where = torch.rand(nodes, 3, device=DEV)
    src, dst = torch.randint(0, nodes, (2, edges), device=DEV)
    filters = nn.Sequential(nn.Linear(64, 64), nn.SiLU(), nn.Linear(64, 64)).to(DEV)
    x = torch.randn(nodes, 64, device=DEV)
    spread = np.linspace(0.0, 1.5, 64)
    centers = torch.from_numpy(spread.astype(np.float32) if fixed else spread).to(DEV)

    @torch.no_grad()
    def score_molecules():
        gap = (where[src] - where[dst]).norm(dim=1)
        basis = radial_basis(gap, centers).float()
        return torch.zeros_like(x).index_add(0, dst, x[src] * filters(basis)).sum(1)

    return score_molecules


def radial_basis(gap, centers):
    window = 0.5 * (torch.cos(gap * 2.0) + 1.0)
    return torch.exp(-9.0 * (gap[:, None] - centers) ** 2) * window[:, None]  # PLANT
