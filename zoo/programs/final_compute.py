"""Kernels slower than need be; one mistake each."""

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick
from zoo.programs.final_data import BF16, adamw


class RainNet(nn.Module):
    """The next radar image from the last ones, at two resolutions."""

    def __init__(self, frames, width):
        super().__init__()
        self.enter = nn.Conv2d(frames, width, 3, padding=1)
        self.deep = nn.ModuleList(nn.Conv2d(width, width, 3, padding=1) for _ in range(3))
        self.join = nn.Conv2d(2 * width, width, 3, padding=1)
        self.leave = nn.Conv2d(width, 1, 1)

    def forward(self, x):
        x = F.relu(self.enter(x))
        low = F.avg_pool2d(x, 2)
        for conv in self.deep:
            low = low + F.relu(conv(low))
        both = torch.cat([x, F.interpolate(low, scale_factor=2)], 1)
        return self.leave(F.relu(self.join(both)))


@case(
    "TF32 switched off for the convolutions of a rain forecast",
    "compute",
    codes=("CP201",),
    functions=("forward", "forecast_rain"),
    active=3,
)
def e_rain_no_tf32(fixed):
    torch.backends.cudnn.allow_tf32 = fixed  # PLANT
    net = RainNet(6, pick(128, 4)).to(DEV, memory_format=torch.channels_last)
    opt = adamw(net)
    side = pick(128, 8)
    radar = torch.randn(pick(16, 2), 6, side, side, device=DEV)
    radar = radar.to(memory_format=torch.channels_last)

    def forecast_rain():
        opt.zero_grad()
        F.smooth_l1_loss(net(radar), radar[:, :1]).backward()
        opt.step()

    return forecast_rain


class Conditioned(nn.Module):
    """The condition is joined to the input of every layer."""

    def __init__(self, dim, extra):
        super().__init__()
        self.mix = nn.Linear(dim + extra, dim)

    def forward(self, x, condition):
        return F.silu(self.mix(torch.cat([x, condition], 1)))


@case(
    "three numbers joined to the 1536 features of every layer of a wing model",
    "compute",
    codes=("CP202",),
    functions=("forward", "fit_wing"),
)
def e_wing_three_more(fixed):
    dim = pick(1536, 8)
    extra = 8 if fixed else 3  # PLANT
    layers = nn.ModuleList(Conditioned(dim, extra) for _ in range(pick(5, 2))).to(DEV, BF16)
    opt = adamw(layers)
    x = torch.randn(pick(16384, 4), dim, device=DEV, dtype=BF16)
    condition = torch.randn(len(x), extra, device=DEV, dtype=BF16)

    def fit_wing():
        opt.zero_grad()
        h = x
        for layer in layers:
            h = layer(h, condition)
        h.float().square().mean().backward()
        opt.step()

    return fit_wing


def attend(q, k, v, slope, fused):
    if fused:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=slope)
    scores = q @ k.mT * q.shape[-1] ** -0.5 + slope  # PLANT
    return scores.softmax(-1) @ v


class LogLayer(nn.Module):
    def __init__(self, dim, heads, fused):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.first, self.second = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, slope):
        parts = self.qkv(self.first(x)).unflatten(-1, (3, self.heads, -1))
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        y = attend(q, k, v, slope, self.fused)
        x = x + self.out(y.transpose(1, 2).flatten(2))
        return x + self.down(F.relu(self.up(self.second(x))))


@case(
    "attention with a slope for the distance, written out for server logs",
    "compute",
    also=("memory",),
    codes=("CP206",),
    functions=("attend", "forward", "learn_logs"),
    plant_in="attend",
)
def e_logs_sloped_attention(fixed):
    dim, heads, length = pick(1024, 16), pick(16, 2), pick(512, 8)
    with DEV:
        layers = nn.ModuleList(LogLayer(dim, heads, fixed) for _ in range(pick(4, 1))).to(BF16)
    opt = adamw(layers)
    place = torch.arange(length, device=DEV)
    steep = torch.logspace(-1, -8, heads, 2, device=DEV)[:, None, None]
    rows = pick(24, 2)
    slope = (-(place[:, None] - place).abs() * steep).to(BF16).expand(rows, -1, -1, -1)
    logs = torch.randn(rows, length, dim, device=DEV, dtype=BF16)

    def learn_logs():
        opt.zero_grad()
        h = logs
        for layer in layers:
            h = layer(h, slope)
        h.float().square().mean().backward()
        opt.step()

    return learn_logs


class Cloudy(nn.Module):
    """Convolutions with a layer norm over the channels of each pixel."""

    def __init__(self, width):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(width, width, 3, padding=1), nn.LayerNorm(width)
        self.wide, self.narrow = nn.Linear(width, 2 * width), nn.Linear(2 * width, width)

    def forward(self, x):
        h = self.norm(self.conv(x).permute(0, 2, 3, 1))
        h = self.narrow(F.gelu(self.wide(h)))
        return x + h.permute(0, 3, 1, 2)


@case(
    "pixels normalised over channels that lie apart in memory",
    "compute",
    also=("memory",),
    codes=("CP208", "CP222", "MM309"),
    functions=("forward", "mask_clouds"),
)
def e_clouds_channels_first(fixed):
    layout = torch.channels_last if fixed else torch.contiguous_format  # PLANT
    width, side = pick(256, 8), pick(64, 8)
    net = nn.Sequential(*[Cloudy(width) for _ in range(pick(5, 1))])
    net = net.to(DEV, BF16, memory_format=layout)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    sky = torch.randn(pick(24, 2), width, side, side, device=DEV, dtype=BF16)
    sky = sky.to(memory_format=layout)

    def mask_clouds():
        opt.zero_grad()
        net(sky).float().square().mean().backward()
        opt.step()

    return mask_clouds


def smooth_loss(logits, words, library):
    if library:
        return F.cross_entropy(logits, words, label_smoothing=0.1)
    logs = logits.log_softmax(1)
    soft = torch.full_like(logs, 0.1 / logs.shape[1])  # PLANT
    soft.scatter_(1, words[:, None], 0.9)
    return -(soft * logs).sum(1).mean()


@case(
    "smoothed targets over a vocabulary of 48000 laid out in full",
    "compute",
    also=("memory",),
    codes=("CP220", "CP212", "MM311", "MM318"),
    functions=("smooth_loss", "translate"),
    plant_in="smooth_loss",
)
def e_smooth_targets(fixed):
    words, dim = pick(48000, 32), pick(1536, 8)
    with DEV:
        body = nn.Sequential(nn.Linear(dim, 4 * dim), nn.ReLU(), nn.Linear(4 * dim, dim))
        net = nn.Sequential(body, nn.Linear(dim, words)).to(BF16)
    opt = adamw(net)
    states = torch.randn(pick(8192, 4), dim, device=DEV, dtype=BF16)
    said = torch.randint(0, words, (len(states),), device=DEV)

    def translate():
        opt.zero_grad()
        smooth_loss(net(states).float(), said, fixed).backward()
        opt.step()

    return translate
