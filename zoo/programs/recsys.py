"""Recommenders: embedding tables, wide feature batches, ranking."""

import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, pick, pinned


class ClickModel(nn.Module):
    def __init__(self, fields, buckets, dim):
        super().__init__()
        self.tables = nn.EmbeddingBag(buckets, dim, mode="sum")
        self.deep = nn.Sequential(nn.Linear(dim, 256), nn.ReLU(), nn.Linear(256, 1))

    def forward(self, ids):
        return self.deep(self.tables(ids)).squeeze(1)


class ClickLog(Dataset):
    def __init__(self, fields, buckets):
        self.fields, self.buckets = fields, buckets

    def __len__(self):
        return 1_000_000

    def hash_row(self, i):
        return [
            zlib.crc32(f"field{k}={i * 31 % (k + 7)}".encode()) % self.buckets
            for k in range(self.fields)
        ]

    def __getitem__(self, i):
        return np.array(self.hash_row(i)), np.float32(i % 2)


@case(
    "feature hashing in the main process (num_workers=0)",
    "data_loading",
    codes=("DL101", "DL108"),
    functions=("hash_row", "__getitem__", "train_clicks"),
    active=3,
)
def dl_hash_mainproc(fixed):
    buckets = pick(100_000, 100)
    model = ClickModel(20, buckets, 64).to(DEV)
    opt = torch.optim.Adagrad(model.parameters(), lr=0.01)
    workers = pick(8, 1) if fixed else 0
    loader = DataLoader(ClickLog(20, buckets), pick(256, 4), num_workers=workers)  # PLANT
    stream = iter(loader)

    def train_clicks():
        ids, clicked = next(stream)
        opt.zero_grad()
        F.binary_cross_entropy_with_logits(model(ids.to(DEV)), clicked.to(DEV)).backward()
        opt.step()

    return train_clicks


@case(
    "wide dense features copied from pageable memory",
    "data_loading",
    also=("memory",),
    codes=("DL105",),
    functions=("to_device",),
    plant_in="to_device",
)
def h2d_pageable_features(fixed):
    net = nn.Sequential(
        nn.Linear(400, 512), nn.ReLU(), nn.Linear(512, 256), nn.ReLU(), nn.Linear(256, 1)
    )
    net = net.to(DEV)
    opt = torch.optim.Adam(net.parameters(), fused=True)
    rows = pick(48_000, 8)
    parts = [{"dense": torch.rand(rows, 400), "label": torch.rand(rows)} for _ in range(3)]
    if fixed:
        parts = [{k: pinned(v) for k, v in p.items()} for p in parts]
    turn = [0]

    def train_dense():
        turn[0] += 1
        batch = to_device(parts[turn[0] % 3], fixed)
        opt.zero_grad()
        F.mse_loss(net(batch["dense"]).squeeze(1), batch["label"]).backward()
        opt.step()

    return train_dense


def to_device(batch, overlap):
    return {k: v.to(DEV, non_blocking=overlap) for k, v in batch.items()}  # PLANT


@case(
    "fp32 ranking tower without TF32",
    "compute",
    codes=("CP201",),
    functions=("train_tower",),
    light=True,
)
def cp_fp32_tower(fixed):
    width = pick(4096, 16)
    tower = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(width, width), nn.ReLU())]).to(
        DEV
    )
    opt = torch.optim.SGD(tower.parameters(), lr=1e-3, fused=True)
    x = torch.randn(pick(3072, 4), width, device=DEV)
    torch.set_float32_matmul_precision("high" if fixed else "highest")

    def train_tower():
        opt.zero_grad()
        loss = tower(x).square().mean()  # PLANT
        loss.backward()
        opt.step()

    return train_tower


@case(
    "the whole catalogue sorted to take the top 20",
    "compute",
    also=("memory",),
    codes=("CP204",),
    functions=("rank_items",),
    plant_in="rank_items",
)
def cp_sort_catalogue(fixed):
    users = torch.randn(pick(128, 4), 128, device=DEV)
    items = torch.randn(pick(200_000, 64), 128, device=DEV)
    rerank = nn.Sequential(nn.Linear(256, 128), nn.ReLU(), nn.Linear(128, 1)).to(DEV)

    @torch.no_grad()
    def recommend():
        scores = users @ items.T
        top = scores.topk(20).indices if fixed else rank_items(scores)
        pair = torch.cat([users[:, None].expand(-1, 20, -1), items[top]], -1)
        return rerank(pair)

    return recommend


def rank_items(scores):
    return scores.argsort(dim=1, descending=True)[:, :20]  # PLANT


@case(
    "a feature bank grown with cat at every batch, freed by empty_cache()",
    "memory",
    also=("framework",),
    codes=("MM302", "MM316", "MM309"),
    functions=("remember",),
    plant_in="Bank.remember",
    active=6,
)
def mm_growing_bank(fixed):
    net = nn.Sequential(nn.Linear(512, 1024), nn.ReLU(), nn.Linear(1024, 512)).to(DEV)
    bank = Bank(pick(60_000, 8), pick(4096, 4), room=48, fixed=fixed)
    x = torch.randn(pick(4096, 4), 512, device=DEV)

    @torch.no_grad()
    def embed_users():
        h = F.normalize(net(x), dim=1)
        return h @ bank.remember(h)[:512].T

    return embed_users


class Bank:
    """Keys seen so far in this epoch; an epoch is `room` batches."""

    def __init__(self, base, chunk, room, fixed):
        self.base, self.chunk, self.room, self.fixed = base, chunk, room, fixed
        self.store = torch.zeros(base + room * chunk, 512, device=DEV)
        self.rows = torch.zeros(base, 512, device=DEV)
        self.n = 0

    def remember(self, new):
        if self.n == self.room:
            self.n, self.rows = 0, self.rows[: self.base].clone()
            if not DRY and not self.fixed:
                torch.cuda.empty_cache()
        self.n += 1
        if self.fixed:
            end = self.base + self.n * self.chunk
            self.store[end - self.chunk : end] = new
            return self.store[:end]
        self.rows = torch.cat([self.rows, new])  # PLANT
        return self.rows


@case(
    "exponential moving average through clones of every weight",
    "memory",
    codes=("MM309",),
    functions=("update_average",),
    plant_in="update_average",
)
def mm_ema_clones(fixed):
    table = nn.Embedding(pick(1_500_000, 50), 128, sparse=True, device=DEV)
    wide = pick(1024, 16)
    deep = nn.Sequential(
        nn.Linear(128, wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(), nn.Linear(wide, 1)
    )
    model = nn.ModuleDict({"table": table, "deep": deep.to(DEV)})
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    average = {k: v.detach().clone() for k, v in model.state_dict().items()}
    ids = torch.randint(0, table.num_embeddings, (pick(1024, 8),), device=DEV)

    def train_average():
        opt.zero_grad()
        model["deep"](model["table"](ids)).mean().backward()
        opt.step()
        if fixed:
            with torch.no_grad():
                torch._foreach_lerp_(
                    list(average.values()), list(model.state_dict().values()), 0.01
                )
        else:
            update_average(average, model)

    return train_average


def update_average(average, model):
    now = {k: v.detach().clone() for k, v in model.state_dict().items()}  # PLANT
    old = {k: v.clone() for k, v in average.items()}
    for k, v in now.items():
        average[k].copy_(old[k].mul_(0.99).add_(v, alpha=0.01))
