"""Training that waits for its data; one mistake each."""

import random

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils.rnn import pad_sequence
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, DRY, case, pick

BF16 = torch.bfloat16


def despeckle(frame, reach=2):
    """The median of the neighbours of every pixel."""
    padded = np.pad(frame, reach, mode="reflect")
    size = 2 * reach + 1
    near = np.lib.stride_tricks.sliding_window_view(padded, (size, size))
    return np.median(near, axis=(-2, -1)).astype(np.float32)


class Ultrasound(Dataset):
    """Frames of hearts; the same ones come again in every epoch."""

    def __init__(self, count, side, ahead):
        rng = np.random.default_rng(0)
        self.frames = rng.random((count, side, side), dtype=np.float32)
        self.clean = [despeckle(f) for f in self.frames] if ahead else None
        self.volumes = rng.random(count, dtype=np.float32)

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        i %= len(self.frames)
        frame = despeckle(self.frames[i]) if self.clean is None else self.clean[i]  # PLANT
        return torch.from_numpy(frame)[None], self.volumes[i]


# cause: slow __getitem__: a median filter in Python for each frame of each epoch
@case(
    "hearts measured in frames that are filtered again each time they are drawn",
    "data_loading",
    codes=("DL101", "DL102", "DL108"),
    functions=("__getitem__", "measure"),
    plant_in="Ultrasound.__getitem__",
)
def g_hearts_filtered_when_drawn(fixed):
    # About 8 ms a frame, 32 frames, 8 workers: 30 ms a batch for a step of 6 ms.
    rows, side = pick(32, 2), pick(128, 12)
    data = Ultrasound(pick(48, 4), side, fixed)
    with DEV:
        layers, wide = [nn.Conv2d(1, 64, 7, 2, 3), nn.ReLU()], 64
        for _ in range(pick(3, 1)):
            layers += [nn.Conv2d(wide, 2 * wide, 3, 1, 1), nn.ReLU(), nn.MaxPool2d(2)]
            wide *= 2
        net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, 1))
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    loader = DataLoader(data, rows, num_workers=pick(8, 1), pin_memory=not DRY)
    batches = iter(loader)

    def measure():
        frames, volumes = (t.to(DEV, non_blocking=True) for t in next(batches))
        with torch.autocast(DEV.type, BF16):
            guess = net(frames)[:, 0]
        loss = F.mse_loss(guess.float(), volumes)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return measure


class Requests(Dataset):
    """What people ask a bank, as numbers of tokens."""

    def __init__(self, count, longest):
        make = torch.Generator().manual_seed(0)
        sizes = torch.randint(longest // 2, longest + 1, (count,), generator=make).tolist()
        self.texts = [torch.randint(1, 8000, (n,), generator=make) for n in sizes]

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        return self.texts[i % len(self.texts)], i % 77


class Padder:
    """Makes a batch of texts that differ in length."""

    def __init__(self, quick):
        self.quick = quick

    def pad(self, texts):
        if self.quick:
            return pad_sequence(texts, batch_first=True)
        out = torch.zeros(len(texts), max(map(len, texts)), dtype=torch.long)
        for row, text in enumerate(texts):
            for column, token in enumerate(text):
                out[row, column] = token  # PLANT
        return out

    def __call__(self, pairs):
        texts, intents = zip(*pairs, strict=True)
        return self.pad(texts), torch.tensor(intents)


# cause: slow collate: texts are padded token by token
@case(
    "intents of requests, with batches padded one token at a time in the collate function",
    "data_loading",
    codes=("DL101", "DL102", "DL108"),
    functions=("pad", "__call__", "learn_intents"),
    plant_in="Padder.pad",
)
def g_intents_padded_by_token(fixed):
    # 64 texts of 150 tokens, 4 us each: 40 ms a batch, 13 ms with three workers.
    rows, dim = pick(64, 3), pick(256, 8)
    loader = DataLoader(
        Requests(pick(2000, 9), pick(200, 6)),
        rows,
        num_workers=pick(3, 1),
        collate_fn=Padder(fixed),
        pin_memory=not DRY,
    )
    with DEV:
        words, head = nn.Embedding(8000, dim, padding_idx=0), nn.Linear(dim, 77)
        body = nn.GRU(dim, dim, 2, batch_first=True)
    weights = [*words.parameters(), *body.parameters(), *head.parameters()]
    opt = torch.optim.AdamW(weights, 1e-3, fused=True)
    batches = iter(loader)

    def learn_intents():
        texts, intents = (t.to(DEV, non_blocking=True) for t in next(batches))
        with torch.autocast(DEV.type, BF16):
            states, _ = body(words(texts))
            scores = head(states.mean(1))
        loss = F.cross_entropy(scores.float(), intents)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_intents


class Loads(Dataset):
    """Weeks of the load of a grid; an epoch is short because few weeks are drawn."""

    def __init__(self, weeks, hours, stations):
        rng = np.random.default_rng(1)
        self.series = rng.standard_normal((hours * 8, stations), dtype=np.float32)
        self.weeks, self.hours = weeks, hours

    def __len__(self):
        return self.weeks

    def __getitem__(self, i):
        start = (i * 37) % (len(self.series) - self.hours - 24)
        piece = self.series[start : start + self.hours + 24]
        return torch.from_numpy(np.log1p(np.abs(piece)))


def epochs(loader):
    while True:
        yield from loader


# cause: workers are started anew in each (short) epoch, no persistent_workers
@case(
    "a load forecast with epochs of three batches, each of which starts its own workers",
    "data_loading",
    codes=("DL103",),
    functions=("epochs", "forecast"),
)
def g_loads_short_epochs(fixed):
    # Six workers start and end in 100 to 200 ms; an epoch of three steps takes 20 ms without.
    rows, hours, stations, dim = pick(32, 2), pick(168, 6), pick(64, 4), pick(512, 8)
    loader = DataLoader(
        Loads(3 * rows, hours, stations),
        rows,
        shuffle=True,
        num_workers=pick(6, 1),
        pin_memory=not DRY,
        persistent_workers=fixed,  # PLANT
    )
    with DEV:
        layer = nn.TransformerEncoderLayer(dim, pick(8, 2), 4 * dim, 0.0, batch_first=True)
        net = nn.Sequential(
            nn.Linear(stations, dim),
            nn.TransformerEncoder(layer, pick(4, 1), enable_nested_tensor=False),
            nn.Linear(dim, stations),
        )
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    batches = epochs(loader)

    def forecast():
        loads = next(batches).to(DEV, non_blocking=True)
        with torch.autocast(DEV.type, BF16):
            future = net(loads[:, :hours])[:, -24:]
        loss = F.huber_loss(future.float(), loads[:, hours:][:, : future.shape[1]])
        opt.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss.detach()

    return forecast


def upload(batch, at_once):
    """The columns of a batch on the device."""
    if at_once:
        table = torch.from_numpy(np.stack(list(batch.values()))).to(DEV)
        return dict(zip(batch, table, strict=True))
    return {name: torch.from_numpy(column).to(DEV) for name, column in batch.items()}  # PLANT


class ColumnTransformer(nn.Module):
    """Each column of a table is a token."""

    def __init__(self, columns, dim, heads, depth):
        super().__init__()
        self.scale = nn.Parameter(torch.randn(columns, dim))
        self.shift = nn.Parameter(torch.zeros(columns, dim))
        layers = [
            nn.TransformerEncoderLayer(dim, heads, 2 * dim, 0.0, batch_first=True, norm_first=True)
            for _ in range(depth)
        ]
        self.layers, self.head = nn.Sequential(*layers), nn.Linear(dim, 1)

    def forward(self, columns):
        values = torch.stack(list(columns.values()), 1)
        tokens = values[..., None] * self.scale + self.shift
        return self.head(self.layers(tokens).mean(1))[:, 0]


# cause: many small blocking copies from pageable memory, one for each column
@case(
    "insurance claims whose 480 columns are sent to the device one after another",
    "data_loading",
    also=("framework", "memory"),
    codes=("DL113", "FW506", "DL105"),
    functions=("upload", "learn_claims"),
    plant_in="upload",
)
def g_claims_sent_by_column(fixed):
    # 480 copies, each with a wait: 15 us, 7 ms; the model takes 4 ms.
    rows, columns = pick(256, 3), pick(480, 6)
    rng = np.random.default_rng(0)
    batches = [
        {f"c{k}": rng.standard_normal(rows, dtype=np.float32) for k in range(columns)}
        for _ in range(4)
    ]
    with DEV:
        net = ColumnTransformer(columns, pick(64, 8), pick(4, 2), 2)
        paid = torch.rand(rows)
    opt = torch.optim.AdamW(net.parameters(), 1e-3, fused=True)

    def learn_claims():
        batch = upload(random.choice(batches), fixed)
        with torch.autocast(DEV.type, BF16):
            guess = net(batch)
        loss = F.l1_loss(guess.float(), paid)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_claims


class Replay:
    """The last moves of a game: four frames, the move, its reward and the next four frames."""

    def __init__(self, size, side):
        rng = np.random.default_rng(0)
        frames = rng.integers(0, 256, (size, 4, side, side), dtype=np.uint8)
        moves, rewards = rng.integers(0, 6, size), rng.random(size, dtype=np.float32)
        self.moves = [
            (frames[k], moves[k], rewards[k], frames[(k + 1) % size]) for k in range(size)
        ]

    def sample(self, rows):
        drawn = random.sample(self.moves, rows)
        return [torch.from_numpy(np.stack(part)).to(DEV) for part in zip(*drawn)]  # PLANT


class DeviceReplay(Replay):
    """The same, kept on the device."""

    def __init__(self, size, side):
        super().__init__(size, side)
        parts = zip(*self.moves, strict=True)
        self.parts = [torch.from_numpy(np.stack(part)).to(DEV) for part in parts]

    def sample(self, rows):
        drawn = torch.randint(0, len(self.moves), (rows,), device=DEV)
        return [part.index_select(0, drawn) for part in self.parts]


# cause: host preprocessing in the training loop: batches are stacked from a list of NumPy arrays
@case(
    "a game learned from a replay buffer whose batches are stacked in the training loop",
    "data_loading",
    also=("framework", "memory"),
    codes=("DL104", "FW520"),
    functions=("sample", "learn_game"),
    plant_in="Replay.sample",
)
def g_game_stacked_in_loop(fixed):
    # 29 MB stacked and sent from pageable memory: 8 to 12 ms; the net takes 4 ms.
    rows, side = pick(512, 3), pick(84, 36)
    memory = (DeviceReplay if fixed else Replay)(pick(4000, 9), side)
    with DEV:
        nets = []
        for _ in range(2):
            convs = [nn.Conv2d(4, 32, 8, 4), nn.ReLU(), nn.Conv2d(32, 64, 4, 2), nn.ReLU()]
            head = [nn.Flatten(), nn.LazyLinear(512), nn.ReLU(), nn.Linear(512, 6)]
            nets.append(nn.Sequential(*convs, *head).to(BF16))
            nets[-1](torch.zeros(1, 4, side, side, dtype=BF16))
    online, target = nets
    opt = torch.optim.Adam(online.parameters(), 1e-4, fused=True)

    def learn_game():
        frames, moves, rewards, after = memory.sample(rows)
        with torch.no_grad():
            goal = rewards + 0.99 * target(after.to(BF16) / 255).float().amax(1)
        value = online(frames.to(BF16) / 255).gather(1, moves[:, None])[:, 0]
        loss = F.smooth_l1_loss(value.float(), goal)
        opt.zero_grad()
        loss.backward()
        opt.step()
        with torch.no_grad():
            torch._foreach_lerp_([*target.parameters()], [*online.parameters()], 0.005)
        return loss.detach()

    return learn_game
