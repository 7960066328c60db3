"""Input pipelines with one mistake each; written and recorded after all other programs."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, pick

BF16 = torch.bfloat16
HOST_MEMORY = {"pin_memory": not DRY}


def adam(net, **kw):
    return torch.optim.Adam(net.parameters(), lr=1e-4, fused=True, **kw)


def forever(loader):
    while True:
        yield from loader


# ---------------------------------------------------------------- seismic shots


class ShotGathers(Dataset):
    """Field records: taper, band-pass, automatic gain control."""

    def __init__(self, channels, samples):
        rng = np.random.default_rng(0)
        self.raw = rng.standard_normal((24, channels, samples)).astype(np.float32)
        self.taper = np.hanning(samples).astype(np.float32)
        pass_low, pass_high = samples // 64, samples // 6
        self.band = np.zeros(samples // 2 + 1, np.float32)
        self.band[pass_low:pass_high] = 1

    def __len__(self):
        return 1_000_000

    def condition(self, shot):
        spectrum = np.fft.rfft(shot * self.taper, axis=1) * self.band
        quiet = np.fft.irfft(spectrum, axis=1)
        power = np.cumsum(quiet**2, axis=1)
        span = max(1, quiet.shape[1] // 20)
        local = (power[:, span:] - power[:, :-span]) / span
        return (quiet[:, span:] / np.sqrt(local + 1e-6)).astype(np.float32)

    def __getitem__(self, i):
        return torch.from_numpy(self.condition(self.raw[i % 24])), i % 5


class Picker(nn.Module):
    def __init__(self, channels, width):
        super().__init__()
        self.stem = nn.Conv1d(channels, width, 9, 4, 4)
        self.body = nn.ModuleList(nn.Conv1d(width, width, 5, padding=2) for _ in range(8))
        self.head = nn.Linear(width, 5)

    def forward(self, x):
        x = self.stem(x.to(self.stem.weight.dtype))
        for conv in self.body:
            x = x + F.gelu(conv(x))
        return self.head(x.mean(2))


@case(
    "seismic records band-passed in the training process",
    "data_loading",
    codes=("DL101", "DL108"),
    functions=("pick_arrivals", "__getitem__", "condition"),
    active=3,
)
def d_seismic_mainproc(fixed):
    channels = pick(32, 3)
    net = Picker(channels, pick(192, 8)).to(DEV, BF16)
    opt = adam(net)
    workers = pick(8, 1) if fixed else 0  # PLANT
    shots = ShotGathers(channels, pick(2048, 128))
    source = iter(DataLoader(shots, pick(16, 2), num_workers=workers, **HOST_MEMORY))

    def pick_arrivals():
        shot, kind = next(source)
        opt.zero_grad()
        loss = F.cross_entropy(net(shot.to(DEV, non_blocking=True)).float(), kind.to(DEV))
        loss.backward()
        opt.step()

    return pick_arrivals


# ---------------------------------------------------------------- satellite tiles


class Scenes(Dataset):
    """Multispectral tiles, rotated by a random angle with bilinear sampling."""

    def __init__(self, bands, side):
        self.scene = np.random.default_rng(0).random((bands, side * 2, side * 2), np.float32)
        self.side = side

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        side, angle = self.side, (i * 37 % 360) * np.pi / 180
        y, x = np.mgrid[:side, :side].astype(np.float32) - side / 2
        u = np.clip(np.cos(angle) * x - np.sin(angle) * y + side, 0, 2 * side - 2)
        v = np.clip(np.sin(angle) * x + np.cos(angle) * y + side, 0, 2 * side - 2)
        ui, vi = u.astype(np.int64), v.astype(np.int64)
        fu, fv = u - ui, v - vi
        s = self.scene
        top = s[:, vi, ui] * (1 - fu) + s[:, vi, ui + 1] * fu
        low = s[:, vi + 1, ui] * (1 - fu) + s[:, vi + 1, ui + 1] * fu
        tile = (top * (1 - fv) + low * fv).astype(np.float32)
        return torch.from_numpy(tile), i % 11


def land_cover_net(bands, width):
    layers, last = [], bands
    for k in range(4):
        layers += [nn.Conv2d(last, width << k, 3, 2, 1), nn.GroupNorm(4, width << k), nn.SiLU()]
        last = width << k
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(last, 11))


@case(
    "three loader workers for tiles that are rotated with bilinear sampling",
    "data_loading",
    codes=("DL102",),
    functions=("map_tiles",),
    active=3,
)
def d_tiles_three_workers(fixed):
    net = land_cover_net(6, pick(96, 8)).to(DEV)
    opt = adam(net)
    loader = DataLoader(
        Scenes(6, pick(128, 16)),
        pick(24, 2),
        num_workers=pick(14, 1) if fixed else pick(3, 1),  # PLANT
        prefetch_factor=4,
    )
    source = iter(loader)

    def map_tiles():
        tiles, cover = (t.to(DEV, non_blocking=True) for t in next(source))
        opt.zero_grad()
        F.cross_entropy(net(tiles), cover).backward()
        opt.step()

    return map_tiles


# ---------------------------------------------------------------- weather stations


class StationLogs(Dataset):
    """Text lines of a station's day, as downloaded."""

    def __init__(self, hours, fields, parsed):
        rng = random.Random(0)
        self.lines = [
            [",".join(f"{rng.gauss(10, 4):.2f}" for _ in range(fields)) for _ in range(hours)]
            for _ in range(32)
        ]
        self.arrays = [np.array(self.parse(day), np.float32) for day in self.lines]
        self.parsed = parsed

    def __len__(self):
        return 1_000_000

    def parse(self, day):
        return [[float(v) for v in line.split(",")] for line in day]

    def __getitem__(self, i):
        k = i % 32
        day = self.arrays[k] if self.parsed else np.array(self.parse(self.lines[k]), "f4")  # PLANT
        return torch.from_numpy(day), float(k)


@case(
    "text lines of weather stations parsed again for every sample",
    "data_loading",
    codes=("DL108", "DL101"),
    functions=("__getitem__", "parse", "learn_day"),
    plant_in="StationLogs.__getitem__",
    active=3,
)
def d_stations_parse(fixed):
    hours, fields = pick(24, 4), pick(40, 4)
    logs = StationLogs(hours, fields, fixed)
    source = iter(DataLoader(logs, pick(48, 2), num_workers=0, **HOST_MEMORY))
    net = nn.GRU(fields, pick(512, 8), 2, batch_first=True).to(DEV)
    out = nn.Linear(pick(512, 8), 1).to(DEV)
    opt = adam(nn.ModuleList([net, out]))

    def learn_day():
        day, rain = (t.to(DEV, non_blocking=True) for t in next(source))
        opt.zero_grad()
        guess = out(net(day)[0][:, -1])[:, 0]
        F.mse_loss(guess, rain.float()).backward()
        opt.step()

    return learn_day


# ---------------------------------------------------------------- validation loader


class Embeddings(Dataset):
    def __init__(self, count, width):
        self.rows = torch.randn(count, width)

    def __len__(self):
        return len(self.rows)

    def __getitem__(self, i):
        return self.rows[i], i % 3


@case(
    "a validation after every few batches starts the validation workers anew",
    "data_loading",
    codes=("DL103",),
    functions=("validate", "fit_and_validate"),
    active=3,
)
def d_validation_respawn(fixed):
    torch.set_float32_matmul_precision("high")
    width = pick(1024, 8)
    net = nn.Sequential(nn.Linear(width, 4096), nn.GELU(), nn.Linear(4096, 3)).to(DEV)
    opt = adam(net)
    held_out = DataLoader(
        Embeddings(pick(96, 8), width),
        pick(32, 4),
        num_workers=2,
        persistent_workers=fixed,  # PLANT
    )
    x = torch.randn(pick(8192, 4), width, device=DEV)
    y = torch.randint(0, 3, (len(x),), device=DEV)

    @torch.no_grad()
    def validate():
        right = [(net(a.to(DEV)).argmax(1) == b.to(DEV)).sum() for a, b in held_out]
        return torch.stack(right).sum()

    def fit_and_validate():
        for _ in range(4):
            opt.zero_grad()
            F.cross_entropy(net(x), y).backward()
            opt.step()
        return validate()

    return fit_and_validate


# ---------------------------------------------------------------- copies


class FrameStore:
    """Random frames of a video memory, gathered into a batch."""

    def __init__(self, count, side, rows):
        self.frames = np.random.default_rng(0).random((count, 3, side, side), np.float32)
        self.count, self.rows, self.turn = count, rows, 0
        shape = (rows, 3, side, side)
        self.staging = [torch.empty(shape, pin_memory=not DRY) for _ in range(3)]

    def staged(self, which):
        self.turn = (self.turn + 1) % 3
        buffer = self.staging[self.turn]
        np.take(self.frames, which, axis=0, out=buffer.numpy(), mode="clip")
        return buffer

    def gathered(self, which):
        return torch.from_numpy(self.frames[which])

    def batch(self, fixed):
        which = np.random.randint(0, self.count, self.rows)
        host = self.staged(which) if fixed else self.gathered(which)  # PLANT
        return host.to(DEV, non_blocking=True)


@case(
    "frames gathered into a fresh pageable array for each batch",
    "data_loading",
    also=("memory", "compute"),
    codes=("DL105",),
    functions=("batch", "gathered", "learn_motion"),
    plant_in="FrameStore.batch",
)
def d_frames_pageable(fixed):
    store = FrameStore(pick(128, 4), pick(192, 16), pick(32, 2))
    net = land_cover_net(3, pick(128, 8)).to(DEV).to(memory_format=torch.channels_last)
    opt = adam(net)
    seen = []

    def learn_motion():
        frames = store.batch(fixed)
        opt.zero_grad()
        loss = net(frames).square().mean()
        loss.backward()
        opt.step()
        seen[:] = [loss.detach()]

    return learn_motion


@case(
    "user sessions moved to the GPU one by one, then stacked",
    "data_loading",
    also=("framework",),
    codes=("DL113", "FW506", "DL105"),
    functions=("to_batch", "rank_sessions"),
)
def d_sessions_one_by_one(fixed):
    torch.set_float32_matmul_precision("high")
    clicks = [torch.randn(pick(40, 4), 48) for _ in range(pick(160, 4))]
    net = nn.Sequential(
        nn.Linear(48, 1024), nn.GELU(), nn.Linear(1024, 1024), nn.GELU(), nn.Linear(1024, 1)
    ).to(DEV)
    opt = adam(net)
    losses = []

    def to_batch(sessions):
        first = torch.device("cpu") if fixed else DEV
        return torch.stack([s.to(first) for s in sessions]).to(DEV)  # PLANT

    def rank_sessions():
        x = to_batch(clicks)
        opt.zero_grad()
        loss = F.softplus(-net(x)).mean()
        loss.backward()
        opt.step()
        losses[:] = [loss.item()]

    return rank_sessions


# ---------------------------------------------------------------- masking on the host


class SmallEncoder(nn.Module):
    def __init__(self, words, dim, depth):
        super().__init__()
        self.words = nn.Embedding(words, dim)
        self.layers = nn.ModuleList(
            nn.TransformerEncoderLayer(
                dim, pick(8, 2), 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
            )
            for _ in range(depth)
        )
        self.head = nn.Linear(dim, words)

    def forward(self, ids):
        x = self.words(ids)
        for layer in self.layers:
            x = layer(x)
        return self.head(x)


def mask_on_host(ids, rate):
    """Hides whole spans; every row by itself."""
    hidden = ids.copy()
    for row in hidden:
        count = int(rate * len(row))
        starts = np.random.permutation(len(row) - 3)[: count // 3]  # PLANT
        for shift in range(3):
            row[starts + shift] = 0
    return torch.from_numpy(hidden).to(DEV)


def mask_on_device(ids, rate):
    starts = torch.rand(ids.shape, device=DEV) < rate / 3
    spans = F.max_pool1d(F.pad(starts.float(), (2, 0)), 3, 1)
    return ids.masked_fill(spans > 0, 0)


@case(
    "spans masked in NumPy on the main thread, batch by batch",
    "data_loading",
    also=("framework",),
    codes=("DL104", "FW517"),
    functions=("mask_on_host", "pretrain"),
    plant_in="mask_on_host",
)
def d_spans_masked_on_host(fixed):
    words = pick(4096, 32)
    net = SmallEncoder(words, pick(384, 8), pick(3, 1)).to(DEV, BF16)
    opt = adam(net)
    text = np.random.default_rng(0).integers(1, words, (pick(128, 2), pick(256, 16)))
    on_device = torch.from_numpy(text).to(DEV)

    def pretrain():
        ids = mask_on_device(on_device, 0.15) if fixed else mask_on_host(text, 0.15)
        opt.zero_grad()
        logits = net(ids)
        F.cross_entropy(logits.flatten(0, 1), on_device.flatten()).backward()
        opt.step()

    return pretrain
