"""Training that waits for its input: loaders, collate functions, copies to the device."""

import itertools
import zlib

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, pick, pinned

BF16 = torch.bfloat16


def descend(opt, loss):
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.detach()


def conv_net(inputs, wide, depth, outputs):
    """A plain stack of convolutions at one resolution."""
    layers = [nn.Conv2d(inputs, wide, 3, 2, 1)]
    for _ in range(depth):
        layers += [nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.ReLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, outputs))
    return net.to(DEV, BF16, memory_format=torch.channels_last)


class Wells(Dataset):
    """Stained cells in the wells of one plate."""

    def __init__(self, count, side):
        self.images = np.random.randint(0, 255, (count, 3, side, side), np.uint8)
        self.doses = np.random.randint(0, 12, count)

    def __len__(self):
        return len(self.images)

    def __getitem__(self, i):
        image = self.images[i].astype(np.float32)
        image -= image.mean((1, 2), keepdims=True)
        image /= image.std((1, 2), keepdims=True) + 1e-3
        return torch.from_numpy(image), int(self.doses[i])


class PlateStudy:
    """Goes over the wells of a plate again and again."""

    def __init__(self, net, loader):
        self.net, self.loader = net, loader
        self.opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, fused=True)
        self.batches = self.passes()

    def passes(self):
        while True:
            yield from self.loader

    def study_batch(self):
        images, doses = next(self.batches)
        images = images.to(DEV, non_blocking=True).to(BF16)
        doses = doses.to(DEV, non_blocking=True)
        scores = self.net(images.contiguous(memory_format=torch.channels_last))
        return descend(self.opt, F.cross_entropy(scores.float(), doses))


# cause: an epoch is eight batches long and the workers are started anew for each
@case(
    "a plate of few wells read again and again by workers that do not outlive an epoch",
    "data_loading",
    also=("framework",),
    codes=("DL103",),
    functions=("passes", "study_batch"),
    active=10,
)
def h_wells_workers_restarted(fixed):
    # Eight steps of about 8 ms; starting and ending six processes takes 100 ms or more.
    rows, side, batches, workers = pick(64, 2), pick(128, 8), pick(8, 2), pick(6, 1)
    net = conv_net(3, pick(128, 8), pick(8, 1), 12)
    loader = DataLoader(
        Wells(rows * batches, side),
        rows,
        shuffle=True,
        num_workers=workers,
        pin_memory=not DRY,
        persistent_workers=fixed,  # PLANT
    )
    study = PlateStudy(net, loader)
    return study.study_batch


class Strips(Dataset):
    """Satellite tiles whose stripes are taken out in the frequency domain."""

    def __init__(self, count, bands, side):
        self.tiles = np.random.randint(0, 4000, (count, bands, side, side), np.uint16)
        keep = np.abs(np.fft.fftfreq(side))[:, None] + np.fft.rfftfreq(side)[None]
        self.keep = (keep > 0.01) | (np.arange(side)[:, None] == 0)

    def __len__(self):
        return 10**6

    def destripe(self, tile):
        waves = np.fft.rfft2(tile.astype(np.float32) / 4000.0)
        return np.fft.irfft2(waves * self.keep, tile.shape[-2:])

    def __getitem__(self, i):
        tile = self.destripe(self.tiles[i % len(self.tiles)])
        tile = np.rot90(tile, i % 4, (1, 2)).astype(np.float32)
        return torch.from_numpy(tile.copy()), i % 10


# cause: num_workers=0, so the costly work on each sample is done in the training process
@case(
    "land cover from satellite tiles that are cleaned in the training process",
    "data_loading",
    also=("framework",),
    codes=("DL101", "DL108"),
    functions=("destripe", "__getitem__", "classify_tiles"),
)
def h_tiles_no_workers(fixed):
    # 12 tiles of 4 bands take 3 to 4 ms each: 45 ms in one process; the GPU needs about 10 ms.
    rows, bands, side = pick(12, 2), pick(4, 2), pick(192, 16)
    net = conv_net(bands, pick(256, 8), pick(10, 1), 10)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    workers = pick(10, 1) if fixed else 0  # PLANT
    strips = Strips(pick(48, 4), bands, side)
    loader = DataLoader(strips, rows, num_workers=workers, pin_memory=not DRY)
    batches = iter(loader)

    def classify_tiles():
        tiles, kinds = (t.to(DEV, non_blocking=True) for t in next(batches))
        tiles = tiles.to(BF16).contiguous(memory_format=torch.channels_last)
        return descend(opt, F.cross_entropy(net(tiles).float(), kinds))

    return classify_tiles


class Shots(Dataset):
    """Compressed seismic shot gathers."""

    def __init__(self, kept, traces, samples):
        self.shape = traces, samples
        self.packed = []
        for _ in range(kept):
            waves = np.random.normal(0, 40, self.shape).cumsum(1).astype(np.int16)
            self.packed.append(zlib.compress(waves.tobytes(), 1))

    def __len__(self):
        return 10**6

    def unpack(self, i):
        raw = zlib.decompress(self.packed[i % len(self.packed)])
        return np.frombuffer(raw, np.int16).reshape(self.shape)

    def __getitem__(self, i):
        gather = self.unpack(i).astype(np.float32)
        gather -= np.median(gather, 1, keepdims=True)
        gain = np.abs(gather).max(1, keepdims=True) + 1.0
        return torch.from_numpy((gather / gain).astype(np.float16)), np.float32(i % 90)


# cause: too few workers (two) for samples that have to be decompressed
@case(
    "the angle of a fault from compressed shot gathers, read by two workers",
    "data_loading",
    also=("framework",),
    codes=("DL102",),
    functions=("next_gathers", "fit_angle"),
)
def h_shots_two_workers(fixed):
    # 24 gathers of 3 to 5 ms each: 50 ms a batch by two workers, 8 ms by twelve.
    rows, traces, samples = pick(24, 2), pick(128, 8), pick(1024, 16)
    net = conv_net(1, pick(96, 8), pick(8, 1), 1)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    workers = pick(12 if fixed else 2, 1)  # PLANT
    loader = DataLoader(
        Shots(pick(8, 2), traces, samples), rows, num_workers=workers, pin_memory=not DRY
    )
    batches = iter(loader)

    def next_gathers():
        gathers, angles = next(batches)
        return gathers.to(DEV, non_blocking=True), angles.to(DEV, non_blocking=True)

    def fit_angle():
        gathers, angles = next_gathers()
        guess = net(gathers.unsqueeze(1).to(BF16)).squeeze(-1)
        return descend(opt, F.l1_loss(guess.float(), angles))

    return fit_angle


class Alloys(Dataset):
    """Crystal cells as graphs: kinds of the atoms and pairs of neighbours."""

    def __init__(self, count, atoms, degree):
        self.cells = []
        for _ in range(count):
            n = int(np.random.randint(atoms // 2, atoms + 1))
            pairs = np.random.randint(0, n, (n * degree, 2))
            self.cells.append((np.random.randint(0, 90, n), pairs, np.random.rand()))

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        return self.cells[i % len(self.cells)]


class Pack:
    """The graphs of a batch as one graph with shifted numbers."""

    def __init__(self, by_array):
        self.by_array = by_array

    def shifted(self, pairs, starts):
        if self.by_array:
            return np.concatenate([p + s for p, s in zip(pairs, starts, strict=True)])
        joined = []
        for own, start in zip(pairs, starts.tolist(), strict=True):
            joined += [place + start for place in own.ravel().tolist()]  # PLANT
        return np.array(joined).reshape(-1, 2)

    def __call__(self, graphs):
        kinds, pairs, energies = zip(*graphs, strict=True)
        sizes = [len(k) for k in kinds]
        starts = np.cumsum([0, *sizes[:-1]])
        pairs = self.shifted(pairs, starts)
        owner = np.repeat(np.arange(len(sizes)), sizes)
        energy = torch.tensor(energies, dtype=torch.float32)
        return [torch.from_numpy(a) for a in (np.concatenate(kinds), pairs, owner)] + [energy]


class Crystal(nn.Module):
    """Energy of a cell by messages between neighbours."""

    def __init__(self, dim, depth):
        super().__init__()
        self.atom, self.head = nn.Embedding(90, dim), nn.Linear(dim, 1)
        self.messages = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.updates = nn.ModuleList(nn.Linear(2 * dim, dim) for _ in range(depth))

    def forward(self, kinds, pairs, owner, cells):
        x = self.atom(kinds)
        source, target = pairs.unbind(1)
        for message, update in zip(self.messages, self.updates, strict=True):
            sent = F.silu(message(x)).index_select(0, source)
            got = torch.zeros_like(x).index_add(0, target, sent)
            x = x + F.silu(update(torch.cat([x, got], 1)))
        energy = self.head(x).squeeze(1)
        return energy.new_zeros(cells).index_add(0, owner, energy)


# cause: a costly collate function (a Python loop over all pairs of the batch)
@case(
    "energies of crystals, whose graphs are put into one batch pair by pair",
    "data_loading",
    also=("framework",),
    codes=("DL101", "DL102", "DL108"),
    functions=("shifted", "__call__", "next_graphs", "fit_energy"),
    plant_in="Pack.shifted",
)
def h_alloys_collate_loop(fixed):
    # 100000 pairs: 25 ms a batch by hand and 1 ms by arrays; three workers, and a step of 4 ms.
    rows, dim = pick(192, 2), pick(512, 8)
    torch.set_float32_matmul_precision("high")
    with DEV:
        net = Crystal(dim, pick(5, 1))
    opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)
    loader = DataLoader(
        Alloys(pick(400, 4), pick(64, 6), pick(11, 2)),
        rows,
        num_workers=pick(3, 1),
        collate_fn=Pack(fixed),
        pin_memory=not DRY,
    )
    batches = iter(loader)

    def next_graphs():
        return [t.to(DEV, non_blocking=True) for t in next(batches)]

    def fit_energy():
        kinds, pairs, owner, energy = next_graphs()
        guess = net(kinds, pairs, owner, len(energy))
        return descend(opt, F.mse_loss(guess, energy))

    return fit_energy


class Footage:
    """A ring of decoded clips in the memory of the host."""

    def __init__(self, clips, shape, page_locked):
        grain = np.random.randint(0, 255, (1, *shape[1:]), np.uint8)
        made = [torch.from_numpy(np.repeat(grain + k, shape[0], 0)) for k in range(clips)]
        self.ring = itertools.cycle(pinned(c) if page_locked else c for c in made)  # PLANT

    def to_device(self):
        return next(self.ring).to(DEV, non_blocking=True)


# cause: pageable memory: large copies to the device go through a bounce buffer and block the host
@case(
    "whole clips of film copied to the device from ordinary memory",
    "data_loading",
    also=("memory", "framework"),
    codes=("DL105",),
    functions=("to_device", "__init__", "date_footage"),
    plant_in="Footage.__init__",
)
def h_footage_pageable(fixed):
    # 88 MB: 9 ms or more from pageable, 2 ms from pinned memory; the net takes about 8 ms.
    frames, high, wide = pick(32, 2), pick(720, 16), pick(1280, 16)
    net = conv_net(12, pick(128, 8), pick(6, 1), 20)
    opt = torch.optim.SGD(net.parameters(), 0.01, fused=True)
    footage = Footage(2, (frames, 3, high, wide), fixed)
    years = torch.randint(0, 20, (frames,), device=DEV)

    def date_footage():
        clip = footage.to_device().to(BF16).div_(255)
        clip = F.avg_pool2d(F.pixel_unshuffle(clip, 2), 2)
        scores = net(clip.contiguous(memory_format=torch.channels_last))
        return descend(opt, F.cross_entropy(scores.float(), years))

    return date_footage


class Denoiser:
    """Learns to take noise out of fields of plasma density."""

    def __init__(self, net, noise_on):
        self.net, self.noise_on = net, noise_on
        self.opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)

    def disturb(self, fields, level):
        noise = torch.randn(fields.shape, device=self.noise_on).to(DEV)  # PLANT
        return (fields + level * noise).to(BF16)

    def denoise_step(self, fields):
        level = torch.rand(len(fields), 1, 1, 1, device=DEV)
        noisy = self.disturb(fields, level).contiguous(memory_format=torch.channels_last)
        return descend(self.opt, F.mse_loss(self.net(noisy).float(), fields))


# cause: the noise of each step is made on the CPU and moved to the device
@case(
    "fields of plasma disturbed by noise that is drawn on the host",
    "data_loading",
    also=("framework", "memory"),
    codes=("FW520",),
    functions=("disturb", "denoise_step"),
    plant_in="Denoiser.disturb",
)
def h_plasma_noise_from_host(fixed):
    # 4.2 million normal numbers on the CPU: 20 ms or more; the net takes about 10 ms.
    rows, kinds, side, wide = pick(32, 2), 8, pick(128, 8), pick(192, 8)
    layers = [nn.Conv2d(kinds, wide, 3, padding=1), nn.SiLU()]
    for _ in range(pick(4, 1)):
        layers += [nn.Conv2d(wide, wide, 3, padding=1), nn.SiLU()]
    with DEV:
        net = nn.Sequential(*layers, nn.Conv2d(wide, kinds, 3, padding=1))
    net = net.to(BF16, memory_format=torch.channels_last)
    fields = torch.randn(rows, kinds, side, side, device=DEV)
    denoiser = Denoiser(net, DEV if fixed else torch.device("cpu"))
    return lambda: denoiser.denoise_step(fields)
