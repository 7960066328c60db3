"""Bytes moved for nothing; one mistake each."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick
from zoo.programs.final_data import BF16


class HandGelu(nn.Module):
    def forward(self, x):
        inner = 0.7978845608 * (x + 0.044715 * x.pow(3))  # PLANT
        return 0.5 * x * (1 + torch.tanh(inner))


@case(
    "the tanh form of GELU written out in a language model's layers",
    "memory",
    also=("compute",),
    codes=("CP212", "CP219", "MM311"),
    functions=("forward", "tell_story"),
    plant_in="HandGelu.forward",
)
def e_gelu_by_hand(fixed):
    dim = pick(2560, 8)
    bend = nn.GELU("tanh") if fixed else HandGelu()
    with DEV:
        parts = [
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), bend, nn.Linear(4 * dim, dim))
            for _ in range(pick(3, 1))
        ]
        net = nn.Sequential(*parts).to(BF16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(8192, 4), dim, device=DEV, dtype=BF16)

    def tell_story():
        opt.zero_grad()
        net(x).float().square().mean().backward()
        opt.step()

    return tell_story


def limit(prints, low, high, stay):
    if stay:
        return prints.clamp(low, high)
    host = prints.cpu().numpy()  # PLANT
    return torch.from_numpy(np.clip(host, low, high)).to(DEV)


@case(
    "audio fingerprints clipped in NumPy between two networks",
    "memory",
    also=("framework", "data_loading"),
    codes=("MM309", "FW503"),
    functions=("limit", "match_songs"),
    plant_in="limit",
)
def e_prints_clipped_on_host(fixed):
    torch.set_float32_matmul_precision("high")
    dim, code = pick(6144, 8), pick(64, 4)
    with DEV:
        encode = nn.Sequential(nn.Linear(dim, dim), nn.ReLU(), nn.Linear(dim, code))
        match = nn.Sequential(nn.Linear(code, dim), nn.ReLU(), nn.Linear(dim, dim))
    songs = torch.randn(pick(8192, 4), dim, device=DEV)

    @torch.no_grad()
    def match_songs():
        return match(limit(encode(songs), -0.5, 0.5, fixed)).amax(1)

    return match_songs


def append(wave, part, parts):
    if parts is None:
        return torch.cat([wave, part], 1)  # PLANT
    parts.append(part)
    return wave


@case(
    "a waveform made longer with cat after each second",
    "memory",
    also=("framework",),
    codes=("MM316", "MM309", "IN605"),
    functions=("append", "sing"),
    plant_in="append",
)
def e_wave_grown(fixed):
    torch.set_float32_matmul_precision("high")
    dim, hop, rows, frames = pick(1024, 8), pick(256, 4), pick(8, 2), pick(256, 4)
    voice = nn.Sequential(nn.Linear(dim, dim), nn.SiLU(), nn.Linear(dim, hop)).to(DEV)
    notes = torch.randn(pick(48, 3), rows, frames, dim, device=DEV)

    @torch.no_grad()
    def sing():
        wave, parts = notes.new_empty(rows, 0), [] if fixed else None
        for note in notes:
            wave = append(wave, F.hardtanh(voice(note)).flatten(1), parts)
        return torch.cat(parts, 1) if fixed else wave

    return sing
