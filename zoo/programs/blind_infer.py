"""Inference and evaluation as users write them; recorded for a blind test of the rules."""

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick
from zoo.programs.blind_train import BF16, Block, FusedAttention, TicketClassifier, Yolo

# ---------------------------------------------------------------- OCR


class LineReader(nn.Module):
    def __init__(self, width, letters):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv2d(1, width, 3, 2, 1), nn.ReLU(), nn.Conv2d(width, width, 3, 2, 1), nn.ReLU()
        )
        self.rnn = nn.GRU(width, width, batch_first=True, bidirectional=True)
        self.head = nn.Linear(2 * width, letters)

    def forward(self, x):
        return self.head(self.rnn(self.conv(x).mean(2).transpose(1, 2))[0])


def binarize(page):
    """Grey, Otsu's threshold, invert, scale: what the image library would do, in NumPy."""
    grey = page[..., 0] * 0.299 + page[..., 1] * 0.587 + page[..., 2] * 0.114  # PLANT
    share = np.bincount(grey.astype(np.uint8).ravel(), minlength=256) / grey.size
    mass, mean = np.cumsum(share), np.cumsum(share * np.arange(256))
    between = (mean[-1] * mass - mean) ** 2 / (mass * (1 - mass) + 1e-9)
    return (grey < between.argmax()).astype(np.float32)


def binarize_batch(pages):
    weight = torch.tensor([0.299, 0.587, 0.114], device=DEV)
    grey = pages.float() @ weight
    rows = torch.arange(len(grey), device=DEV)[:, None] * 256
    flat = (grey.long().flatten(1) + rows).flatten()
    counts = torch.zeros(len(grey) * 256, device=DEV)
    counts.index_add_(0, flat, torch.ones((), device=DEV).expand(len(flat)))
    share = counts.view(-1, 256) / grey[0].numel()
    mass, mean = share.cumsum(1), (share * torch.arange(256, device=DEV)).cumsum(1)
    between = (mean[:, -1:] * mass - mean) ** 2 / (mass * (1 - mass) + 1e-9)
    return (grey < between.argmax(1)[:, None, None]).float()


@case(
    "OCR lines binarised in NumPy before the model",
    "data_loading",
    also=("framework",),
    codes=("IN612", "DL104"),
    functions=("binarize", "read_lines"),
    plant_in="binarize",
    marks=False,
)
def b_ocr_binarize(fixed):
    model = LineReader(pick(64, 8), 96).to(DEV).eval()
    rng = np.random.default_rng(0)
    scans = rng.integers(0, 256, (pick(16, 2), 48, pick(640, 32), 3), dtype=np.uint8)

    @torch.inference_mode()
    def read_lines():
        if fixed:
            lines = binarize_batch(torch.from_numpy(scans).to(DEV))
        else:
            lines = torch.from_numpy(np.stack([binarize(s) for s in scans])).to(DEV)
        return model(lines[:, None]).argmax(-1).cpu()

    return read_lines


# ---------------------------------------------------------------- layouts and copies


class SharedMLP(nn.Module):
    """A layer of a point cloud network in the (batch, channel, point) convention."""

    def __init__(self, cin, cout, points_last):
        super().__init__()
        self.linear, self.points_last = nn.Linear(cin, cout), points_last

    def forward(self, x):
        if not self.points_last:
            return F.relu(self.linear(x))
        y = F.relu(self.linear(x.transpose(1, 2).contiguous()))  # PLANT
        return y.transpose(1, 2).contiguous()


@case(
    "point cloud layers that transpose to channel-last and back",
    "memory",
    also=("compute",),
    codes=("CP222",),
    functions=("forward", "classify_clouds"),
    plant_in="SharedMLP.forward",
)
def b_pointnet_transposes(fixed):
    widths = [pick(64, 8)] + [pick(256, 8)] * 6
    layers = [SharedMLP(a, b, not fixed) for a, b in pairwise(widths)]
    net = nn.Sequential(*layers).to(DEV, BF16).eval()
    shape = (pick(128, 2), pick(2048, 16), widths[0])
    clouds = torch.randn(shape, device=DEV, dtype=BF16)
    clouds = clouds if fixed else clouds.transpose(1, 2).contiguous()
    points = 1 if fixed else 2

    @torch.inference_mode()
    def classify_clouds():
        return net(clouds).amax(points)

    return classify_clouds


class SlidingHistory:
    """The last `room` readings of every sensor, oldest first."""

    def __init__(self, sensors, room, width):
        self.data = torch.zeros(sensors, room, width, device=DEV, dtype=BF16)

    def push(self, reading):
        self.data = torch.cat([self.data[:, 1:], reading[:, None]], 1)  # PLANT

    def latest(self, count):
        return self.data[:, -count:]


class RingHistory(SlidingHistory):
    def __init__(self, sensors, room, width):
        super().__init__(sensors, room, width)
        self.room, self.at = room, 0

    def push(self, reading):
        self.data[:, self.at] = reading
        self.at = (self.at + 1) % self.room

    def latest(self, count):
        first = (self.at - count) % self.room
        if first + count <= self.room:
            return self.data[:, first : first + count]
        return torch.cat([self.data[:, first:], self.data[:, : first + count - self.room]], 1)


@case(
    "a sliding window of sensor readings shifted with cat at every tick",
    "memory",
    codes=("MM309",),
    functions=("push", "watch_sensors"),
    plant_in="SlidingHistory.push",
)
def b_window_cat_shift(fixed):
    shape = (pick(32768, 4), pick(512, 24), pick(64, 4))
    history = (RingHistory if fixed else SlidingHistory)(*shape)
    model = nn.Sequential(nn.Linear(16 * shape[2], 256), nn.ReLU(), nn.Linear(256, 1))
    model = model.to(DEV, BF16)
    reading = torch.randn(shape[0], shape[2], device=DEV, dtype=BF16)

    @torch.inference_mode()
    def watch_sensors():
        history.push(reading)
        return model(history.latest(16).flatten(1)).sigmoid()

    return watch_sensors


# ---------------------------------------------------------------- waiting for the device


class ClampedBlock(Block):
    """T5's guard against overflow, as in its half-precision code."""

    def __init__(self, dim, heads, check):
        super().__init__(dim, FusedAttention(dim, heads))
        self.check = check

    def forward(self, x):
        x = super().forward(x)
        limit = torch.finfo(x.dtype).max - 1000
        if not self.check:
            return x.clamp(-limit, limit)
        if torch.isinf(x).any():  # PLANT
            x = x.clamp(-limit, limit)
        return x


@case(
    "T5-like overflow guard: `if isinf(x).any()` after every block",
    "framework",
    # The GPU is mostly idle: without the guard the host still sets the pace.
    codes=("FW503", "FW501"),
    functions=("forward",),
    plant_in="ClampedBlock.forward",
)
def b_t5_isinf_guard(fixed):
    dim = pick(512, 16)
    blocks = [ClampedBlock(dim, pick(8, 4), not fixed) for _ in range(pick(16, 2))]
    encoder = nn.Sequential(*blocks).to(DEV, torch.float16).eval()
    x = torch.randn(pick(16, 2), pick(256, 8), dim, device=DEV, dtype=torch.float16)

    @torch.inference_mode()
    def encode_prompts():
        return encoder(x)

    return encode_prompts


def iou_of(a, b):
    low = torch.maximum(a[:, None, :2], b[None, :, :2])
    high = torch.minimum(a[:, None, 2:], b[None, :, 2:])
    inter = (high - low).clamp(min=0).prod(-1)
    area_a, area_b = ((t[:, 2:] - t[:, :2]).prod(-1) for t in (a, b))
    return inter / (area_a[:, None] + area_b[None] - inter)


def greedy_nms(boxes, scores, threshold):
    boxes = boxes[scores.argsort(descending=True)]
    kept = []
    while len(boxes):
        kept.append(boxes[0])
        overlap = iou_of(boxes[:1], boxes)[0]
        boxes = boxes[overlap < threshold]  # PLANT
    return torch.stack(kept)


def matrix_nms(boxes, scores, threshold):
    boxes = boxes[scores.argsort(descending=True)]
    overlap = iou_of(boxes, boxes).triu(1)
    return boxes * (overlap.amax(0) < threshold)[:, None]


@case(
    "greedy NMS on the GPU: a boolean mask for each kept box",
    "framework",
    codes=("FW504", "FW516"),
    functions=("greedy_nms", "detect_objects"),
    plant_in="greedy_nms",
    active=3,
    marks=False,
)
def b_yolo_greedy_nms(fixed):
    model = Yolo(pick((32, 64, 128), (4, 8)), 5).to(DEV, BF16).eval()
    model = model.to(memory_format=torch.channels_last)
    side = pick(320, 32)
    image = torch.randn(4, 3, side, side, device=DEV, dtype=BF16)
    image = image.to(memory_format=torch.channels_last)
    with torch.no_grad():
        cells = model(image)[0, 0].numel()
    place = torch.rand(cells, 2, device=DEV) * 320
    grid = torch.cat([place, place + 80 + 80 * torch.rand(cells, 2, device=DEV)], 1)
    nms = matrix_nms if fixed else greedy_nms

    @torch.inference_mode()
    def detect_objects():
        out = model(image).float().flatten(2)
        boxes = grid + out[0, :4].T.tanh()
        return nms(boxes, out[0, 4], 0.5)

    return detect_objects


# ---------------------------------------------------------------- serving


def encode_each(model, sentences):
    return torch.cat([model(ids[None]) for ids in sentences])  # PLANT


def encode_padded(model, sentences):
    return model(nn.utils.rnn.pad_sequence(sentences, batch_first=True))


@case(
    "an embedding server that encodes the sentences of a request one by one",
    "framework",
    # The GPU is idle nearly all the time: not "compute".
    codes=("IN603", "FW501", "FW516"),
    functions=("encode_each", "embed_request", "forward"),
    plant_in="encode_each",
    active=3,
    marks=False,
)
def b_embed_one_by_one(fixed):
    model = TicketClassifier(pick(384, 16), pick(6, 1)).to(DEV, BF16).eval()
    rng = np.random.default_rng(0)
    lengths = rng.integers(24, 64, pick(24, 3))
    sentences = [torch.randint(0, 128, (int(n),), device=DEV) for n in lengths]
    encode = encode_padded if fixed else encode_each

    @torch.inference_mode()
    def embed_request():
        return F.normalize(encode(model, sentences).float(), dim=-1).cpu()

    return embed_request
