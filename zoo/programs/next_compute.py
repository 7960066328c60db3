"""Training whose arithmetic is larger, slower or done more often than the task asks for."""

import itertools
import random

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

from zoo.harness import DEV, case, pick

BF16 = torch.bfloat16


class Layer(nn.Module):
    """A pre-norm transformer layer."""

    def __init__(self, dim, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.qkv, self.out = nn.Linear(dim, 3 * dim), nn.Linear(dim, dim)
        self.up, self.down = nn.Linear(dim, 4 * dim), nn.Linear(4 * dim, dim)

    def forward(self, x):
        rows, length, dim = x.shape
        qkv = self.qkv(self.norm1(x)).view(rows, length, 3, self.heads, dim // self.heads)
        q, k, v = qkv.permute(2, 0, 3, 1, 4)
        seen = F.scaled_dot_product_attention(q, k, v).transpose(1, 2).reshape(x.shape)
        x = x + self.out(seen)
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Tagger(nn.Module):
    """Spectrogram frames to the sounds heard in the clip."""

    def __init__(self, bands, dim, depth, heads, sounds):
        super().__init__()
        self.stem = nn.Linear(bands, dim)
        self.layers = nn.ModuleList(Layer(dim, heads) for _ in range(depth))
        self.head = nn.Linear(dim, sounds)

    def forward(self, clips):
        x = self.stem(clips)
        for layer in self.layers:
            x = layer(x)
        return self.head(x.mean(1))


class Distiller:
    """A small student learns what a large teacher says."""

    def __init__(self, teacher, student, half_teacher):
        self.teacher, self.student = teacher.eval().requires_grad_(False), student
        self.half_teacher = half_teacher
        self.opt = torch.optim.AdamW(student.parameters(), 1e-4, fused=True)

    @torch.no_grad()
    def soft_targets(self, clips):
        with torch.autocast(DEV.type, BF16, enabled=self.half_teacher):  # PLANT
            answer = self.teacher(clips)
        return (answer.float() / 2.0).softmax(-1)

    def train_step(self, clips):
        wanted = self.soft_targets(clips)
        with torch.autocast(DEV.type, BF16):
            answer = self.student(clips)
        loss = F.kl_div((answer.float() / 2.0).log_softmax(-1), wanted, reduction="batchmean")
        self.opt.zero_grad(set_to_none=True)
        loss.backward()
        self.opt.step()
        return loss.detach()


# cause: float32 products without tensor cores: the teacher runs outside autocast, TF32 is off
@case(
    "a distillation whose student is in mixed precision while the teacher is left out of it",
    "compute",
    codes=("CP201",),
    functions=("soft_targets", "train_step"),
    plant_in="Distiller.soft_targets",
)
def g_sounds_teacher_float32(fixed):
    # Teacher forward 0.9 TFLOP: 20 ms at 50 TFLOP/s, 2 ms in bf16; the rest takes about 6 ms.
    bands, sounds = pick(128, 4), pick(520, 6)
    with DEV:
        teacher = Tagger(bands, pick(768, 8), pick(8, 2), pick(12, 2), sounds)
        student = Tagger(bands, pick(384, 8), pick(4, 1), pick(6, 2), sounds)
    clips = torch.randn(pick(16, 2), pick(512, 6), bands, device=DEV)
    distiller = Distiller(teacher, student, fixed)
    return lambda: distiller.train_step(clips)


def up_block(wide_in, wide_out):
    return nn.Sequential(
        nn.Upsample(scale_factor=2),
        nn.Conv2d(wide_in, wide_out, 3, padding=1, bias=False),
        nn.BatchNorm2d(wide_out),
        nn.ReLU(inplace=True),
    )


# cause: wasted work: the critic's backward pass also goes through the painter (no detach)
@case(
    "two players of a GAN, where the critic's loss is differentiated through the painter as well",
    "compute",
    also=("memory",),
    codes=("CP228",),
    functions=("update_critic", "update"),
)
def g_glyphs_fake_not_detached(fixed):
    # The painter costs 20 times the critic: 4.3 painter forwards are needed, 6.3 are done.
    wide, rows = pick(512, 8), pick(128, 2)
    with DEV:
        painter = nn.Sequential(
            nn.Linear(128, wide * 64),
            nn.Unflatten(1, (wide, 8, 8)),
            up_block(wide, wide),
            up_block(wide, wide // 2),
            up_block(wide // 2, wide // 4),
            nn.Conv2d(wide // 4, 1, 3, padding=1),
            nn.Tanh(),
        )
        layers, sizes = [], [1, wide // 8, wide // 4, wide // 2]
        for a, b in itertools.pairwise(sizes):
            layers += [nn.Conv2d(a, b, 4, 2, 1), nn.LeakyReLU(0.2)]
        critic = nn.Sequential(*layers, nn.Flatten(), nn.Linear(wide // 2 * 64, 1))
    painter, critic = (n.to(BF16, memory_format=torch.channels_last) for n in (painter, critic))
    opt_p, opt_c = (torch.optim.Adam(n.parameters(), 2e-4, fused=True) for n in (painter, critic))
    real = torch.rand(rows, 1, 64, 64, device=DEV, dtype=BF16)

    def update_critic():
        fake = painter(torch.randn(rows, 128, device=DEV, dtype=BF16))
        fake = fake.detach() if fixed else fake  # PLANT
        loss = F.relu(1 - critic(real)).mean() + F.relu(1 + critic(fake)).mean()
        opt_c.zero_grad()
        loss.backward()
        opt_c.step()
        return loss.detach()

    def update():
        against = update_critic()
        loss = -critic(painter(torch.randn(rows, 128, device=DEV, dtype=BF16))).mean()
        opt_p.zero_grad()
        loss.backward()
        opt_p.step()
        return loss.detach() + against

    return update


class Stage(nn.Module):
    """A residual stage of a volume net."""

    def __init__(self, wide, groups):
        super().__init__()
        self.mix = nn.Conv3d(wide, wide, 3, padding=1, groups=groups, bias=False)
        self.norm, self.point = nn.GroupNorm(8, wide), nn.Conv3d(wide, wide, 1)

    def forward(self, x):
        return x + self.point(F.relu(self.norm(self.mix(x))))


# cause: a depthwise 3D convolution (groups = channels), whose kernels use no tensor cores and
# read the volume once per tap for the gradient of the weights
@case(
    "organs segmented in volumes by depthwise convolutions that were meant to be cheap",
    "compute",
    also=("memory",),
    codes=("CP205", "CP204"),
    functions=("forward", "segment"),
)
def g_organs_depthwise(fixed):
    # Depthwise forward and backward: about 6 ms a stage; dense on tensor cores: 1 to 2 ms.
    wide, side = pick(32, 8), pick(96, 6)
    groups = 1 if fixed else wide  # PLANT
    with DEV:
        stages = [Stage(wide, groups) for _ in range(3)]
        net = nn.Sequential(nn.Conv3d(1, wide, 3, padding=1), *stages, nn.Conv3d(wide, 4, 1))
    net = net.to(BF16)
    opt = torch.optim.SGD(net.parameters(), 0.01, momentum=0.9, fused=True)
    scan = torch.randn(2, 1, side, side, side, device=DEV, dtype=BF16)
    organs = torch.randint(0, 4, (2, side, side, side), device=DEV)

    def segment():
        loss = F.cross_entropy(net(scan).float(), organs)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return segment


class Siamese(nn.Module):
    """Looks for a template in the window around the last place."""

    def __init__(self, wide):
        super().__init__()
        sizes = [3, wide, 2 * wide, 4 * wide, 4 * wide]
        self.convs = nn.ModuleList(
            nn.Conv2d(a, b, 3, 2 if k < 2 else 1, 1)
            for k, (a, b) in enumerate(itertools.pairwise(sizes))
        )

    def forward(self, window, template):
        for conv in self.convs:
            window = F.relu(conv(window))
        return torch.einsum("nchw,nc->nhw", window, template)


# cause: cudnn.benchmark with an ever new image size: every frame tries all algorithms again
@case(
    "a tracker whose search window has a new size in each frame, with cuDNN told to try all ways",
    "compute",
    also=("framework", "memory"),
    codes=("CP210",),
    functions=("locate", "forward"),
    active=3,
)
def g_ball_tuned_each_frame(fixed):
    torch.backends.cudnn.benchmark = not fixed  # PLANT
    wide, rows, low, high = pick(64, 4), pick(16, 2), pick(256, 12), pick(512, 20)
    with DEV:
        net = Siamese(wide).to(BF16).eval()
    frame = torch.rand(rows, 3, high, high, device=DEV, dtype=BF16)
    template = torch.randn(rows, 4 * wide, device=DEV, dtype=BF16)
    sizes = list(itertools.product(range(low, high, 4), repeat=2))
    random.shuffle(sizes)
    windows = itertools.cycle(sizes)

    @torch.inference_mode()
    def locate():
        high_now, wide_now = next(windows)
        found = net(frame[:, :, :high_now, :wide_now].contiguous(), template)
        return found.flatten(1).argmax(1)

    return locate


class Velocity(nn.Module):
    """The velocity field of a flow; the time is put beside the state in each layer."""

    def __init__(self, dim, depth, room):
        super().__init__()
        self.room = room
        self.layers = nn.ModuleList(nn.Linear(dim + room, dim) for _ in range(depth))

    def forward(self, x, time):
        clock = time.expand(-1, self.room)
        for layer in self.layers:
            x = x + F.silu(layer(torch.cat([x, clock], 1)))
        return x


# cause: odd inner size (2049) of all matrix products, so rows are not aligned
@case(
    "a flow between cell states with the time appended to every hidden layer as one more column",
    "compute",
    codes=("CP202",),
    functions=("forward", "match_flow"),
)
def g_cells_time_appended(fixed):
    # 18 products of 137 GFLOP: 4 ms when aligned, about 10 ms when not; the rest takes 3 ms.
    dim, rows = pick(2048, 8), pick(16384, 4)
    room = 8 if fixed else 1  # PLANT
    with DEV:
        net = Velocity(dim, pick(6, 2), room).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    early, late = torch.randn(2, rows, dim, device=DEV, dtype=BF16)

    def match_flow():
        time = torch.rand(rows, 1, device=DEV, dtype=BF16)
        loss = F.mse_loss(net(torch.lerp(early, late, time), time), late - early)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return match_flow


class Triangle(nn.Module):
    """The triangle update of a pair representation."""

    def __init__(self, wide):
        super().__init__()
        self.norm, self.after = nn.LayerNorm(wide), nn.LayerNorm(wide)
        self.sides, self.gates = nn.Linear(wide, 2 * wide), nn.Linear(wide, 2 * wide)
        self.out, self.gate = nn.Linear(wide, wide), nn.Linear(wide, wide)

    def forward(self, pair):
        z = self.norm(pair)
        a, b = (self.sides(z) * self.gates(z).sigmoid()).chunk(2, -1)
        mixed = torch.einsum("nikc,njkc->nijc", a, b)
        return pair + self.gate(z).sigmoid() * self.out(self.after(mixed))


class PairStack(nn.Module):
    def __init__(self, wide, depth, spare):
        super().__init__()
        self.blocks = nn.ModuleList(Triangle(wide) for _ in range(depth))
        self.spare = spare

    def forward(self, pair):
        for block in self.blocks:
            pair = self.through(block, pair)
        return pair

    def through(self, block, pair):
        if not self.spare:
            return block(pair)
        return checkpoint(block, pair, use_reentrant=False)  # PLANT


# cause: gradient checkpointing of every block although the activations (10 GB) would fit
@case(
    "pairs of residues folded with each block's forward pass done twice to spare memory",
    "compute",
    also=("memory",),
    codes=("CP217",),
    functions=("through", "forward", "fold"),
    plant_in="PairStack.through",
)
def g_pairs_checkpointed(fixed):
    # One forward of four passes (forward, again, two of backward) is for nothing: 1.3x.
    wide, length = pick(128, 8), pick(448, 6)
    with DEV:
        net = nn.Sequential(PairStack(wide, pick(6, 2), not fixed), nn.Linear(wide, 40)).to(BF16)
    opt = torch.optim.AdamW(net.parameters(), 1e-4, fused=True)
    pair = torch.randn(1, length, length, wide, device=DEV, dtype=BF16)
    bins = torch.randint(0, 40, (1, length, length), device=DEV)

    def fold():
        logits = net(pair)
        loss = F.cross_entropy(logits.flatten(0, 2).float(), bins.flatten())
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return fold
