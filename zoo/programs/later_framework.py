"""Training in which the host is the slow part: launches, syncs, Python, compilation."""

import itertools
import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, compiled, pick, replayed

BF16 = torch.bfloat16


def descend(opt, loss):
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.detach()


class Narrow(nn.Module):
    """A residual block with few channels."""

    def __init__(self, dim, inner):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, inner), nn.Linear(inner, dim)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


def narrow_net(inputs, dim, depth, outputs):
    with DEV:
        blocks = [Narrow(dim, 2 * dim) for _ in range(depth)]
        net = nn.Sequential(nn.Linear(inputs, dim), *blocks, nn.Linear(dim, outputs))
    return net.to(BF16)


# cause: an optimizer that goes over 240 parameters one by one (foreach=False), 9 kernels for each
@case(
    "the catch of fishing grounds by a very deep net, whose optimizer handles tensor by tensor",
    "framework",
    codes=("FW507", "CP227"),
    functions=("descend", "estimate_catch"),
)
def h_catch_single_tensor_adam(fixed):
    # 244 x 9 launches take about 12 ms; forward and backward pass about 8 ms of the GPU.
    inputs, rows = pick(60, 4), pick(8192, 4)
    net = narrow_net(inputs, pick(512, 8), pick(40, 2), 30)
    opt = torch.optim.AdamW(net.parameters(), 3e-4, weight_decay=0.02, foreach=fixed)  # PLANT
    grounds = torch.randn(rows, inputs, device=DEV, dtype=BF16)
    tons = torch.rand(rows, 30, device=DEV)

    def estimate_catch():
        guess = F.softplus(net(grounds).float())
        return descend(opt, F.poisson_nll_loss(guess, tons, log_input=False))

    return estimate_catch


class Curriculum:
    """Draws the exercises with a large last loss more often than others."""

    def __init__(self, exercises, by_array):
        self.losses = np.random.rand(exercises)
        self.random = np.random.default_rng(0)
        self.by_array = by_array

    def weights(self):
        if self.by_array:
            return np.exp(self.losses / 0.7)
        return np.array([math.exp(loss / 0.7) for loss in self.losses])  # PLANT

    def draw(self, rows):
        edges = np.cumsum(self.weights())
        chosen = np.searchsorted(edges, self.random.random(rows) * edges[-1])
        return np.minimum(chosen, len(edges) - 1)

    def note(self, chosen, losses):
        self.losses[chosen] = losses


# cause: pure Python in the training loop: a list of 60000 exponentials is made for each step
@case(
    "exercises drawn for each step by their last loss, with a Python list of weights",
    "framework",
    also=("data_loading",),
    codes=("FW517", "DL104", "FW520"),
    functions=("weights", "draw", "practise"),
    plant_in="Curriculum.weights",
)
def h_exercises_python_weights(fixed):
    # The list takes 12 to 20 ms in Python and 1 ms as an array; the net takes about 7 ms.
    exercises, rows, inputs = pick(60_000, 50), pick(8192, 4), pick(256, 4)
    with DEV:
        net = narrow_net(inputs, pick(1024, 8), pick(10, 1), 4)
        texts = torch.randn(exercises, inputs, dtype=BF16)
        answers = torch.randint(0, 4, (exercises,))
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    curriculum = Curriculum(exercises, fixed)

    def practise():
        chosen = curriculum.draw(rows)
        place = torch.from_numpy(chosen).to(DEV)
        losses = F.cross_entropy(net(texts[place]).float(), answers[place], reduction="none")
        mean = descend(opt, losses.mean())
        curriculum.note(chosen, losses.detach().cpu().numpy())
        return mean

    return practise


class Beam(nn.Module):
    """Deflection of a beam at a place and a time."""

    def __init__(self, wide, depth):
        super().__init__()
        sizes = [2] + [wide] * depth
        self.layers = nn.ModuleList(nn.Linear(a, b) for a, b in itertools.pairwise(sizes))
        self.out = nn.Linear(wide, 1)

    def forward(self, points):
        x = points
        for layer in self.layers:
            x = torch.tanh(layer(x))
        return self.out(x)


class Physics:
    """The wave equation as a loss: second derivatives of the net."""

    def __init__(self, net, points, start):
        self.net, self.points, self.start = net, points, start
        self.opt = torch.optim.Adam(net.parameters(), 1e-3, fused=True, capturable=True)

    def curvature(self, first, points, axis):
        (second,) = torch.autograd.grad(first[:, axis].sum(), points, create_graph=True)
        return second[:, axis]

    def residual(self):
        points = self.points.detach().requires_grad_()
        deflection = self.net(points)
        (first,) = torch.autograd.grad(deflection.sum(), points, create_graph=True)
        return self.curvature(first, points, 1) - 0.25 * self.curvature(first, points, 0)

    def fit(self):
        self.opt.zero_grad(set_to_none=True)
        at_start = self.net(self.start) - torch.sin(math.pi * self.start[:, :1])
        loss = self.residual().square().mean() + at_start.square().mean()
        loss.backward()
        self.opt.step()


# cause: launch-bound training of a small model: some 500 tiny kernels a step, no CUDA graph
@case(
    "the vibration of a beam by a small net with second derivatives",
    "framework",
    codes=("FW501", "FW502"),
    functions=("curvature", "residual", "forward", "fit"),
)
def h_beam_launch_bound(fixed):
    # About 500 kernels of 2 to 3 us: 5 ms to launch one by one, 1.5 ms in a graph.
    with DEV:
        net = Beam(pick(128, 4), pick(6, 2))
        points = torch.rand(pick(2048, 5), 2)
        start = torch.rand(pick(512, 3), 2) * torch.tensor([1.0, 0.0])
    physics = Physics(net, points, start)
    return replayed(physics.fit) if fixed else physics.fit  # PLANT


class Sweep(nn.Module):
    """The points of one turn of a lidar to what stands around."""

    def __init__(self, wide, kinds):
        super().__init__()
        self.point, self.kind = nn.Linear(4, wide), nn.Linear(wide, kinds)

    def forward(self, points):
        features = F.relu(self.point(points))
        return self.kind(features.amax(0))


# cause: torch.compile with dynamic=False compiles anew for each number of points
@case(
    "turns of a lidar with ever another number of points through a net compiled for one number",
    "framework",
    codes=("FW511", "FW512"),
    functions=("forward", "look_around"),
    marks=False,
    stacks=False,
    active=3,
)
def h_lidar_recompiles(fixed):
    # A compilation of this tiny net takes some 0.5 s; the rest less than 1 ms.
    with DEV:
        net = Sweep(pick(64, 4), 6).eval()
        turns = torch.randn(pick(4, 2), pick(60_000, 99), 4)
    seen = compiled(net, dynamic=fixed)  # PLANT
    counts = itertools.cycle(range(pick(40_000, 20), pick(60_000, 99), 7))

    @torch._dynamo.config.patch(recompile_limit=500)
    @torch.no_grad()
    def look_around():
        points = next(counts)
        scores = [seen(turn[:points]) for turn in turns]
        return torch.stack(scores).argmax(-1)

    return look_around


class Gauge:
    """Remembers how wide the signal was at each place of the net."""

    def __init__(self):
        self.widths = {}

    def note(self, place, x):
        self.widths[place] = x.shape[-1]


class Stroke(nn.Module):
    """A step of a net that turns noise into handwriting."""

    def __init__(self, dim, note):
        super().__init__()
        self.norm, self.time = nn.LayerNorm(dim), nn.Linear(dim, 2 * dim)
        self.up, self.down = nn.Linear(dim, 2 * dim), nn.Linear(2 * dim, dim)
        self.note = note

    def forward(self, x, clock):
        scale, shift = self.time(F.silu(clock)).chunk(2, -1)
        y = self.up(self.norm(x) * (1 + scale) + shift)
        self.note("inner", y)
        y = self.down(F.gelu(y) * torch.sigmoid(y))
        self.note("outer", y)
        return x + y


class Writer:
    def __init__(self, blocks, head):
        self.blocks, self.head = blocks, head

    @torch.no_grad()
    def write(self, noise, clocks):
        x = noise
        for clock in clocks:
            y = x
            for block in self.blocks:
                y = block(y, clock)
            x = x - 0.1 * self.head(y)
        return x


# cause: graph breaks: a helper excluded from compilation is called twice in each compiled block
@case(
    "handwriting drawn by compiled blocks that call a helper kept out of the compilation",
    "framework",
    codes=("FW510", "FW534"),
    functions=("note", "forward", "write"),
    marks=False,
)
def h_strokes_graph_breaks(fixed):
    # 8 x 6 blocks: three graphs and two calls of about 60 us instead of one graph.
    gauge, dim, rows = Gauge(), pick(384, 8), pick(256, 3)
    note = gauge.note if fixed else torch.compiler.disable(gauge.note)  # PLANT
    with DEV:
        blocks = [Stroke(dim, note).to(BF16).eval() for _ in range(pick(6, 2))]
        head = nn.Linear(dim, dim).to(BF16).eval()
        noise = torch.randn(rows, dim, dtype=BF16)
        clocks = torch.randn(pick(8, 2), 1, dim, dtype=BF16)
    writer = Writer([compiled(b) for b in blocks], head)
    return lambda: writer.write(noise, clocks)


class Atlas:
    """What a robot remembers of the cells of a building."""

    def __init__(self, cells, dim, at_once):
        self.memory = torch.zeros(cells, dim, device=DEV, dtype=BF16)
        self.at_once = at_once

    @torch.no_grad()
    def write(self, cells, index, seen):
        if self.at_once:
            self.memory.index_copy_(0, index, self.memory[index].lerp(seen, 0.1))
            return
        for row, cell in enumerate(cells):
            self.memory[cell] = self.memory[cell].lerp(seen[row], 0.1)  # PLANT


# cause: a Python loop that reads and writes a tensor row by row
@case(
    "a robot that writes what it saw into its memory, one cell after the other",
    "framework",
    codes=("FW516",),
    functions=("write", "explore"),
    plant_in="Atlas.write",
)
def h_robot_writes_row_by_row(fixed):
    # 256 rows x 2 kernels and 3 views: 5 ms of launches; the net takes about 4 ms.
    dim, rows, cells = pick(768, 8), pick(256, 3), pick(4096, 9)
    net = narrow_net(dim, dim, pick(6, 1), dim)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    atlas = Atlas(cells, dim, fixed)
    visited = torch.randperm(cells)[:rows]
    index, cells_now = visited.to(DEV), visited.tolist()
    views = torch.randn(rows, pick(32, 2), dim, device=DEV, dtype=BF16)

    def explore():
        known = atlas.memory[index]
        seen = net(views)
        loss = F.mse_loss(seen, (views + known.unsqueeze(1)).tanh())
        descend(opt, loss)
        atlas.write(cells_now, index, seen.detach().mean(1))
        return loss.detach()

    return explore


class Assays:
    """One net for many assays; most molecules were tested in few of them."""

    def __init__(self, net, assays, weighted):
        self.net, self.assays, self.weighted = net, assays, weighted
        self.opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)

    def assay_loss(self, score, label):
        known = ~label.isnan()
        if self.weighted:
            each = F.binary_cross_entropy_with_logits(score, label.nan_to_num(), reduction="none")
            return (each * known).sum() / known.sum()
        return F.binary_cross_entropy_with_logits(score[known], label[known])  # PLANT

    def learn_assays(self, molecules, labels):
        scores = self.net(molecules).float()
        losses = [self.assay_loss(scores[:, k], labels[:, k]) for k in range(self.assays)]
        return descend(self.opt, torch.stack(losses).mean())


# cause: boolean masks: two indexings with a sync for each of 24 assays
@case(
    "24 assays learnt at once, each with a boolean mask for the molecules that were tested",
    "framework",
    codes=("FW504", "FW503"),
    functions=("assay_loss", "learn_assays"),
    plant_in="Assays.assay_loss",
)
def h_assays_boolean_masks(fixed):
    # 48 syncs with five kernels each, and gradients that sort: 5 to 8 ms beside about 9 ms.
    inputs, rows, assays = pick(1024, 6), pick(8192, 6), pick(24, 2)
    net = narrow_net(inputs, pick(1536, 8), pick(6, 1), assays)
    molecules = torch.rand(rows, inputs, device=DEV).round().to(BF16)
    labels = torch.rand(rows, assays, device=DEV).round()
    labels[torch.rand(rows, assays, device=DEV) < 0.5] = float("nan")
    learner = Assays(net, assays, fixed)
    return lambda: learner.learn_assays(molecules, labels)


class Trainer:
    """Keeps the gradients in bounds by itself."""

    def __init__(self, net, on_device):
        self.net, self.on_device = net, on_device
        self.weights = list(net.parameters())
        self.opt = torch.optim.SGD(self.weights, 0.01, momentum=0.9, fused=True)

    def gradient_norm(self):
        total = torch.zeros((), device=DEV) if self.on_device else 0.0
        for weight in self.weights:
            square = weight.grad.square().sum(dtype=torch.float32)
            total = total + (square if self.on_device else square.item())  # PLANT
        return total**0.5

    def train_step(self, x, y):
        self.opt.zero_grad(set_to_none=True)
        loss = F.l1_loss(self.net(x).float(), y)
        loss.backward()
        factor = 1.0 / (self.gradient_norm() + 1e-6)
        factor = factor.clamp(max=1.0) if self.on_device else min(factor, 1.0)
        torch._foreach_mul_([w.grad for w in self.weights], factor)
        self.opt.step()
        return loss.detach()


# cause: .item() for each of 148 parameters, in a gradient norm of the user's own
@case(
    "the drift of icebergs, with a gradient norm that is added up on the host",
    "framework",
    codes=("FW503",),
    functions=("gradient_norm", "train_step"),
    plant_in="Trainer.gradient_norm",
)
def h_icebergs_norm_items(fixed):
    # 148 syncs of 20 to 30 us: 4 ms; then nothing is queued: the next 2 ms of launches show, too.
    inputs, rows = pick(40, 3), pick(8192, 4)
    net = narrow_net(inputs, pick(512, 8), pick(24, 2), 2)
    trainer = Trainer(net, fixed)
    currents = torch.randn(rows, inputs, device=DEV, dtype=BF16)
    drift = torch.randn(rows, 2, device=DEV)
    return lambda: trainer.train_step(currents, drift)
