"""Inference servers: no step annotations, one call a request (or batch)."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick, replayed


class Decoder(nn.Module):
    """A small causal decoder with a static key/value cache."""

    def __init__(self, vocab, dim, heads, depth, room):
        super().__init__()
        self.embed, self.head = nn.Embedding(vocab, dim), nn.Linear(dim, vocab, bias=False)
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(2 * depth))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim) for _ in range(depth))
        self.proj = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.mlp = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim))
            for _ in range(depth)
        )
        self.heads = heads
        self.register_buffer("cache", torch.zeros(depth, 2, heads, room, dim // heads))

    def forward(self, token, at):
        x = self.embed(token)
        for k, (qkv, proj, mlp) in enumerate(zip(self.qkv, self.proj, self.mlp, strict=True)):
            q, key, value = qkv(self.norms[2 * k](x)).view(3, self.heads, 1, -1)
            self.cache[k, 0].index_copy_(1, at, key)
            self.cache[k, 1].index_copy_(1, at, value)
            y = F.scaled_dot_product_attention(
                q[None], self.cache[k, 0][None], self.cache[k, 1][None]
            )
            x = x + proj(y.reshape(1, -1))
            x = x + mlp(self.norms[2 * k + 1](x))
        return self.head(x)


@case(
    "token-by-token decoding at batch 1 without a CUDA graph",
    "framework",
    codes=("FW501", "IN602"),
    functions=("forward", "next_token"),
    active=4,
    marks=False,
    light=True,
)
def in_decode_eager(fixed):
    model = Decoder(pick(8000, 32), pick(512, 16), 8, pick(12, 2), pick(256, 8)).to(DEV).eval()
    token = torch.zeros(1, dtype=torch.long, device=DEV)
    at = torch.zeros(1, dtype=torch.long, device=DEV)

    @torch.no_grad()
    def next_token():
        logits = model(token, at)  # PLANT
        token.copy_(logits.argmax(-1))
        at.add_(1).remainder_(pick(256, 8))

    return replayed(next_token) if fixed else next_token


@case(
    "requests of a queue answered one by one",
    "framework",
    also=("compute",),
    codes=("IN603", "FW501"),
    functions=("answer_queue",),
    plant_in="answer_queue",
    active=3,
    marks=False,
)
def in_one_by_one(fixed):
    net = nn.Sequential(
        nn.Linear(256, 2048), nn.GELU(), nn.Linear(2048, 2048), nn.GELU(), nn.LayerNorm(2048),
        nn.Linear(2048, 2048), nn.GELU(), nn.Linear(2048, 10),
    ).to(DEV).eval()  # fmt: skip
    queue = [torch.randn(1, 256, device=DEV) for _ in range(pick(32, 4))]

    @torch.inference_mode()
    def serve_queue():
        if fixed:
            return net(torch.cat(queue)).argmax(1).tolist()
        return answer_queue(net, queue)

    return serve_queue


def answer_queue(net, queue):
    answers = []
    for request in queue:
        answers.append(net(request).argmax(1))  # PLANT
    return torch.cat(answers).tolist()


@case(
    "evaluation without no_grad: memory kept for nothing, no time lost",
    "memory",
    also=("compute",),
    codes=("IN601",),
    functions=("evaluate",),
    marks=False,
)
def in_grad_enabled(fixed):
    blocks = [
        nn.Sequential(
            nn.Conv2d(32, 32, 3, padding=1), nn.BatchNorm2d(32), nn.ReLU(), nn.Conv2d(32, 32, 1)
        )
        for _ in range(16)
    ]
    net = nn.Sequential(
        nn.Conv2d(3, 32, 3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten()
    ).to(DEV)
    net.eval()
    x = torch.randn(pick(96, 2), 3, pick(192, 16), pick(192, 16), device=DEV)

    def evaluate():
        with torch.inference_mode(fixed):
            return net(x).argmax(1)  # PLANT

    return evaluate


MEL = np.abs(np.random.default_rng(0).standard_normal((513, 80))).astype(np.float32)
WINDOW = np.hanning(1024).astype(np.float32)


def mel_on_host(wave):
    frames = np.lib.stride_tricks.sliding_window_view(wave, 1024)[::160] * WINDOW
    power = np.abs(np.fft.rfft(frames, axis=1)) ** 2  # PLANT
    return torch.from_numpy(np.log(power.astype(np.float32) @ MEL + 1e-5)).to(DEV)


@case(
    "mel spectrogram of each request computed in NumPy before the model",
    "data_loading",
    also=("framework",),
    codes=("IN612", "DL104"),
    functions=("mel_on_host",),
    plant_in="mel_on_host",
    marks=False,
)
def in_mel_numpy(fixed):
    net = nn.Sequential(
        nn.Conv1d(80, 384, 3, padding=1), nn.GELU(), nn.Conv1d(384, 384, 3, 2, 1), nn.GELU(),
        nn.AdaptiveAvgPool1d(1), nn.Flatten(1), nn.Linear(384, 64),
    ).to(DEV).eval()  # fmt: skip
    wave = np.random.default_rng(1).standard_normal(pick(64_000, 4000), dtype=np.float32)
    mel = torch.from_numpy(MEL).to(DEV)
    window = torch.from_numpy(WINDOW).to(DEV)

    @torch.inference_mode()
    def transcribe_request():
        if fixed:
            x = torch.from_numpy(wave).to(DEV)
            spec = torch.stft(x, 1024, 160, window=window, center=False, return_complex=True)
            feats = (spec.abs().square().T @ mel + 1e-5).log()
        else:
            feats = mel_on_host(wave)
        return net(feats.T[None]).argmax(1).item()

    return transcribe_request
