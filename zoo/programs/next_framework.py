"""Programs in which the host is slower than the device; one mistake each."""

import torch
import torch._dynamo
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, compiled, pick

BF16 = torch.bfloat16


class Tracks(nn.Module):
    """Tracks of animals, matched with what the camera sees now."""

    def __init__(self, count, features, number_as_tensor):
        super().__init__()
        self.register_buffer("state", torch.randn(count, features))
        self.register_buffer("seen", torch.zeros(count))
        self.frame = 0
        if number_as_tensor:
            del self.frame
            self.register_buffer("frame", torch.zeros((), dtype=torch.int64))

    def forward(self, found):
        self.frame = self.frame + 1  # PLANT
        score = self.state @ found.T
        score = score - 0.01 * (self.frame - self.seen)[:, None]
        for _ in range(3):  # Sinkhorn
            score = score.log_softmax(0).log_softmax(1)
        sure, best = score.exp().max(1)
        gain = (sure > 0.1) * 0.2
        self.state = torch.lerp(self.state, found[best], gain[:, None])
        self.seen = torch.where(gain > 0, self.frame * 1.0, self.seen)
        return sure.sum()


# cause: recompilation in every step: a changing Python number is an attribute of a compiled module
@case(
    "a compiled tracker that counts its frames in a Python number",
    "framework",
    codes=("FW511", "FW512"),
    functions=("follow",),
    plant_in="Tracks.forward",
    active=3,
)
def g_herd_frame_number(fixed):
    with DEV:
        tracks = Tracks(pick(8192, 6), pick(128, 4), fixed)
    sights = torch.randn(4, pick(8192, 5), pick(128, 4), device=DEV)
    step = compiled(tracks)
    turn = 0

    # The warning about too many compilations was answered with a higher limit.
    @torch._dynamo.config.patch(recompile_limit=5000, accumulated_recompile_limit=5000)
    @torch.no_grad()
    def follow():
        nonlocal turn
        turn += 1
        return step(sights[turn % 4])

    return follow


def overlap(a, b):
    low = torch.maximum(a[:, None, :2], b[:, :2])
    high = torch.minimum(a[:, None, 2:], b[:, 2:])
    common = (high - low).clamp(min=0).prod(-1)
    size_a, size_b = ((t[:, 2:] - t[:, :2]).prod(-1) for t in (a, b))
    return common / (size_a[:, None] + size_b - common)


def keep_best(boxes, scores, limit=0.5):
    """Greedy non-maximum suppression."""
    order, kept = scores.argsort(descending=True), []
    while len(order):
        kept.append(order[0])
        shared = overlap(boxes[order[:1]], boxes[order[1:]])[0]
        order = order[1:][shared < limit]  # PLANT
    return torch.stack(kept)


def keep_best_at_once(boxes, scores, limit=0.5):
    """Suppression by any better box."""
    order = scores.argsort(descending=True)
    shared = overlap(boxes[order], boxes[order]).triu(1)
    return order[shared.amax(0) < limit]


# cause: a Python loop over boxes with a boolean mask (and its wait) for each box that is kept
@case(
    "ships found in satellite images, with doubles removed box by box",
    "framework",
    codes=("FW504", "FW503", "FW516"),
    functions=("keep_best", "find_ships"),
    plant_in="keep_best",
)
def g_ships_suppressed_one_by_one(fixed):
    # About 250 boxes are kept: 250 times 20 operations and a wait, 30 ms or more.
    wide, side = pick(128, 4), pick(512, 64)
    with DEV:
        net = nn.Sequential(
            nn.Conv2d(3, wide, 7, 4, 3),
            nn.ReLU(),
            nn.Conv2d(wide, 2 * wide, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(2 * wide, 4 * wide, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(4 * wide, 4 * wide, 3, 2, 1),
            nn.ReLU(),
            nn.Conv2d(4 * wide, 4 * 5, 1),  # four boxes in each place, 32 pixels apart
        ).to(BF16, memory_format=torch.channels_last)
        rows = torch.arange(side // 32).repeat_interleave(side // 32) * 32.0
        columns = torch.arange(side // 32).repeat(side // 32) * 32.0
        corner = torch.stack([columns, rows], 1).repeat_interleave(4, 0)
    images = torch.rand(8, 3, side, side, device=DEV, dtype=BF16)
    suppress = keep_best_at_once if fixed else keep_best

    @torch.inference_mode()
    def find_ships():
        out = net(images)[0].float().view(4, 5, -1).permute(2, 0, 1).reshape(-1, 5)
        start = corner + out[:, :2].tanh()
        boxes = torch.cat([start, start + 26 + out[:, 2:4].tanh()], 1)
        return boxes[suppress(boxes, out[:, 4])]

    return find_ships


class Critic(nn.Module):
    """Real heart beat or not."""

    def __init__(self, wide, depth):
        super().__init__()
        sizes = [1] + [wide] * depth
        self.convs = nn.ModuleList(nn.Conv1d(a, wide, 5, 1, 2) for a in sizes[:-1])
        self.head = nn.Linear(wide, 1)

    def forward(self, x):
        for conv in self.convs:
            y = F.silu(conv(x))
            x = x + y if x.shape == y.shape else y
        return self.head(x.mean(-1))


def slope_penalty(critic, real, fake):
    share = torch.rand(len(real), 1, 1, device=DEV)
    between = torch.lerp(real, fake, share).requires_grad_()
    (slope,) = torch.autograd.grad(critic(between).sum(), between, create_graph=True)
    return (slope.flatten(1).norm(dim=1) - 1).square().mean()


# cause: anomaly detection left on: a stack for each operation, a check with a wait for each gradient
@case(
    "a critic of heart beats with a gradient penalty and the NaN search of autograd left on",
    "framework",
    codes=("FW521",),
    functions=("train_critic", "slope_penalty", "forward"),
)
def g_beats_anomaly_mode(fixed):
    # 150 nodes forward, 400 backward, each 30 to 80 us more: over 20 ms; the step needs 8 ms.
    with DEV:
        critic = Critic(pick(64, 4), pick(10, 2))
    opt = torch.optim.Adam(critic.parameters(), 1e-4, betas=(0.0, 0.9), fused=True)
    real = torch.randn(pick(64, 3), 1, pick(512, 16), device=DEV)

    def train_critic():
        fake = torch.randn_like(real)
        with torch.autograd.set_detect_anomaly(not fixed):  # PLANT
            loss = critic(fake).mean() - critic(real).mean()
            loss = loss + 10 * slope_penalty(critic, real, fake)
            opt.zero_grad()
            loss.backward()
        opt.step()
        return loss.detach()

    return train_critic


class LoRA(nn.Module):
    """A frozen linear layer and its low-rank change."""

    def __init__(self, wide_in, wide_out, rank=16):
        super().__init__()
        self.base = nn.Linear(wide_in, wide_out).requires_grad_(False)
        self.down = nn.Parameter(torch.randn(rank, wide_in) * 0.01)
        self.up = nn.Parameter(torch.zeros(wide_out, rank))

    def forward(self, x):
        return self.base(x) + F.linear(F.linear(x, self.down), self.up)


class LoRALayer(nn.Module):
    def __init__(self, dim, heads):
        super().__init__()
        self.heads, self.norm = heads, nn.LayerNorm(dim)
        self.q, self.k, self.v, self.o = (LoRA(dim, dim) for _ in range(4))

    def forward(self, x):
        z = self.norm(x)
        parts = (
            f(z).unflatten(-1, (self.heads, -1)).transpose(1, 2) for f in (self.q, self.k, self.v)
        )
        seen = F.scaled_dot_product_attention(*parts, is_causal=True)
        return x + self.o(seen.transpose(1, 2).flatten(2))


def step_in_backward(adapters):
    """Updates each parameter as soon as its gradient is there, to spare memory."""
    own = {p: torch.optim.AdamW([p], 1e-4) for p in adapters}

    def update(p):
        own[p].step()  # PLANT
        own[p].zero_grad()

    for p in adapters:
        p.register_post_accumulate_grad_hook(update)


# cause: an optimizer for each parameter, stepped in hooks
@case(
    "a language model tuned by adapters, each of which has an optimizer of its own",
    "framework",
    codes=("FW507", "CP227"),
    functions=("update", "tune_adapters"),
    plant_in="step_in_backward",
)
def g_clauses_optimizer_each(fixed):
    # 128 optimizers, 100 us or more each, 13 ms; forward and backward take 8 ms.
    dim, rows, length = pick(1024, 8), pick(4, 2), pick(512, 6)
    with DEV:
        words, head = nn.Embedding(pick(8192, 30), dim), nn.Linear(dim, pick(8192, 30))
        layers = nn.Sequential(*(LoRALayer(dim, pick(16, 2)) for _ in range(pick(16, 2))))
        net = nn.Sequential(words.requires_grad_(False), layers, head.requires_grad_(False))
    adapters = [p for p in net.to(BF16).parameters() if p.requires_grad]
    opt = torch.optim.AdamW(adapters, 1e-4) if fixed else None
    if not fixed:
        step_in_backward(adapters)
    clauses = torch.randint(0, words.num_embeddings, (rows, length + 1), device=DEV)

    def tune_adapters():
        logits = net(clauses[:, :-1]).flatten(0, 1)
        loss = F.cross_entropy(logits.float(), clauses[:, 1:].flatten())
        loss.backward()
        if opt:
            opt.step()
            opt.zero_grad()
        return loss.detach()

    return tune_adapters


class Shadow:
    """A slowly following copy of a net."""

    def __init__(self, net, decay, at_once):
        self.kept = {name: value.clone() for name, value in net.state_dict().items()}
        self.decay, self.at_once = decay, at_once

    @torch.no_grad()
    def follow(self, net):
        now = net.state_dict()
        if self.at_once:
            torch._foreach_lerp_([*self.kept.values()], [*now.values()], 1 - self.decay)
            return
        for name, value in now.items():
            self.kept[name] = self.decay * self.kept[name] + (1 - self.decay) * value  # PLANT


class Wave(nn.Module):
    def __init__(self, wide, reach):
        super().__init__()
        self.norm = nn.GroupNorm(4, wide)
        self.conv = nn.Conv1d(wide, wide, 3, padding=reach, dilation=reach)
        self.time, self.point = nn.Linear(1, wide), nn.Conv1d(wide, wide, 1)

    def forward(self, x, noise):
        y = self.norm(x) + self.time(noise)[..., None]
        return x + self.point(F.silu(self.conv(y)))


# cause: the moving average of the weights tensor by tensor, three small kernels each
@case(
    "a diffusion model of motion whose averaged copy is updated tensor by tensor",
    "framework",
    codes=("FW507",),
    functions=("follow", "denoise_step"),
    plant_in="Shadow.follow",
)
def g_motion_average_by_tensor(fixed):
    # 48 blocks with 8 tensors: 1150 kernels, 8 ms; the rest takes 9 ms of host time.
    wide, joints = pick(128, 8), pick(66, 3)
    with DEV:
        blocks = nn.ModuleList(Wave(wide, 2 ** (k % 5)) for k in range(pick(48, 2)))
        net = nn.ModuleList([nn.Conv1d(joints, wide, 1), blocks, nn.Conv1d(wide, joints, 1)])
    shadow = Shadow(net, 0.999, fixed)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    motion = torch.randn(pick(16, 2), joints, pick(128, 8), device=DEV)

    def denoise_step():
        noise, level = torch.randn_like(motion), torch.rand(len(motion), 1, device=DEV)
        x = net[0](torch.lerp(motion, noise, level[..., None]))
        for block in blocks:
            x = block(x, level)
        loss = F.mse_loss(net[2](x), noise)
        opt.zero_grad()
        loss.backward()
        opt.step()
        shadow.follow(net)
        return loss.detach()

    return denoise_step


def valid_frames(lengths, longest):
    """Which frames of a padded batch are real."""
    mask = torch.zeros(len(lengths), longest, dtype=torch.bool, device=DEV)
    for row, n in enumerate(lengths.tolist()):
        mask[row, :n] = True  # PLANT
    return mask


def valid_frames_at_once(lengths, longest):
    return torch.arange(longest, device=DEV) < lengths[:, None]


class Cleaner(nn.Module):
    """A layer of a speech enhancer that ignores padding."""

    def __init__(self, wide, heads, valid):
        super().__init__()
        self.near = nn.Conv1d(wide, wide, 3, padding=1)
        self.norm, self.qkv, self.out = (
            nn.LayerNorm(wide),
            nn.Linear(wide, 3 * wide),
            nn.Linear(wide, wide),
        )
        self.heads, self.valid = heads, valid

    def forward(self, x, lengths):
        mask = self.valid(lengths, x.shape[1])
        x = x + F.gelu(self.near((x * mask[..., None]).mT).mT)
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, self.heads, -1)).permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v, attn_mask=mask[:, None, None])
        return x + self.out(seen.transpose(1, 2).flatten(2))


# cause: masks made on the host row by row, in each layer, after reading the lengths back
@case(
    "noisy calls cleaned by a net whose layers each build the padding mask row by row",
    "framework",
    codes=("FW503", "FW520", "FW516", "FW506", "FW501"),
    functions=("valid_frames", "forward", "clean_calls"),
    plant_in="valid_frames",
)
def g_calls_mask_by_row(fixed):
    # 8 layers, 96 rows, 10 us each: 8 ms and eight waits; the rest takes 6 ms.
    bands, wide, rows, longest = pick(256, 4), pick(256, 8), pick(96, 3), pick(200, 7)
    valid = valid_frames_at_once if fixed else valid_frames
    with DEV:
        layers = nn.ModuleList(Cleaner(wide, pick(4, 2), valid) for _ in range(pick(8, 2)))
        net = nn.ModuleList([nn.Linear(bands, wide), layers, nn.Linear(wide, bands)]).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    noisy, clean = torch.rand(2, rows, longest, bands, device=DEV, dtype=BF16)
    lengths = torch.randint(longest // 2, longest + 1, (rows,), device=DEV)

    def clean_calls():
        x = net[0](noisy)
        for layer in layers:
            x = layer(x, lengths)
        loss = F.l1_loss(net[2](x).sigmoid() * noisy, clean)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return clean_calls
