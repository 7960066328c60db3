"""Answering: generation, sampling and decoding; one mistake each."""

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick, replayed

BF16 = torch.bfloat16


class Decoder(nn.Module):
    """A language model that keeps keys and values in fixed buffers."""

    def __init__(self, words, dim, heads, depth, rows, length):
        super().__init__()
        self.heads, self.words = heads, nn.Embedding(words, dim)
        self.norms = nn.ModuleList(nn.RMSNorm(dim) for _ in range(depth))
        self.qkv = nn.ModuleList(nn.Linear(dim, 3 * dim, bias=False) for _ in range(depth))
        self.up = nn.ModuleList(nn.Linear(dim, 4 * dim, bias=False) for _ in range(depth))
        self.down = nn.ModuleList(nn.Linear(5 * dim, dim, bias=False) for _ in range(depth))
        self.head = nn.Linear(dim, words, bias=False)
        shape = (depth, 2, rows, heads, length, dim // heads)
        self.register_buffer("cache", torch.zeros(shape, dtype=BF16))

    def forward(self, tokens, at):
        x = self.words(tokens)
        for norm, qkv, up, down, cache in zip(
            self.norms, self.qkv, self.up, self.down, self.cache, strict=True
        ):
            z = norm(x)
            q, k, v = qkv(z).view(len(x), 3, self.heads, 1, -1).unbind(1)
            cache[0, :, :, at : at + 1], cache[1, :, :, at : at + 1] = k, v
            past = cache[:, :, :, : at + 1]
            seen = F.scaled_dot_product_attention(q.to(BF16), past[0], past[1]).flatten(1)
            x = x + down(torch.cat([seen.to(z.dtype), F.silu(up(z))], -1))
        return self.head(x)


def choose_words(logits, rng, share=0.9):
    """Nucleus sampling, row by row."""
    chosen = []
    for row in logits.float().cpu().numpy():  # PLANT
        order = np.argsort(-row)
        chance = np.exp(row[order] - row[order[0]])
        chance /= chance.sum()
        last = int(np.searchsorted(np.cumsum(chance), share)) + 1
        kept = np.cumsum(chance[:last])
        chosen.append(order[np.searchsorted(kept, rng.random() * kept[-1])])
    return torch.tensor(np.array(chosen), device=DEV)


def choose_on_device(logits, _, share=0.9):
    chance, order = logits.float().softmax(-1).sort(-1, descending=True)
    chance = chance * (chance.cumsum(-1) - chance < share)
    return order.gather(1, torch.multinomial(chance, 1))[:, 0]


# cause: sampling on the host: logits are copied back and sorted in NumPy for each token
@case(
    "stories told by a model whose next words are drawn in NumPy",
    "framework",
    also=("data_loading",),
    codes=("IN614", "IN612", "IN619", "FW503"),
    functions=("choose_words", "tell"),
    plant_in="choose_words",
    marks=False,
)
def g_in_story_drawn_on_host(fixed):
    # 8 rows of 32000 words, 3 ms to sort and add up: 24 ms a token; the model takes 2 ms.
    words, dim, rows, length = pick(32000, 40), pick(1024, 8), pick(8, 2), pick(512, 16)
    with DEV:
        net = Decoder(words, dim, pick(16, 2), pick(8, 2), rows, length).to(BF16).eval()
    tokens = torch.randint(0, words, (rows,), device=DEV)
    choose, rng, at = choose_on_device if fixed else choose_words, np.random.default_rng(0), 0

    @torch.inference_mode()
    def tell():
        nonlocal tokens, at
        tokens = choose(net(tokens, at), rng)
        at = (at + 1) % length
        return tokens

    return tell


# cause: weights cast in each call: float32 weights under an autocast entered anew for each word
@case(
    "a helper that answers word by word with weights in single precision under autocast",
    "memory",
    also=("framework",),
    codes=("FW525", "IN620", "CP221"),
    functions=("answer", "forward"),
    marks=False,
)
def g_in_helper_weights_cast(fixed):
    # 2.5 G weights: read 4, write 2, read 2 bytes each, 5 ms a word; 2 bytes take 1.3 ms.
    words, dim, length = pick(16000, 40), pick(4096, 8), pick(1024, 16)
    with DEV:
        net = Decoder(words, dim, pick(32, 2), pick(12, 2), 1, length).eval()
    net = net.to(BF16) if fixed else net  # PLANT
    token, at = torch.zeros(1, dtype=torch.long, device=DEV), length // 2

    @torch.no_grad()
    def answer():
        nonlocal token, at
        for _ in range(2):
            with torch.autocast(DEV.type, BF16):
                token = net(token, at).argmax(-1)
            at = (at + 1) % length
        return token

    return answer


class Shaper(nn.Module):
    """One layer of a net that moves atoms to where they belong."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.level, self.up, self.down = (
            nn.Linear(1, dim),
            nn.Linear(dim, 2 * dim),
            nn.Linear(2 * dim, dim),
        )

    def forward(self, x, level):
        z = self.norm(x) + self.level(level)
        q, k, v = self.qkv(z).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v).transpose(1, 2).flatten(2))
        return x + self.down(F.silu(self.up(x)))


# cause: launch-bound sampling of a small model, not replayed as a CUDA graph
@case(
    "small molecules drawn in many short steps that are launched kernel by kernel",
    "framework",
    codes=("FW501", "IN602"),
    functions=("denoise", "draw", "forward"),
    marks=False,
)
def g_in_molecules_launched(fixed):
    # 240 kernels a step of 2 to 3 us each on the device, 7 us each on the host.
    dim, atoms, steps = pick(256, 8), pick(48, 4), pick(12, 2)
    with DEV:
        layers = nn.ModuleList(Shaper(dim, pick(8, 2)) for _ in range(pick(8, 2)))
        net = nn.ModuleList([nn.Linear(3, dim), layers, nn.Linear(dim, 3)]).to(BF16).eval()
        place = torch.randn(8, atoms, 3, dtype=BF16)
        level, kind = torch.ones(1, 1, 1, dtype=BF16), torch.randn(dim, dtype=BF16)

    def guess(hint):
        x = net[0](place) + hint
        for layer in layers:
            x = layer(x, level)
        return net[2](x)

    @torch.inference_mode()
    def denoise():
        free, guided = guess(0.0), guess(kind)
        place.sub_((free + 2.0 * (guided - free)) / steps)
        level.mul_(0.9)

    advance = replayed(denoise) if fixed else denoise  # PLANT

    def draw():
        place.normal_()
        level.fill_(1.0)
        for _ in range(steps):
            advance()
        return place

    return draw


class Looker(nn.Module):
    """Looks at an image while a caption is written."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.q, self.kv, self.out = (nn.Linear(dim, n * dim) for n in (1, 2, 1))
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def project(self, image):
        return self.kv(image).unflatten(-1, (2, self.heads, -1)).permute(2, 0, 3, 1, 4)

    def forward(self, x, image, ready=None):
        keys, values = self.project(image) if ready is None else ready  # PLANT
        q = self.q(self.norm(x)).view(len(x), self.heads, 1, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, keys, values).flatten(1))
        return x + self.down(F.gelu(self.up(x)))


# cause: repeated work: keys and values of the (unchanging) image are projected for every word
@case(
    "captions whose decoder projects the whole image again for every word",
    "compute",
    also=("memory",),
    codes=("IN622",),
    functions=("project", "forward", "caption"),
    plant_in="Looker.forward",
    marks=False,
)
def g_in_captions_projected_again(fixed):
    # 6 layers, 10 words, 137 GFLOP each time: 15 ms; needed once, 1.5 ms. The rest: 5 ms.
    dim, rows, patches, words = pick(1024, 8), pick(32, 2), pick(1024, 6), pick(8000, 20)
    with DEV:
        layers = nn.ModuleList(Looker(dim, pick(16, 2)) for _ in range(pick(6, 2)))
        table, head = nn.Embedding(words, dim), nn.Linear(dim, words)
        net = nn.ModuleList([layers, table, head]).to(BF16).eval()
    images = torch.randn(rows, patches, dim, device=DEV, dtype=BF16)
    state = nn.GRUCell(dim, dim, device=DEV, dtype=BF16)

    @torch.inference_mode()
    def caption():
        word, h = torch.zeros(rows, dtype=torch.long, device=DEV), images.mean(1)
        ready = [layer.project(images) if fixed else None for layer in net[0]]
        said = []
        for _ in range(pick(10, 2)):
            h = x = state(table(word), h)
            for layer, kv in zip(layers, ready, strict=True):
                x = layer(x, images, kv)
            word = head(x).argmax(-1)
            said.append(word)
        return torch.stack(said, 1)

    return caption
