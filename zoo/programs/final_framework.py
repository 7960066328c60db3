"""The host stands in the way; one mistake each."""

import random
import time

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, compiled, pick
from zoo.programs.final_data import BF16, adamw


class Quantised(nn.Module):
    """A layer whose input is rounded to 8 bits."""

    def __init__(self, dim, keep):
        super().__init__()
        self.norm, self.mix, self.keep = nn.LayerNorm(dim), nn.Linear(dim, dim), keep

    def forward(self, x):
        h = self.norm(x)
        top = h.abs().amax()
        top = top if self.keep else top.item()  # PLANT
        rounded = (h * (127 / top)).round().clamp(-127, 127) * (top / 127)
        return x + F.relu(self.mix(rounded))


@case(
    "the range of each layer read back while a model is tried with 8 bits",
    "framework",
    also=("compute", "memory"),
    codes=("FW503",),
    functions=("forward", "try_8bit"),
    plant_in="Quantised.forward",
    active=3,
)
def e_ranges_read_back(fixed):
    dim = pick(1024, 8)
    net = nn.Sequential(*[Quantised(dim, fixed) for _ in range(pick(24, 2))]).to(DEV, BF16)
    x = torch.randn(pick(8192, 4), dim, device=DEV, dtype=BF16)

    @torch.no_grad()
    def try_8bit():
        return net(x).float().mean(1)

    return try_8bit


def stretch(x, counts, total, known):
    """Each phoneme repeated for as long as it sounds."""
    return torch.repeat_interleave(x, counts, 0, output_size=total if known else None)  # PLANT


@case(
    "phonemes repeated without the output size: a wait in each level of a voice",
    "framework",
    also=("compute",),
    codes=("FW504",),
    functions=("stretch", "speak_levels"),
    plant_in="stretch",
)
def e_phonemes_stretched(fixed):
    dim, rows = pick(1024, 8), pick(8192, 6)
    with DEV:
        levels = nn.ModuleList(
            nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, dim))
            for _ in range(pick(16, 2))
        ).to(BF16)
    x = torch.randn(rows, dim, device=DEV, dtype=BF16)
    counts = torch.randint(1, 4, (rows,), device=DEV)
    total = int(counts.sum())

    @torch.inference_mode()
    def speak_levels():
        out = []
        for level in levels:
            out.append(level(stretch(x, counts, total, fixed))[:rows])
        return torch.stack(out).mean(0)

    return speak_levels


def shift_beats(beats, shifts):
    out = torch.empty_like(beats)
    for k, shift in enumerate(shifts):
        out[k] = beats[k].roll(shift, -1)  # PLANT
    return out


def shift_beats_at_once(beats, shifts):
    places = torch.arange(beats.shape[-1], device=DEV)
    start = torch.tensor(shifts).to(DEV)[:, None]
    index = ((places - start) % beats.shape[-1])[:, None]
    return beats.gather(2, index.expand_as(beats))


@case(
    "each heart beat of a batch rolled by its own shift in a Python loop",
    "framework",
    codes=("FW516", "FW501", "FW502"),
    functions=("shift_beats", "watch_hearts"),
    plant_in="shift_beats",
    active=3,
)
def e_beats_rolled(fixed):
    leads, width = 12, pick(128, 8)
    convs = [nn.Conv1d(leads, width, 7, 2, 3)]
    for _ in range(pick(14, 1)):
        convs += [nn.ReLU(), nn.Conv1d(width, width, 5, padding=2)]
    net = nn.Sequential(*convs).to(DEV, BF16)
    opt = adamw(net)
    beats = torch.randn(pick(112, 3), leads, pick(1024, 32), device=DEV, dtype=BF16)
    chance = random.Random(4)
    shift = shift_beats_at_once if fixed else shift_beats

    def watch_hearts():
        shifts = [chance.randrange(beats.shape[-1]) for _ in range(len(beats))]
        opt.zero_grad()
        net(shift(beats, shifts)).float().square().mean().backward()
        opt.step()

    return watch_hearts


class Coupling(nn.Module):
    """One step of a normalising flow."""

    def __init__(self, dim, hidden):
        super().__init__()
        self.enter, self.leave = nn.Linear(dim // 2, hidden), nn.Linear(hidden, dim)

    def forward(self, x):
        a, b = x.chunk(2, 1)
        scale, shift = self.leave(torch.tanh(self.enter(a))).chunk(2, 1)
        return torch.cat([b * torch.sigmoid(scale + 2) + shift, a], 1)


@case(
    "NAdam told not to use foreach, for the many tensors of a normalising flow",
    "framework",
    codes=("FW507", "FW502", "FW501", "CP227"),
    functions=("fit_flow",),
    active=2,
)
def e_flow_nadam_loop(fixed):
    torch.set_float32_matmul_precision("high")
    dim = pick(128, 8)
    net = nn.Sequential(*[Coupling(dim, pick(256, 8)) for _ in range(pick(32, 2))]).to(DEV)
    opt = torch.optim.NAdam(net.parameters(), lr=1e-4, foreach=fixed)  # PLANT
    x = torch.randn(pick(4096, 4), dim, device=DEV)

    def fit_flow():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()

    return fit_flow


class Stopwatch:
    def __init__(self, off):
        self.off, self.seen = off, 0.0

    def lap(self):
        if not self.off:
            self.seen = time.perf_counter()  # PLANT


class RotaryMix(nn.Module):
    def __init__(self, dim, watch):
        super().__init__()
        self.norm, self.mix, self.watch = nn.RMSNorm(dim), nn.Linear(dim, dim), watch

    def forward(self, x, turn):
        a, b = self.norm(x).chunk(2, -1)
        h = torch.cat([a * turn.cos() - b * turn.sin(), a * turn.sin() + b * turn.cos()], -1)
        self.watch.lap()
        h = self.mix(h)
        return x + h * torch.sigmoid(1.7 * h)


class RotaryNet(nn.Module):
    def __init__(self, dim, depth, watch):
        super().__init__()
        self.layers = nn.ModuleList(RotaryMix(dim, watch) for _ in range(depth))

    def forward(self, x, turn):
        for layer in self.layers:
            x = layer(x, turn)
        return x


@case(
    "a stopwatch read inside the layers of a compiled model",
    "framework",
    also=("memory", "compute"),
    codes=("FW510", "FW534"),
    functions=("lap", "forward", "encode_orbits"),
    plant_in="Stopwatch.lap",
)
def e_stopwatch_in_compiled(fixed):
    dim = pick(512, 8)
    net = RotaryNet(dim, pick(4, 2), Stopwatch(fixed)).to(DEV, BF16).eval()
    run = compiled(net)
    x = torch.randn(pick(65536, 4), dim, device=DEV, dtype=BF16)
    turn = torch.randn(len(x), dim // 2, device=DEV, dtype=BF16)

    @torch.no_grad()
    def encode_orbits():
        return run(x, turn).float().mean(1)

    return encode_orbits


def draw_wrong(facts, known, things, chance):
    """Tails that make a false statement with each head, found by trying."""
    wrong = []
    for head, _ in facts:
        tail = chance.randrange(things)  # PLANT
        while (head, tail) in known:
            tail = chance.randrange(things)
        wrong.append(tail)
    return torch.tensor(wrong).to(DEV)


@case(
    "false statements for a knowledge graph drawn in Python until one fits",
    "framework",
    also=("data_loading",),
    codes=("FW517", "DL104"),
    functions=("draw_wrong", "learn_facts"),
    plant_in="draw_wrong",
)
def e_false_facts_drawn(fixed):
    torch.set_float32_matmul_precision("high")
    things, dim = pick(20000, 32), pick(256, 8)
    chance = random.Random(5)
    facts = [(chance.randrange(things), chance.randrange(things)) for _ in range(pick(6000, 8))]
    known = set(facts)
    heads, tails = (torch.tensor(t).to(DEV) for t in zip(*facts, strict=True))
    table = nn.Embedding(things, dim).to(DEV)
    relate = nn.Sequential(nn.Linear(dim, 4 * dim), nn.SiLU(), nn.Linear(4 * dim, dim)).to(DEV)
    opt = adamw(nn.ModuleList([table, relate]))

    def learn_facts():
        if fixed:
            wrong = torch.randint(0, things, (len(facts),), device=DEV)
        else:
            wrong = draw_wrong(facts, known, things, chance)
        opt.zero_grad()
        at = relate(table(heads))
        good, bad = (at - table(tails)).norm(dim=1), (at - table(wrong)).norm(dim=1)
        F.relu(1 + good - bad).mean().backward()
        opt.step()

    return learn_facts
