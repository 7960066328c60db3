"""Training that waits for its input; one mistake each."""

import tempfile
import zlib
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import Dataset

from zoo.harness import DEV, case, pick, pinned
from zoo.programs.fresh_parts import (
    ENDLESS,
    SmallUNet,
    adamw,
    batches,
    conv,
    mixed,
    to_device,
    trunk,
)


class Slices(Dataset):
    """Packed slices of a scan, unpacked, windowed and turned when asked for."""

    def __init__(self, side):
        rng = np.random.default_rng(0)
        rise = np.add.outer(np.arange(side), np.arange(side)) // 2 - 160
        images = (rise + rng.integers(0, 24, (side, side)) for _ in range(16))
        self.side, self.packed = side, [zlib.compress(x.astype(np.int16), 1) for x in images]

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        raw = zlib.decompress(self.packed[i % len(self.packed)])
        scan = np.frombuffer(raw, np.int16).reshape(self.side, self.side)
        scan = np.clip((scan.astype(np.float32) + 160) / 400, 0, 1)
        scan = torch.from_numpy(np.ascontiguousarray(np.rot90(scan, i % 4)))
        return scan[None], (scan > 0.6).long()


@case(
    "slices of scans unpacked by a loader without worker processes",
    "data_loading",
    codes=("DL101", "DL108"),
    functions=("__getitem__", "learn_outlines"),
)
def f_scans_no_workers(fixed):
    with DEV:
        net = SmallUNet(1, 2, pick(48, 4))
    net = net.to(memory_format=torch.channels_last)
    opt = adamw(net)
    source = batches(Slices(pick(512, 32)), pick(8, 2), pick(8, 2) if fixed else 0)  # PLANT

    def learn_outlines():
        scans, outlines = to_device(*next(source))
        with mixed():
            loss = F.cross_entropy(net(scans), outlines)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_outlines


class Songs(Dataset):
    """Cuts of a long recording as logarithmic spectra."""

    def __init__(self, seconds):
        rate = 16000
        self.wave, self.length = torch.randn(pick(120, 4) * rate), seconds * rate
        self.window, self.bands = torch.hann_window(400), torch.rand(80, 257)

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        start = (i * 7919) % (len(self.wave) - self.length)
        cut = self.wave[start : start + self.length]
        power = torch.stft(cut, 512, 160, 400, self.window, return_complex=True).abs().square()
        bands = (self.bands @ power).clamp(min=1e-6).log()
        return (bands - bands.mean()) / bands.std(), i % 50


@case(
    "spectra of songs made by three workers where the graphics card needs more",
    "data_loading",
    codes=("DL102",),
    functions=("tag_songs",),
)
def f_songs_three_workers(fixed):
    dim = pick(768, 16)
    with DEV:
        net = nn.ModuleDict(
            {
                "stem": nn.Conv1d(80, dim, 3, 2, 1),
                "trunk": trunk(dim, pick(12, 2), pick(8, 1)),
                "head": nn.Linear(dim, 50),
            }
        )
    opt = adamw(net)
    workers = pick(12, 2) if fixed else pick(3, 1)  # PLANT
    source = batches(Songs(pick(10, 1)), pick(16, 2), workers)

    def tag_songs():
        bands, tags = to_device(*next(source))
        with mixed():
            x = net["stem"](bands).transpose(1, 2)
            loss = F.cross_entropy(net["head"](net["trunk"](x).mean(1)), tags)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return tag_songs


class Notes(Dataset):
    """Words of ward notes, numbered."""

    def __init__(self, longest, as_lists):
        rng = np.random.default_rng(0)
        sizes = rng.integers(longest // 2, longest + 1, 512)
        notes = [torch.from_numpy(rng.integers(1, pick(30000, 100), n)) for n in sizes]
        self.notes = [note.tolist() for note in notes] if as_lists else notes

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        return self.notes[i % len(self.notes)], i % 9


def collate_lists(samples):
    longest = max(len(words) for words, _ in samples)
    ids, places, keep = [], [], []
    for words, _ in samples:
        gap = [0] * (longest - len(words))
        ids.append(words + gap)
        places.append([*range(len(words)), *gap])
        keep.append([1.0] * len(words) + [0.0] * len(gap))
    wards = torch.tensor([ward for _, ward in samples])
    return torch.tensor(ids), torch.tensor(places), torch.tensor(keep), wards  # PLANT


def collate_tensors(samples):
    ids = pad_sequence([words for words, _ in samples], batch_first=True)
    keep = ids.ne(0)
    places = torch.arange(ids.shape[1]) * keep
    return ids, places, keep.float(), torch.tensor([ward for _, ward in samples])


@case(
    "batches of notes padded as lists of Python numbers in the loader's workers",
    "data_loading",
    codes=("DL102", "DL108"),
    functions=("collate_lists", "sort_notes"),
    plant_in="collate_lists",
)
def f_notes_list_collate(fixed):
    dim, longest = pick(512, 8), pick(256, 12)
    with DEV:
        words, spots = nn.Embedding(pick(30000, 100), dim), nn.Embedding(longest, dim)
        net = nn.ModuleList([words, spots, trunk(dim, pick(8, 4), pick(4, 1)), nn.Linear(dim, 9)])
    opt = adamw(net)
    collate = collate_tensors if fixed else collate_lists
    source = batches(Notes(longest, not fixed), pick(128, 4), 2, collate)

    def sort_notes():
        ids, places, keep, wards = to_device(*next(source))
        with mixed():
            x = net[2](words(ids) + spots(places)) * keep[:, :, None]
            loss = F.cross_entropy(net[3](x.sum(1) / keep.sum(1, keepdim=True)), wards)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return sort_notes


class Leaves(Dataset):
    """Films of growing leaves: a file for each picture, or one file that is mapped."""

    def __init__(self, films, frames, side, one_file):
        self.folder = tempfile.TemporaryDirectory()
        self.films, self.frames = films, frames
        shape = (films, frames, 3, side, side)
        pictures = np.random.default_rng(0).integers(0, 256, shape, np.uint8)
        self.mapped = None
        if one_file:
            np.save(self.path("all"), pictures)
            self.mapped = np.load(self.path("all"), mmap_mode="r")
        else:
            for film in range(films):
                for k in range(frames):
                    np.save(self.path(f"{film:03}-{k:02}"), pictures[film, k])

    def path(self, stem):
        return Path(self.folder.name) / f"{stem}.npy"

    def __len__(self):
        return ENDLESS

    def __getitem__(self, i):
        film = i % self.films
        if self.mapped is not None:
            return torch.from_numpy(np.array(self.mapped[film])), i % 7
        frames = [np.load(self.path(f"{film:03}-{k:02}")) for k in range(self.frames)]  # PLANT
        return torch.from_numpy(np.stack(frames)), i % 7


@case(
    "films read from a small file for each picture",
    "data_loading",
    codes=("DL101", "DL102", "DL108"),
    functions=("__getitem__", "learn_leaves"),
    plant_in="Leaves.__getitem__",
)
def f_leaves_small_files(fixed):
    wide = pick(96, 4)
    with DEV:
        layers = [conv(3, wide, 2), conv(wide, wide), conv(wide, 2 * wide, 2)]
        layers += [conv(2 * wide, 2 * wide), nn.AdaptiveAvgPool2d(1), nn.Flatten()]
        net = nn.ModuleList([nn.Sequential(*layers), nn.Linear(2 * wide, 7)])
    net = net.to(memory_format=torch.channels_last)
    opt = adamw(net)
    films = Leaves(pick(64, 4), pick(8, 2), pick(128, 16), fixed)
    source = batches(films, pick(32, 2), pick(4, 1))

    def learn_leaves():
        frames, kinds = to_device(*next(source))
        x = frames.flatten(0, 1).contiguous(memory_format=torch.channels_last)
        with mixed():
            x = net[0](x.float().div_(255)).view(len(kinds), -1, net[1].in_features)
            loss = F.cross_entropy(net[1](x.mean(1)), kinds)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_leaves


@case(
    "satellite tiles sent to the card from pageable memory",
    "data_loading",
    also=("framework", "memory"),
    codes=("DL105",),
    functions=("learn_fields",),
)
def f_tiles_pageable(fixed):
    wide, side = pick(96, 4), pick(512, 32)
    with DEV:
        layers = [nn.Conv2d(4, wide, 4, 4), conv(wide, wide), conv(wide, wide)]
        net = nn.Sequential(*layers, nn.Conv2d(wide, 11, 1))
    net = net.to(memory_format=torch.channels_last)
    opt = adamw(net)
    rng = np.random.default_rng(0)
    shape = (3, pick(64, 2), side, side, 4)
    tiles = torch.from_numpy(rng.integers(0, 256, shape, np.uint8))
    tiles = pinned(tiles) if fixed else tiles
    fields = torch.randint(0, 11, (shape[1], side // 4, side // 4), device=DEV)
    seen = 0

    def learn_fields():
        nonlocal seen
        seen = (seen + 1) % len(tiles)
        x = tiles[seen].to(DEV, non_blocking=True).permute(0, 3, 1, 2)  # PLANT
        with mixed():
            loss = F.cross_entropy(net(x.float().div_(255)), fields)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_fields


def bandpass(traces, low, high):
    """Traces of a network of seismometers without drift and hum, all as strong."""
    traces = traces - traces.mean(-1, keepdim=True)
    spectra = torch.fft.rfft(traces)
    hertz = torch.linspace(0, 50, spectra.shape[-1], device=traces.device)
    gain = torch.sigmoid((hertz - low) * 4) * torch.sigmoid((high - hertz) * 4)
    traces = torch.fft.irfft(spectra * gain, n=traces.shape[-1])
    return traces / traces.std(-1, keepdim=True)


@case(
    "seismograms filtered on the processor by the thread that trains",
    "data_loading",
    also=("framework",),
    codes=("DL104",),
    functions=("bandpass", "learn_arrivals"),
)
def f_quakes_filtered_on_host(fixed):
    wide, length = pick(128, 8), pick(8192, 128)
    with DEV:
        layers = [nn.Conv1d(3, wide, 7, 4, 3), nn.ReLU()]
        for _ in range(pick(3, 1)):
            layers += [nn.Conv1d(wide, wide, 7, 1, 3), nn.BatchNorm1d(wide), nn.ReLU()]
        net = nn.Sequential(*layers, nn.Conv1d(wide, 3, 1))
    opt = adamw(net)
    traces = pinned(torch.randn(4, pick(192, 2), 3, length))
    phases = torch.randint(0, 3, (traces.shape[1], length // 4), device=DEV)
    seen = 0

    def learn_arrivals():
        nonlocal seen
        seen = (seen + 1) % len(traces)
        raw = traces[seen]
        if fixed:
            raw = raw.to(DEV, non_blocking=True)
        clean = bandpass(raw, 1.0, 20.0).to(DEV)  # PLANT
        with mixed():
            loss = F.cross_entropy(net(clean), phases)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_arrivals
