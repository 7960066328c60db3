"""Serving and batch inference that leave the GPU waiting or use it badly."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick, replayed

BF16 = torch.bfloat16


class Block(nn.Module):
    """A transformer layer of an image encoder."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        rows, length, dim = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, dim // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Herbarium(nn.Module):
    """Pressed plants to species."""

    def __init__(self, patch, dim, depth, heads, species):
        super().__init__()
        self.patches = nn.Conv2d(3, dim, patch, patch)
        self.blocks = nn.Sequential(*(Block(dim, heads) for _ in range(depth)))
        self.head = nn.Linear(dim, species)

    def forward(self, images):
        x = self.patches(images).flatten(2).transpose(1, 2)
        return self.head(self.blocks(x).mean(1))


class Desk:
    """Takes a request with a few photographs and names the plants."""

    mean = np.array([0.61, 0.55, 0.43], np.float32)
    spread = np.array([0.21, 0.20, 0.22], np.float32)

    def __init__(self, net, on_device):
        self.net, self.on_device = net, on_device
        self.device_mean, self.device_spread = (
            torch.from_numpy(v).to(DEV) for v in (self.mean, self.spread)
        )

    def prepare(self, photos):
        if self.on_device:
            raw = torch.from_numpy(np.stack(photos)).to(DEV).float()
            ready = (raw / 255.0 - self.device_mean) / self.device_spread
            return ready.permute(0, 3, 1, 2).to(BF16)
        ready = [(p.astype(np.float32) / 255.0 - self.mean) / self.spread for p in photos]  # PLANT
        ready = np.stack([np.ascontiguousarray(p.transpose(2, 0, 1)) for p in ready])
        return torch.from_numpy(ready).to(DEV).to(BF16)

    @torch.inference_mode()
    def answer(self, photos):
        scores = self.net(self.prepare(photos)).float().softmax(-1)
        sure, kind = scores.max(-1)
        return list(zip(kind.tolist(), sure.tolist(), strict=True))


# cause: photographs are normalised by numpy on the host within each request, the GPU idle
@case(
    "a service that names pressed plants and prepares the photographs in the request itself",
    "framework",
    also=("data_loading",),
    codes=("IN612", "DL104"),
    functions=("prepare", "answer"),
    plant_in="Desk.prepare",
    marks=False,
)
def h_plants_prepared_on_host(fixed):
    # Four photographs of 288 x 288: 10 to 20 ms on the host; the net takes about 5 ms.
    photos, side = pick(4, 2), pick(288, 16)
    with DEV:
        net = Herbarium(pick(16, 8), pick(1280, 8), pick(28, 1), pick(20, 2), 500)
    desk = Desk(net.to(BF16).eval(), fixed)
    request = [np.random.randint(0, 255, (side, side, 3), np.uint8) for _ in range(photos)]
    return lambda: desk.answer(request)


class Beat(nn.Module):
    """A residual block over the samples of one heartbeat."""

    def __init__(self, wide, reach):
        super().__init__()
        self.norm = nn.BatchNorm1d(wide)
        self.mix = nn.Conv1d(wide, wide, 5, padding=2 * reach, dilation=reach)
        self.point = nn.Conv1d(wide, wide, 1)

    def forward(self, x):
        return x + self.point(F.relu(self.mix(F.relu(self.norm(x)))))


class Monitor:
    """Judges the beats of a patient as they come, one at a time."""

    def __init__(self, net, leads, samples, kinds):
        self.net = net
        self.slot = torch.zeros(1, leads, samples, device=DEV, dtype=BF16)
        self.scores = torch.zeros(1, kinds, device=DEV, dtype=BF16)

    @torch.inference_mode()
    def forward_beat(self):
        self.scores.copy_(self.net(self.slot).softmax(-1))

    def watch(self, beats, run):
        seen = []
        for beat in beats:
            self.slot.copy_(beat)
            run()
            seen.append(self.scores.clone())
        return torch.cat(seen).argmax(-1).tolist()


# cause: launch-bound inference with batch size 1: hundreds of tiny kernels a beat, no CUDA graph
@case(
    "heartbeats judged one by one by a deep and narrow net",
    "framework",
    codes=("IN603", "FW501", "IN602", "FW502"),
    functions=("forward", "forward_beat", "watch"),
    marks=False,
)
def h_beats_batch_one(fixed):
    # 36 blocks of 7 kernels a beat: about 2 ms to launch; a graph of them takes 0.7 ms.
    leads, samples, wide, kinds = pick(12, 2), pick(512, 16), pick(64, 4), pick(9, 3)
    reaches = [2 ** (k % 6) for k in range(pick(36, 2))]
    with DEV:
        net = nn.Sequential(
            nn.Conv1d(leads, wide, 1),
            *(Beat(wide, r) for r in reaches),
            nn.AdaptiveAvgPool1d(1),
            nn.Flatten(),
            nn.Linear(wide, kinds),
        )
    monitor = Monitor(net.to(BF16).eval(), leads, samples, kinds)
    run = replayed(monitor.forward_beat) if fixed else monitor.forward_beat  # PLANT
    beats = torch.randn(pick(4, 2), 1, leads, samples, device=DEV, dtype=BF16)
    return lambda: monitor.watch(beats, run)


class Archive:
    """Finds old maps that show the same place as a query."""

    def __init__(self, encoder, judge, vectors, kept, on_device):
        self.encoder, self.judge, self.vectors = encoder, judge, vectors
        self.kept, self.on_device = kept, on_device

    def shortlist(self, scores):
        if self.on_device:
            return scores.topk(self.kept, sorted=False).indices
        host = scores.cpu().numpy()  # PLANT
        best = np.argpartition(host, -self.kept, axis=1)[:, -self.kept :]
        return torch.from_numpy(best).to(DEV)

    @torch.inference_mode()
    def find(self, queries):
        wanted = F.normalize(self.encoder(queries).mean(1), dim=-1)
        near = self.shortlist((wanted @ self.vectors.T).float())
        pairs = torch.cat([wanted.unsqueeze(1), self.vectors[near]], 1)
        match = (self.judge(pairs) @ wanted.unsqueeze(-1)).squeeze(-1)
        return near.gather(1, match[:, 1:].argmax(1, keepdim=True)).squeeze(1)


# cause: a round trip: all scores go to the host, numpy picks the best, their numbers go back
@case(
    "a search for old maps that picks its candidates with numpy between two nets",
    "framework",
    also=("data_loading", "memory"),
    codes=("IN612", "MM309", "FW503", "IN619"),
    functions=("shortlist", "find"),
    plant_in="Archive.shortlist",
    marks=False,
)
def h_maps_host_round_trip(fixed):
    # 64 x 20000 scores: 1 ms to copy and about 4 ms to partition; the nets take about 6 ms.
    dim, rows, places, kept, maps = pick(768, 8), pick(64, 2), pick(256, 3), pick(128, 4), 20000
    heads, maps = pick(12, 2), pick(maps, 16)
    with DEV:
        encoder = nn.Sequential(*(Block(dim, heads) for _ in range(pick(8, 1)))).to(BF16).eval()
        judge = nn.Sequential(*(Block(dim, heads) for _ in range(pick(6, 1)))).to(BF16).eval()
        vectors = F.normalize(torch.randn(maps, dim), dim=-1).to(BF16)
    queries = torch.randn(rows, places, dim, device=DEV, dtype=BF16)
    archive = Archive(encoder, judge, vectors, kept, fixed)
    return lambda: archive.find(queries)


class Gated(nn.Module):
    """A gated layer with two thirds of the usual inner width."""

    def __init__(self, dim, rounded):
        super().__init__()
        inner = int(8 * dim / 3)
        inner = -(-inner // 8) * 8 if rounded else inner  # PLANT
        self.norm = nn.RMSNorm(dim)
        self.gate, self.up = (nn.Linear(dim, inner, bias=False) for _ in range(2))
        self.down = nn.Linear(inner, dim, bias=False)

    def forward(self, x):
        y = self.norm(x)
        return x + self.down(F.silu(self.gate(y)) * self.up(y))


# cause: the inner width int(8 * dim / 3) is odd (5461), so rows of weights are not aligned
@case(
    "sensors of a plant sorted by a net with gated layers of two thirds of the usual width",
    "compute",
    codes=("CP202",),
    functions=("forward", "sort_sensors", "__init__"),
    plant_in="Gated.__init__",
    marks=False,
)
def h_sensors_odd_inner_width(fixed):
    # A layer: 550 GFLOP, 1 ms when aligned and two to three when not.
    dim, rows, kinds = pick(2048, 8), pick(8192, 5), pick(300, 4)
    with DEV:
        layers = [Gated(dim, fixed) for _ in range(pick(5, 1))]
        net = nn.Sequential(*layers, nn.RMSNorm(dim), nn.Linear(dim, kinds)).to(BF16).eval()
    readings = itertools.cycle(torch.randn(2, rows, dim, device=DEV, dtype=BF16))

    @torch.inference_mode()
    def sort_sensors():
        return net(next(readings)).argmax(-1)

    return sort_sensors


class Near(nn.Module):
    """Attention in which a frame of a dance sees a window of frames before it."""

    def __init__(self, dim, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm = nn.LayerNorm(dim)
        self.q, self.k, self.v = (nn.Linear(dim, dim) for _ in range(3))
        self.out = nn.Linear(dim, dim)

    def split(self, x):
        return x.unflatten(-1, (self.heads, -1)).transpose(1, 2)

    def weigh(self, q, k, v, bias):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, attn_mask=bias)
        scores = torch.einsum("nhqd,nhkd->nhqk", q / q.shape[-1] ** 0.5, k)  # PLANT
        weights = torch.softmax(scores.float() + bias.float(), dim=-1).to(v.dtype)
        return torch.einsum("nhqk,nhkd->nhqd", weights, v)

    def forward(self, x, bias):
        y = self.norm(x)
        q, k, v = (self.split(f(y)) for f in (self.q, self.k, self.v))
        mixed = self.weigh(q, k, v, bias).transpose(1, 2).flatten(2)
        return x + self.out(mixed)


class Dance(nn.Module):
    def __init__(self, joints, dim, depth, heads, fused):
        super().__init__()
        self.stem, self.head = nn.Linear(joints, dim), nn.Linear(dim, joints)
        self.layers = nn.ModuleList(Near(dim, heads, fused) for _ in range(depth))

    def forward(self, moves, bias):
        x = self.stem(moves)
        for layer in self.layers:
            x = layer(x, bias)
        return self.head(x)


# cause: attention by two einsums and a float32 softmax over all scores, not the fused one
@case(
    "a dance continued by layers that weigh the frames in float32, spelled out",
    "compute",
    also=("memory",),
    codes=("CP206",),
    functions=("weigh", "forward", "continue_dance"),
    plant_in="Near.weigh",
    marks=False,
)
def h_dance_attention_einsum(fixed):
    # Scores of 201M values, passed over as float32 several times: about 2 ms of 2.7 a layer.
    joints, rows, frames, dim = pick(72, 3), pick(16, 2), pick(1024, 5), pick(768, 8)
    with DEV:
        net = Dance(joints, dim, pick(6, 2), pick(12, 2), fixed).to(BF16).eval()
        moves = torch.randn(rows, frames, joints, dtype=BF16)
        apart = torch.arange(frames)[:, None] - torch.arange(frames)
    far = (apart < 0) | (apart > pick(256, 2))
    bias = torch.zeros(far.shape, device=DEV, dtype=BF16).masked_fill(far, float("-inf"))

    @torch.inference_mode()
    def continue_dance():
        return net(moves, bias)[:, -1]

    return continue_dance
