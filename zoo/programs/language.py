"""Language: text classifiers and small transformers."""

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, case, compiled, pick

BF16 = torch.bfloat16


class SelfAttention(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(dim, 3 * dim)
        self.proj = nn.Linear(dim, dim)

    def forward(self, x, mask=None):
        b, s, d = x.shape
        q, k, v = self.qkv(x).view(b, s, 3, self.heads, d // self.heads).permute(2, 0, 3, 1, 4)
        y = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=mask is None)
        return self.proj(y.transpose(1, 2).reshape(b, s, d))


class Layer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.attn = SelfAttention(dim, heads)
        self.mlp = nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))

    def forward(self, x, mask=None):
        x = x + self.attn(self.norm1(x), mask)
        return x + self.mlp(self.norm2(x))


class TextModel(nn.Module):
    def __init__(self, vocab, dim, heads, depth, out):
        super().__init__()
        self.embed = nn.Embedding(vocab, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.out = nn.Linear(dim, out)

    def forward(self, ids):
        x = self.embed(ids)
        for layer in self.layers:
            x = layer(x)
        return self.out(x.mean(1))


class Reviews(Dataset):
    """Character-level reviews, encoded sample by sample."""

    def __init__(self, length, fast):
        self.text = ("the plot was thin but the acting carried it, mostly. " * 100)[:length]
        self.table = {ch: i for i, ch in enumerate("abcdefghijklmnopqrstuvwxyz ,.")}
        self.fast = fast
        self.lut = np.zeros(256, np.int64)
        for ch, i in self.table.items():
            self.lut[ord(ch)] = i

    def __len__(self):
        return 1_000_000

    def encode(self, text):
        ids = [self.table[ch] * 31 % 97 for ch in text]  # PLANT
        return torch.tensor(ids[:256])

    def __getitem__(self, i):
        if self.fast:
            codes = np.frombuffer(self.text[:256].encode(), np.uint8)
            return torch.from_numpy(self.lut[codes] * 31 % 97), i % 2
        return self.encode(self.text), i % 2


@case(
    "character-by-character tokenizer in the loading path",
    "data_loading",
    codes=("DL108", "DL101"),
    functions=("encode", "__getitem__"),
    plant_in="Reviews.encode",
    active=3,
)
def dl_char_tokenizer(fixed):
    model = TextModel(128, 256, 4, 2, 2).to(DEV)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    stream = iter(DataLoader(Reviews(pick(2000, 20), fixed), pick(64, 4), num_workers=0))

    def train_reviews():
        ids, y = next(stream)
        opt.zero_grad()
        F.cross_entropy(model(ids.to(DEV)), y.to(DEV)).backward()
        opt.step()

    return train_reviews


class Sentences(Dataset):
    def __init__(self, longest):
        self.longest = longest

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        n = self.longest - i * 7919 % (self.longest // 2)
        return list(range(i % 50, i % 50 + n))


def pad_batch(samples):
    longest = max(len(s) for s in samples)
    ids = torch.zeros(len(samples), longest, dtype=torch.long)
    keep = torch.zeros(len(samples), longest)
    for row, tokens in enumerate(samples):
        ids[row, : len(tokens)] = torch.tensor(tokens)  # PLANT
        keep[row, : len(tokens)] = 1.0
    return ids, keep


@case(
    "padding the batch on the main thread after the loader",
    "data_loading",
    codes=("DL104",),
    functions=("pad_batch",),
    plant_in="pad_batch",
    active=3,
    light=True,
)
def dl_pad_in_loop(fixed):
    model = TextModel(1024, 128, 4, 1, 2).to(DEV)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    loader = DataLoader(
        Sentences(pick(360, 12)),
        pick(192, 4),
        num_workers=pick(8, 1),
        collate_fn=pad_batch if fixed else list,
    )
    stream = iter(loader)

    def train_sentences():
        batch = next(stream)
        ids, keep = batch if fixed else pad_batch(batch)
        weight = keep.to(DEV).sum(1)
        opt.zero_grad()
        out = model(ids.to(DEV))
        (out.logsumexp(1) * weight).mean().backward()
        opt.step()

    return train_sentences


@case(
    "activation checkpointing on every layer with memory to spare",
    "compute",
    codes=("CP217",),
    active=3,
    functions=("train_lm",),
)
def cp_checkpoint_all(fixed):
    dim = pick(1024, 32)
    layers = nn.ModuleList(Layer(dim, 4) for _ in range(pick(4, 2))).to(DEV, BF16)
    x = torch.randn(pick(24, 2), pick(1024, 8), dim, device=DEV, dtype=BF16, requires_grad=True)

    def train_lm():
        layers.zero_grad()
        h = x
        for layer in layers:
            h = layer(h) if fixed else checkpoint(layer, h, use_reentrant=False)  # PLANT
        h.float().square().mean().backward()

    return train_lm


@case(
    "the causal mask built on the CPU and moved for every layer",
    "framework",
    also=("memory", "data_loading"),
    codes=("FW520",),
    functions=("causal_mask",),
    plant_in="causal_mask",
)
def fw_cpu_mask(fixed):
    dim, s = pick(384, 32), pick(768, 8)
    layers = nn.ModuleList(Layer(dim, pick(6, 4)) for _ in range(pick(6, 2))).to(DEV, BF16)
    x = torch.randn(4, s, dim, device=DEV, dtype=BF16)

    @torch.no_grad()
    def score_batch():
        h = x
        for layer in layers:
            h = layer(h, causal_mask(s, DEV if fixed else torch.device("cpu")))
        return h.mean()

    return score_batch


def causal_mask(s, where):
    return torch.full((s, s), float("-inf"), device=where).triu(1).to(DEV, BF16)  # PLANT


@case(
    "for-loop AdamW over the tensors of a deep narrow transformer",
    "framework",
    codes=("FW507",),
    active=2,
    functions=("train_narrow",),
)
def fw_adamw_loop(fixed):
    model = TextModel(512, 128, 4, pick(12, 2), 8).to(DEV)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, amsgrad=True, foreach=False, fused=fixed)
    ids = torch.randint(0, 512, (8, 64), device=DEV)
    y = torch.randint(0, 8, (8,), device=DEV)

    def train_narrow():
        opt.zero_grad()
        F.cross_entropy(model(ids), y).backward()
        opt.step()  # PLANT

    return train_narrow


class Experts(nn.Module):
    def __init__(self, dim, count, fixed):
        super().__init__()
        self.gate = nn.Linear(dim, count)
        self.up = nn.Parameter(torch.randn(count, dim, 2 * dim) * 0.02)
        self.down = nn.Parameter(torch.randn(count, 2 * dim, dim) * 0.02)
        self.fixed = fixed

    def forward(self, x):
        expert = self.gate(x).argmax(-1)
        return self.padded(x, expert) if self.fixed else self.routed(x, expert)

    def routed(self, x, expert):
        out = torch.zeros_like(x)
        for e in range(len(self.up)):
            rows = torch.where(expert == e)[0]  # PLANT
            out[rows] = F.gelu(x[rows] @ self.up[e]) @ self.down[e]
        return out

    def padded(self, x, expert):
        count, n = len(self.up), len(x)
        room = 2 * n // count
        order = expert.argsort(stable=True)
        ranks = torch.arange(n, device=x.device)
        first = torch.searchsorted(expert[order], torch.arange(count, device=x.device))
        slot = (ranks - first[expert[order]]).clamp(max=room - 1) + expert[order] * room
        box = x.new_zeros(count * room, x.shape[1]).index_copy(0, slot, x[order])
        y = torch.bmm(F.gelu(torch.bmm(box.view(count, room, -1), self.up)), self.down)
        return torch.zeros_like(x).index_copy(0, order, y.flatten(0, 1)[slot])


@case(
    "mixture of experts routed with torch.where per expert",
    "framework",
    codes=("FW504",),
    functions=("routed",),
    plant_in="Experts.routed",
)
def fw_moe_where(fixed):
    dim = pick(512, 16)
    stack = nn.ModuleList(Experts(dim, pick(16, 3), fixed) for _ in range(pick(4, 1))).to(DEV, BF16)
    x = torch.randn(pick(4096, 12), dim, device=DEV, dtype=BF16)

    @torch.no_grad()
    def score_tokens():
        h = x
        for experts in stack:
            h = h + experts(h)
        return h

    return score_tokens


@case(
    "beam search bookkeeping in Python lists",
    "framework",
    codes=("FW517",),
    functions=("grow_beams",),
    plant_in="grow_beams",
    active=3,
)
def fw_beam_python(fixed):
    dim, vocab, width, rows = pick(512, 16), pick(4096, 50), pick(8, 2), pick(8, 2)
    net = nn.Sequential(
        nn.Embedding(vocab, dim), nn.Linear(dim, dim), nn.Tanh(), nn.Linear(dim, vocab)
    )
    net = net.to(DEV)
    state = {"ids": torch.zeros(rows * width, dtype=torch.long, device=DEV)}
    total = torch.zeros(rows * width, 1, device=DEV)

    @torch.no_grad()
    def decode_position():
        logp = F.log_softmax(net(state["ids"]), -1) + total
        best, token = logp.topk(pick(48, 4), -1)
        if fixed:
            _, at = best.view(rows, -1).topk(width, -1)
            state["ids"] = token.view(rows, -1).gather(1, at).flatten()
        else:
            chosen = grow_beams(best.tolist(), token.tolist(), width)
            state["ids"] = torch.tensor(chosen, device=DEV)

    return decode_position


def grow_beams(scores, tokens, width):
    chosen = []
    for first in range(0, len(scores), width):
        pool = []
        for beam in range(first, first + width):
            for s, t in zip(scores[beam], tokens[beam], strict=True):
                pool.append((s / math.pow(beam + 2, 0.7), t))  # PLANT
        pool.sort(reverse=True)
        chosen += [t for _, t in pool[:width]]
    return chosen


class GuardedMlp(nn.Module):
    def __init__(self, dim, depth, guard):
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.guard = guard

    def forward(self, x):
        for layer, norm in zip(self.layers, self.norms, strict=True):
            x = x + F.gelu(layer(norm(x)))
            if self.guard and x.abs().max().item() > 1e4:  # PLANT
                x = x.clamp(-1e4, 1e4)
        return x


@case(
    "an .item() guard in the layer loop of a compiled model",
    "framework",
    codes=("FW510", "FW534", "FW503"),
    functions=("forward",),
    plant_in="GuardedMlp.forward",
)
def fw_compiled_guard(fixed):
    dim = pick(512, 16)
    net = compiled(GuardedMlp(dim, pick(16, 2), guard=not fixed).to(DEV))
    x = torch.randn(256, dim, device=DEV)

    @torch.no_grad()
    def encode_batch():
        return net(x)

    return encode_batch
