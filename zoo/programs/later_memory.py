"""Programs that move more bytes through the memory of the GPU than their task needs."""

import itertools

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, compiled, pick

BF16 = torch.bfloat16


def descend(opt, loss):
    opt.zero_grad(set_to_none=True)
    loss.backward()
    opt.step()
    return loss.detach()


class FieldNorm(nn.Module):
    """Layer norm, in the library's kernel or written out."""

    def __init__(self, dim, builtin):
        super().__init__()
        self.scale, self.shift = nn.Parameter(torch.ones(dim)), nn.Parameter(torch.zeros(dim))
        self.builtin = builtin

    def forward(self, x):
        if self.builtin:
            return F.layer_norm(x, x.shape[-1:], self.scale, self.shift, 1e-5)
        centred = x - x.mean(-1, keepdim=True)  # PLANT
        spread = centred.square().mean(-1, keepdim=True).add(1e-5).rsqrt()
        return centred * spread * self.scale + self.shift


class Harvest(nn.Module):
    """Weather, soil and leaf reflection of a field over the season to its yield."""

    def __init__(self, inputs, dim, depth, builtin):
        super().__init__()
        self.stem, self.head = nn.Linear(inputs, dim), nn.Linear(dim, 1)
        self.norms = nn.ModuleList(FieldNorm(dim, builtin) for _ in range(2 * depth))
        self.mixes = nn.ModuleList(nn.Linear(dim, dim) for _ in range(2 * depth))

    def forward(self, season):
        x = self.stem(season)
        for norm, mix in zip(self.norms, self.mixes, strict=True):
            x = x + F.silu(mix(norm(x)))
        return self.head(x).squeeze(-1).mean(1)


# cause: a layer norm written out: a chain of unfused elementwise operators, memory-bound
@case(
    "the yield of fields by a net with its own layer norm",
    "memory",
    also=("compute",),
    codes=("CP219", "CP212"),
    functions=("forward", "fit_yield"),
    plant_in="FieldNorm.forward",
)
def h_fields_norm_by_hand(fixed):
    # A norm by hand: about 20 passes over 67 MB each way, 0.8 ms; the rest of a layer 0.8 ms.
    inputs, rows, weeks, dim = pick(96, 4), pick(512, 3), pick(64, 3), pick(1024, 8)
    with DEV:
        net = Harvest(inputs, dim, pick(6, 1), fixed).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 3e-4, fused=True)
    season = torch.randn(rows, weeks, inputs, device=DEV, dtype=BF16)
    tons = torch.rand(rows, device=DEV)

    def fit_yield():
        return descend(opt, F.smooth_l1_loss(net(season).float(), tons))

    return fit_yield


class Film(nn.Module):
    """The look of a film stock: exposure, tone curve, saturation, halation and grain."""

    def __init__(self):
        super().__init__()
        self.exposure, self.toe = nn.Parameter(torch.tensor(0.3)), nn.Parameter(torch.tensor(0.02))
        self.contrast, self.gamma = nn.Parameter(torch.tensor(1.4)), nn.Parameter(torch.tensor(0.8))
        self.tint = nn.Parameter(torch.tensor([1.02, 1.0, 0.96]).view(3, 1, 1))
        self.saturation = nn.Parameter(torch.tensor(1.2))

    def forward(self, light):
        light = light * torch.exp2(self.exposure) * self.tint
        density = torch.log2(light + self.toe)
        density = (density + 2.0) * self.contrast - 2.0
        image = torch.exp2(density) - self.toe
        grey = image.mean(1, keepdim=True)
        image = grey + (image - grey) * self.saturation
        image = image.clamp(1e-4, 4.0)
        image = image / (1.0 + image)
        return (2.0 * image).pow(self.gamma)


# cause: a chain of some 16 unfused elementwise operators over large images, memory-bound
@case(
    "scans of a film given their look by one operator after the other, then sharpened",
    "memory",
    codes=("CP212",),
    functions=("forward", "develop"),
    marks=False,
)
def h_film_look_unfused(fixed):
    # 100M values of 2 bytes, 0.1 ms a pass: 18 passes by hand, two or three when fused.
    frames, high, wide = pick(16, 1), pick(1080, 6), pick(1920, 8)
    with DEV:
        film, sharpen = Film().to(BF16).eval(), nn.Conv2d(3, 3, 3, padding=1).to(BF16).eval()
    look = compiled(film) if fixed else film  # PLANT
    reels = [torch.rand(frames, 3, high, wide, device=DEV, dtype=BF16) for _ in range(2)]

    @torch.no_grad()
    def develop():
        shown = []
        for reel in reels:
            image = look(reel)
            small = F.avg_pool2d(image, 4)
            shown.append(sharpen(small).clamp(0, 1).mul(255).to(torch.uint8))
        return shown

    return develop


class Weave(nn.Module):
    """A bottleneck block that looks for faults in woven cloth."""

    def __init__(self, wide, keeps_layout):
        super().__init__()
        inner = wide // 4
        self.norm = nn.BatchNorm2d(wide)
        self.squeeze = nn.Conv2d(wide, inner, 1, bias=False)
        self.look = nn.Conv2d(inner, inner, 3, padding=1, bias=False)
        self.widen = nn.Conv2d(inner, wide, 1)
        self.keeps_layout = keeps_layout

    def forward(self, x):
        y = x if self.keeps_layout else x.contiguous()  # PLANT
        y = F.relu(self.norm(y))
        y = F.relu(self.look(self.squeeze(y)))
        return x + self.widen(y)


class Cloth(nn.Module):
    def __init__(self, wide, depth, faults, keeps_layout):
        super().__init__()
        self.stem = nn.Conv2d(3, wide, 7, 4, 3)
        self.blocks = nn.Sequential(*(Weave(wide, keeps_layout) for _ in range(depth)))
        self.head = nn.Conv2d(wide, faults, 1)

    def forward(self, images):
        return self.head(self.blocks(self.stem(images))).mean((2, 3))


# cause: .contiguous() undoes channels_last in each block: copies to NCHW and back, both ways
@case(
    "faults in cloth by a channels-last net whose blocks ask for contiguous input",
    "memory",
    also=("compute",),
    codes=("CP208", "CP222"),
    functions=("forward", "inspect_cloth"),
    plant_in="Weave.forward",
)
def h_cloth_layout_copies(fixed):
    # Four copies of 134 MB a block: 0.4 to 0.5 of about 1.4 ms.
    wide, rows, side, faults = pick(256, 8), pick(64, 2), pick(256, 16), pick(9, 3)
    with DEV:
        net = Cloth(wide, pick(10, 2), faults, fixed)
    net = net.to(BF16, memory_format=torch.channels_last)
    opt = torch.optim.SGD(net.parameters(), 0.02, momentum=0.9, fused=True)
    images = torch.rand(rows, 3, side, side, device=DEV, dtype=BF16)
    images = images.contiguous(memory_format=torch.channels_last)
    kinds = torch.randint(0, faults, (rows,), device=DEV)

    def inspect_cloth():
        scores = net(images).float()
        return descend(opt, F.cross_entropy(scores, kinds, label_smoothing=0.05))

    return inspect_cloth


class BucketTable(nn.Module):
    """A vector for each bucket of a numeric field of an auction."""

    def __init__(self, buckets, dim, as_embedding):
        super().__init__()
        self.weight = nn.Parameter(0.02 * torch.randn(buckets, dim))
        self.as_embedding = as_embedding

    def forward(self, buckets):
        if self.as_embedding:
            return F.embedding(buckets, self.weight)
        return self.weight[buckets]  # PLANT


class Auction(nn.Module):
    def __init__(self, fields, buckets, dim, hidden, as_embedding):
        super().__init__()
        self.table = BucketTable(buckets, dim, as_embedding)
        sizes = [fields * dim, hidden, hidden // 2]
        layers = []
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Linear(a, b), nn.ReLU()]
        self.tower = nn.Sequential(*layers, nn.Linear(hidden // 2, 1))

    def forward(self, buckets):
        return self.tower(self.table(buckets).flatten(1)).squeeze(-1)


# cause: the gradient of plain indexing (index_put with accumulation) with few distinct rows
@case(
    "bids won or lost, from numbers in a hundred buckets that index one table",
    "memory",
    also=("compute",),
    codes=("CP216",),
    functions=("forward", "learn_bids"),
    plant_in="BucketTable.forward",
)
def h_bids_indexed_table(fixed):
    # One million look-ups of 100 rows: the gradient adds 10000 vectors to each, one by one.
    fields, buckets, rows = pick(64, 3), pick(100, 4), pick(16384, 5)
    with DEV:
        net = Auction(fields, buckets, pick(64, 4), pick(1024, 8), fixed).to(BF16)
    opt = torch.optim.Adagrad(net.parameters(), 0.01)
    values = torch.rand(rows, fields, device=DEV)
    won = torch.rand(rows, device=DEV).round()

    def learn_bids():
        chosen = (values * buckets).long()
        loss = F.binary_cross_entropy_with_logits(net(chosen).float(), won)
        return descend(opt, loss)

    return learn_bids
