"""Work on the device that need not be done, or not like this; one mistake each."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from zoo.harness import DEV, case, pick
from zoo.programs.unseen_data import BF16, SmallEncoder, adam


class GeneVAE(nn.Module):
    def __init__(self, genes, width, latent):
        super().__init__()
        self.encode = nn.Sequential(
            nn.Linear(genes, width), nn.SiLU(), nn.Linear(width, 2 * latent)
        )
        self.decode = nn.Sequential(nn.Linear(latent, width), nn.SiLU(), nn.Linear(width, genes))

    def forward(self, counts):
        mean, spread = self.encode(counts.log1p()).chunk(2, 1)
        z = mean + torch.randn_like(mean) * F.softplus(spread)
        kl = 0.5 * (mean.square() + spread.square()).mean()
        return self.decode(z), kl


# The loss read at every step is a second, smaller mistake of this program.
@case(
    "a gene expression VAE trained in fp32 although autocast is there",
    "compute",
    codes=("CP201",),
    functions=("fit_cells", "forward"),
)
def d_gene_vae_fp32(fixed):
    genes, width = pick(8192, 32), pick(3072, 16)
    with DEV:
        net = GeneVAE(genes, width, pick(64, 4))
    opt = adam(net)
    counts = torch.rand(pick(4096, 8), genes, device=DEV)
    curve = []

    def fit_cells():
        opt.zero_grad()
        with torch.autocast(DEV.type, BF16, enabled=fixed):  # PLANT
            rate, kl = net(counts)
        loss = F.poisson_nll_loss(rate.float(), counts) + kl
        loss.backward()
        opt.step()
        curve[:] = [loss.item()]

    return fit_cells


class RadianceField(nn.Module):
    """A coordinate network whose encoding is joined again half way."""

    def __init__(self, encoded, width, depth):
        super().__init__()
        self.first = nn.Linear(encoded, width)
        self.near = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.join = nn.Linear(width + encoded, width)
        self.far = nn.ModuleList(nn.Linear(width, width) for _ in range(depth))
        self.colour = nn.Linear(width, 4)

    def forward(self, code):
        x = F.relu(self.first(code))
        for layer in self.near:
            x = F.relu(layer(x))
        x = F.relu(self.join(torch.cat([x, code], 1)))
        for layer in self.far:
            x = F.relu(layer(x))
        return self.colour(x)


@case(
    "a positional encoding of 63 numbers joined to a layer of 1024",
    "compute",
    codes=("CP202",),
    functions=("forward", "render_rays"),
)
def d_rays_odd_join(fixed):
    encoded = 64 if fixed else 63  # PLANT
    net = RadianceField(encoded, pick(1024, 16), pick(6, 1)).to(DEV, BF16)
    opt = adam(net)
    code = torch.randn(pick(65536, 8), encoded, device=DEV, dtype=BF16)
    target = torch.rand(len(code), 4, device=DEV, dtype=BF16)

    def render_rays():
        opt.zero_grad()
        F.mse_loss(net(code).sigmoid(), target).backward()
        opt.step()

    return render_rays


class MusicLayer(nn.Module):
    def __init__(self, dim, heads, weights):
        super().__init__()
        self.attention = nn.MultiheadAttention(dim, heads, batch_first=True)
        self.before, self.after = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)
        self.weights = weights

    def forward(self, x):
        h = self.before(x)
        y, _ = self.attention(h, h, h, need_weights=self.weights)  # PLANT
        x = x + y
        return x + self.down(F.gelu(self.up(self.after(x))))


@case(
    "attention weights asked for (the default) and thrown away",
    "compute",
    also=("memory",),
    codes=("CP206",),
    functions=("forward", "compose"),
    plant_in="MusicLayer.forward",
)
def d_music_need_weights(fixed):
    dim = pick(768, 16)
    with DEV:
        layers = [MusicLayer(dim, pick(12, 2), not fixed) for _ in range(pick(4, 1))]
        net = nn.Sequential(*layers).to(BF16)
    opt = adam(net)
    notes = torch.randn(pick(8, 2), pick(1024, 8), dim, device=DEV, dtype=BF16)

    def compose():
        opt.zero_grad()
        net(notes).float().square().mean().backward()
        opt.step()

    return compose


def accelerations(where, masses):
    gap = where[None] - where[:, None]
    near = gap.square().sum(-1) + 1e-3
    pull = near.rsqrt() / near
    return ((masses * pull)[..., None] * gap).sum(1)


@case(
    "masses from NumPy turn the last part of an N-body step into float64",
    "compute",
    also=("memory",),
    codes=("CP211",),
    functions=("accelerations", "advance"),
)
def d_bodies_double(fixed):
    count = pick(6144, 16)
    kilograms = np.random.default_rng(0).random(count)
    masses = torch.tensor(kilograms, dtype=torch.float32 if fixed else None, device=DEV)  # PLANT
    where = torch.randn(count, 3, device=DEV)
    speed = torch.zeros_like(where)

    @torch.no_grad()
    def advance():
        speed.add_(accelerations(where, masses), alpha=1e-3)
        where.add_(speed, alpha=1e-3)

    return advance


class Stage(nn.Module):
    """Three convolutions; `tidy` returns the default layout "for the head"."""

    def __init__(self, cin, cout, tidy):
        super().__init__()
        self.enter = nn.Conv2d(cin, cout, 3, 2, 1)
        self.left, self.right = (nn.Conv2d(cout, cout, 3, padding=1) for _ in range(2))
        self.tidy = tidy

    def forward(self, x):
        x = F.relu(self.enter(x))
        x = x + self.right(F.relu(self.left(x)))
        return x.contiguous() if self.tidy else x  # PLANT


@case(
    "a contiguous() at the end of each stage undoes channels_last",
    "compute",
    also=("memory",),
    codes=("CP208", "CP222", "MM309"),
    functions=("forward", "grade_cells"),
    plant_in="Stage.forward",
)
def d_cells_contiguous(fixed):
    widths = pick((64, 128, 256, 512), (4, 8))
    stages = [Stage(a, b, not fixed) for a, b in zip((8, *widths), widths, strict=False)]
    net = nn.Sequential(*stages).to(DEV, BF16, memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    side = pick(256, 16)
    slides = torch.randn(pick(32, 2), 8, side, side, device=DEV, dtype=BF16)
    slides = slides.to(memory_format=torch.channels_last)

    def grade_cells():
        opt.zero_grad()
        net(slides).float().square().mean().backward()
        opt.step()

    return grade_cells


def run_stages(stages, x, again):
    for stage in stages:
        x = checkpoint(stage, x, use_reentrant=False) if again else stage(x)  # PLANT
    return x


@case(
    "each stage of a convnet checkpointed though memory is free",
    "compute",
    also=("memory",),
    codes=("CP217",),
    functions=("run_stages", "denoise_scans", "forward"),
    plant_in="run_stages",
)
def d_scans_checkpointed(fixed):
    width = pick(192, 8)
    stages = nn.ModuleList(
        nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1), nn.SiLU(), nn.Conv2d(width, width, 3, padding=1)
        )
        for _ in range(pick(5, 2))
    ).to(DEV, BF16, memory_format=torch.channels_last)
    opt = torch.optim.SGD(stages.parameters(), lr=1e-3, fused=True)
    side = pick(96, 8)
    scans = torch.randn(pick(32, 2), width, side, side, device=DEV, dtype=BF16)
    scans = scans.to(memory_format=torch.channels_last)

    def denoise_scans():
        opt.zero_grad()
        F.mse_loss(run_stages(stages, scans, not fixed), scans).backward()
        opt.step()

    return denoise_scans


@case(
    "logits of the whole vocabulary also for prompt tokens that the loss ignores",
    "compute",
    also=("memory",),
    codes=("CP220",),
    functions=("answer_loss", "tune"),
    plant_in="answer_loss",
)
def d_prompt_logits(fixed):
    words, dim, length = pick(64000, 64), pick(1024, 16), pick(1024, 16)
    with DEV:
        net = SmallEncoder(words, dim, pick(3, 1)).to(BF16)
    opt = adam(net)
    ids = torch.randint(0, words, (pick(8, 2), length), device=DEV)
    prompt = length * 5 // 8
    labels = ids.roll(-1, 1)
    labels[:, :prompt] = -100

    def tune():
        opt.zero_grad()
        x = net.words(ids)
        for layer in net.layers:
            x = layer(x)
        answer_loss(net.head, x, labels, prompt if fixed else 0).backward()
        opt.step()

    return tune


def answer_loss(head, x, labels, skip):
    logits = head(x[:, skip:]).float()  # PLANT
    return F.cross_entropy(logits.flatten(0, 1), labels[:, skip:].flatten(), ignore_index=-100)


class Readouts(nn.Module):
    """One small layer for each region of the brain."""

    def __init__(self, regions, dim, together):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(regions, dim, dim) * dim**-0.5)
        self.together = together

    def forward(self, x):
        if self.together:
            return torch.bmm(x, self.weight)
        return torch.stack([x[k] @ self.weight[k] for k in range(len(x))])  # PLANT


@case(
    "a small matrix product for each brain region in a Python loop",
    "compute",
    also=("framework",),
    codes=("CP214", "FW516", "FW501", "FW502"),
    functions=("forward", "decode_signals"),
    plant_in="Readouts.forward",
    active=3,
)
def d_regions_matmul_loop(fixed):
    torch.set_float32_matmul_precision("high")
    regions, dim = pick(48, 3), pick(128, 8)
    parts = [m for _ in range(3) for m in (Readouts(regions, dim, fixed), nn.LayerNorm(dim))]
    net = nn.Sequential(*parts).to(DEV)
    opt = adam(net)
    x = torch.randn(regions, pick(256, 4), dim, device=DEV)

    def decode_signals():
        opt.zero_grad()
        net(x).abs().mean().backward()
        opt.step()

    return decode_signals
