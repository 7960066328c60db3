"""Tables and time series: MLPs, mixers and forecasting transformers."""

import io

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, case, compiled, pick

BF16 = torch.bfloat16


class Rows(Dataset):
    def __init__(self, count):
        self.x = torch.randn(count, 40)

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        return self.x[i], i % 3


@case(
    "loader workers started anew for each short epoch",
    "data_loading",
    codes=("DL103",),
    functions=("train_rows",),
    active=8,
)
def dl_short_epochs(fixed):
    model = nn.Sequential(nn.Linear(40, 256), nn.ReLU(), nn.Linear(256, 3)).to(DEV)
    opt = torch.optim.Adam(model.parameters(), fused=True)
    rows = Rows(pick(512, 16))
    loader = DataLoader(rows, pick(128, 4), num_workers=3, persistent_workers=fixed)  # PLANT
    epoch = [iter(loader)]

    def train_rows():
        batch = next(epoch[0], None)
        if batch is None:
            epoch[0] = iter(loader)
            batch = next(epoch[0])
        x, y = (t.to(DEV) for t in batch)
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

    return train_rows


@case(
    "hidden width of 4097 in a bf16 MLP",
    "compute",
    codes=("CP202",),
    functions=("train_wide",),
)
def cp_odd_hidden(fixed):
    hidden = pick(4096 if fixed else 4097, 17)  # PLANT
    net = nn.Sequential(
        nn.Linear(1024, hidden),
        nn.ReLU(),
        nn.Linear(hidden, hidden),
        nn.ReLU(),
        nn.Linear(hidden, 64),
    ).to(DEV, BF16)
    opt = torch.optim.SGD(net.parameters(), lr=1e-3, fused=True)
    x = torch.randn(pick(8192, 4), 1024, device=DEV, dtype=BF16)

    def train_wide():
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()

    return train_wide


class MixerBlock(nn.Module):
    def __init__(self, tokens, dim, fixed):
        super().__init__()
        self.norm = nn.LayerNorm(dim)
        self.tokens, self.channels = nn.Linear(tokens, tokens), nn.Linear(dim, dim)
        self.fixed = fixed

    def mix_tokens(self, x):
        if self.fixed:
            weight = self.tokens.weight.expand(len(x), -1, -1)
            return torch.bmm(weight, x) + self.tokens.bias[:, None]
        y = self.tokens(x.transpose(1, 2).contiguous())  # PLANT
        return y.transpose(1, 2).contiguous()

    def forward(self, x):
        return self.channels(self.norm(x + self.mix_tokens(x)))


@case(
    "contiguous transposes before and after every token mixing",
    "memory",
    also=("compute",),
    codes=("CP222",),
    functions=("mix_tokens", "forward"),
    plant_in="MixerBlock.mix_tokens",
)
def cp_mixer_copies(fixed):
    tokens, dim = pick(256, 8), pick(384, 8)
    net = nn.Sequential(*[MixerBlock(tokens, dim, fixed) for _ in range(pick(8, 2))]).to(DEV, BF16)
    x = torch.randn(pick(384, 2), tokens, dim, device=DEV, dtype=BF16)

    @torch.no_grad()
    def score_tables():
        return net(x).mean(1)

    return score_tables


class SeriesAttention(nn.Module):
    def __init__(self, dim, heads, fused=True):
        super().__init__()
        self.heads, self.fused = heads, fused
        self.norm = nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.mlp = nn.Sequential(
            nn.LayerNorm(dim), nn.Linear(dim, 4 * dim), nn.GELU(), nn.Linear(4 * dim, dim)
        )

    def attend(self, q, k, v):
        logits = torch.einsum("bqhd,bkhd->bhqk", q, k) * q.shape[-1] ** -0.5  # PLANT
        weights = F.dropout(logits.float().softmax(-1).type_as(v), 0.1, self.training)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v)

    def forward(self, x):
        b, s, d = x.shape
        q, k, v = self.qkv(self.norm(x)).view(b, s, 3, self.heads, d // self.heads).unbind(2)
        if self.fused:
            q, k, v = (t.transpose(1, 2) for t in (q, k, v))
            y = F.scaled_dot_product_attention(q, k, v, dropout_p=0.1).transpose(1, 2)
        else:
            y = self.attend(q, k, v)
        x = x + self.out(y.reshape(b, s, d))
        return x + self.mlp(x)


@case(
    "attention of a forecaster written with einsum",
    "compute",
    also=("memory",),
    codes=("CP206",),
    functions=("attend",),
    plant_in="SeriesAttention.attend",
    light=True,
)
def cp_attention_einsum(fixed):
    dim = pick(512, 16)
    net = nn.Sequential(*[SeriesAttention(dim, 8, fixed) for _ in range(pick(3, 1))]).to(DEV, BF16)
    x = torch.randn(pick(8, 1), pick(2048, 8), dim, device=DEV, dtype=BF16)

    def train_forecast():
        net.zero_grad()
        net(x).float().square().mean().backward()

    return train_forecast


@case(
    "fp32 forecaster without autocast or TF32",
    "compute",
    codes=("CP201",),
    functions=("train_fp32", "forward"),
)
def cp_fp32_forecaster(fixed):
    dim = pick(768, 16)
    net = nn.Sequential(
        *[SeriesAttention(dim, 12 if dim > 16 else 4) for _ in range(pick(4, 1))]
    ).to(DEV)
    opt = torch.optim.AdamW(net.parameters(), lr=1e-4, fused=True)
    x = torch.randn(pick(32, 1), pick(256, 8), dim, device=DEV)

    def train_fp32():
        opt.zero_grad()
        with torch.autocast(DEV.type, BF16, enabled=fixed):
            y = net(x)  # PLANT
        y.float().square().mean().backward()
        opt.step()

    return train_fp32


def moving_average(x, window):
    pad = F.pad(x, (window - 1, 0), mode="replicate")
    total = pad.cumsum(-1)
    smooth = (total[..., window - 1 :] - total[..., : x.shape[-1]]) / window
    return torch.tanh(x - smooth) * torch.sigmoid(smooth)


@case(
    "torch.compile recompiles for every window length",
    "framework",
    codes=("FW511", "FW512"),
    functions=("smooth_batch", "moving_average"),
    active=2,
    stacks=False,  # the compiler runs tens of thousands of frames a step
)
def fw_recompile_window(fixed):
    # A raised limit is how such programs survive; the default would fall back to eager.
    torch._dynamo.config.recompile_limit = 10_000
    torch._dynamo.config.accumulated_recompile_limit = 10_000
    smooth = compiled(moving_average, dynamic=fixed)
    x = torch.randn(pick(256, 2), pick(4096, 64), device=DEV)
    window = [3]

    @torch.no_grad()
    def smooth_batch():
        window[0] += 1
        return smooth(x, window[0] if not fixed else 4 + window[0] % 8)  # PLANT

    return smooth_batch


@case(
    "a checkpoint written every third step",
    "framework",
    also=("memory",),
    codes=("FW529",),
    functions=("save", "train_saved"),
    plant_in="save",
    active=6,
)
def fw_checkpoint_often(fixed):
    net = nn.Sequential(*[nn.Linear(2048, 2048) for _ in range(pick(4, 1))]).to(DEV)
    opt = torch.optim.Adam(net.parameters(), fused=True)
    x = torch.randn(pick(2048, 4), 2048, device=DEV)
    turn = [0]

    def train_saved():
        turn[0] += 1
        opt.zero_grad()
        net(x).square().mean().backward()
        opt.step()
        if turn[0] % (10_000 if fixed else 3) == 0:
            save(net, opt)

    return train_saved


def save(net, opt):
    with io.BytesIO() as box:
        torch.save({"net": net.state_dict(), "opt": opt.state_dict()}, box)  # PLANT
