"""Answers slower than need be; one mistake each."""

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, pick, replayed
from zoo.programs.final_data import BF16


def page_reader(dim, depth, heads):
    layer = nn.TransformerEncoderLayer(dim, heads, 4 * dim, 0.0, batch_first=True)
    return nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)


@case(
    "the pages of an archive read with a batch size of one",
    "framework",
    also=("compute",),
    codes=("IN603", "FW501", "FW516", "CP203"),
    functions=("read_archive",),
    marks=False,
    active=3,
)
def e_in_pages_one_by_one(fixed):
    dim = pick(512, 16)
    with DEV:
        net = page_reader(dim, pick(4, 1), pick(8, 2)).to(BF16).eval()
    pages = torch.randn(pick(28, 3), pick(128, 8), dim, device=DEV, dtype=BF16)
    together = len(pages) if fixed else 1  # PLANT

    @torch.inference_mode()
    def read_archive():
        return torch.cat([net(part).mean(1) for part in pages.split(together)])

    return read_archive


class Scan(nn.Module):
    """One step of a gated state-space layer."""

    def __init__(self, dim):
        super().__init__()
        self.norm, self.gates = nn.RMSNorm(dim), nn.Linear(dim, 3 * dim)
        self.out = nn.Linear(dim, dim)

    def forward(self, x, state):
        keep, new, show = self.gates(self.norm(x)).chunk(3, -1)
        state.lerp_(new, keep.sigmoid())
        return x + self.out(state * F.silu(show))


@case(
    "bases of a genome written one by one by a state-space model, each kernel launched",
    "framework",
    codes=("IN602", "FW501", "FW513", "FW502"),
    functions=("write_bases", "next_base", "forward"),
    marks=False,
    active=3,
)
def e_in_bases_eager(fixed):
    dim, depth, rows = pick(768, 8), pick(8, 2), pick(8, 2)
    with DEV:
        letters, layers = nn.Embedding(8, dim), nn.ModuleList(Scan(dim) for _ in range(depth))
        letters, layers = letters.to(BF16), layers.to(BF16)
    states = torch.zeros(depth, rows, dim, device=DEV, dtype=BF16)
    base = torch.zeros(rows, dtype=torch.long, device=DEV)

    @torch.no_grad()
    def next_base():
        x = letters(base)
        for layer, state in zip(layers, states, strict=True):
            x = layer(x, state)
        base.copy_((x @ letters.weight.mT).argmax(-1))

    advance = replayed(next_base) if fixed else next_base  # PLANT

    def write_bases():
        for _ in range(pick(12, 2)):
            advance()

    return write_bases


def hash_on_host(text, span, room):
    """The numbers of all runs of letters."""
    found = []
    for k in range(len(text) - span + 1):
        value = 0
        for letter in text[k : k + span]:
            value = (value * 31 + letter) % room  # PLANT
        found.append(value)
    return torch.tensor(found).to(DEV)


def hash_on_device(text, span, room):
    letters = torch.frombuffer(bytearray(text), dtype=torch.uint8).to(DEV).long()
    runs = letters.unfold(0, span, 1)
    powers = torch.tensor([31**k for k in reversed(range(span))]).to(DEV)
    return (runs * powers).sum(1) % room


@case(
    "runs of letters hashed one after another in Python for each mail",
    "data_loading",
    also=("framework",),
    codes=("IN612", "FW517", "DL104"),
    functions=("hash_on_host", "judge_mail"),
    plant_in="hash_on_host",
    marks=False,
)
def e_in_mail_hashed(fixed):
    room, dim = pick(65536, 64), pick(1024, 8)
    with DEV:
        table = nn.Embedding(room, dim).to(BF16)
        net = page_reader(dim, pick(6, 1), pick(8, 2)).to(BF16).eval()
    mail = (b"Dear customer, your parcel no. 4711 waits; pay 2.99 now! " * 80)[: pick(4096, 40)]
    hashed = hash_on_device if fixed else hash_on_host

    @torch.inference_mode()
    def judge_mail():
        x = table(hashed(mail, 5, room))[None]
        return net(x).mean(1).cpu()

    return judge_mail
