"""Answers that are late; one mistake each."""

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick, pinned, replayed
from zoo.programs.fresh_parts import BF16, Block, SmallUNet, conv


class Writer(nn.Module):
    """A causal language model; a store of keys and values is optional."""

    def __init__(self, letters, dim, heads, depth):
        super().__init__()
        self.letters = nn.Embedding(letters, dim)
        self.layers = nn.ModuleList(Block(dim, heads, causal=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, letters, bias=False)

    def forward(self, text, stores=None):
        """The next letter of each row. Stores take part if there are some."""
        x = self.letters(text)
        for k, layer in enumerate(self.layers):
            q, new_k, new_v = layer.split(x)
            if stores is not None:
                new_k, new_v = stores[k].add(new_k, new_v)
            causal = q.shape[2] > 1
            seen = F.scaled_dot_product_attention(q, new_k, new_v, is_causal=causal)
            x = layer.finish(x, seen)
        return self.head(self.norm(x[:, -1:])).argmax(-1)


class Room:
    """Keys and values of one layer in memory set aside for the longest text."""

    def __init__(self, rows, heads, length, width):
        self.keys, self.values = torch.zeros(
            2, rows, heads, length, width, device=DEV, dtype=BF16
        ).unbind(0)
        self.used = 0

    def add(self, k, v):
        start, self.used = self.used, self.used + k.shape[2]
        self.keys[:, :, start : self.used] = k
        self.values[:, :, start : self.used] = v
        return self.keys[:, :, : self.used], self.values[:, :, : self.used]


class Chain:
    """Keys and values of one layer, one tensor longer with every letter."""

    def __init__(self, keys, values):
        self.keys, self.values = keys, values

    def add(self, k, v):
        self.keys = torch.cat([self.keys, k], 2)  # PLANT
        self.values = torch.cat([self.values, v], 2)
        return self.keys, self.values


@case(
    "talks continued with a store of keys and values that is copied for every letter",
    "memory",
    codes=("MM316", "IN605", "MM309"),
    functions=("add", "continue_talks"),
    plant_in="Chain.add",
    marks=False,
    active=2,
)
def f_in_talks_cat_cache(fixed):
    rows, heads, width, past, depth = pick(64, 2), pick(16, 2), pick(128, 8), pick(1024, 4), 4
    more = pick(8, 3)
    with DEV:
        writer = Writer(pick(8192, 32), heads * width, heads, depth).to(BF16).eval()
    stores = [Room(rows, heads, past + more, width) for _ in range(depth)]
    for store in stores:
        store.keys.normal_()
        store.values.normal_()
    starts = [(s.keys[:, :, :past].clone(), s.values[:, :, :past].clone()) for s in stores]
    last = torch.randint(0, writer.letters.num_embeddings, (rows, 1), device=DEV)

    @torch.inference_mode()
    def continue_talks():
        for store in stores:
            store.used = past
        layers = stores if fixed else [Chain(*start) for start in starts]
        said = [last]
        for _ in range(more):
            said.append(writer(said[-1], layers))
        return torch.cat(said, 1)

    return continue_talks


@case(
    "recipes written with the whole text read again for every word",
    "compute",
    also=("framework",),
    codes=("IN622",),
    functions=("write_recipes",),
    marks=False,
    active=2,
)
def f_in_recipes_no_cache(fixed):
    rows, heads, width, depth = pick(32, 2), pick(16, 2), pick(64, 8), pick(8, 2)
    asked, more = pick(256, 5), pick(12, 3)
    with DEV:
        writer = Writer(pick(16384, 32), heads * width, heads, depth).to(BF16).eval()
    stores = [Room(rows, heads, asked + more, width) for _ in range(depth)]
    request = torch.randint(0, writer.letters.num_embeddings, (rows, asked), device=DEV)

    @torch.inference_mode()
    def write_recipes():
        for store in stores:
            store.used = 0
        text, new = request, request
        for _ in range(more):
            new = writer(new, stores) if fixed else writer(text)  # PLANT
            text = torch.cat([text, new], 1)
        return text[:, asked:].cpu()

    return write_recipes


@case(
    "the faces of a picture described one after another",
    "framework",
    codes=("IN603", "FW501"),
    functions=("name_faces",),
    marks=False,
)
def f_in_faces_one_by_one(fixed):
    side, face = pick(1024, 32), pick(112, 16)
    with DEV:
        finder = SmallUNet(3, 5, pick(16, 4))
        wide = pick(64, 4)
        layers = [conv(3, wide, 2), conv(wide, wide), conv(wide, 2 * wide, 2)]
        layers += [conv(2 * wide, 2 * wide), conv(2 * wide, 4 * wide, 2)]
        layers += [conv(4 * wide, 4 * wide), conv(4 * wide, 4 * wide)]
        namer = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten())
    for net in (finder, namer):
        net.to(BF16).to(memory_format=torch.channels_last).eval()
    picture = torch.randn(1, 3, side, side).to(BF16).to(memory_format=torch.channels_last)
    picture = pinned(picture)
    corners = [(k * 29 % (side - face), k * 53 % (side - face)) for k in range(pick(14, 3))]
    together = len(corners) if fixed else 1  # PLANT

    @torch.inference_mode()
    def name_faces():
        x = picture.to(DEV, non_blocking=True)
        sure = finder(x).amax((2, 3))
        faces = torch.cat([x[:, :, t : t + face, s : s + face] for t, s in corners])
        names = torch.cat([namer(part) for part in faces.split(together)])
        return sure.cpu(), names.cpu()

    return name_faces


@case(
    "the pose of an arm estimated for each picture with every kernel launched anew",
    "framework",
    codes=("FW501", "IN602", "IN603"),
    functions=("see_arm", "steer_arm"),
    marks=False,
)
def f_in_arm_launched(fixed):
    wide, dim, side = pick(48, 4), pick(256, 8), pick(192, 16)
    with DEV:
        layers = [conv(3, wide, 2), conv(wide, 2 * wide, 2), conv(2 * wide, dim, 2)]
        layers += [conv(dim, dim) for _ in range(pick(8, 1))]
        eye = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(pick(8, 2)), nn.Flatten(2))
        body = nn.Sequential(*(Block(dim, pick(4, 2)) for _ in range(pick(6, 1))))
        joints = nn.Linear(dim, 7)
    net = nn.ModuleList([eye, body, joints]).to(BF16).to(memory_format=torch.channels_last).eval()
    picture = torch.randn(1, 3, side, side, device=DEV, dtype=BF16)
    frames = pinned(torch.randn(4, *picture.shape).to(BF16))
    angles, seen = torch.zeros(1, 7, device=DEV, dtype=BF16), 0

    @torch.inference_mode()
    def see_arm():
        angles.copy_(net[2](net[1](net[0](picture).mT)).mean(1))

    look = replayed(see_arm) if fixed else see_arm  # PLANT

    @torch.inference_mode()
    def steer_arm():
        nonlocal seen
        seen = (seen + 1) % len(frames)
        picture.copy_(frames[seen], non_blocking=True)
        look()
        return angles.cpu()

    return steer_arm
