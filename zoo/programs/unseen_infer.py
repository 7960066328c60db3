"""Requests answered with one mistake each."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import functional_call

from zoo.harness import DEV, case, pick, replayed
from zoo.programs.unseen_data import BF16, SmallEncoder


@case(
    "texts scored for their perplexity with gradients on",
    "memory",
    also=("compute", "framework"),
    codes=("IN601",),
    functions=("perplexity", "forward"),
    marks=False,
    active=3,
)
def d_in_score_with_grad(fixed):
    words = pick(8192, 32)
    with DEV:
        net = SmallEncoder(words, pick(1024, 8), pick(4, 1)).to(BF16)
    net.eval()
    ids = torch.randint(0, words, (pick(16, 2), pick(512, 8)), device=DEV)

    def perplexity():
        with torch.set_grad_enabled(not fixed):  # PLANT
            logits = net(ids)
        return F.cross_entropy(logits.detach().flatten(0, 1), ids.flatten()).exp()

    return perplexity


class Inpainter(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.down = nn.Sequential(
            nn.Conv2d(3, width, 3, 2, 1), nn.SiLU(), nn.Conv2d(width, 2 * width, 3, 2, 1), nn.SiLU()
        )
        self.mid = nn.ModuleList(nn.Conv2d(2 * width, 2 * width, 3, padding=1) for _ in range(4))
        self.up = nn.Sequential(
            nn.ConvTranspose2d(2 * width, width, 4, 2, 1), nn.SiLU(),
            nn.ConvTranspose2d(width, 3, 4, 2, 1),
        )  # fmt: skip

    def forward(self, x):
        x = self.down(x)
        for conv in self.mid:
            x = x + F.silu(conv(x))
        return self.up(x)


def paint_tiles(net, tiles, together):
    return net(tiles) if together else torch.cat([net(tile[None]) for tile in tiles])  # PLANT


@case(
    "a large photo inpainted tile by tile",
    "framework",
    also=("compute",),
    codes=("IN603", "FW501", "FW516", "CP203"),
    functions=("paint_tiles", "restore_photo", "forward"),
    plant_in="paint_tiles",
    marks=False,
    active=3,
)
def d_in_tile_by_tile(fixed):
    net = Inpainter(pick(64, 4)).to(DEV, BF16, memory_format=torch.channels_last).eval()
    side = pick(128, 16)
    tiles = torch.randn(pick(30, 3), 3, side, side, device=DEV, dtype=BF16)
    tiles = tiles.to(memory_format=torch.channels_last)

    @torch.inference_mode()
    def restore_photo():
        return paint_tiles(net, tiles, fixed).float().clamp(-1, 1)

    return restore_photo


class Vocoder(nn.Module):
    def __init__(self, width, levels):
        super().__init__()
        self.embed = nn.Embedding(levels, width)
        self.cells = nn.ModuleList(nn.GRUCell(width, width) for _ in range(3))
        self.out = nn.Linear(width, levels)

    def forward(self, token, states):
        x = self.embed(token)
        for cell, state in zip(self.cells, states, strict=True):
            x = cell(x, state)
            state.copy_(x)
        return self.out(x).argmax(-1)


@case(
    "a vocoder's samples generated one after another without a CUDA graph",
    "framework",
    codes=("IN602", "FW501", "FW513", "FW502"),
    functions=("speak", "forward"),
    marks=False,
    active=3,
)
def d_in_vocoder_eager(fixed):
    torch.set_float32_matmul_precision("high")
    net = Vocoder(pick(512, 8), 256).to(DEV).eval()
    token = torch.zeros(pick(4, 2), dtype=torch.long, device=DEV)
    states = [torch.zeros(len(token), pick(512, 8), device=DEV) for _ in range(3)]

    @torch.no_grad()
    def speak():
        for _ in range(24):
            token.copy_(net(token, states))

    return replayed(speak) if fixed else speak  # PLANT


def resize_on_host(photo, side):
    """Bilinear, as the image library would; then the usual scaling."""
    high, wide, _ = photo.shape
    y = (np.arange(side) + 0.5) * high / side - 0.5
    x = (np.arange(side) + 0.5) * wide / side - 0.5
    y0, x0 = (np.clip(t.astype(int), 0, n - 2) for t, n in ((y, high), (x, wide)))
    fy, fx = (y - y0)[:, None, None], (x - x0)[None, :, None]
    photo = photo.astype(np.float32) / 255
    rows = photo[y0] * (1 - fy) + photo[y0 + 1] * fy  # PLANT
    small = rows[:, x0] * (1 - fx) + rows[:, x0 + 1] * fx
    return torch.from_numpy(small.astype(np.float32)).permute(2, 0, 1)[None].to(DEV)


@case(
    "each photo of a request resized in NumPy before the model",
    "data_loading",
    also=("framework",),
    codes=("IN612", "DL104"),
    functions=("resize_on_host", "tag_photo"),
    plant_in="resize_on_host",
    marks=False,
)
def d_in_resize_numpy(fixed):
    net = Inpainter(pick(48, 4)).to(DEV).eval()
    photo = np.random.default_rng(0).integers(0, 256, (pick(720, 40), pick(960, 48), 3), np.uint8)
    side = pick(256, 16)

    @torch.inference_mode()
    def tag_photo():
        if fixed:
            x = torch.from_numpy(photo).to(DEV).permute(2, 0, 1)[None].float() / 255
            x = F.interpolate(x, (side, side), mode="bilinear")
        else:
            x = resize_on_host(photo, side)
        return net(x).mean((2, 3)).cpu()

    return tag_photo


def label_map(logits, on_device):
    if on_device:
        return logits.argmax(1).to(torch.uint8).cpu().numpy()
    return logits.cpu().numpy().argmax(1).astype(np.uint8)  # PLANT


@case(
    "all class scores of a segmentation copied to the host for an argmax in NumPy",
    "data_loading",
    also=("framework", "memory"),
    codes=("IN619", "IN612", "DL104"),
    functions=("label_map", "segment_street"),
    plant_in="label_map",
    marks=False,
    active=3,
)
def d_in_scores_to_host(fixed):
    net = Inpainter(pick(64, 4)).to(DEV).eval()
    head = nn.Conv2d(3, 19, 1).to(DEV)
    side = pick(256, 16)
    street = torch.randn(pick(3, 1), 3, side, side, device=DEV)

    @torch.inference_mode()
    def segment_street():
        return label_map(head(net(street)), fixed)

    return segment_street


@case(
    "fp32 master weights cast to bf16 again for every request",
    "memory",
    also=("compute",),
    codes=("IN620", "CP221"),
    functions=("embed_request", "half_of"),
    marks=False,
)
def d_in_weights_recast(fixed):
    dim = pick(4096, 8)
    with DEV:
        layers = [m for _ in range(pick(16, 2)) for m in (nn.Linear(dim, dim), nn.ReLU())]
        net = nn.Sequential(*layers).eval()
    requests = torch.randn(pick(2048, 2), dim, device=DEV, dtype=BF16)

    def half_of(module):
        return {name: p.to(BF16) for name, p in module.named_parameters()}

    with torch.inference_mode():
        ready = half_of(net)

    @torch.inference_mode()
    def embed_request():
        weights = ready if fixed else half_of(net)  # PLANT
        return functional_call(net, weights, requests).mean(1)

    return embed_request
