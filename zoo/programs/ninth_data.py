"""Training whose input is made or moved in a slow way."""

import itertools

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import BatchSampler, DataLoader, Dataset

from zoo.harness import DEV, DRY, case, pick, pinned
from zoo.programs.ninth_parts import BF16, descend


class WordPieces:
    """Splits words into the longest known pieces."""

    def __init__(self, pieces, length):
        self.numbers = {piece: i + 1 for i, piece in enumerate(pieces)}
        self.longest, self.length = max(map(len, pieces)), length

    def split(self, word):
        found, at = [], 0
        while at < len(word):
            for end in range(min(len(word), at + self.longest), at, -1):
                number = self.numbers.get(word[at:end])
                if number is not None:
                    found.append(number)
                    at = end
                    break
            else:
                at += 1
        return found

    def __call__(self, texts):
        ids = np.zeros((len(texts), self.length), np.int64)
        for row, text in zip(ids, texts, strict=True):
            found = [n for word in text.lower().split() for n in self.split(word)][: self.length]
            row[: len(found)] = found
        return torch.from_numpy(ids)


class Reviews(Dataset):
    def __init__(self, texts):
        self.texts = texts

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        return self.texts[i % len(self.texts)], i % 5


class Gather:
    """The batch of a worker, with the texts as tokens or as they are."""

    def __init__(self, split):
        self.split = split

    def __call__(self, reviews):
        texts, stars = zip(*reviews, strict=True)
        return self.split(texts), torch.tensor(stars)


class Critic:
    """Learns the stars of a review."""

    def __init__(self, net, loader, pieces):
        self.net, self.pieces, self.batches = net, pieces, iter(loader)
        self.opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)

    def next_batch(self):
        texts, stars = next(self.batches)
        ids = texts if torch.is_tensor(texts) else self.pieces(texts)  # PLANT
        return ids.to(DEV, non_blocking=True), stars.to(DEV, non_blocking=True)

    def judge(self):
        ids, stars = self.next_batch()
        return descend(self.opt, F.cross_entropy(self.net(ids).float(), stars))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean(1)


def some_words(count):
    letters = np.array(list("etaoinshrdlu"))
    return ["".join(np.random.choice(letters, np.random.randint(3, 12))) for _ in range(count)]


# cause: the workers hand out plain texts, and the training process tokenizes each batch itself
@case(
    "reviews that are split into word pieces between two steps",
    "data_loading",
    also=("framework",),
    codes=("DL104", "FW517"),
    functions=("next_batch", "judge", "__call__", "split"),
    plant_in="Critic.next_batch",
)
def i_reviews_split_between_steps(fixed):
    # 64 reviews of 120 words: 40 to 80 ms in one process, 5 to 10 by eight; the net 7 ms.
    rows, length, dim, words = pick(64, 2), pick(512, 8), pick(512, 8), some_words(pick(3000, 9))
    texts = [" ".join(np.random.choice(words, pick(120, 4))) for _ in range(pick(256, 3))]
    parts = {word[at : at + 3] for word in words[:200] for at in range(3)}
    pieces = WordPieces(sorted(parts | set("etaoinshrdlu")), length)
    with DEV:
        layer = nn.TransformerEncoderLayer(
            dim, pick(8, 2), 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        body = nn.TransformerEncoder(layer, pick(4, 1), enable_nested_tensor=False)
        first = nn.Embedding(len(pieces.numbers) + 1, dim)
        net = nn.Sequential(first, body, Mean(), nn.Linear(dim, 5)).to(BF16)
    loader = DataLoader(
        Reviews(texts),
        rows,
        num_workers=pick(8, 1),
        collate_fn=Gather(pieces if fixed else list),
        pin_memory=not DRY,
    )
    critic = Critic(net, loader, pieces)
    return critic.judge


class Impressions:
    """Shown advertisements: one column of category numbers for each feature."""

    def __init__(self, batches, rows, features, kinds, packed):
        made = [torch.randint(0, kinds, (features, rows)) for _ in range(batches)]
        shown = [pinned(m) if packed else list(m.clone().unbind(0)) for m in made]
        self.ring, self.packed = itertools.cycle(shown), packed

    def to_device(self):
        batch = next(self.ring)
        if self.packed:
            return batch.to(DEV, non_blocking=True)
        return torch.stack([column.to(DEV) for column in batch])  # PLANT


class ClickNet(nn.Module):
    def __init__(self, features, kinds, dim, wide):
        super().__init__()
        self.table = nn.Embedding(features * kinds, dim)
        self.register_buffer("starts", torch.arange(features)[:, None] * kinds)
        self.top = nn.Sequential(
            nn.Linear(features * dim, wide),
            nn.ReLU(),
            nn.Linear(wide, wide),
            nn.ReLU(),
            nn.Linear(wide, 1),
        )

    def forward(self, columns):
        found = self.table((columns + self.starts).T)
        return self.top(found.flatten(1)).squeeze(1)


# cause: hundreds of small blocking copies from pageable memory, one for each column of a batch
@case(
    "clicks on advertisements, whose features are sent to the device column by column",
    "data_loading",
    also=("framework",),
    codes=("DL113", "FW506", "DL105"),
    functions=("to_device", "learn_clicks"),
    plant_in="Impressions.to_device",
)
def i_clicks_sent_by_column(fixed):
    # 300 copies of 20 to 30 us: 7 ms; in one block 0.5 ms. The net takes about 3 ms.
    features, kinds, rows = pick(300, 4), pick(1000, 5), pick(8192, 6)
    with DEV:
        net = ClickNet(features, kinds, pick(16, 2), pick(1024, 8)).to(BF16)
    opt = torch.optim.Adagrad(net.parameters(), 0.01)
    shown = Impressions(4, rows, features, kinds, fixed)
    clicked = torch.randint(0, 2, (rows,), device=DEV).float()

    def learn_clicks():
        scores = net(shown.to_device())
        return descend(opt, F.binary_cross_entropy_with_logits(scores.float(), clicked))

    return learn_clicks


def residual_net(inputs, wide, depth, outputs):
    """Convolutions at a quarter of the resolution."""
    layers = [nn.Conv2d(inputs, wide, 7, 4, 3)]
    for _ in range(depth):
        layers += [nn.Conv2d(wide, wide, 3, padding=1, bias=False), nn.BatchNorm2d(wide), nn.SiLU()]
    net = nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, outputs))
    return net.to(DEV, BF16, memory_format=torch.channels_last)


class Moles(Dataset):
    """Photographs of skin in the size the camera gave them."""

    def __init__(self, count, side):
        self.photos = [
            torch.randint(0, 255, (3, side, side), dtype=torch.uint8) for _ in range(count)
        ]

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        return self.photos[i % len(self.photos)], i % 7


def shrink(photos, side):
    small = F.interpolate(photos.float(), (side, side), mode="bilinear", antialias=True)
    return small.sub_(128.0).div_(64.0)


class Frame:
    """Collates photographs; may shrink them as well."""

    def __init__(self, side):
        self.side = side

    def __call__(self, samples):
        photos, kinds = zip(*samples, strict=True)
        photos = torch.stack(photos)
        if self.side:
            photos = shrink(photos, self.side)  # PLANT
        return photos, torch.tensor(kinds)


# cause: a collate function that does work: the few workers resize whole batches in float32
@case(
    "photographs of skin that are shrunk when a batch is put together",
    "data_loading",
    also=("framework",),
    codes=("DL102", "DL108"),
    functions=("__call__", "next_photos", "classify_moles"),
    plant_in="Frame.__call__",
)
def i_moles_shrunk_in_collate(fixed):
    # 24 photographs of 3 to 4 ms: 80 ms a batch, 28 ms with three workers; the GPU takes 7 ms.
    rows, large, side = pick(24, 2), pick(512, 16), pick(224, 8)
    net = residual_net(3, pick(256, 8), pick(10, 1), 7)
    opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, fused=True)
    loader = DataLoader(
        Moles(pick(48, 3), large),
        rows,
        num_workers=pick(3, 1),
        collate_fn=Frame(0 if fixed else side),
        pin_memory=not DRY,
    )
    batches = iter(loader)

    def next_photos():
        photos, kinds = (t.to(DEV, non_blocking=True) for t in next(batches))
        return (shrink(photos, side) if fixed else photos), kinds

    def classify_moles():
        photos, kinds = next_photos()
        scores = net(photos.to(BF16).contiguous(memory_format=torch.channels_last))
        return descend(opt, F.cross_entropy(scores.float(), kinds))

    return classify_moles


class Streets(Dataset):
    """Pictures of streets, drawn by a game or taken by a car."""

    def __init__(self, count, side):
        self.pictures = np.random.randint(0, 255, (count, 3, side, side), np.uint8)

    def __len__(self):
        return 10**6

    def __getitem__(self, i):
        picture = self.pictures[i % len(self.pictures)]
        return torch.from_numpy(picture[..., ::-1].copy() if i % 2 else picture), i % 9


class Bridge:
    """Learns on drawn streets and makes real ones look alike to the network."""

    def __init__(self, net, drawn, real, lasting):
        self.net, self.real, self.lasting = net, real, lasting
        self.drawn_batches = iter(drawn)
        self.real_batches = iter(real) if lasting else None
        self.opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)

    def real_batch(self):
        if self.lasting:
            return next(self.real_batches)
        return next(iter(self.real))  # PLANT

    def score(self, pictures):
        pictures = pictures.to(DEV, non_blocking=True).to(BF16).sub_(128).div_(64)
        return self.net(pictures.contiguous(memory_format=torch.channels_last)).float()

    def adapt(self):
        drawn, kinds = next(self.drawn_batches)
        real, _ = self.real_batch()
        loss = F.cross_entropy(self.score(drawn), kinds.to(DEV, non_blocking=True))
        sure = self.score(real).softmax(-1)
        doubt = -(sure * (sure + 1e-6).log()).sum(-1).mean()
        return descend(self.opt, loss + 0.1 * doubt)


# cause: next(iter(loader)) in each step starts the workers of the second loader again and again
@case(
    "streets of a game and real ones, the latter from a loader that is started in each step",
    "data_loading",
    also=("framework",),
    codes=("DL103",),
    functions=("real_batch", "adapt"),
    plant_in="Bridge.real_batch",
)
def i_streets_iter_in_step(fixed):
    # Starting and ending two processes: 40 ms or more; the net takes about 10 ms.
    rows, side = pick(24, 2), pick(256, 16)
    net = residual_net(3, pick(192, 8), pick(10, 1), 9)
    drawn, real = (
        DataLoader(Streets(pick(64, 4), side), rows, num_workers=workers, pin_memory=not DRY)
        for workers in (pick(4, 1), pick(2, 1))
    )
    bridge = Bridge(net, drawn, real, fixed)
    return bridge.adapt


class Meters(Dataset):
    """Windows of the load of many meters: a week to look at, a day to predict."""

    def __init__(self, meters, hours, past, ahead):
        load = torch.rand(meters, hours).cumsum(1).sin()
        self.windows = load.unfold(1, past + ahead, 1)
        self.past = past

    def __len__(self):
        return self.windows.shape[0] * self.windows.shape[1]

    def __getitem__(self, i):
        """One window, or a batch of them for a list of numbers."""
        i = torch.tensor(i) if isinstance(i, list) else i
        each = self.windows.shape[1]
        window = self.windows[i // each, i % each]
        return window[..., : self.past].contiguous(), window[..., self.past :].contiguous()


# cause: a dataset in memory is read row by row and collated, where one index takes the batch
@case(
    "the load of electricity meters, taken from a tensor one window at a time",
    "data_loading",
    also=("framework",),
    codes=("DL101", "DL108"),
    functions=("__getitem__", "next_windows", "predict_load"),
)
def i_meters_row_by_row(fixed):
    # 2048 windows at 20 us: 40 ms; as one index about 2 ms. The net takes 3 ms.
    past, ahead, rows, dim = pick(168, 6), pick(24, 2), pick(2048, 4), pick(2048, 8)
    meters = Meters(pick(400, 3), pick(9000, 40), past, ahead)
    order = torch.randperm(len(meters))[: pick(10**6, 90)].tolist()
    with DEV:
        net = nn.Sequential(
            nn.Linear(past, dim),
            nn.GELU(),
            nn.Linear(dim, dim),
            nn.GELU(),
            nn.Linear(dim, dim),
            nn.GELU(),
            nn.Linear(dim, ahead),
        ).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    how = {"batch_size": rows, "sampler": order, "drop_last": True}
    if fixed:
        how = {"batch_size": None, "sampler": BatchSampler(order, rows, drop_last=True)}
    loader = DataLoader(meters, pin_memory=not DRY, **how)  # PLANT

    def endless():
        while True:
            yield from loader

    batches = endless()

    def next_windows():
        return [t.to(DEV, non_blocking=True) for t in next(batches)]

    def predict_load():
        seen, wanted = next_windows()
        return descend(opt, F.mse_loss(net(seen.to(BF16)).float(), wanted))

    return predict_load
