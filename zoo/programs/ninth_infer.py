"""Inference and serving: decoding, sampling, ranking, control."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick, replayed
from zoo.programs.ninth_parts import BF16


class Block(nn.Module):
    """A causal layer that can go on from the keys and values of earlier tokens."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x, memory=None, at=0):
        rows, length, dim = x.shape
        parts = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, dim // self.heads)
        q, k, v = parts.permute(2, 0, 3, 1, 4)
        if memory is not None:
            keys, values = memory
            keys[:, :, at : at + length], values[:, :, at : at + length] = k, v
            k, v = keys[:, :, : at + length], values[:, :, : at + length]
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=length > 1)
        x = x + self.out(mixed.transpose(1, 2).reshape(x.shape))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Writer(nn.Module):
    """A small language model; gives the scores of the token after the last."""

    def __init__(self, words, longest, dim, depth, heads):
        super().__init__()
        self.word, self.place = nn.Embedding(words, dim), nn.Embedding(longest, dim)
        self.blocks = nn.ModuleList(Block(dim, heads) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(dim), nn.Linear(dim, words, bias=False)

    def forward(self, ids, memories=None, at=0):
        x = self.word(ids) + self.place.weight[at : at + ids.shape[1]]
        for i, block in enumerate(self.blocks):
            x = block(x, memories[i] if memories else None, at)
        return self.head(self.norm(x[:, -1]))

    def memories(self, rows, longest):
        first = self.blocks[0]
        shape = rows, first.heads, longest, first.out.in_features // first.heads
        like = self.head.weight
        return [(like.new_empty(shape), like.new_empty(shape)) for _ in self.blocks]


class Answers:
    """Goes on with a batch of prompts, greedily."""

    def __init__(self, net, tokens, memories):
        self.net, self.tokens, self.memories = net, tokens, memories

    def next_token(self, ids):
        if self.memories and ids.shape[1] > self.prompt:
            return self.net(ids[:, -1:], self.memories, ids.shape[1] - 1).argmax(-1)
        return self.net(ids, self.memories).argmax(-1)  # PLANT

    @torch.no_grad()
    def answer(self, ids):
        self.prompt = ids.shape[1]
        for _ in range(self.tokens):
            ids = torch.cat([ids, self.next_token(ids)[:, None]], 1)
        return ids


# cause: decoding without a cache of keys and values: each token reads the whole text again
@case(
    "answers to a batch of long questions, each word of which reads everything before it again",
    "compute",
    also=("framework", "memory"),
    codes=("IN622",),
    functions=("next_token", "answer", "forward"),
    plant_in="Answers.next_token",
    marks=False,
)
def i_answers_no_cache(fixed):
    # 8 passes over 16000 tokens by 100 million weights, 7 ms each; cached: one, and 8 of 1.5 ms.
    words, rows, prompt, tokens = pick(16000, 11), pick(16, 2), pick(1000, 5), pick(8, 3)
    with DEV:
        net = Writer(words, prompt + tokens, pick(1024, 8), pick(8, 2), pick(16, 2))
    net = net.to(pick(BF16, torch.float32)).eval().requires_grad_(False)
    memories = net.memories(rows, prompt + tokens) if fixed else None
    answers = Answers(net, tokens, memories)
    ids = torch.randint(0, words, (rows, prompt), device=DEV)
    return lambda: answers.answer(ids)


def choose_by_numpy(scores, share):
    """One word for each row out of the likely ones, which make up a share of the whole."""
    found = []
    for row in scores.float().cpu().numpy():  # PLANT
        chance = np.exp(row - row.max())
        chance /= chance.sum()
        order = np.argsort(-chance)
        kept = order[: int(np.searchsorted(np.cumsum(chance[order]), share)) + 1]
        found.append(np.random.choice(kept, p=chance[kept] / chance[kept].sum()))
    return torch.tensor(np.array(found), device=DEV)


def choose_on_device(scores, share):
    chance, order = scores.float().softmax(-1).sort(-1, descending=True)
    chance = chance.masked_fill(chance.cumsum(-1) - chance > share, 0.0)
    return order.gather(1, torch.multinomial(chance, 1)).squeeze(1)


# cause: sampling on the host: the scores of all words are copied to the CPU and sorted by numpy
@case(
    "translations whose next words numpy draws, row by row",
    "framework",
    also=("data_loading",),
    codes=("IN614", "IN612", "FW517"),
    functions=("choose_by_numpy", "translate"),
    plant_in="choose_by_numpy",
    marks=False,
)
def i_translations_drawn_by_numpy(fixed):
    # 16 rows of 32000 words: 2 to 3 ms each, 40 ms; on the device 0.3 ms. The net takes 2 ms.
    words, rows, past, longest = pick(32000, 12), pick(16, 2), pick(400, 4), pick(512, 6)
    with DEV:
        net = Writer(words, longest, pick(1024, 8), pick(8, 2), pick(16, 2))
    net = net.to(pick(BF16, torch.float32)).eval().requires_grad_(False)
    memories = net.memories(rows, longest)
    text = torch.randint(0, words, (rows, past), device=DEV)
    with torch.no_grad():
        net(text, memories)
    choose = choose_on_device if fixed else choose_by_numpy
    last = text[:, -1]

    @torch.no_grad()
    def translate():
        nonlocal last
        scores = net(last[:, None], memories, past) / 0.8
        last = choose(scores, 0.9)
        return last

    return translate


class PairReader(nn.Module):
    """How well a passage answers a question; both are read together."""

    def __init__(self, words, dim, depth, heads):
        super().__init__()
        self.word = nn.Embedding(words, dim)
        layer = nn.TransformerEncoderLayer(
            dim, heads, 4 * dim, 0.0, "gelu", batch_first=True, norm_first=True
        )
        self.body = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.score = nn.Linear(dim, 1)

    def forward(self, ids):
        return self.score(self.body(self.word(ids)).mean(1)).squeeze(1)


class Ranking:
    """Puts the passages found for a question in order."""

    def __init__(self, net, together):
        self.net, self.together = net, together

    def scores(self, question, passages):
        pairs = torch.cat([question.expand(len(passages), -1), passages], 1)
        if self.together:
            return self.net(pairs)
        return torch.cat([self.net(pair[None]) for pair in pairs])  # PLANT

    @torch.inference_mode()
    def rank(self, question, passages):
        return self.scores(question, passages).argsort(descending=True).cpu()


# cause: a loop at batch size 1 over requests that could go through the model together
@case(
    "passages ranked for a question by a reader that takes one at a time",
    "framework",
    also=("compute",),
    codes=("IN603", "FW501"),
    functions=("scores", "rank"),
    plant_in="Ranking.scores",
    marks=False,
)
def i_passages_one_at_a_time(fixed):
    # 32 passages by some 60 to 100 kernels: 15 ms or more bound by the host; together 2 ms.
    words, found = pick(30000, 13), pick(32, 3)
    with DEV:
        net = PairReader(words, pick(384, 8), pick(6, 2), pick(6, 2))
    net = net.to(pick(BF16, torch.float32)).eval()
    ranking = Ranking(net, fixed)
    question = torch.randint(0, words, (1, pick(16, 2)), device=DEV)
    passages = torch.randint(0, words, (found, pick(112, 4)), device=DEV)
    return lambda: ranking.rank(question, passages)


class Motion(nn.Module):
    """The noise in a planned motion of an arm, given what it sees."""

    def __init__(self, joints, sight, dim, depth):
        super().__init__()
        self.enter, self.leave = nn.Conv1d(joints, dim, 3, padding=1), nn.Conv1d(dim, joints, 1)
        self.told = nn.Linear(sight + 1, dim * depth)
        self.norms = nn.ModuleList(nn.GroupNorm(pick(8, 2), dim) for _ in range(depth))
        self.convs = nn.ModuleList(nn.Conv1d(dim, dim, 5, padding=2) for _ in range(depth))

    def forward(self, plan, sight, level):
        told = self.told(torch.cat([sight, level.expand(len(sight), 1)], 1))
        x = self.enter(plan)
        for norm, conv, own in zip(
            self.norms, self.convs, told.chunk(len(self.convs), 1), strict=True
        ):
            x = x + conv(F.mish(norm(x) + own[..., None]))
        return self.leave(x)


class Arm:
    """Plans the next motion by taking noise out of a random one."""

    def __init__(self, net, noise, sight, steps):
        self.net, self.noise, self.steps = net, noise, steps
        self.sight, self.plan = sight, torch.zeros_like(noise)
        self.levels = torch.linspace(1, 0, steps + 1, device=DEV)

    @torch.no_grad()
    def clean(self):
        plan = self.noise
        for i in range(self.steps):
            guess = self.net(plan, self.sight, self.levels[i])
            plan = plan + (self.levels[i + 1] - self.levels[i]) * guess
        self.plan.copy_(plan)


# cause: many small kernels at batch size 1, launched one by one instead of as a CUDA graph
@case(
    "the motion of a robot arm planned by a small diffusion model, launched kernel by kernel",
    "framework",
    codes=("FW501", "FW502", "FW513", "IN602"),
    functions=("clean", "act", "forward"),
    marks=False,
)
def i_arm_no_graph(fixed):
    # 16 passes of some 60 kernels of 5 us each to launch: 6 ms; replayed 3 ms or less.
    joints, sight, ahead = pick(7, 2), pick(256, 4), pick(32, 6)
    with DEV:
        net = Motion(joints, sight, pick(256, 4), pick(12, 2)).eval().requires_grad_(False)
    seen = torch.zeros(1, sight, device=DEV)
    arm = Arm(net, torch.randn(1, joints, ahead, device=DEV), seen, pick(16, 3))
    frames = torch.randn(8, 1, sight, device=DEV)
    clean = replayed(arm.clean) if fixed else arm.clean  # PLANT
    count = 0

    def act():
        nonlocal count
        count = (count + 1) % len(frames)
        seen.copy_(frames[count])
        clean()
        return arm.plan

    return act


class Voice:
    """Speaks: the next codes of a sound, step by step, for a few callers at once."""

    def __init__(self, net, memories, at):
        self.net, self.memories, self.at = net, memories, at

    @torch.no_grad()
    def speak(self, last, count):
        for i in range(count):
            with torch.autocast(DEV.type, BF16):
                scores = self.net(last[:, None], self.memories, self.at + i)
            last = scores.argmax(-1)
        return last


# cause: float32 weights under autocast in inference: they are cast to bf16 again for each token
@case(
    "a voice that is served from float32 weights, under autocast",
    "memory",
    also=("framework", "compute"),
    codes=("FW525", "IN620", "CP221"),
    functions=("speak", "forward", "serve"),
    marks=False,
)
def i_voice_cast_per_token(fixed):
    # 1.2 billion weights: 7 GB cast and 2.4 GB read, 2.7 ms a token; without casts 0.8 ms.
    codes, dim, rows, past, longest = pick(4096, 9), pick(4096, 8), 4, pick(300, 3), pick(320, 9)
    with DEV:
        net = Writer(codes, longest, dim, pick(6, 2), pick(32, 2)).eval().requires_grad_(False)
    net = net.to(BF16) if fixed else net  # PLANT
    shape = rows, pick(32, 2), longest, dim // pick(32, 2)
    memories = [
        tuple(torch.zeros(shape, device=DEV, dtype=BF16) for _ in range(2)) for _ in net.blocks
    ]
    voice = Voice(net, memories, past)
    last = torch.randint(0, codes, (rows,), device=DEV)

    def serve():
        return voice.speak(last, pick(4, 2))

    return serve
