"""Healthy controls for the blind test: no change is worth 5 % of the step."""

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, compiled, pick, pinned, replayed
from zoo.programs.blind_train import (
    BF16,
    Block,
    CausalLM,
    FusedAttention,
    LMTrainer,
    Trainer,
    ViT,
    Yolo,
    adamw,
    token_batches,
)


@case("healthy: wide bf16 language model, SDPA and fused AdamW", "compute", active=3)
def b_ok_wide_lm(fixed):
    dim, room, words = pick(4096, 32), pick(1024, 16), pick(16384, 64)
    with DEV:
        blocks = [Block(dim, FusedAttention(dim, pick(32, 4), causal=True)) for _ in range(2)]
        model = CausalLM(words, dim, room, blocks).to(BF16)
    return LMTrainer(model, adamw(model), token_batches(words, pick(12, 2), room)).fit().__next__


class LoggingTrainer(Trainer):
    """Reads the loss back at every step; the GPU has a long queue behind it."""

    def training_step(self, batch):
        self.last_loss = super().training_step(batch).item()
        return self.last_loss


@case("healthy: ViT training whose loss.item() hides behind the GPU", "compute", active=3)
def b_ok_vit_item(fixed):
    side, rows = pick(224, 32), pick(64, 2)
    with DEV:
        model = ViT(side, 14, pick(3072, 32), pick(24, 4), pick(2, 1), 1000).to(BF16)
    images = [pinned(torch.randn(rows, 3, side, side, dtype=BF16)) for _ in range(2)]
    batches = [(x, pinned(torch.randint(0, 1000, (rows,)))) for x in images]
    return LoggingTrainer(model, adamw(model), batches).fit().__next__


class Prefetcher:
    """The next batch travels on a stream of its own while this one trains."""

    def __init__(self, batches):
        self.batches, self.turn = batches, 0
        self.stream = None if DRY else torch.cuda.Stream()
        self.load()

    def load(self):
        self.turn += 1
        with torch.cuda.stream(self.stream):
            source = self.batches[self.turn % len(self.batches)]
            self.ahead = [t.to(DEV, non_blocking=True) for t in source]

    def __iter__(self):
        while True:
            if self.stream is not None:
                torch.cuda.current_stream().wait_stream(self.stream)
            batch = self.ahead
            for t in batch:
                if self.stream is not None:
                    t.record_stream(torch.cuda.current_stream())
            self.load()
            yield batch


@case("healthy: pinned batches prefetched on a side stream", "compute", active=3)
def b_ok_prefetcher(fixed):
    wide, rows = pick(8192, 16), pick(16384, 4)
    model = nn.Sequential(
        nn.Linear(pick(2048, 8), wide), nn.ReLU(), nn.Linear(wide, wide), nn.ReLU(),
        nn.Linear(wide, 256),
    ).to(DEV, BF16)  # fmt: skip
    batches = [
        (
            pinned(torch.randn(rows, pick(2048, 8), dtype=BF16)),
            pinned(torch.randint(0, 256, (rows,))),
        )
        for _ in range(2)
    ]
    opt = torch.optim.SGD(model.parameters(), lr=1e-3, fused=True)
    return Trainer(model, opt, Prefetcher(batches)).fit().__next__


@case("healthy: bf16 ViT inference with a big batch", "compute", marks=False, active=3)
def b_ok_vit_infer(fixed):
    side = pick(224, 32)
    with DEV:
        model = ViT(side, 14, pick(4096, 32), pick(32, 4), pick(3, 1), 1000).to(BF16).eval()
    images = torch.randn(pick(64, 2), 3, side, side, device=DEV, dtype=BF16)

    @torch.inference_mode()
    def classify_images():
        return model(images).argmax(1)

    return classify_images


class GraphDecoder(nn.Module):
    """One token for each of many sequences over a static cache, sampled by Gumbel noise."""

    def __init__(self, words, dim, heads, depth, rows, room):
        super().__init__()
        self.embed, self.head = nn.Embedding(words, dim), nn.Linear(dim, words, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.out = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
            for _ in range(depth)
        )
        self.heads = heads
        self.register_buffer("cache", torch.zeros(depth, 2, rows, heads, room, dim // heads))

    def forward(self, token, at):
        x = self.embed(token)
        for k, qkv in enumerate(self.qkv):
            q, key, value = qkv(self.norms[2 * k](x)).view(len(x), 3, self.heads, 1, -1).unbind(1)
            self.cache[k, 0].index_copy_(2, at, key)
            self.cache[k, 1].index_copy_(2, at, value)
            y = F.scaled_dot_product_attention(q, self.cache[k, 0], self.cache[k, 1])
            x = x + self.out[k](y.reshape(x.shape))
            x = x + self.mlp[k](self.norms[2 * k + 1](x))
        return self.head(x)


@case(
    "healthy: decoding of wide layers under a CUDA graph",
    "memory",
    also=("compute",),
    marks=False,
)
def b_ok_graph_decode(fixed):
    rows, room, words = pick(32, 2), pick(256, 8), pick(32768, 32)
    with DEV:
        model = GraphDecoder(words, pick(8192, 16), pick(64, 4), 2, rows, room)
    model = model.to(DEV, BF16).eval()
    token = torch.zeros(rows, dtype=torch.long, device=DEV)
    at = torch.zeros(1, dtype=torch.long, device=DEV)

    @torch.no_grad()
    def sample_token():
        logits = model(token, at)
        noise = torch.empty_like(logits).exponential_()
        token.copy_((logits.softmax(-1) / noise).argmax(-1))
        at.add_(1).remainder_(room)

    return replayed(sample_token)


@case("healthy: compiled MLP of wide layers", "compute", active=3)
def b_ok_compiled_mlp(fixed):
    dim = pick(4096, 16)
    with DEV:
        layers = [m for _ in range(4) for m in (nn.Linear(dim, dim), nn.GELU())]
        model = nn.Sequential(*layers).to(BF16)
    run = compiled(model)
    opt = torch.optim.SGD(model.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(16384, 4), dim, device=DEV, dtype=BF16)

    def train_compiled():
        opt.zero_grad()
        run(x).float().square().mean().backward()
        opt.step()

    return train_compiled


class Thumbs(Dataset):
    def __init__(self, side):
        self.images = torch.randint(0, 256, (64, 3, side, side), dtype=torch.uint8)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return self.images[i % 64], i % 10


class CompiledYolo(nn.Module):
    def __init__(self, widths):
        super().__init__()
        self.body = Yolo(widths, 10)

    def forward(self, x):
        return self.body(x.to(BF16) / 255).mean((2, 3))


@case(
    "healthy: compiled channels_last convnet, loader hidden",
    "compute",
    also=("memory",),
    active=3,
)
def b_ok_compiled_convnet(fixed):
    model = CompiledYolo(pick((128, 256, 512), (4, 8))).to(DEV, BF16)
    model = model.to(memory_format=torch.channels_last)
    loader = DataLoader(
        Thumbs(pick(224, 32)), pick(128, 2), num_workers=pick(8, 1), pin_memory=not DRY
    )
    run = compiled(model)

    class ConvTrainer(Trainer):
        def compute_loss(self, batch):
            images, labels = (t.to(DEV, non_blocking=True) for t in batch)
            images = images.to(memory_format=torch.channels_last)
            return F.cross_entropy(run(images).float(), labels)

    opt = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    return ConvTrainer(model, opt, loader).fit().__next__
