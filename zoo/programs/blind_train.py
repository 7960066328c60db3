"""Training loops as users write them; recorded for a blind test of the rules."""

import random
import time
import zlib
from itertools import pairwise

import numpy as np
import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, compiled, pick, pinned, replayed

BF16 = torch.bfloat16


class Trainer:
    """The usual shape: fit() walks the loader, training_step() does one batch."""

    def __init__(self, model, optimizer, loader, callbacks=()):
        self.model, self.optimizer, self.loader = model, optimizer, loader
        self.callbacks = callbacks
        self.global_step = 0

    def compute_loss(self, batch):
        inputs, labels = (t.to(DEV, non_blocking=True) for t in batch)
        return F.cross_entropy(self.model(inputs).float(), labels)

    def training_step(self, batch):
        self.optimizer.zero_grad(set_to_none=True)
        loss = self.compute_loss(batch)
        loss.backward()
        self.optimizer.step()
        return loss.detach()

    def train_dataloader(self):
        return self.loader

    def fit(self):
        while True:
            for batch in self.train_dataloader():
                loss = self.training_step(batch)
                self.global_step += 1
                for callback in self.callbacks:
                    callback.on_step_end(self, loss)
                yield


def adamw(model, lr=1e-4):
    return torch.optim.AdamW(model.parameters(), lr=lr, fused=True)


# ---------------------------------------------------------------- transformers


class FusedAttention(nn.Module):
    def __init__(self, dim, heads, causal=False, dropout=0.0):
        super().__init__()
        self.heads, self.causal, self.dropout = heads, causal, dropout
        self.c_attn, self.c_proj = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)

    def heads_of(self, x):
        b, s, d = x.shape
        return self.c_attn(x).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)

    def attend(self, q, k, v):
        p = self.dropout if self.training else 0.0
        return F.scaled_dot_product_attention(q, k, v, dropout_p=p, is_causal=self.causal)

    def forward(self, x):
        y = self.attend(*self.heads_of(x))
        return self.c_proj(y.transpose(1, 2).reshape(x.shape))


class MaskedFillAttention(FusedAttention):
    def __init__(self, dim, heads, room, dropout):
        super().__init__(dim, heads, True, dropout)
        self.register_buffer("bias", torch.ones(room, room, dtype=torch.bool).tril())
        self.attn_dropout = nn.Dropout(dropout)

    def attend(self, q, k, v):
        s = q.shape[-2]
        w = torch.matmul(q, k.transpose(-1, -2)) / q.shape[-1] ** 0.5  # PLANT
        w = w.masked_fill(~self.bias[:s, :s], torch.finfo(w.dtype).min)
        w = self.attn_dropout(torch.softmax(w, dim=-1))
        return torch.matmul(w, v)


class Block(nn.Module):
    def __init__(self, dim, attention):
        super().__init__()
        self.ln_1, self.attn, self.ln_2 = nn.LayerNorm(dim), attention, nn.LayerNorm(dim)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x):
        x = x + self.attn(self.ln_1(x))
        return x + self.mlp(self.ln_2(x))


class CausalLM(nn.Module):
    def __init__(self, vocab, dim, room, blocks):
        super().__init__()
        self.wte, self.wpe = nn.Embedding(vocab, dim), nn.Embedding(room, dim)
        self.h, self.ln_f = nn.Sequential(*blocks), nn.LayerNorm(dim)
        self.lm_head = nn.Linear(dim, vocab, bias=False)
        self.lm_head.weight = self.wte.weight
        self.register_buffer("positions", torch.arange(room))

    def forward(self, ids):
        x = self.wte(ids) + self.wpe(self.positions[: ids.shape[1]])
        return self.lm_head(self.ln_f(self.h(x)))


class LMTrainer(Trainer):
    def compute_loss(self, batch):
        ids = batch.to(DEV, non_blocking=True)
        logits = self.model(ids)
        return F.cross_entropy(logits.flatten(0, 1), ids.roll(-1, 1).flatten())


def token_batches(vocab, rows, length):
    return [pinned(torch.randint(0, vocab, (rows, length))) for _ in range(3)]


@case(
    "a pad token added to a language model: vocabulary of 32001",
    "compute",
    codes=("CP202",),
    functions=("forward", "compute_loss", "training_step"),
)
def b_lm_vocab_32001(fixed):
    words, dim, room = pick(32000, 50), pick(1024, 32), pick(1024, 16)
    tokens = words + (64 if fixed else 1)  # PLANT
    blocks = [Block(dim, FusedAttention(dim, 16, causal=True)) for _ in range(2)]
    model = CausalLM(tokens, dim, room, blocks).to(DEV, BF16)
    return LMTrainer(model, adamw(model), token_batches(words, pick(10, 2), room)).fit().__next__


@case(
    "GPT attention with matmul, masked_fill, softmax and dropout",
    "compute",
    also=("memory",),
    codes=("CP206",),
    functions=("attend",),
    plant_in="MaskedFillAttention.attend",
)
def b_gpt_masked_fill(fixed):
    dim, heads, room = pick(768, 32), pick(12, 4), pick(1024, 16)
    blocks = []
    for _ in range(pick(3, 1)):
        if fixed:
            attention = FusedAttention(dim, heads, causal=True, dropout=0.1)
        else:
            attention = MaskedFillAttention(dim, heads, room, 0.1)
        blocks.append(Block(dim, attention))
    model = CausalLM(pick(8192, 64), dim, room, blocks).to(DEV, BF16)
    data = token_batches(pick(8192, 64), pick(12, 2), room)
    return LMTrainer(model, adamw(model), data).fit().__next__


class ViT(nn.Module):
    def __init__(self, side, patch, dim, heads, depth, classes):
        super().__init__()
        self.patch_embed = nn.Conv2d(3, dim, patch, patch)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, dim))
        self.pos_embed = nn.Parameter(torch.zeros(1, (side // patch) ** 2 + 1, dim))
        self.blocks = nn.Sequential(*[Block(dim, FusedAttention(dim, heads)) for _ in range(depth)])
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, classes)

    def forward(self, x):
        x = self.patch_embed(x.to(self.cls_token.dtype)).flatten(2).transpose(1, 2)
        x = torch.cat([self.cls_token.expand(len(x), -1, -1), x], 1) + self.pos_embed
        return self.head(self.norm(self.blocks(x))[:, 0])


@case(
    "ViT trained in fp32 with matrix precision left at the default",
    "compute",
    codes=("CP201",),
    functions=("forward", "training_step", "compute_loss"),
)
def b_vit_fp32(fixed):
    torch.set_float32_matmul_precision("high" if fixed else "highest")  # PLANT
    side = pick(224, 32)
    model = ViT(side, 16, pick(768, 32), pick(12, 4), pick(4, 1), 1000).to(DEV)
    rows = pick(32, 2)
    batches = [
        (torch.randn(rows, 3, side, side, device=DEV), torch.randint(0, 1000, (rows,), device=DEV))
        for _ in range(2)
    ]
    return Trainer(model, adamw(model), batches).fit().__next__


# ---------------------------------------------------------------- loaders


class ShelfPhotos(Dataset):
    """PNG-like files in memory: deflated rows with the "up" filter."""

    def __init__(self, side, count=32):
        rng = np.random.default_rng(0)
        self.side, self.files = side, []
        for _ in range(count):
            rows = rng.integers(0, 12, (side, side, 3), dtype=np.uint8)
            self.files.append(zlib.compress(rows.tobytes(), 1))

    def __len__(self):
        return 1_000_000

    def decode(self, data):
        rows = np.frombuffer(zlib.decompress(data), np.uint8).reshape(self.side, self.side, 3)
        return np.cumsum(rows, axis=0, dtype=np.uint8)

    def __getitem__(self, i):
        image = self.decode(self.files[i % len(self.files)])
        if i % 2:
            image = image[:, ::-1]
        image = (image / np.float32(255) - np.float32(0.45)) / np.float32(0.22)
        return torch.from_numpy(image.transpose(2, 0, 1).copy()), i % 100


@case(
    "images decoded in __getitem__ with num_workers left at 0",
    "data_loading",
    codes=("DL101", "DL108"),
    functions=("fit", "__getitem__", "decode"),
    active=3,
)
def b_vit_png_mainproc(fixed):
    side = pick(224, 32)
    model = ViT(side, 16, pick(384, 32), pick(6, 4), pick(6, 1), 100).to(DEV, BF16)
    loader = DataLoader(
        ShelfPhotos(side),
        pick(16, 2),
        num_workers=pick(10, 1) if fixed else 0,  # PLANT
        pin_memory=not DRY,
    )
    return Trainer(model, adamw(model), loader).fit().__next__


class WordPieces:
    """Greedy longest-match word pieces, in Python."""

    def __init__(self, length):
        syllables = ["ka", "to", "mi", "ren", "sol", "ve", "dar", "lu", "phi", "q"]
        pieces = [a + b for a in syllables for b in syllables] + syllables
        self.ids = {p: i for i, p in enumerate(pieces)}
        self.length = length

    def encode(self, text):
        found = []
        for word in text.split():
            start = 0
            while start < len(word):
                end = len(word)
                while end > start and word[start:end] not in self.ids:
                    end -= 1
                found.append(self.ids.get(word[start:end], 0))
                start = max(end, start + 1)
        return (found + [0] * self.length)[: self.length]

    def __call__(self, rows):
        texts, labels = zip(*rows, strict=True)
        return torch.tensor([self.encode(t) for t in texts]), torch.tensor(labels)


class Tickets(Dataset):
    def __init__(self, words):
        rng = random.Random(0)
        parts = ["kato", "miren", "solve", "darlu", "phiq", "tomi", "renka"]
        self.texts = [
            " ".join("".join(rng.choices(parts, k=3)) for _ in range(words)) for _ in range(64)
        ]

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return self.texts[i % 64], i % 8


class TicketClassifier(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.embed = nn.Embedding(128, dim)
        self.blocks = nn.Sequential(
            *[Block(dim, FusedAttention(dim, pick(8, 4))) for _ in range(depth)]
        )
        self.head = nn.Linear(dim, 8)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids)).mean(1))


@case(
    "two loader workers for a slow word-piece collate",
    "data_loading",
    codes=("DL102",),
    functions=("fit",),
)
def b_tickets_two_workers(fixed):
    model = TicketClassifier(pick(512, 16), pick(4, 1)).to(DEV, BF16)
    workers = pick(14, 1) if fixed else pick(2, 1)  # PLANT
    loader = DataLoader(
        Tickets(pick(240, 8)),
        pick(32, 2),
        num_workers=workers,
        collate_fn=WordPieces(pick(256, 16)),
        pin_memory=not DRY,
        prefetch_factor=4,
    )
    return Trainer(model, adamw(model), loader).fit().__next__


class Snippets(Dataset):
    def __init__(self, count, length):
        self.waves = torch.randn(count, 1, length)

    def __len__(self):
        return len(self.waves)

    def __getitem__(self, i):
        return self.waves[i], i % 12


class WaveEncoder(nn.Module):
    """Wav2vec-like: strided convolutions, then a transformer."""

    def __init__(self, dim, depth, classes):
        super().__init__()
        self.feature_extractor = nn.Sequential(
            nn.Conv1d(1, dim, 10, 5), nn.GELU(), nn.Conv1d(dim, dim, 8, 4), nn.GELU(),
            nn.Conv1d(dim, dim, 4, 4), nn.GELU(),
        )  # fmt: skip
        self.encoder = nn.Sequential(
            *[Block(dim, FusedAttention(dim, pick(8, 4))) for _ in range(depth)]
        )
        self.classifier = nn.Linear(dim, classes)

    def forward(self, wave):
        x = self.feature_extractor(wave.to(self.classifier.weight.dtype))
        return self.classifier(self.encoder(x.transpose(1, 2)).mean(1))


class FreshLoaderTrainer(Trainer):
    """self.loader is a function here, called at the start of each epoch."""

    def train_dataloader(self):
        return self.loader()


@case(
    "a new DataLoader with new workers for every short epoch",
    "data_loading",
    codes=("DL103",),
    functions=("fit", "train_dataloader"),
    active=8,
)
def b_wave_loader_each_epoch(fixed):
    model = WaveEncoder(pick(256, 16), pick(4, 1), 12).to(DEV, BF16)
    snippets = Snippets(pick(96, 8), pick(16000, 800))

    def make_loader():
        return DataLoader(
            snippets, pick(24, 2), shuffle=True, num_workers=pick(4, 1), persistent_workers=fixed
        )

    one = make_loader()
    source = (lambda: one) if fixed else make_loader  # PLANT
    return FreshLoaderTrainer(model, adamw(model), source).fit().__next__


class SegNet3d(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv3d(1, width, 4, 4), nn.ReLU(), nn.Conv3d(width, width, 3, 1, 1)
        )
        self.up = nn.ConvTranspose3d(width, 1, 4, 4)

    def forward(self, x):
        return self.up(F.relu(self.down(x)))


class VolumeTrainer(Trainer):
    def compute_loss(self, batch):
        volume = batch.to(DEV, non_blocking=True)
        return F.mse_loss(self.model(volume), volume)


@case(
    "medical volumes from pageable memory: non_blocking=True does nothing",
    "data_loading",
    also=("memory",),
    codes=("DL105",),
    functions=("compute_loss", "training_step"),
)
def b_volumes_pageable(fixed):
    side = pick(160, 16)
    model = SegNet3d(pick(16, 4)).to(DEV)
    volumes = [torch.randn(pick(6, 1), 1, side // 2, side, side) for _ in range(3)]
    volumes = [pinned(v) if fixed else v for v in volumes]  # PLANT
    return VolumeTrainer(model, adamw(model), volumes).fit().__next__


# ---------------------------------------------------------------- convolutions


class ConvBnAct(nn.Module):
    def __init__(self, cin, cout, kernel=3, stride=1):
        super().__init__()
        self.conv = nn.Conv2d(cin, cout, kernel, stride, kernel // 2, bias=False)
        self.bn = nn.BatchNorm2d(cout)

    def forward(self, x):
        return F.relu(self.bn(self.conv(x)), inplace=True)


class Bottleneck(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.cv1, self.cv2 = ConvBnAct(width, width // 2), ConvBnAct(width // 2, width)

    def forward(self, x):
        return x + self.cv2(self.cv1(x))


class Yolo(nn.Module):
    def __init__(self, widths, outputs):
        super().__init__()
        stages = [
            nn.Sequential(ConvBnAct(a, b, 3, 2), Bottleneck(b), Bottleneck(b))
            for a, b in pairwise((3, *widths))
        ]
        self.backbone, self.detect = nn.Sequential(*stages), nn.Conv2d(widths[-1], outputs, 1)

    def forward(self, x):
        return self.detect(self.backbone(x))


class DetectorTrainer(Trainer):
    def compute_loss(self, batch):
        images, target = batch
        return F.mse_loss(self.model(images), target)


@case(
    "bf16 YOLO trained in the default layout",
    "compute",
    also=("memory",),
    codes=("CP208",),
    functions=("forward", "training_step", "compute_loss"),
)
def b_yolo_nchw(fixed):
    model = Yolo(pick((64, 128, 256), (4, 8)), 88).to(DEV, BF16)
    side = pick(320, 32)
    images = torch.randn(pick(32, 2), 3, side, side, device=DEV, dtype=BF16)
    if fixed:  # PLANT
        model = model.to(memory_format=torch.channels_last)
        images = images.to(memory_format=torch.channels_last)
    with torch.no_grad():
        target = torch.zeros_like(model(images))
    return DetectorTrainer(model, adamw(model), [(images, target)]).fit().__next__


class TCN(nn.Module):
    def __init__(self, features, width, depth):
        super().__init__()
        self.inlet = nn.Conv1d(features, width, 1)
        self.layers = nn.ModuleList(
            nn.Conv1d(width, width, 5, padding=2 * 2**k, dilation=2**k) for k in range(depth)
        )
        self.outlet = nn.Conv1d(width, 1, 1)

    def forward(self, x):
        x = self.inlet(x)
        for layer in self.layers:
            x = x + torch.relu(layer(x))
        return self.outlet(x)[..., -1]


class ForecastTrainer(Trainer):
    def compute_loss(self, batch):
        history, ahead = batch
        return F.mse_loss(self.model(history), ahead)


@case(
    "a forecaster moved to double because NumPy's features are float64",
    "compute",
    codes=("CP211",),
    functions=("forward", "compute_loss", "training_step"),
)
def b_tcn_double(fixed):
    rng = np.random.default_rng(0)
    table = rng.standard_normal((pick(64, 2), 24, pick(512, 32)))
    history, ahead = torch.from_numpy(table).to(DEV), torch.from_numpy(table[:, :1, -1]).to(DEV)
    model = TCN(24, pick(96, 8), 4).to(DEV).double()
    if fixed:
        model = model.float()
    history = history.to(torch.float32 if fixed else torch.float64)  # PLANT
    return ForecastTrainer(model, adamw(model), [(history, ahead.to(history.dtype))]).fit().__next__


# ---------------------------------------------------------------- memory


class RMSNorm(nn.Module):
    def __init__(self, dim, fused):
        super().__init__()
        self.weight, self.fused = nn.Parameter(torch.ones(dim)), fused

    def forward(self, x):
        if self.fused:
            return F.rms_norm(x, x.shape[-1:], self.weight, 1e-6)
        y = x.float()
        y = y * torch.rsqrt(y.pow(2).mean(-1, keepdim=True) + 1e-6)  # PLANT
        return self.weight * y.to(x.dtype)


class GatedLayer(nn.Module):
    def __init__(self, dim, fused):
        super().__init__()
        self.norm, self.proj = RMSNorm(dim, fused), nn.Linear(dim, dim, bias=False)

    def forward(self, x):
        return self.proj(self.norm(x))


@case(
    "RMSNorm in pieces with an fp32 upcast",
    "memory",
    also=("compute",),
    codes=("CP219", "CP212", "CP221"),
    functions=("forward",),
    plant_in="RMSNorm.forward",
)
def b_rmsnorm_pieces(fixed):
    dim = pick(1024, 16)
    model = nn.Sequential(*[GatedLayer(dim, fixed) for _ in range(pick(6, 2))]).to(DEV, BF16)
    x = torch.randn(pick(65536, 8), dim, device=DEV, dtype=BF16)
    goal = torch.zeros_like(x)
    return ForecastTrainer(model, adamw(model), [(x, goal)]).fit().__next__


class LoRALinear(nn.Module):
    def __init__(self, dim, rank):
        super().__init__()
        self.base = nn.Linear(dim, dim).requires_grad_(False)
        self.lora_a, self.lora_b = (
            nn.Linear(dim, rank, bias=False),
            nn.Linear(rank, dim, bias=False),
        )

    def forward(self, x):
        return F.gelu(self.base(x) + self.lora_b(self.lora_a(x)))


class MemoryCallback:
    """ "Fixes" out-of-memory errors."""

    def on_step_end(self, trainer, loss):
        if not DRY:
            torch.cuda.empty_cache()  # PLANT


@case(
    "LoRA fine-tuning whose callback empties the cache after each step",
    "memory",
    also=("framework",),
    codes=("MM303", "MM302"),
    functions=("on_step_end",),
    plant_in="MemoryCallback.on_step_end",
)
def b_lora_empty_cache(fixed):
    dim = pick(2048, 16)
    model = nn.Sequential(*[LoRALinear(dim, 16) for _ in range(pick(8, 2))]).to(DEV, BF16)
    chosen = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(chosen, lr=1e-4, fused=True)
    x = torch.randn(pick(8192, 4), dim, device=DEV, dtype=BF16)
    callbacks = () if fixed else (MemoryCallback(),)
    return ForecastTrainer(model, opt, [(x, torch.zeros_like(x))], callbacks).fit().__next__


class SensorGRU(nn.Module):
    def __init__(self, features, hidden):
        super().__init__()
        self.gru = nn.GRU(features, hidden, 2, batch_first=True)
        self.head = nn.Linear(hidden, 1)

    def forward(self, x):
        return self.head(self.gru(x)[0][:, -1])


class FeatureProbe:
    """A forward hook left over from a look at the features."""

    def __init__(self, module, keep):
        self.keep, self.seen = keep, []
        module.register_forward_hook(self.record)

    def record(self, module, args, output):
        self.seen.append(output[0])  # PLANT
        if self.keep:
            del self.seen[: -self.keep]


@case(
    "a forgotten forward hook keeps the GRU's output of every step",
    "memory",
    also=("framework",),
    codes=("MM305",),
    functions=("record", "forward"),
    plant_in="FeatureProbe.record",
    active=6,
)
def b_gru_hook_leak(fixed):
    model = SensorGRU(32, pick(256, 8)).to(DEV)
    FeatureProbe(model.gru, 1 if fixed else 0)
    x = torch.randn(pick(256, 2), pick(128, 8), 32, device=DEV)
    goal = torch.zeros(len(x), 1, device=DEV)
    return ForecastTrainer(model, adamw(model), [(x, goal)]).fit().__next__


# ---------------------------------------------------------------- the host


class TabTransformer(nn.Module):
    def __init__(self, columns, dim, depth):
        super().__init__()
        self.embeds = nn.ModuleList(nn.Embedding(50, dim) for _ in range(columns))
        self.blocks = nn.Sequential(*[Block(dim, FusedAttention(dim, 4)) for _ in range(depth)])
        self.head = nn.Linear(columns * dim, 2)

    def forward(self, x):
        cells = [embed(x[:, k]) for k, embed in enumerate(self.embeds)]
        return self.head(self.blocks(torch.stack(cells, 1)).flatten(1))


@case(
    "a TabTransformer of tiny layers, launched kernel by kernel",
    "framework",
    codes=("FW501", "FW502"),
    functions=("forward", "training_step", "compute_loss"),
    active=3,
)
def b_tabtransformer_eager(fixed):
    model = TabTransformer(pick(16, 3), 32, pick(6, 1)).to(DEV)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True, capturable=not DRY)
    x = torch.randint(0, 50, (pick(256, 4), len(model.embeds)), device=DEV)
    y = torch.randint(0, 2, (len(x),), device=DEV)
    trainer = Trainer(model, opt, [(x, y)])

    def train_batch():
        trainer.training_step((x, y))

    return replayed(train_batch) if fixed else train_batch  # PLANT


class StepTimer:
    """Times the parts of a step; `exact` waits for the device around each."""

    def __init__(self, exact):
        self.exact, self.spent = exact, {}

    def now(self):
        if self.exact and not DRY:
            torch.cuda.synchronize()  # PLANT
        return time.perf_counter()

    def __call__(self, name, work, *args):
        start = self.now()
        result = work(*args)
        self.spent[name] = self.now() - start
        return result


class ClipTrainer(Trainer):
    def __init__(self, image, text, optimizer, loader, timer):
        super().__init__(image, optimizer, loader)
        self.text, self.timer = text, timer

    def training_step(self, batch):
        pixels, ids = batch
        self.optimizer.zero_grad()
        a = self.timer("image tower", self.model, pixels)
        b = self.timer("text tower", self.text, ids)
        logits = 20 * F.normalize(a, dim=-1) @ F.normalize(b, dim=-1).T
        labels = torch.arange(len(a), device=DEV)
        loss = F.cross_entropy(logits, labels) + F.cross_entropy(logits.T, labels)
        self.timer("backward", loss.backward)
        self.timer("optimizer", self.optimizer.step)
        return loss.detach()


@case(
    "CLIP training: a step timer that synchronises around every part",
    "framework",
    # No effect where the host is slow, as on the machine of the first recording: not in its truth.
    codes=("FW505",),
    functions=("now", "__call__"),
    plant_in="StepTimer.now",
)
def b_clip_step_timer(fixed):
    rows, side = pick(128, 2), pick(128, 32)
    image = ViT(side, 16, pick(1024, 16), pick(16, 4), pick(3, 1), 256).to(DEV, BF16)
    text = TicketClassifier(pick(256, 16), pick(12, 1)).to(DEV, BF16)
    text.head = nn.Linear(pick(256, 16), 256).to(DEV, BF16)
    opt = torch.optim.AdamW([*image.parameters(), *text.parameters()], lr=1e-4, fused=True)
    pixels = torch.randn(rows, 3, side, side, device=DEV, dtype=BF16)
    ids = torch.randint(0, 128, (rows, pick(32, 8)), device=DEV)
    return ClipTrainer(image, text, opt, [(pixels, ids)], StepTimer(not fixed)).fit().__next__


class Lion(torch.optim.Optimizer):
    """From the paper's pseudo code, a parameter at a time."""

    def __init__(self, params, lr=1e-4, betas=(0.9, 0.99), weight_decay=0.01, foreach=False):
        super().__init__(params, {"lr": lr, "betas": betas, "weight_decay": weight_decay})
        self.foreach = foreach

    @torch.no_grad()
    def step(self, closure=None):
        for group in self.param_groups:
            params = [p for p in group["params"] if p.grad is not None]
            for p in params:
                if not self.state[p]:
                    self.state[p]["exp_avg"] = torch.zeros_like(p)
            update = self.update_all if self.foreach else self.update_each
            update(params, group["lr"], *group["betas"], group["weight_decay"])

    def update_each(self, params, lr, beta1, beta2, decay):
        for p in params:
            avg = self.state[p]["exp_avg"]
            p.mul_(1 - lr * decay)
            p.add_(avg.mul(beta1).add_(p.grad, alpha=1 - beta1).sign_(), alpha=-lr)  # PLANT
            avg.mul_(beta2).add_(p.grad, alpha=1 - beta2)

    def update_all(self, params, lr, beta1, beta2, decay):
        avgs, grads = [self.state[p]["exp_avg"] for p in params], [p.grad for p in params]
        torch._foreach_mul_(params, 1 - lr * decay)
        step = torch._foreach_mul(avgs, beta1)
        torch._foreach_add_(step, grads, alpha=1 - beta1)
        torch._foreach_sign_(step)
        torch._foreach_add_(params, step, alpha=-lr)
        torch._foreach_mul_(avgs, beta2)
        torch._foreach_add_(avgs, grads, alpha=1 - beta2)


@case(
    "a Lion optimizer of one's own, looping over the parameters",
    "framework",
    codes=("FW507",),
    functions=("update_each", "step"),
    plant_in="Lion.update_each",
    active=3,
)
def b_lion_loop(fixed):
    dim = pick(256, 16)
    layers = [m for _ in range(pick(80, 4)) for m in (nn.Linear(dim, dim), nn.Tanh())]
    model = nn.Sequential(*layers, nn.Linear(dim, 10)).to(DEV)
    opt = Lion(model.parameters(), foreach=fixed)
    x, y = torch.randn(128, dim, device=DEV), torch.randint(0, 10, (128,), device=DEV)
    return Trainer(model, opt, [(x, y)]).fit().__next__


class VariationalEncoder(nn.Module):
    """The weight of the KL term follows a schedule kept as a Python number."""

    def __init__(self, tensor_step):
        super().__init__()
        self.scale = nn.Parameter(torch.ones(64))
        self.step_count = torch.zeros((), device=DEV) if tensor_step else 0

    def forward(self, x):
        mu = torch.tanh(x * self.scale)
        beta = self.step_count / 1000 + 0.01  # PLANT
        return (mu - x).square().mean() + beta * mu.square().mean()


@case(
    "torch.compile specialises on a step counter kept as a module's attribute",
    "framework",
    codes=("FW511",),
    functions=("forward", "anneal_step"),
    plant_in="VariationalEncoder.forward",
    active=2,
    stacks=False,
)
def b_recompile_step_count(fixed):
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    model = VariationalEncoder(fixed).to(DEV)
    run = compiled(model)
    x = torch.randn(pick(4096, 8), 64, device=DEV)

    @torch.no_grad()
    def anneal_step():
        model.step_count += 1
        return run(x)

    return anneal_step


def spec_augment(x, starts, widths):
    """Zeroes time and frequency bands, clip by clip."""
    x = x.clone()
    for i in range(len(x)):
        x[i, :, starts[i, 0] : starts[i, 0] + widths[i, 0]] = 0  # PLANT
        x[i, starts[i, 1] : starts[i, 1] + widths[i, 1], :] = 0
    return x


def spec_augment_batched(x, starts, widths):
    starts, widths = (torch.from_numpy(t).to(DEV) for t in (starts, widths))
    time_axis, freq_axis = (
        torch.arange(x.shape[2], device=DEV),
        torch.arange(x.shape[1], device=DEV),
    )
    cut_t = (time_axis >= starts[:, :1]) & (time_axis < starts[:, :1] + widths[:, :1])
    cut_f = (freq_axis >= starts[:, 1:]) & (freq_axis < starts[:, 1:] + widths[:, 1:])
    return x.masked_fill(cut_t[:, None] | cut_f[:, :, None], 0)


class SpeechTrainer(Trainer):
    def __init__(self, *args, augment):
        super().__init__(*args)
        self.augment, self.rng = augment, np.random.default_rng(0)

    def compute_loss(self, batch):
        x, y = batch
        starts = self.rng.integers(0, x.shape[1] // 2, (len(x), 2))
        widths = self.rng.integers(1, 12, (len(x), 2))
        return F.cross_entropy(self.model(self.augment(x, starts, widths)), y)


@case(
    "SpecAugment written as a loop over the clips",
    "framework",
    codes=("FW516", "FW502"),
    functions=("spec_augment", "compute_loss"),
    plant_in="spec_augment",
    active=3,
)
def b_specaugment_loop(fixed):
    model = nn.Sequential(
        nn.Conv1d(80, 128, 5, 2), nn.ReLU(), nn.Conv1d(128, 128, 5, 2), nn.ReLU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(), nn.Linear(128, 30),
    ).to(DEV)  # fmt: skip
    x = torch.randn(pick(192, 4), 80, pick(400, 96), device=DEV)
    y = torch.randint(0, 30, (len(x),), device=DEV)
    augment = spec_augment_batched if fixed else spec_augment
    return SpeechTrainer(model, adamw(model), [(x, y)], augment=augment).fit().__next__


class TwoTower(nn.Module):
    def __init__(self, users, items, dim):
        super().__init__()
        self.user = nn.EmbeddingBag(users, dim, mode="sum", sparse=False)
        self.item = nn.EmbeddingBag(items, dim, mode="sum", sparse=False)
        self.top = nn.Sequential(nn.Linear(2 * dim, 128), nn.ReLU(), nn.Linear(128, 2))

    def forward(self, pair):
        return self.top(torch.cat([self.user(pair[:, :1]), self.item(pair[:, 1:])], 1))


class PairCounter:
    """How often each (user, item) was seen, for the popularity report."""

    def __init__(self, pairs, fast):
        self.pairs, self.fast, self.seen = pairs, fast, {}
        self.array = np.array(pairs)
        self.counts = np.zeros(4096 * 1024, dtype=np.int64)

    def count_fast(self):
        np.add.at(self.counts, self.array[:, 0] * 1024 + self.array[:, 1], 1)

    def count(self):
        seen = self.seen
        for user, item in self.pairs:
            key = (user, item)
            if key in seen:
                seen[key] += 1  # PLANT
            else:
                seen[key] = 1

    def on_step_end(self, trainer, loss):
        if self.fast:
            self.count_fast()
        else:
            self.count()


@case(
    "a popularity report counted pair by pair in a Python dict",
    "framework",
    codes=("FW517", "FW528"),
    functions=("count", "on_step_end"),
    plant_in="PairCounter.count",
)
def b_recsys_python_counter(fixed):
    model = TwoTower(4096, 1024, pick(64, 8)).to(DEV)
    rng = np.random.default_rng(0)
    pairs = np.stack([rng.integers(0, 4096, 40_000), rng.integers(0, 1024, 40_000)], 1)
    pairs = pairs[: pick(40_000, 64)]
    ids = torch.from_numpy(pairs).to(DEV)
    y = torch.randint(0, 2, (len(ids),), device=DEV)
    counter = PairCounter([(int(u), int(i)) for u, i in pairs], fixed)
    return Trainer(model, adamw(model), [(ids, y)], (counter,)).fit().__next__


class UNet(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.inlet = nn.Conv2d(3, width, 3, padding=1)
        self.down = nn.Conv2d(width, 2 * width, 4, 2, 1)
        self.mid = nn.Sequential(nn.SiLU(), nn.Conv2d(2 * width, 2 * width, 3, 1, 1), nn.SiLU())
        self.up = nn.ConvTranspose2d(2 * width, width, 4, 2, 1)
        self.time = nn.Linear(1, 2 * width)
        self.outlet = nn.Conv2d(2 * width, 3, 3, padding=1)

    def forward(self, x, t):
        a = self.inlet(x)
        m = self.mid(self.down(a) + self.time(t)[:, :, None, None])
        return self.outlet(torch.cat([a, self.up(m)], 1))


class DiffusionTrainer(Trainer):
    def __init__(self, *args, on_device):
        super().__init__(*args)
        self.on_device = on_device

    def draw_noise(self, x):
        if self.on_device:
            return torch.randn_like(x)
        return torch.randn(x.shape, dtype=x.dtype).to(DEV)  # PLANT

    def compute_loss(self, x):
        noise = self.draw_noise(x)
        t = torch.rand(len(x), 1, device=DEV, dtype=x.dtype)
        mix = (1 - t)[:, :, None, None] * x + t[:, :, None, None] * noise
        return F.mse_loss(self.model(mix, t), noise)


@case(
    "diffusion noise drawn on the CPU and moved to the GPU",
    "framework",
    codes=("FW520",),
    also=("data_loading",),
    plant_in="DiffusionTrainer.draw_noise",
)
def b_diffusion_cpu_noise(fixed):
    model = UNet(pick(32, 4)).to(DEV)
    side = pick(128, 16)
    x = torch.randn(pick(32, 2), 3, side, side, device=DEV)
    return DiffusionTrainer(model, adamw(model), [x], on_device=fixed).fit().__next__


class QNet(nn.Sequential):
    def __init__(self, width, depth):
        layers = [nn.Linear(16, width), nn.ReLU()]
        layers += [m for _ in range(depth) for m in (nn.Linear(width, width), nn.ReLU())]
        super().__init__(*layers, nn.Linear(width, 6))


class DQNTrainer(Trainer):
    def __init__(self, *args, target, detect_anomaly):
        super().__init__(*args)
        self.target, self.detect_anomaly = target, detect_anomaly

    def compute_loss(self, batch):
        state, action, reward, after = batch
        q = self.model(state).gather(1, action)
        with torch.no_grad():
            best = self.target(after).amax(1, keepdim=True)
        return F.smooth_l1_loss(q, reward + 0.99 * best)

    def training_step(self, batch):
        with torch.autograd.set_detect_anomaly(self.detect_anomaly):  # PLANT
            return super().training_step(batch)


@case(
    "a DQN trainer with detect_anomaly=True left in its arguments",
    "framework",
    codes=("FW521",),
    functions=("training_step", "compute_loss"),
    plant_in="DQNTrainer.training_step",
    active=3,
)
def b_dqn_anomaly(fixed):
    width, depth = pick(512, 16), pick(16, 2)
    online, target = QNet(width, depth).to(DEV), QNet(width, depth).to(DEV)
    rows = pick(256, 4)
    state, after = (torch.randn(rows, 16, device=DEV) for _ in range(2))
    action = torch.randint(0, 6, (rows, 1), device=DEV)
    replay = [(state, action, torch.randn(rows, 1, device=DEV), after)]
    trainer = DQNTrainer(online, adamw(online), replay, target=target, detect_anomaly=not fixed)
    return trainer.fit().__next__
