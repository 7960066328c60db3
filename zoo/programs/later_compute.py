"""Training whose arithmetic is done in a slow way: precision, shapes, attention, loops."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick

BF16 = torch.bfloat16


def descend(opt, loss):
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.detach()


class GridMixer(nn.Module):
    """Mixes the cells of the globe, then the variables of each cell."""

    def __init__(self, cells, dim):
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.space = nn.Linear(cells, cells)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        x = x + self.space(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Forecast(nn.Module):
    """The state of the atmosphere six hours later."""

    def __init__(self, cells, variables, dim, depth):
        super().__init__()
        self.stem, self.head = nn.Linear(variables, dim), nn.Linear(dim, variables)
        self.mixers = nn.ModuleList(GridMixer(cells, dim) for _ in range(depth))

    def forward(self, state):
        x = self.stem(state)
        for mixer in self.mixers:
            x = mixer(x)
        return state + self.head(x)


# cause: all matrix products in float32 without TF32 (precision "highest", no autocast)
@case(
    "a weather model in plain float32 on a GPU whose tensor cores are never asked",
    "compute",
    codes=("CP201",),
    functions=("forward", "forecast_step"),
)
def h_globe_float32(fixed):
    # Three passes of 1 TFLOP: 60 ms at 50 TFLOP/s, 9 ms with TF32; the rest takes about 3 ms.
    cells, variables = pick(2048, 6), pick(80, 3)
    torch.set_float32_matmul_precision("high" if fixed else "highest")  # PLANT
    with DEV:
        net = Forecast(cells, variables, pick(1024, 8), pick(3, 1))
    opt = torch.optim.AdamW(net.parameters(), 2e-4, fused=True)
    days = torch.randn(pick(4, 2), pick(9, 3), cells, variables, device=DEV)
    area = torch.linspace(0.2, 1.0, cells, device=DEV)[:, None]

    def weighted_error(guess, truth):
        return (area * (guess - truth).square()).mean()

    def forecast_step():
        day = days[0]
        guess = net(day[:-1])
        return descend(opt, weighted_error(guess, day[1:]))

    return forecast_step


class EchoLayer(nn.Module):
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


class IceDepth(nn.Module):
    """Radar echoes along a flight line to the depth of the bed below the ice."""

    def __init__(self, samples, dim, depth, heads, half_decoder):
        super().__init__()
        self.stem = nn.Linear(samples, dim)
        self.layers = nn.Sequential(*(EchoLayer(dim, heads) for _ in range(depth)))
        self.decoder = nn.Sequential(
            nn.Linear(dim, 2 * dim),
            nn.SiLU(),
            nn.Linear(2 * dim, 2 * dim),
            nn.SiLU(),
            nn.Linear(2 * dim, 2),
        )
        self.half_decoder = half_decoder

    def forward(self, echoes):
        x = self.layers(self.stem(echoes)).float()
        return self.decode(x)

    def decode(self, x):
        with torch.autocast(DEV.type, BF16, enabled=self.half_decoder):  # PLANT
            mean, spread = self.decoder(x).unbind(-1)
        return mean.float(), F.softplus(spread.float()) + 1e-3


# cause: one part of the model is left out of autocast: its products are float32 without TF32
@case(
    "a depth regression under autocast, but for the decoder, which was thought to be delicate",
    "compute",
    codes=("CP201",),
    functions=("decode", "forward", "fit_depth"),
    plant_in="IceDepth.decode",
)
def h_ice_decoder_float32(fixed):
    # Decoder: 0.7 TFLOP in all, 13 ms in float32, 1.5 ms in bf16; the trunk takes about 11 ms.
    samples, rows, length = pick(512, 5), pick(32, 2), pick(1024, 4)
    with DEV:
        net = IceDepth(samples, pick(768, 8), pick(3, 1), pick(12, 2), fixed)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    echoes = torch.randn(rows, length, samples, device=DEV)
    bed = torch.rand(rows, length, device=DEV)

    def fit_depth():
        with torch.autocast(DEV.type, BF16):
            mean, spread = net(echoes)
        loss = (spread.log() + 0.5 * ((mean - bed) / spread).square()).mean()
        return descend(opt, loss)

    return fit_depth


class EventLayer(nn.Module):
    """A causal layer over the events of a server log."""

    def __init__(self, dim, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def attend(self, q, k, v, future):
        if self.fused:
            return F.scaled_dot_product_attention(q, k, v, is_causal=True)
        scores = torch.matmul(q, k.transpose(-1, -2)) * q.shape[-1] ** -0.5  # PLANT
        weights = scores.masked_fill(future, float("-inf")).softmax(-1)
        return torch.matmul(weights, v)

    def forward(self, x, future):
        rows, length, dim = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, dim // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        seen = self.attend(q, k, v, future).transpose(1, 2).reshape(x.shape)
        x = x + self.out(seen)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class LogModel(nn.Module):
    def __init__(self, kinds, dim, depth, heads, fused):
        super().__init__()
        self.event = nn.Embedding(kinds, dim)
        self.layers = nn.ModuleList(EventLayer(dim, heads, fused) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, kinds)

    def forward(self, events, future):
        x = self.event(events)
        for layer in self.layers:
            x = layer(x, future)
        return self.head(self.norm(x))


# cause: attention written out (scores, mask and softmax as matrices in memory), not the fused one
@case(
    "the next event of a server log, with causal attention written out by hand",
    "compute",
    also=("memory",),
    codes=("CP206",),
    functions=("attend", "forward", "learn_events"),
    plant_in="EventLayer.attend",
)
def h_events_attention_by_hand(fixed):
    # Scores of a layer: 0.5 GB, passed over 19 times in all: 2.5 of some 4.3 ms a layer.
    kinds, rows, length = pick(2000, 9), pick(4, 2), pick(2048, 6)
    with DEV:
        net = LogModel(kinds, pick(1024, 8), pick(6, 2), pick(16, 2), fixed).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    events = torch.randint(0, kinds, (rows, length + 1), device=DEV)
    future = torch.ones(length, length, dtype=torch.bool, device=DEV).triu(1)

    def learn_events():
        logits = net(events[:, :-1], future)
        loss = F.cross_entropy(logits.flatten(0, 1).float(), events[:, 1:].flatten())
        return descend(opt, loss)

    return learn_events


class Expression(nn.Module):
    """Counts of all genes of a sample, squeezed and restored."""

    def __init__(self, width, hidden, code):
        super().__init__()
        self.read, self.squeeze = nn.Linear(width, hidden), nn.Linear(hidden, code)
        self.expand, self.write = nn.Linear(code, hidden), nn.Linear(hidden, width)

    def forward(self, counts):
        code = self.squeeze(F.relu(self.read(counts)))
        return self.write(F.relu(self.expand(code)))


# cause: the number of genes is odd (19927), so the rows of the large products are not aligned
@case(
    "an autoencoder as wide as the list of genes, which happens to be odd",
    "compute",
    codes=("CP202",),
    functions=("forward", "restore"),
)
def h_expression_odd_genes(fixed):
    # Five products of 334 GFLOP: 3 ms aligned, 8 ms or more not; loss and optimizer take 2 ms.
    genes, rows = pick(19927, 11), pick(8192, 4)
    width = genes + -genes % 8 if fixed else genes  # PLANT
    with DEV:
        net = Expression(width, pick(1024, 8), pick(64, 4)).to(BF16)
    opt = torch.optim.Adam(net.parameters(), 1e-3, fused=True)
    counts = torch.rand(rows, genes, device=DEV).mul_(20).floor_()
    seen = F.pad(counts.log1p_().to(BF16), (0, width - genes))

    def corrupt(x):
        return F.dropout(x, 0.1)

    def restore():
        guess = net(corrupt(seen))
        return descend(opt, F.mse_loss(guess[:, :genes], seen[:, :genes]))

    return restore


def line_table(pixels, lines):
    """The shape of each spectral line at each wavelength, as the catalogue code gives it."""
    wave = np.linspace(3800.0, 9200.0, pixels)
    centre = np.linspace(3810.0, 9190.0, lines)
    return np.exp(-0.5 * ((wave[:, None] - centre[None]) / 6.0) ** 2)


class Spectra(nn.Module):
    """Line strengths of every star; the table comes from the catalogue."""

    def __init__(self, stars, table):
        super().__init__()
        self.register_buffer("table", table)
        self.strength = nn.Parameter(torch.zeros(stars, table.shape[1], dtype=table.dtype))
        self.slope = nn.Parameter(torch.zeros(stars, 1, dtype=table.dtype))
        self.register_buffer("colour", torch.linspace(-1, 1, table.shape[0], dtype=table.dtype))

    def forward(self):
        depth = F.softplus(self.strength) @ self.table.T
        return torch.exp(-depth) * torch.exp(self.slope * self.colour)


# cause: float64 by accident: a numpy table sets the type of all parameters and of all work
@case(
    "spectra fitted with a table of lines that numpy made",
    "compute",
    also=("memory",),
    codes=("CP211",),
    functions=("forward", "fit_lines"),
)
def h_stars_float64(fixed):
    # Two products of 69 GFLOP and some 20 passes over the spectra, all in twice the bytes.
    stars, pixels, lines = pick(4096, 3), pick(8192, 10), pick(1024, 4)
    torch.set_float32_matmul_precision("high")
    table = torch.from_numpy(line_table(pixels, lines))
    table = table.float() if fixed else table  # PLANT
    net = Spectra(stars, table).to(DEV)
    opt = torch.optim.Adam(net.parameters(), 1e-2, fused=True)
    flux = torch.rand(stars, pixels, device=DEV).to(table.dtype)
    noise = torch.rand(stars, pixels, device=DEV).add_(0.5).to(table.dtype)

    def fit_lines():
        miss = (net() - flux) / noise
        loss = F.huber_loss(miss, torch.zeros_like(miss)) + 1e-3 * net.strength.square().mean()
        return descend(opt, loss)

    return fit_lines


class Slots(nn.Module):
    """A few slots look for the objects of a scene."""

    def __init__(self, dim, slots, batched):
        super().__init__()
        self.start = nn.Parameter(torch.randn(slots, dim))
        self.key, self.value = nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.renew = nn.GRUCell(dim, dim)
        self.batched = batched

    def look(self, slots, keys, values):
        if self.batched:
            seen = (slots @ keys.mT * keys.shape[-1] ** -0.5).softmax(1)
            return (seen / seen.sum(-1, keepdim=True)) @ values
        found = []
        for own, key, value in zip(slots, keys, values, strict=True):
            seen = (own @ key.mT * key.shape[-1] ** -0.5).softmax(0)  # PLANT
            found.append((seen / seen.sum(-1, keepdim=True)) @ value)
        return torch.stack(found)

    def forward(self, features):
        keys, values = self.key(features), self.value(features)
        slots = self.start.expand(len(features), -1, -1)
        for _ in range(2):
            found = self.look(slots, keys, values)
            slots = self.renew(found.flatten(0, 1), slots.flatten(0, 1)).view(found.shape)
        return slots


# cause: a Python loop over the scenes of the batch, with four small kernels for each
@case(
    "slots for the objects in a scene, found for one scene of the batch after the other",
    "framework",
    also=("compute",),
    codes=("FW516", "FW501", "FW502", "CP214"),
    functions=("look", "forward", "explain_scenes"),
    plant_in="Slots.look",
)
def h_scenes_one_by_one(fixed):
    # 2 x 64 x (5 forward and about 10 backward) kernels at 6 us: 12 ms; the encoder takes 6 ms.
    dim, rows, places, slots = pick(512, 8), pick(64, 3), pick(1024, 5), pick(12, 2)
    with DEV:
        encoder = nn.Sequential(
            *(EchoLayer(dim, pick(8, 2)) for _ in range(pick(2, 1))), nn.LayerNorm(dim)
        )
        attention = Slots(dim, slots, fixed)
        head = nn.Linear(dim, 10)
        net = nn.ModuleList([encoder, attention, head]).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    patches = torch.randn(rows, places, dim, device=DEV, dtype=BF16)
    objects = torch.randint(0, 10, (rows * slots,), device=DEV)

    def explain_scenes():
        scores = head(attention(encoder(patches))).flatten(0, 1)
        return descend(opt, F.cross_entropy(scores.float(), objects))

    return explain_scenes
