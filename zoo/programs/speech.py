"""Speech: spectrogram loaders and recurrent nets."""

import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, case, pick

HANN = np.hanning(512).astype(np.float32)


class Utterances(Dataset):
    def __init__(self, samples):
        self.samples = samples

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        wave = np.random.default_rng(i).standard_normal(self.samples, dtype=np.float32)
        frames = np.lib.stride_tricks.sliding_window_view(wave, 512)[::160] * HANN
        power = np.abs(np.fft.rfft(frames, axis=1)) ** 2
        return np.log(power + 1e-6).astype(np.float32), i % 12


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Sequential(
            nn.Conv1d(257, 192, 5, 2), nn.ReLU(), nn.Conv1d(192, 192, 5, 2), nn.ReLU()
        )
        self.head = nn.Linear(192, 12)

    def forward(self, x):
        return self.head(self.conv(x.transpose(1, 2)).mean(2))


@case(
    "spectrograms computed in the main process (num_workers=0)",
    "data_loading",
    codes=("DL101", "DL108"),
    functions=("__getitem__", "train_keywords"),
    active=4,
    light=True,
)
def dl_spectrogram_mainproc(fixed):
    model = Keywords().to(DEV)
    opt = torch.optim.Adam(model.parameters(), lr=1e-3, fused=True)
    workers = pick(8, 1) if fixed else 0  # PLANT
    loader = DataLoader(Utterances(pick(16000, 8000)), pick(32, 2), num_workers=workers)
    stream = iter(loader)

    def train_keywords():
        spec, label = next(stream)
        opt.zero_grad()
        F.cross_entropy(model(spec.to(DEV)), label.to(DEV)).backward()
        opt.step()

    return train_keywords


class Listener(nn.Module):
    def __init__(self, dim, fixed):
        super().__init__()
        self.cell = nn.LSTM(80, dim, batch_first=True) if fixed else nn.LSTMCell(80, dim)
        self.head = nn.Linear(dim, 30)
        self.fixed = fixed

    def forward(self, x):
        if self.fixed:
            return self.head(self.cell(x)[0])
        h = c = x.new_zeros(x.shape[0], self.cell.hidden_size)
        steps = []
        for t in range(x.shape[1]):
            h, c = self.cell(x[:, t], (h, c))  # PLANT
            steps.append(h)
        return self.head(torch.stack(steps, 1))


@case(
    "an LSTM cell called for each frame from Python",
    "framework",
    codes=("FW516",),
    functions=("forward",),
    plant_in="Listener.forward",
)
def fw_lstm_cell_loop(fixed):
    model = Listener(pick(256, 8), fixed).to(DEV)
    x = torch.randn(16, pick(120, 5), 80, device=DEV)
    y = torch.randint(0, 30, x.shape[:2], device=DEV)

    def train_listener():
        model.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()

    return train_listener


@case(
    "logits with their graph kept in a list for the epoch's metric",
    "memory",
    also=("framework", "compute"),
    codes=("MM305", "MM308"),
    functions=("train_tagger",),
    active=8,
)
def mm_leak_logits(fixed):
    body = nn.Sequential(
        nn.Conv1d(80, 256, 5, padding=2), nn.GELU(), nn.Conv1d(256, 256, 5, padding=2), nn.GELU()
    )
    head = nn.Linear(256, 40)
    model = nn.ModuleList([body, head]).to(DEV)
    opt = torch.optim.SGD(model.parameters(), lr=0.01)
    x = torch.randn(pick(32, 2), 80, pick(400, 8), device=DEV)
    y = torch.randint(0, 40, (x.shape[0], x.shape[2]), device=DEV)
    seen = []

    def train_tagger():
        logits = head(body(x).transpose(1, 2))
        loss = F.cross_entropy(logits.flatten(0, 1), y.flatten())
        opt.zero_grad()
        loss.backward(retain_graph=True)
        opt.step()
        seen.append(logits[:, 0].argmax(-1) if fixed else logits)  # PLANT

    return train_tagger


@case(
    "a device synchronisation after every block for a timing log",
    "framework",
    codes=("FW505",),
    functions=("timed",),
    plant_in="timed",
    light=True,
)
def fw_sync_timers(fixed):
    blocks = [nn.GRU(192, 192, batch_first=True).to(DEV) for _ in range(2)]
    mixes = [
        nn.Sequential(nn.LayerNorm(192), nn.Linear(192, 768), nn.GELU(), nn.Linear(768, 192)).to(
            DEV
        )
        for _ in range(16)
    ]
    x = torch.randn(32, pick(40, 4), 192, device=DEV)
    spent = {}

    @torch.no_grad()
    def transcribe():
        h = x
        for k, gru in enumerate(blocks):
            h = timed(spent, f"gru{k}", lambda v, g=gru: g(v)[0], h, on=not fixed)
        for k, mix in enumerate(mixes):
            h = h + timed(spent, f"mix{k}", mix, h, on=not fixed)
        return h

    return transcribe


def timed(spent, name, f, x, on):
    start = time.perf_counter()
    y = f(x)
    if on and DEV.type == "cuda":
        torch.cuda.synchronize()  # PLANT
    spent[name] = time.perf_counter() - start
    return y
