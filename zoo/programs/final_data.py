"""How batches reach the device; one mistake each. The last set to be written."""

import zlib
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset, IterableDataset, get_worker_info

from zoo.harness import DEV, DRY, case, pick

BF16 = torch.bfloat16


def adamw(net):
    return torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)


def funnel(channels, width, kinds):
    """A convnet that halves the image four times."""
    sizes = (channels, width, width, 2 * width, 2 * width)
    layers = []
    for a, b in pairwise(sizes):
        layers += [nn.Conv2d(a, b, 3, 2, 1), nn.ReLU(), nn.Conv2d(b, b, 3, padding=1), nn.ReLU()]
    return nn.Sequential(
        *layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2 * width, kinds)
    )


class Handwriting(Dataset):
    """Pen strokes drawn as soft dots on a canvas."""

    def __init__(self, side, dots):
        rng = np.random.default_rng(1)
        self.strokes = np.cumsum(rng.normal(0, 0.06, (64, dots, 2)), axis=1).astype(np.float32)
        self.grid = np.linspace(-1, 1, side, dtype=np.float32)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        canvas = np.zeros((len(self.grid),) * 2, np.float32)
        for x, y in self.strokes[i % 64]:
            far = (self.grid[None] - x) ** 2 + (self.grid[:, None] - y) ** 2
            np.maximum(canvas, np.exp(far * -400), out=canvas)
        return canvas[None], i % 30


@case(
    "pen strokes drawn dot by dot in the training process",
    "data_loading",
    codes=("DL101", "DL108"),
    functions=("__getitem__", "read_letters"),
    active=3,
)
def e_strokes_mainproc(fixed):
    net = funnel(1, pick(96, 4), 30).to(DEV, BF16, memory_format=torch.channels_last)
    opt = adamw(net)
    helpers = {"num_workers": pick(12, 1), "prefetch_factor": 4} if fixed else {}  # PLANT
    pages = Handwriting(pick(96, 16), pick(48, 3))
    source = iter(DataLoader(pages, pick(48, 2), pin_memory=not DRY, **helpers))

    def read_letters():
        canvas, letter = next(source)
        opt.zero_grad()
        guess = net(canvas.to(DEV, BF16, non_blocking=True)).float()
        F.cross_entropy(guess, letter.to(DEV, non_blocking=True)).backward()
        opt.step()

    return read_letters


class Slices(IterableDataset):
    """Compressed sections of an electron microscope."""

    def __init__(self, side):
        rng = np.random.default_rng(2)
        self.side = side
        self.packed = [
            zlib.compress(rng.integers(0, 24, side * side, np.uint8).tobytes()) for _ in range(24)
        ]

    def __iter__(self):
        info = get_worker_info()
        k = info.id if info else 0
        while True:
            raw = bytearray(zlib.decompress(self.packed[k % 24]))
            yield torch.frombuffer(raw, dtype=torch.uint8).view(1, self.side, self.side)
            k += 1


@case(
    "two workers inflate the compressed slices of a microscope",
    "data_loading",
    codes=("DL102",),
    functions=("segment_slices", "__iter__"),
    active=3,
)
def e_slices_two_workers(fixed):
    net = funnel(1, pick(64, 4), 4).to(DEV, BF16, memory_format=torch.channels_last)
    opt = adamw(net)
    workers = pick(13, 1) if fixed else pick(2, 1)  # PLANT
    loader = DataLoader(
        Slices(pick(448, 16)),
        pick(32, 2),
        num_workers=workers,
        pin_memory=not DRY,
        prefetch_factor=3,
    )
    source = iter(loader)

    def segment_slices():
        x = next(source).to(DEV, non_blocking=True).to(BF16) / 24
        opt.zero_grad()
        net(x).float().logsumexp(1).mean().backward()
        opt.step()

    return segment_slices


class Showers:
    """Calorimeter readings gathered into host buffers that are used in turn."""

    def __init__(self, rows, cells, locked):
        self.events = torch.rand(4096, cells)
        self.rows, self.turn = rows, 0
        self.rooms = [torch.empty(rows, cells, pin_memory=locked) for _ in range(3)]

    def gather(self):
        self.turn = (self.turn + 1) % 3
        room = self.rooms[self.turn]
        which = torch.randint(0, len(self.events), (self.rows,))
        torch.index_select(self.events, 0, which, out=room)
        return room.to(DEV, non_blocking=True)


@case(
    "staging buffers for calorimeter readings that are not page-locked",
    "data_loading",
    also=("compute",),
    codes=("DL105",),
    functions=("gather", "identify_showers", "e_showers_unlocked"),
)
def e_showers_unlocked(fixed):
    cells, dim = pick(160, 8), pick(4096, 16)
    locked = fixed and not DRY  # PLANT
    showers = Showers(pick(32768, 4), cells, locked)
    widths = (cells, dim, dim, dim, dim)
    layers = [m for a, b in pairwise(widths) for m in (nn.Linear(a, b), nn.SiLU())]
    net = nn.Sequential(*layers, nn.Linear(dim, 8)).to(DEV, BF16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)

    def identify_showers():
        x = showers.gather()
        opt.zero_grad()
        net(x.to(BF16)).float().square().mean().backward()
        opt.step()

    return identify_showers


def pad_clouds(clouds, room):
    for k, cloud in enumerate(clouds):
        room[k, : len(cloud)].copy_(cloud)
    return room.to(DEV)


@case(
    "ragged conformers written row by row into a batch on the device",
    "data_loading",
    also=("framework",),
    codes=("DL113", "FW506", "FW516", "DL105"),
    functions=("pad_clouds", "fit_conformers"),
)
def e_conformers_row_copies(fixed):
    torch.set_float32_matmul_precision("high")
    atoms, count = pick(60, 6), pick(192, 4)
    sizes = np.random.default_rng(3).integers(atoms // 2, atoms + 1, count)
    clouds = [torch.randn(int(n), 16) for n in sizes]
    dim = pick(512, 8)
    net = nn.Sequential(nn.Linear(16, dim), nn.SiLU(), nn.Linear(dim, dim), nn.SiLU()).to(DEV)
    energy = nn.Linear(dim, 1, device=DEV)
    opt = adamw(nn.ModuleList([net, energy]))

    def fit_conformers():
        room = torch.zeros(count, atoms, 16, device="cpu" if fixed else DEV)  # PLANT
        x = pad_clouds(clouds, room)
        opt.zero_grad()
        energy(net(x).sum(1)).square().mean().backward()
        opt.step()

    return fit_conformers


class Fundus(Dataset):
    def __init__(self, side):
        self.photos = torch.randint(0, 256, (16, 3, side, side), dtype=torch.uint8)

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        return self.photos[i % 16]


@case(
    "retina photos scaled and normalised by the training thread on the host",
    "data_loading",
    also=("framework",),
    codes=("DL104", "DL105", "FW520"),
    functions=("normalise", "grade_retina"),
    plant_in="normalise",
    active=3,
)
def e_retina_scaled_on_host(fixed):
    net = funnel(3, pick(96, 4), 5).to(DEV, BF16, memory_format=torch.channels_last)
    opt = adamw(net)
    photos = Fundus(pick(224, 16))
    source = iter(
        DataLoader(photos, pick(64, 2), num_workers=pick(6, 1), pin_memory=not DRY)
    )  # fmt: skip

    def grade_retina():
        x = normalise(next(source), DEV if fixed else torch.device("cpu"))
        opt.zero_grad()
        net(x.to(DEV, BF16, memory_format=torch.channels_last)).float().square().mean().backward()
        opt.step()

    return grade_retina


def normalise(photos, place):
    x = photos.to(place, non_blocking=True).float() / 255  # PLANT
    low = x.amin((2, 3), keepdim=True)
    x = (x - low) / (x.amax((2, 3), keepdim=True) - low + 1e-3)
    return x.sqrt() * 2 - 1
