"""Two ranks: DDP, FSDP and hand-written gradient averaging."""

import time
from contextlib import nullcontext

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from zoo.harness import DEV, DRY, RANK, case, pick

BF16 = torch.bfloat16


def ddp(model, **kw):
    return DistributedDataParallel(model.to(DEV), device_ids=None if DRY else [DEV.index], **kw)


class Branch(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.relu(layer(norm(x)))
        return x


@case(
    "fp32 gradients of very wide layers, tiny batch: exposed all-reduce",
    "communication",
    codes=("CM401", "CM420"),
    functions=("train_wide_rank",),
    ranks=2,
)
def cm_wide_layers(fixed):
    width = pick(6144, 16)
    dtype = BF16 if fixed else torch.float32
    net = ddp(nn.Sequential(*[nn.Linear(width, width, bias=False) for _ in range(6)]).to(dtype))
    x = torch.randn(pick(32, 2), width, device=DEV, dtype=dtype)

    def train_wide_rank():
        net.zero_grad()
        net(x).square().mean().backward()  # PLANT

    return train_wide_rank


def average_gradients(model):
    for p in model.parameters():
        dist.all_reduce(p.grad)  # PLANT
        p.grad /= dist.get_world_size()


@case(
    "hand-written gradient averaging, one all-reduce a tensor",
    "communication",
    also=("compute",),
    codes=("CM412", "CM403"),
    functions=("average_gradients",),
    plant_in="average_gradients",
    ranks=2,
    active=3,
)
def cm_average_each(fixed):
    torch.set_float32_matmul_precision("high")
    model = Branch(pick(6144, 8), pick(6, 2)).to(DEV)
    net = ddp(model) if fixed else model
    x = torch.randn(pick(512, 4), pick(6144, 8), device=DEV)

    def train_branch():
        net.zero_grad()
        net(x).square().mean().backward()
        if not fixed:
            average_gradients(model)

    return train_branch


def mean_of_gathered(p):
    parts = [torch.empty_like(p.grad) for _ in range(dist.get_world_size())]
    dist.all_gather(parts, p.grad)  # PLANT
    p.grad = torch.stack(parts).mean(0)


@case(
    "gradients gathered and averaged tensor by tensor",
    "communication",
    also=("framework", "memory"),
    codes=("CM412", "CM403"),
    functions=("mean_of_gathered",),
    plant_in="mean_of_gathered",
    ranks=2,
    active=3,
)
def cm_gather_each(fixed):
    torch.set_float32_matmul_precision("high")
    model = nn.Sequential(
        nn.Embedding(pick(400_000, 10), 1024), *[nn.Linear(1024, 1024) for _ in range(pick(8, 2))]
    ).to(DEV)
    net = ddp(model) if fixed else model
    ids = torch.randint(0, 10, (pick(4096, 4),), device=DEV)

    def train_gathered():
        net.zero_grad()
        net(ids).square().mean().backward()
        if not fixed:
            for p in model.parameters():
                mean_of_gathered(p)

    return train_gathered


@case(
    "DDP buckets of 50 KB",
    "communication",
    also=("framework",),
    codes=("CM403",),
    functions=("train_bucketed",),
    ranks=2,
    active=3,
)
def cm_tiny_buckets(fixed):
    size = 25 if fixed else 0.05
    net = ddp(Branch(pick(256, 8), pick(48, 2)), bucket_cap_mb=size)  # PLANT
    x = torch.randn(pick(1024, 4), pick(256, 8), device=DEV)

    def train_bucketed():
        net.zero_grad()
        net(x).square().mean().backward()

    return train_bucketed


@case(
    "gradients synchronised at every micro-batch",
    "communication",
    also=("compute", "memory"),
    codes=("CM408",),
    functions=("train_accumulate",),
    ranks=2,
    active=3,
)
def cm_sync_each_micro(fixed):
    torch.set_float32_matmul_precision("high")
    net = ddp(Branch(pick(8192, 8), pick(3, 2)))
    parts = [torch.randn(pick(64, 2), pick(8192, 8), device=DEV) for _ in range(4)]

    def train_accumulate():
        net.zero_grad()
        for k, part in enumerate(parts):
            last = k == len(parts) - 1
            with net.no_sync() if fixed and not last else nullcontext():
                net(part).square().mean().backward()  # PLANT

    return train_accumulate


@case(
    "a barrier and a loss all-reduce at every step",
    "communication",
    also=("compute", "framework"),
    codes=("CM413", "FW503"),
    functions=("log_loss",),
    plant_in="log_loss",
    ranks=2,
)
def cm_barrier_each_step(fixed):
    net = ddp(Branch(pick(1024, 8), pick(8, 2)))
    x = torch.randn(pick(8192, 4), pick(1024, 8), device=DEV)
    losses = []

    def train_logged():
        for _ in range(3):
            net.zero_grad()
            loss = net(x).square().mean()
            loss.backward()
            if fixed:
                losses[:] = [loss.detach()]
            else:
                losses[:] = [log_loss(loss)]

    return train_logged


def log_loss(loss):
    total = loss.detach().clone()
    dist.barrier()  # PLANT
    dist.all_reduce(total)
    return total.item() / dist.get_world_size()


class EncoderBlock(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (nn.Linear(dim, dim) for _ in range(4))
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)

    def forward(self, x):
        h = self.norm(x)
        q, k, v = (m(h).unflatten(-1, (4, -1)).transpose(1, 2) for m in (self.q, self.k, self.v))
        x = x + self.o(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(x)))


@case(
    "FSDP wraps every projection of an encoder",
    "communication",
    also=("framework",),
    codes=("CM418", "CM403"),
    functions=("train_encoder", "forward"),
    ranks=2,
    active=2,
)
def cm_fsdp_projections(fixed):
    dim = pick(512, 8)
    blocks = nn.Sequential(*[EncoderBlock(dim) for _ in range(pick(3, 2))]).to(DEV)
    for block in blocks:
        if not fixed:
            for part in block.children():
                fully_shard(part)  # PLANT
        else:
            fully_shard(block)
    fully_shard(blocks)
    x = torch.randn(pick(8, 1), pick(128, 4), dim, device=DEV)

    def train_encoder():
        blocks.zero_grad()
        blocks(x).square().mean().backward()

    return train_encoder


def conv_block(chans):
    return nn.Sequential(nn.Conv2d(chans, chans, 3, padding=1), nn.GroupNorm(4, chans), nn.ReLU())


@case(
    "FSDP wraps every convolution and norm of a small convnet",
    "communication",
    also=("framework",),
    codes=("CM418", "CM403"),
    functions=("train_shards",),
    ranks=2,
    active=2,
)
def cm_fsdp_convs(fixed):
    net = nn.Sequential(*[conv_block(pick(128, 8)) for _ in range(pick(8, 2))]).to(DEV)
    if not fixed:
        for leaf in list(net.modules()):
            if isinstance(leaf, nn.Conv2d | nn.GroupNorm):
                fully_shard(leaf)  # PLANT
    fully_shard(net)
    x = torch.randn(16, pick(128, 8), 16, 16, device=DEV)

    def train_shards():
        net.zero_grad()
        net(x).square().mean().backward()

    return train_shards


def decode_samples(count):
    """A stand-in for decoding: this rank's files need more of it."""
    until = time.perf_counter() + 0.004 * count
    total = 0
    while time.perf_counter() < until:
        total += 1  # PLANT
    return total


@case(
    "rank 1 decodes three times as many samples on the host",
    "communication",
    also=("data_loading", "framework"),
    codes=("CM406",),
    functions=("decode_samples",),
    plant_in="decode_samples",
    ranks=2,
    active=3,
)
def cm_slow_decoder(fixed):
    net = ddp(Branch(pick(2048, 8), pick(8, 2)).to(DEV))
    x = torch.randn(pick(2048, 2), pick(2048, 8), device=DEV)

    def train_decoded():
        decode_samples(3 if RANK == 1 and not fixed else 1)
        net.zero_grad()
        net(x).square().mean().backward()

    return train_decoded


@case(
    "healthy: DDP of a large bf16 model, communication hidden",
    "compute",
    ranks=2,
)
def ok_ddp_large(fixed):
    net = ddp(Branch(pick(4096, 8), pick(8, 2)).to(BF16), gradient_as_bucket_view=True)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(16384, 2), pick(4096, 8), device=DEV, dtype=BF16)

    def train_large():
        opt.zero_grad()
        net(x).float().square().mean().backward()
        opt.step()

    return train_large
