"""Healthy controls: they look guilty of something, but nothing is to be gained."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, RandomSampler, TensorDataset

from zoo.harness import DEV, DRY, case, pick, pinned, replayed
from zoo.programs.ninth_parts import BF16, Block, descend


class Body(nn.Module):
    """Features in, scores out, and layers of a transformer between."""

    def __init__(self, inputs, dim, depth, heads, outputs, causal=False):
        super().__init__()
        self.enter, self.leave = nn.Linear(inputs, dim), nn.Linear(dim, outputs)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.causal = causal

    def forward(self, x):
        x = self.enter(x)
        for block in self.blocks:
            x = block(x, self.causal)
        return self.leave(x)


class Gauss(nn.Module):
    """A Gaussian process; the kernel matrix is nearly singular, so float64 is needed."""

    def __init__(self, places, heights):
        super().__init__()
        self.register_buffer("apart", torch.cdist(places, places).square())
        self.register_buffer("heights", heights[:, None])
        self.scale = nn.Parameter(torch.zeros((), dtype=places.dtype))
        self.noise = nn.Parameter(torch.full((), -14.0, dtype=places.dtype))

    def forward(self):
        kernel = torch.exp(-0.5 * self.apart * torch.exp(-2 * self.scale))
        kernel = kernel + torch.exp(self.noise) * torch.eye(
            len(kernel), dtype=kernel.dtype, device=kernel.device
        )
        factor = torch.linalg.cholesky(kernel)
        fit = torch.cholesky_solve(self.heights, factor)
        return 0.5 * (self.heights * fit).sum() + factor.diagonal().log().sum()


# looks like float64 by accident; in float32 the factorisation of this matrix fails
@case(
    "a Gaussian process over heights, in float64 because the matrix is nearly singular", "compute"
)
def i_heights_need_float64(fixed):
    # Factorisation, solution and their gradients for 5000 places: some 20 ms.
    places = torch.rand(pick(5000, 20), 2, dtype=torch.float64, device=DEV) * 20
    heights = places.sin().sum(-1)
    gauss = Gauss(places, heights)
    opt = torch.optim.Adam(gauss.parameters(), 1e-3)
    return lambda: descend(opt, gauss())


# looks like a synchronisation in each step; the step is long, and its launch takes a tenth of it
@case("a large model of proteins that reads its loss in every long step", "compute")
def i_proteins_item_each_step(fixed):
    # 22 TFLOP, 40 ms a step; what the GPU idles after .item() is the launch of the first kernels.
    rows, length, kinds = pick(16, 2), pick(1024, 5), pick(32, 4)
    with DEV:
        net = Body(kinds, pick(1536, 8), pick(8, 1), pick(16, 2), kinds).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    chains = torch.randn(rows, length, kinds, device=DEV, dtype=BF16)
    masked = torch.randint(0, kinds, (rows * length,), device=DEV)
    losses = []

    def unmask():
        loss = descend(opt, F.cross_entropy(net(chains).flatten(0, 1).float(), masked))
        losses.append(loss if fixed else loss.item())
        if len(losses) == 100:
            losses.clear()

    return unmask


# looks like a loader without workers; a batch is one index into a tensor, ready in a quarter of a step
@case(
    "genes of single cells from a loader without workers, whose batches cost next to nothing",
    "compute",
)
def i_cells_loader_without_workers(fixed):
    # 4096 cells of 128 genes in 16 bits, 1 MB: 2 ms on the host, beside 15 ms on the GPU.
    cells, rows, genes, dim = pick(60000, 30), pick(4096, 4), pick(128, 6), pick(6144, 8)
    kinds = torch.randint(0, 40, (cells,))
    data = TensorDataset(torch.rand(cells, genes).to(BF16), kinds)
    chosen = BatchSampler(RandomSampler(range(cells)), rows, drop_last=True)
    workers = pick(2, 1) if fixed else 0
    how = {"num_workers": workers, "persistent_workers": workers > 0, "pin_memory": not DRY}
    loader = DataLoader(data, batch_size=None, sampler=chosen, **how)
    with DEV:
        layers = [nn.Linear(genes, dim), nn.GELU()]
        for _ in range(pick(10, 1)):
            layers += [nn.Linear(dim, dim), nn.GELU()]
        net = nn.Sequential(*layers, nn.Linear(dim, 40)).to(BF16)
    opt = torch.optim.SGD(net.parameters(), 0.01, fused=True)

    def endless():
        while True:
            yield from loader

    batches = endless()

    def tell_kinds():
        seen, kind = (t.to(DEV, non_blocking=True) for t in next(batches))
        return descend(opt, F.cross_entropy(net(seen).float(), kind))

    return tell_kinds


# looks like an odd size of a product; the product with the 1013 classes is 1 % of the work
@case("plants of 1013 kinds, an odd number that only the smallest product has", "compute")
def i_plants_odd_kinds(fixed):
    kinds, rows, patches = pick(1013, 7), pick(64, 2), pick(256, 4)
    width = kinds + -kinds % 8 if fixed else kinds
    with DEV:
        net = Body(pick(768, 6), pick(1024, 8), pick(6, 1), pick(16, 2), pick(1024, 8))
        head = nn.Linear(pick(1024, 8), width)
    net, head = net.to(BF16), head.to(BF16)
    opt = torch.optim.AdamW([*net.parameters(), *head.parameters()], 1e-4, fused=True)
    photos = torch.randn(rows, patches, pick(768, 6), device=DEV, dtype=BF16)
    truth = torch.randint(0, kinds, (rows,), device=DEV)

    def name_plants():
        scores = head(net(photos).mean(1))[:, :kinds]
        return descend(opt, F.cross_entropy(scores.float(), truth))

    return name_plants


# looks like tiny products at batch size 1; as a CUDA graph it reads its weights at full speed
@case(
    "one user of a large assistant: matrix times vector, replayed, as fast as the weights are read",
    "memory",
    also=("compute",),
    marks=False,
)
def i_assistant_one_user(fixed):
    # 24 layers of 134 million values: 6.4 GB, 1.6 ms a token; four tokens a request.
    dim, wide, depth = pick(4096, 8), pick(16384, 16), pick(24, 2)
    with DEV:
        ups = [torch.randn(wide, dim, device=DEV).to(BF16) * 0.01 for _ in range(depth)]
        downs = [torch.randn(dim, wide, device=DEV).to(BF16) * 0.01 for _ in range(depth)]
    x = torch.randn(1, dim, device=DEV).to(BF16)

    @torch.no_grad()
    def token():
        y = x
        for up, down in zip(ups, downs, strict=True):
            y = y + F.linear(F.relu(F.linear(F.rms_norm(y, (dim,)), up)), down)
        x.copy_(F.rms_norm(y, (dim,)))

    run = replayed(token)

    def reply():
        for _ in range(4):
            run()
        return x

    return reply


class Stations(nn.Module):
    """The next stop of a trip, from many looked-up properties; hardly any product."""

    def __init__(self, places, dim, outputs):
        super().__init__()
        self.bag = nn.EmbeddingBag(places, dim, mode="sum", sparse=True)
        self.out = nn.Linear(dim, outputs)

    def forward(self, visited):
        return self.out(self.bag(visited))


# looks like float32 products without TF32; nearly all of the time goes into looking up rows
@case(
    "bags of visited places in float32, where looking up rows is all of the work",
    "memory",
    also=("compute",),
)
def i_stations_float32_lookups(fixed):
    # 4 million rows of 512 bytes read, and added again: 5 ms; the float32 product takes 0.1 ms.
    places, rows, seen, outputs = pick(4_000_000, 40), pick(16384, 3), pick(256, 4), pick(64, 5)
    torch.set_float32_matmul_precision("high" if fixed else "highest")
    with DEV:
        net = Stations(places, pick(128, 4), outputs)
    opt = torch.optim.SGD(net.parameters(), 0.05, foreach=False)
    visited = torch.randint(0, places, (rows, seen), device=DEV)
    stop = torch.randint(0, outputs, (rows,), device=DEV)

    def guess_stop():
        return descend(opt, F.cross_entropy(net(visited), stop))

    return guess_stop


# looks like needless gradient accumulation; each part is large enough to keep the GPU busy
@case("four parts of a batch one after the other, each of which fills the GPU", "compute")
def i_novels_four_large_parts(fixed):
    # Four parts of 8192 tokens by 76 million weights, 7 ms each; in one part the same.
    rows, length, dim, words = pick(32, 4), pick(1024, 5), pick(1024, 8), pick(4096, 9)
    with DEV:
        net = nn.Sequential(
            nn.Embedding(words, dim), Body(dim, dim, pick(6, 1), pick(16, 2), words, True)
        )
    net = net.to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    ids = torch.randint(0, words, (rows, length + 1), device=DEV)
    size = rows if fixed else rows // 4

    def read_novels():
        opt.zero_grad(set_to_none=True)
        parts = ids.split(size)
        for part in parts:
            scores = net(part[:, :-1]).flatten(0, 1).float()
            (F.cross_entropy(scores, part[:, 1:].flatten()) / len(parts)).backward()
        opt.step()

    return read_novels


class Export:
    """Copies features to the host on a stream of their own, two batches behind."""

    def __init__(self, shape):
        self.host = [pinned(torch.empty(shape, dtype=BF16)) for _ in range(3)]
        self.side = None if DRY else torch.cuda.Stream()
        self.ready = [None] * 3
        self.count = 0

    def send(self, features):
        slot = self.count % 3
        self.count += 1
        if self.side is None:
            self.host[slot].copy_(features)
            return
        if self.ready[slot] is not None:
            self.ready[slot].synchronize()  # three batches old
        self.side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(self.side):
            self.host[slot].copy_(features, non_blocking=True)
            features.record_stream(self.side)
            self.ready[slot] = self.side.record_event()


# looks like large copies to the host in each step; they are pinned and run beside the next batch
@case(
    "features of satellite pictures, copied to the host beside the work on the next batch",
    "compute",
    also=("memory",),
    marks=False,
)
def i_features_exported_beside(fixed):
    # 100 MB, 2 ms to copy, while the next batch takes some 12 ms.
    rows, patches, dim = pick(256, 2), pick(196, 4), pick(1024, 8)
    with DEV:
        net = Body(pick(768, 6), dim, pick(6, 1), pick(16, 2), dim).to(BF16).eval()
    photos = torch.randn(rows, patches, pick(768, 6), device=DEV, dtype=BF16)
    export = Export((rows, patches, dim))

    @torch.inference_mode()
    def describe():
        features = net(photos)
        if not fixed:
            export.send(features)
        return features

    return describe
