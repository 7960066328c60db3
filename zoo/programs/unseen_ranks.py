"""Two ranks, one mistake each; two healthy controls."""

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.fsdp import fully_shard
from torch.nn.parallel import DistributedDataParallel

from zoo.harness import DEV, DRY, RANK, WORLD, case, pick
from zoo.programs.unseen_data import BF16


class Gated(nn.Module):
    def __init__(self, dim):
        super().__init__()
        self.norm, self.gate = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim)
        self.down = nn.Linear(2 * dim, dim)

    def forward(self, x):
        return x + self.down(F.silu(self.gate(self.norm(x))))


def gated_stack(dim, depth, dtype):
    torch.manual_seed(0)
    with DEV:
        return nn.Sequential(*[Gated(dim) for _ in range(depth)]).to(dtype)


def parallel(net):
    return DistributedDataParallel(net, device_ids=None if DRY else [DEV.index])


@case(
    "batches bucketed by length: the long ones go to rank 0",
    "communication",
    also=("compute", "memory"),
    codes=("CM406", "CM407"),
    functions=("train_bucketed_lengths",),
    ranks=2,
)
def d2_long_batches_rank0(fixed):
    net = parallel(gated_stack(pick(2048, 8), pick(6, 2), BF16))
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    share = 4 if fixed else (5 if RANK == 0 else 3)  # PLANT
    x = torch.randn(pick(4096, 2) * share, pick(2048, 8), device=DEV, dtype=BF16)

    def train_bucketed_lengths():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()

    return train_bucketed_lengths


@case(
    "each gradient all-reduced and waited for in its hook",
    "communication",
    also=("framework", "compute"),
    codes=("CM412", "CM422", "CM402", "CM403", "CM401"),
    functions=("reduce_now", "train_hooked"),
    ranks=2,
    active=3,
)
def d2_hooks_wait(fixed):
    net = gated_stack(pick(4096, 8), pick(6, 2), BF16)
    x = torch.randn(pick(2048, 2), pick(4096, 8), device=DEV, dtype=BF16)
    pending = []

    def reduce_now(p):
        p.grad.div_(WORLD)
        work = dist.all_reduce(p.grad, async_op=fixed)  # PLANT
        pending.append(work)

    for p in net.parameters():
        p.register_post_accumulate_grad_hook(reduce_now)

    def train_hooked():
        net.zero_grad()
        pending.clear()
        net(x).square().mean().backward()
        for work in pending:
            if work is not None:
                work.wait()

    return train_hooked


@case(
    "FSDP reduces the gradients after every micro-batch",
    "communication",
    also=("compute", "memory"),
    codes=("CM408", "CM401", "CM417"),
    functions=("train_micro_batches",),
    ranks=2,
    active=2,
)
def d2_shards_each_micro(fixed):
    net = gated_stack(pick(6144, 8), pick(4, 2), BF16)
    for block in net:
        fully_shard(block, reshard_after_forward=False)
    fully_shard(net)
    parts = torch.randn(4, pick(512, 2), pick(6144, 8), device=DEV, dtype=BF16)

    def train_micro_batches():
        net.zero_grad()
        for k, part in enumerate(parts):
            net.set_requires_gradient_sync(k == 3 or not fixed)  # PLANT
            net(part).square().mean().backward()

    return train_micro_batches


@case(
    "a dict of metrics gathered as pickled objects at every step",
    "communication",
    also=("framework", "compute"),
    codes=("CM414", "CM413", "FW503"),
    functions=("share_metrics", "train_reported"),
    ranks=2,
    active=3,
)
def d2_metrics_pickled(fixed):
    net = parallel(gated_stack(pick(2048, 8), pick(4, 2), BF16))
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(4096, 2), pick(2048, 8), device=DEV, dtype=BF16)
    seen = []

    def share_metrics(metrics):
        if fixed:
            seen[:] = [metrics]
            return
        box = [None] * WORLD
        dist.all_gather_object(box, metrics)  # PLANT
        seen[:] = box

    def train_reported():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        share_metrics({"rank": RANK, "rows": len(x), "lr": 1e-4})

    return train_reported


@case("healthy: FSDP of wide bf16 blocks, gathers hidden", "compute", ranks=2, active=2)
def d2_ok_wide_shards(fixed):
    net = gated_stack(pick(4096, 8), pick(6, 2), BF16)
    for block in net:
        fully_shard(block)
    fully_shard(net)
    x = torch.randn(pick(16384, 2), pick(4096, 8), device=DEV, dtype=BF16)

    def train_wide_shards():
        net.zero_grad()
        net(x).square().mean().backward()

    return train_wide_shards


@case("healthy: balanced DDP that reads its loss at every step", "compute", ranks=2, active=3)
def d2_ok_loss_read(fixed):
    net = parallel(gated_stack(pick(4096, 8), pick(6, 2), BF16))
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(16384, 2), pick(4096, 8), device=DEV, dtype=BF16)
    curve = []

    def train_and_read():
        opt.zero_grad()
        loss = net(x).square().mean()
        loss.backward()
        opt.step()
        curve[:] = [loss.item()]

    return train_and_read
