"""Programs that use torch.compile, or should."""

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, compiled, pick
from zoo.programs.unseen_data import BF16, adam, land_cover_net


def jitter_colours(x, gains):
    """Brightness, contrast, saturation, gamma."""
    x = x * gains[0]
    x = (x - 0.5) * gains[1] + 0.5  # PLANT
    grey = 0.3 * x[:, :1] + 0.59 * x[:, 1:2] + 0.11 * x[:, 2:]
    x = grey + (x - grey) * gains[2]
    x = x.clamp(1e-3, 1.0).pow(gains[3])
    return (x - 0.45) / 0.22


@case(
    "colour jitter on the GPU as a chain of element-wise kernels",
    "memory",
    also=("compute",),
    codes=("CP212", "MM311"),
    functions=("jitter_colours", "learn_photos"),
    plant_in="jitter_colours",
)
def d_colour_jitter(fixed):
    net = land_cover_net(3, pick(48, 8)).to(DEV, BF16, memory_format=torch.channels_last)
    opt = adam(net)
    jitter = compiled(jitter_colours) if fixed else jitter_colours
    side = pick(224, 16)
    photos = torch.rand(pick(256, 2), 3, side, side, device=DEV)
    gains = torch.tensor([1.1, 0.9, 1.2, 0.8], device=DEV)
    kinds = torch.randint(0, 11, (len(photos),), device=DEV)

    def learn_photos():
        with torch.no_grad():
            x = jitter(photos, gains).to(BF16, memory_format=torch.channels_last)
        opt.zero_grad()
        F.cross_entropy(net(x).float(), kinds).backward()
        opt.step()

    return learn_photos


def soft_clip(x):
    return x / (1 + (x.abs() / 4).pow(2)).sqrt()


class VoiceLayer(nn.Module):
    def __init__(self, dim, clip):
        super().__init__()
        self.norm, self.mix, self.clip = nn.LayerNorm(dim), nn.Linear(dim, dim), clip

    def forward(self, x):
        return x + self.clip(F.gelu(self.mix(self.norm(x))))


@case(
    "a helper excluded from the compiled model breaks its graph in every layer",
    "framework",
    also=("memory", "compute"),
    codes=("FW510", "FW534"),
    functions=("forward", "soft_clip", "synthesise"),
)
def d_clip_not_compiled(fixed):
    dim = pick(512, 8)
    clip = soft_clip if fixed else torch.compiler.disable(soft_clip)  # PLANT
    net = nn.Sequential(*[VoiceLayer(dim, clip) for _ in range(pick(12, 2))])
    net = net.to(DEV, BF16).eval()
    run = compiled(net)
    frames = torch.randn(pick(16384, 4), dim, device=DEV, dtype=BF16)

    @torch.no_grad()
    def synthesise():
        return run(frames).float().mean(1)

    return synthesise


def steady(x, past):
    """Blends a frame with those before it."""
    for frame in past:
        near = torch.exp(-(x - frame).square() * 8)
        x = x + near * (frame - x) * 0.5
    return x


@case(
    "compiled for each number of frames until the limit, then run eagerly",
    "framework",
    also=("memory", "compute"),
    codes=("FW534", "FW512", "FW511", "CP212"),
    functions=("steady", "stabilise"),
)
def d_frames_past_limit(fixed):
    torch._dynamo.config.recompile_limit = 2
    counts = [8] * 6 if fixed else [3, 5, 7, 9, 11, 13]  # PLANT
    frames = [torch.rand(pick(8, 1), 3, pick(512, 8), 512, device=DEV) for _ in range(13)]
    run = compiled(steady)

    @torch.no_grad()
    def stabilise():
        return [run(frames[0], frames[:n]) for n in counts]

    stabilise()
    return stabilise


class Ranker(nn.Module):
    def __init__(self, dim, depth):
        super().__init__()
        self.cross = nn.ModuleList(nn.Linear(dim, dim) for _ in range(depth))
        self.norms = nn.ModuleList(nn.LayerNorm(dim) for _ in range(depth))
        self.out = nn.Linear(dim, 1)

    def forward(self, x):
        start = x
        for cross, norm in zip(self.cross, self.norms, strict=True):
            x = x + start * cross(norm(x))
        return self.out(x)


@case(
    "a small compiled ranker whose kernels are still launched one by one",
    "framework",
    codes=("FW513", "FW501", "IN602", "FW515", "FW502"),
    functions=("rank_lists", "forward"),
    marks=False,
    active=3,
)
def d_in_ranker_no_graphs(fixed):
    torch.set_float32_matmul_precision("high")
    torch._dynamo.config.recompile_limit = 8
    net = Ranker(pick(256, 8), pick(16, 2)).to(DEV).eval()
    run = compiled(net, mode="reduce-overhead" if fixed else "default")  # PLANT
    lists = [torch.randn(pick(64, 2), pick(256, 8), device=DEV) for _ in range(pick(8, 2))]

    @torch.no_grad()
    def rank_lists():
        return [run(t).argmax(0) for t in lists]

    return rank_lists


@case("healthy: compiled mixer of wide layers, trained in bf16", "compute", active=3)
def d_ok_compiled_mixer(fixed):
    torch._dynamo.config.recompile_limit = 8
    dim = pick(6144, 8)
    with DEV:
        layers = [
            nn.Sequential(nn.LayerNorm(dim), nn.Linear(dim, dim), nn.SiLU()) for _ in range(3)
        ]
        net = nn.Sequential(*layers).to(BF16)
    run = compiled(net)
    opt = torch.optim.SGD(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(16384, 4), dim, device=DEV, dtype=BF16)

    def train_mixer():
        opt.zero_grad()
        run(x).float().mean().backward()
        opt.step()

    return train_mixer
