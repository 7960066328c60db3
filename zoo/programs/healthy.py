"""Healthy controls that look guilty: nothing here is worth changing for speed."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, compiled, pick, pinned, replayed
from zoo.programs.language import Layer
from zoo.programs.vision import Classifier

BF16 = torch.bfloat16


def stack(dim, heads, depth):
    return nn.Sequential(*[Layer(dim, heads) for _ in range(depth)]).to(DEV)


@case("healthy: GPU-bound transformer that logs loss.item() each step", "compute", light=True)
def ok_item_gpu_bound(fixed):
    net = stack(pick(1536, 16), pick(12, 4), pick(4, 1)).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(24, 1), pick(1024, 8), pick(1536, 16), device=DEV, dtype=BF16)
    log = []

    def train_logged_loss():
        opt.zero_grad()
        loss = net(x).float().square().mean()
        loss.backward()
        opt.step()
        log[:] = [loss.item()]

    return train_logged_loss


class Tiles(Dataset):
    def __init__(self, side):
        self.side = side

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        g = torch.Generator().manual_seed(i)
        return torch.randint(
            0, 256, (3, self.side, self.side), generator=g, dtype=torch.uint8
        ), i % 10


@case(
    "healthy: channels_last bf16 convnet, loader workers fully hidden", "compute", also=("memory",)
)
def ok_convnet_loader(fixed):
    net = Classifier((128, 256, 512), 3, 10).to(DEV, BF16, memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=0.01, fused=True)
    loader = DataLoader(
        Tiles(pick(224, 16)),
        pick(96, 2),
        num_workers=pick(10, 1),
        pin_memory=not DRY,
        prefetch_factor=4,
    )
    stream = iter(loader)

    def train_tiles():
        images, labels = next(stream)
        images = images.to(DEV, non_blocking=True).to(BF16, memory_format=torch.channels_last)
        labels = labels.to(DEV, non_blocking=True)
        opt.zero_grad()
        F.cross_entropy(net(images / 255), labels).backward()
        opt.step()

    return train_tiles


@case("healthy: compiled transformer inference with CUDA graphs", "compute", also=("memory",))
def ok_compiled_graphs(fixed):
    net = stack(pick(1024, 16), pick(8, 4), pick(4, 1)).to(BF16).eval()
    run = compiled(net, mode="reduce-overhead")
    x = torch.randn(pick(8, 1), pick(512, 8), pick(1024, 16), device=DEV, dtype=BF16)

    @torch.no_grad()
    def encode_docs():
        return run(x)

    return encode_docs


@case("healthy: large matmul benchmark", "compute", marks=False)
def ok_gemm_bench(fixed):
    n = pick(8192, 16)
    a, b = (torch.randn(n, n, device=DEV, dtype=BF16) for _ in range(2))
    out = torch.empty(n, n, device=DEV, dtype=BF16)

    def multiply():
        for _ in range(4):
            torch.mm(a, b, out=out)

    return multiply


@case("healthy: inference with a big batch, no step marks", "compute", marks=False, light=True)
def ok_infer_big_batch(fixed):
    net = stack(pick(1024, 16), pick(16, 4), pick(6, 1)).to(BF16).eval()
    x = torch.randn(pick(64, 1), pick(512, 8), pick(1024, 16), device=DEV, dtype=BF16)

    @torch.inference_mode()
    def embed_docs():
        return net(x).mean(1)

    return embed_docs


@case("healthy: pinned copies on a side stream, overlapped", "compute", also=("memory",))
def ok_async_copies(fixed):
    dim = pick(4096, 16)
    net = nn.Sequential(*[m for _ in range(4) for m in (nn.Linear(dim, dim), nn.GELU())]).to(
        DEV, BF16
    )
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    batches = [pinned(torch.randn(pick(16384, 4), dim, dtype=BF16)) for _ in range(3)]
    side = None if DRY else torch.cuda.Stream()
    state = {"turn": 0}

    def prefetch():
        state["turn"] += 1
        with torch.cuda.stream(side):
            return batches[state["turn"] % 3].to(DEV, non_blocking=True)

    def train_streamed():
        x = state.pop("next", None)
        x = prefetch() if x is None else x
        if side is not None:
            torch.cuda.current_stream().wait_stream(side)
            x.record_stream(torch.cuda.current_stream())
        state["next"] = prefetch()
        opt.zero_grad()
        net(x).float().square().mean().backward()
        opt.step()

    return train_streamed


@case("healthy: GPU-bound transformer with fused AdamW", "compute")
def ok_fused_adamw(fixed):
    net = stack(pick(2048, 16), pick(16, 4), pick(3, 1)).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(12, 1), pick(1024, 8), pick(2048, 16), device=DEV, dtype=BF16)

    def train_fused():
        opt.zero_grad()
        net(x).float().square().mean().backward()
        opt.step()

    return train_fused


@case(
    "healthy: small model at its floor under a CUDA graph",
    "compute",
    also=("framework", "memory"),
)
def ok_small_graphed(fixed):
    dim = pick(256, 16)
    net = nn.Sequential(
        *[m for _ in range(12) for m in (nn.Linear(dim, dim), nn.LayerNorm(dim), nn.GELU())]
    )
    net = net.to(DEV)
    x = torch.randn(64, dim, device=DEV)

    def fit_small():
        net.zero_grad()
        net(x).square().mean().backward()

    return replayed(fit_small)


@case("healthy: in-place scaling at the memory roof", "memory", also=("compute",))
def ok_memory_roof(fixed):
    table = torch.randn(pick(512_000_000, 64), device=DEV, dtype=BF16)

    def decay():
        table.mul_(0.9999)

    return decay


@case("healthy: compute-bound MLP with Python hooks hidden behind the GPU", "compute")
def ok_hooked_mlp(fixed):
    dim = pick(6144, 16)
    net = nn.Sequential(*[m for _ in range(3) for m in (nn.Linear(dim, dim), nn.ReLU())]).to(
        DEV, BF16
    )
    seen = {}
    for k, m in enumerate(net):
        m.register_forward_hook(lambda m, a, y, k=k: seen.__setitem__(k, tuple(y.shape)))
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(12288, 4), dim, device=DEV, dtype=BF16)

    def train_hooked():
        opt.zero_grad()
        net(x).float().square().mean().backward()
        opt.step()
        history = sorted(v[-1] * k for k, v in seen.items() for _ in range(200))
        return sum(history)

    return train_hooked


class Pages(Dataset):
    def __init__(self, length):
        self.length = length

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return torch.arange(i, i + self.length) % 1000


@case("healthy: loader in the main process, small pageable copies, all behind the GPU", "compute")
def ok_mainproc_hidden(fixed):
    dim = pick(2048, 16)
    embed = nn.Embedding(1000, dim).to(DEV, BF16)
    net = nn.Sequential(embed, *stack(dim, pick(16, 4), pick(3, 1)).to(BF16))
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    stream = iter(DataLoader(Pages(pick(1024, 8)), pick(12, 2)))

    def train_pages():
        ids = next(stream).to(DEV, non_blocking=True)
        opt.zero_grad()
        net(ids).float().square().mean().backward()
        opt.step()

    return train_pages
