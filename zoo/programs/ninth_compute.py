"""Training that does too much arithmetic, or does it on the slow units of the GPU."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick, pinned
from zoo.programs.ninth_parts import BF16, descend


class Block(nn.Module):
    """A layer of a transformer."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, mask=None, causal=False):
        rows, length, dim = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, dim // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Adapted(nn.Module):
    """A frozen layer with a learned correction of low rank."""

    def __init__(self, base, rank):
        super().__init__()
        self.base = base.requires_grad_(False)
        self.narrow = nn.Linear(base.in_features, rank, bias=False)
        self.widen = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.widen.weight)

    def forward(self, x):
        return self.base(x) + self.widen(self.narrow(x))


class Clerk(nn.Module):
    """A language model of which only the adapters learn."""

    def __init__(self, words, dim, depth, heads, rank):
        super().__init__()
        self.word = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, words, bias=False)
        self.requires_grad_(False)
        for block in self.blocks:
            block.qkv, block.down = Adapted(block.qkv, rank), Adapted(block.down, rank)

    def forward(self, ids):
        x = self.word(ids)
        for block in self.blocks:
            x = block(x, causal=True)
        return self.head(self.norm(x))


# cause: fine-tuning without mixed precision: a float32 checkpoint, no autocast and no TF32
@case(
    "adapters of a language model for contracts, trained in the type of the checkpoint",
    "compute",
    codes=("CP201",),
    functions=("forward", "tune_adapters"),
)
def i_contracts_adapters_float32(fixed):
    # 90 million weights, 8192 tokens, forward and half a backward: 3 TFLOP, 60 ms against 8 ms.
    words, rows, length = pick(16384, 11), pick(8, 2), pick(1024, 5)
    with DEV:
        net = Clerk(words, pick(1024, 8), pick(6, 1), pick(16, 2), pick(16, 2))
    learned = [p for p in net.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(learned, 1e-4, fused=True)
    text = torch.randint(0, words, (rows, length + 1), device=DEV)

    def tune_adapters():
        with torch.autocast(DEV.type, BF16, enabled=fixed):  # PLANT
            scores = net(text[:, :-1]).flatten(0, 1)
        return descend(opt, F.cross_entropy(scores.float(), text[:, 1:].flatten()))

    return tune_adapters


class Captioner(nn.Module):
    """Words below a picture, given the features of its patches."""

    def __init__(self, words, features, dim, depth, heads):
        super().__init__()
        self.see, self.word = nn.Linear(features, dim), nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, words, bias=False)

    def forward(self, patches, ids):
        x = torch.cat([self.see(patches), self.word(ids)], 1)
        for block in self.blocks:
            x = block(x, causal=True)
        return self.head(self.norm(x[:, patches.shape[1] :]))


# cause: the vocabulary has 50257 words, so the rows of the largest products are not aligned
@case(
    "captions of pictures over a vocabulary of 50257 words",
    "compute",
    also=("memory",),
    codes=("CP202",),
    functions=("forward", "learn_captions"),
)
def i_captions_odd_vocabulary(fixed):
    # Head: 2.4 TFLOP, 4 ms aligned and 9 ms or more not; the loss takes 2 ms, the blocks 4 ms.
    words, rows, length, patches = pick(50257, 13), pick(64, 2), pick(128, 5), pick(64, 3)
    width = -(-words // 64) * 64 if fixed else words  # PLANT
    with DEV:
        net = Captioner(width, pick(768, 6), pick(1024, 8), pick(3, 1), pick(16, 2)).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    views = torch.randn(rows, patches, pick(768, 6), device=DEV, dtype=BF16)
    text = torch.randint(0, words, (rows, length + 1), device=DEV)

    def learn_captions():
        scores = net(views, text[:, :-1]).flatten(0, 1)
        return descend(opt, F.cross_entropy(scores, text[:, 1:].flatten()))

    return learn_captions


class Planner(nn.Module):
    """The next action of a walker, given returns, states and actions so far."""

    def __init__(self, states, actions, dim, depth, heads, told):
        super().__init__()
        self.enter, self.act = nn.Linear(states + actions + 1, dim), nn.Linear(dim, actions)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.told = told

    def forward(self, past):
        length = past.shape[1]
        hidden = torch.full((length, length), float("-inf"), device=past.device, dtype=past.dtype)
        x = self.enter(past)
        for block in self.blocks:
            x = self.look_back(block, x, hidden)
        return torch.tanh(self.act(x))

    def look_back(self, block, x, hidden):
        if self.told:
            return block(x, causal=True)
        return block(x, mask=hidden.triu(1))  # PLANT


# cause: causal attention asked for with a dense mask of zeros and -inf, not with is_causal
@case(
    "a policy that reads long trajectories through a mask as large as the attention",
    "compute",
    also=("memory",),
    codes=("CP207", "CP206"),
    functions=("look_back", "forward", "imitate"),
    plant_in="Planner.look_back",
)
def i_walker_dense_causal_mask(fixed):
    # Attention of a layer: 5 ms with the mask (nothing is skipped), 1.5 ms without; the rest 1 ms.
    states, actions, rows, length = pick(60, 3), pick(21, 2), pick(4, 2), pick(4096, 6)
    with DEV:
        net = Planner(states, actions, pick(1024, 8), pick(5, 1), pick(16, 2), fixed).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    past = torch.randn(rows, length, states + actions + 1, device=DEV, dtype=BF16)
    moves = torch.rand(rows, length, actions, device=DEV) * 2 - 1

    def imitate():
        return descend(opt, F.mse_loss(net(past).float(), moves))

    return imitate


def hot_plate(side, spots):
    """The plate at the start, with a few spots heated."""
    at = np.arange(side)
    plate = np.zeros((side, side))
    for row, column in np.random.randint(0, side, (spots, 2)):
        plate += np.exp(-0.5 * ((at - row) * 8 / side) ** 2)[:, None] * np.exp(
            -0.5 * ((at - column) * 8 / side) ** 2
        )
    return plate


class Plate(nn.Module):
    """Heat that spreads through a plate of unknown conductivity."""

    def __init__(self, start, steps):
        super().__init__()
        self.register_buffer("start", start)
        self.conductivity = nn.Parameter(torch.full_like(start, 0.1))
        self.steps = steps

    def forward(self):
        heat = self.start
        for _ in range(self.steps):
            around = heat.roll(1, 0) + heat.roll(-1, 0) + heat.roll(1, 1) + heat.roll(-1, 1)
            heat = heat + self.conductivity * (around - 4 * heat)
        return heat


# cause: float64 by accident: the state comes from numpy, and everything is made like it
@case(
    "the conductivity of a plate found by going back through steps of the heat equation",
    "compute",
    also=("memory",),
    codes=("CP211",),
    functions=("forward", "fit_plate"),
)
def i_plate_float64(fixed):
    # 10 steps of some 30 passes over 75 MB in float64: 15 ms; in float32 half of it.
    side = pick(3072, 12)
    start = torch.from_numpy(hot_plate(side, 6)).to(DEV)
    start = start.float() if fixed else start  # PLANT
    plate = Plate(start, pick(10, 3))
    opt = torch.optim.Adam(plate.parameters(), 1e-3, fused=True)
    seen = torch.rand(side, side, device=DEV).to(start.dtype)

    def fit_plate():
        return descend(opt, (plate() - seen).square().mean())

    return fit_plate


class Listener(nn.Module):
    """Which command is spoken in a spectrogram."""

    def __init__(self, bands, dim, depth, heads, commands):
        super().__init__()
        self.stem, self.head = nn.Linear(bands, dim), nn.Linear(dim, commands)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))

    def forward(self, sound):
        x = self.stem(sound)
        for block in self.blocks:
            x = block(x)
        return self.head(x.mean(1))


class Lesson:
    """A small listener learns from a large one."""

    def __init__(self, teacher, student, watched):
        self.teacher, self.student, self.watched = teacher, student, watched
        self.opt = torch.optim.AdamW(student.parameters(), 1e-4, fused=True)

    def ask_teacher(self, sound):
        with torch.set_grad_enabled(self.watched):  # PLANT
            return self.teacher(sound).float().softmax(-1)

    def teach(self, sound):
        wanted = self.ask_teacher(sound)
        given = self.student(sound).float().log_softmax(-1)
        return descend(self.opt, F.kl_div(given, wanted, reduction="batchmean"))


# cause: the teacher of a distillation is run with gradients, and the loss goes back through it
@case(
    "a small keyword spotter distilled from a large one, whose gradients are computed as well",
    "compute",
    also=("memory",),
    codes=("CP228",),
    functions=("ask_teacher", "teach", "descend"),
    plant_in="Lesson.ask_teacher",
)
def i_keywords_teacher_gradients(fixed):
    # Teacher: 2.5 TFLOP forward, 5 ms, and 10 ms back for nothing; the student takes 4 ms.
    bands, rows, length, commands = pick(80, 4), pick(64, 2), pick(256, 5), 36
    with DEV:
        teacher = Listener(bands, pick(1024, 8), pick(6, 1), pick(16, 2), commands).to(BF16)
        student = Listener(bands, pick(512, 8), pick(4, 1), pick(8, 2), commands).to(BF16)
    lesson = Lesson(teacher, student, not fixed)
    sound = torch.randn(rows, length, bands, device=DEV, dtype=BF16)
    return lambda: lesson.teach(sound)


class Shelf:
    """Pairs of a question and a page that answers it, as token numbers of many lengths."""

    def __init__(self, pairs, words, longest, snug):
        self.longest, self.snug = longest, snug
        sizes = np.random.gamma(2.0, longest / 24, (pairs, 2)).astype(int).clip(2, longest)
        self.pairs = [[np.random.randint(1, words, n) for n in pair] for pair in sizes]

    def batch(self, start, rows):
        return self.pad([t for pair in self.pairs[start : start + rows] for t in pair])

    def pad(self, texts):
        longest = max(len(t) for t in texts)
        length = -(-longest // 16) * 16 if self.snug else self.longest  # PLANT
        ids = np.zeros((len(texts), length), np.int64)
        for row, text in zip(ids, texts, strict=True):
            row[: len(text)] = text
        return pinned(torch.from_numpy(ids)).to(DEV, non_blocking=True)


class TextTower(nn.Module):
    """A text as one direction."""

    def __init__(self, words, dim, depth, heads):
        super().__init__()
        self.word = nn.Embedding(words, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))

    def forward(self, ids):
        real = ids != 0
        x = self.word(ids)
        for block in self.blocks:
            x = block(x, mask=real[:, None, None])
        weight = real[..., None].to(x.dtype)
        return F.normalize((x * weight).sum(1).float() / weight.sum(1).float(), dim=-1)


# cause: every text is padded to the longest that is allowed, though most are far shorter
@case(
    "a retriever trained on pairs of texts that are all padded to 1024 tokens",
    "compute",
    also=("memory",),
    codes=("no rule",),
    functions=("pad", "batch", "forward", "contrast"),
    plant_in="Shelf.pad",
)
def i_retriever_padding(fixed):
    # 32768 positions instead of some 10000: 8 TFLOP, and attention ten times as large.
    words, rows, longest = pick(30000, 20), pick(16, 2), pick(1024, 64)
    with DEV:
        net = TextTower(words, pick(768, 8), pick(6, 1), pick(12, 2)).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    shelf = Shelf(rows * 8, words, longest, fixed)
    at = 0

    def contrast():
        nonlocal at
        at = (at + 1) % 8
        left, right = net(shelf.batch(at * rows, rows)).unflatten(0, (rows, 2)).unbind(1)
        scores = left @ right.T / 0.05
        return descend(opt, F.cross_entropy(scores, torch.arange(rows, device=DEV)))

    return contrast


class Labels:
    """The names of the classes in several phrases, read by a frozen text encoder."""

    def __init__(self, encoder, ids, kept):
        self.encoder, self.ids, self.kept = encoder, ids, kept
        self.known = None

    @torch.no_grad()
    def read(self):
        phrases = self.encoder(self.ids.flatten(0, 1)).unflatten(0, self.ids.shape[:2])
        return F.normalize(phrases.mean(1), dim=-1)

    def directions(self):
        if self.known is None or not self.kept:
            self.known = self.read()  # PLANT
        return self.known


class ImageTower(nn.Module):
    def __init__(self, features, dim, depth, heads):
        super().__init__()
        self.stem = nn.Linear(features, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))

    def forward(self, patches):
        x = self.stem(patches)
        for block in self.blocks:
            x = block(x)
        return F.normalize(x.mean(1).float(), dim=-1)


# cause: a constant is computed anew in each step: the frozen encoder reads the same phrases
@case(
    "an image encoder tuned against the names of its classes, which are read again in each step",
    "compute",
    codes=("CP230", "IN622", "IN623"),
    functions=("directions", "read", "tune_images"),
    plant_in="Labels.directions",
)
def i_birds_labels_read_again(fixed):
    # 3200 phrases of 24 tokens: 77000 tokens by 19 million weights, 6 ms; the images take 7 ms.
    kinds, phrases, words, length = pick(400, 5), pick(8, 2), pick(30000, 20), pick(24, 4)
    features, rows, patches, dim = pick(768, 6), pick(96, 2), pick(196, 4), pick(512, 8)
    with DEV:
        texts = TextTower(words, dim, pick(6, 1), pick(8, 2)).to(BF16).requires_grad_(False)
        images = ImageTower(features, dim, pick(6, 1), pick(8, 2)).to(BF16)
    ids = torch.randint(1, words, (kinds, phrases, length), device=DEV)
    labels = Labels(texts, ids, fixed)
    opt = torch.optim.AdamW(images.parameters(), 1e-5, fused=True)
    photos = torch.randn(rows, patches, features, device=DEV, dtype=BF16)
    birds = torch.randint(0, kinds, (rows,), device=DEV)

    def tune_images():
        scores = images(photos) @ labels.directions().T / 0.05
        return descend(opt, F.cross_entropy(scores, birds))

    return tune_images
