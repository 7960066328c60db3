"""Reinforcement learning: roll-outs and replay."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick


def policy(obs, dim, actions):
    return nn.Sequential(
        nn.Linear(obs, dim), nn.Tanh(), nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, actions)
    ).to(DEV)


@case(
    "roll-out reads every action back with .item()",
    "framework",
    codes=("FW503",),
    functions=("roll_out",),
    plant_in="roll_out",
    active=3,
)
def fw_item_rollout(fixed):
    net = policy(32, pick(512, 16), 6)
    move = torch.randn(6, 32, device=DEV) * 0.1

    @torch.no_grad()
    def collect():
        return roll_out_on_device(net, move) if fixed else roll_out(net, move)

    return collect


def roll_out(net, move):
    obs, total = torch.zeros(1, 32, device=DEV), 0.0
    for _ in range(24):
        action = torch.multinomial(net(obs).softmax(-1), 1).item()  # PLANT
        obs = (obs + move[action]).clamp(-1, 1)
        total += obs[0, 0].item()
    return total


def roll_out_on_device(net, move):
    obs, total = torch.zeros(1, 32, device=DEV), torch.zeros((), device=DEV)
    for _ in range(24):
        action = torch.multinomial(net(obs).softmax(-1), 1)[0]
        obs = (obs + move[action]).clamp(-1, 1)
        total += obs[0, 0]
    return total


class SumTree:
    """Priorities of a replay buffer, updated leaf by leaf in Python."""

    def __init__(self, depth):
        self.depth = depth
        self.sums = [0.0] * (2 << depth)

    def update(self, leaves, values):
        for leaf, value in zip(leaves, values, strict=True):
            node = leaf + (1 << self.depth)
            change = value - self.sums[node]
            while node:
                self.sums[node] += change  # PLANT
                node >>= 1


@case(
    "prioritised replay: a sum tree in pure Python between batches",
    "framework",
    codes=("FW517",),
    functions=("update",),
    plant_in="SumTree.update",
    light=True,
)
def fw_sum_tree(fixed):
    net = policy(128, pick(1024, 16), 18)
    opt = torch.optim.Adam(net.parameters(), lr=1e-3, fused=True)
    obs = torch.randn(pick(2048, 8), 128, device=DEV)
    tree = SumTree(18)
    leaves = np.random.default_rng(0).integers(0, 1 << 18, obs.shape[0])
    where = torch.from_numpy(leaves).to(DEV)
    flat = torch.zeros(1 << 18, device=DEV)
    leaf_list = leaves.tolist()

    def learn():
        q = net(obs)
        loss = F.smooth_l1_loss(q, torch.ones_like(q), reduction="none").mean(1)
        opt.zero_grad()
        loss.mean().backward()
        opt.step()
        if fixed:
            flat.index_copy_(0, where, loss.detach())
        else:
            tree.update(leaf_list, loss.tolist())

    return learn
