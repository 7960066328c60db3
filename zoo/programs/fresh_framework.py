"""Training that the host, Python or the compiler slows down; one mistake each."""

from collections import defaultdict

import torch
import torch.nn.functional as F
from torch import nn

from zoo.harness import DEV, case, compiled, pick
from zoo.programs.fresh_parts import BF16, adamw, conv, mixed, trunk


def log_each(net, _):
    strengths = defaultdict(float)
    for name, p in net.named_parameters():
        strengths[name] += float(p.grad.norm())  # PLANT
    return strengths


def log_together(net, total):
    total.add_(torch.stack(torch._foreach_norm([p.grad for p in net.parameters()])))
    return total  # goes to the host once in an epoch


@case(
    "the gradient norm of every parameter brought to the host for the log",
    "framework",
    codes=("FW503",),
    functions=("log_each", "learn_roads"),
    plant_in="log_each",
)
def f_roads_norms_logged(fixed):
    wide, tasks = pick(48, 4), pick(5, 2)
    with DEV:
        layers = [conv(3, wide, 2), conv(wide, wide, 2), conv(wide, 2 * wide, 2)]
        layers += [conv(2 * wide, 2 * wide) for _ in range(pick(5, 1))]
        heads = [nn.Sequential(conv(2 * wide, wide), nn.Conv2d(wide, 4, 1)) for _ in range(tasks)]
        net = nn.ModuleList([nn.Sequential(*layers), *heads])
    net = net.to(memory_format=torch.channels_last)
    opt = adamw(net)
    views = torch.randn(pick(8, 2), 3, pick(256, 16), pick(512, 32), device=DEV)
    views = views.to(memory_format=torch.channels_last)
    truths = torch.randint(0, 4, (tasks, len(views), *(n // 8 for n in views.shape[2:])))
    truths = truths.to(DEV)
    total = torch.zeros(len(list(net.parameters())), device=DEV)
    log = log_together if fixed else log_each

    def learn_roads():
        with mixed():
            x = net[0](views)
            losses = [F.cross_entropy(h(x), t) for h, t in zip(net[1:], truths, strict=True)]
        loss = sum(losses)
        opt.zero_grad()
        loss.backward()
        log(net, total)
        opt.step()
        return loss.detach()

    return learn_roads


@case(
    "a deep model of demand whose optimiser updates one tensor after another",
    "framework",
    codes=("FW507", "CP227"),
    functions=("learn_demand",),
)
def f_demand_optimizer_loop(fixed):
    dim, shops = pick(256, 8), pick(64, 2)
    with DEV:
        net = nn.ModuleList(
            [nn.Linear(12, dim), trunk(dim, pick(4, 1), pick(16, 2)), nn.Linear(dim, 1)]
        )
    kind = {"fused": True} if fixed else {"fused": False, "foreach": False}
    opt = adamw(net, **kind)  # PLANT
    weeks = torch.randn(shops, pick(104, 8), 12, device=DEV)
    sold = torch.randn(shops, weeks.shape[1], device=DEV)

    def learn_demand():
        with mixed():
            guess = net[2](net[1](net[0](weeks))).squeeze(-1)
        loss = F.smooth_l1_loss(guess.float(), sold)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    return learn_demand


def step_by_step(lstm, x):
    """A recurrent layer written out over time."""
    w_in, w_state, b_in, b_state = lstm.all_weights[0]
    h = c = x.new_zeros(len(x), lstm.hidden_size)
    states = []
    for now in x.unbind(1):
        gates = F.linear(now, w_in, b_in) + F.linear(h, w_state, b_state)  # PLANT
        let_in, keep, new, show = gates.chunk(4, -1)
        c = keep.sigmoid() * c + let_in.sigmoid() * new.tanh()
        h = show.sigmoid() * c.tanh()
        states.append(h)
    return torch.stack(states, 1)


@case(
    "the hours of patients run through an LSTM written as a Python loop",
    "framework",
    codes=("FW516", "FW501", "FW502", "CP214"),
    functions=("step_by_step", "foresee_sepsis"),
    plant_in="step_by_step",
)
def f_sepsis_lstm_loop(fixed):
    dim, hours = pick(384, 8), pick(40, 5)
    with DEV:
        stem = nn.Sequential(nn.Linear(48, dim), nn.GELU(), nn.Linear(dim, dim))
        lstm, head = nn.LSTM(dim, dim, batch_first=True), nn.Linear(dim, 1)
    net = nn.ModuleList([stem, lstm, head])
    opt = adamw(net)
    signs = torch.randn(pick(512, 3), hours, 48, device=DEV)
    sick = torch.randint(0, 2, signs.shape[:2], device=DEV).float()

    def foresee_sepsis():
        x = stem(signs)
        x = lstm(x)[0] if fixed else step_by_step(lstm, x)
        loss = F.binary_cross_entropy_with_logits(head(x).squeeze(-1), sick)
        opt.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        opt.step()
        return loss.detach()

    return foresee_sepsis


class Poles(nn.Module):
    """Many poles on carts; the wind grows with the number of steps made."""

    def __init__(self, count_on_device):
        super().__init__()
        if count_on_device:
            self.register_buffer("steps", torch.zeros((), device=DEV))
        else:
            self.steps = 0

    def forward(self, place, speed, tilt, turn, push):
        self.steps += 1  # PLANT
        wind = 0.3 * self.steps / 100_000
        for _ in range(4):
            sine, cosine = tilt.sin(), tilt.cos()
            force = (10.0 * push + wind + 0.05 * turn.square() * sine) / 1.1
            swing = (9.8 * sine - cosine * force) / (0.5 * (4 / 3 - 0.09 * cosine.square()))
            gain = force - 0.045 * swing * cosine
            place, speed = place + 0.005 * speed, speed + 0.005 * gain
            tilt, turn = tilt + 0.005 * turn, turn + 0.005 * swing
        return place.clamp(-2.4, 2.4), speed, tilt.clamp(-0.2, 0.2), turn


@case(
    "a compiled simulation that counts its steps in a Python number and is compiled anew for each",
    "framework",
    codes=("FW511", "FW512"),
    functions=("forward", "play"),
    plant_in="Poles.forward",
)
def f_poles_recompiled(fixed):
    games, dim = pick(8192, 4), pick(128, 8)
    with DEV:
        policy = nn.Sequential(nn.Linear(4, dim), nn.Tanh(), nn.Linear(dim, 1), nn.Tanh())
    poles = Poles(fixed)
    advance = compiled(poles)
    state = [0.01 * torch.randn(games, device=DEV) for _ in range(4)]

    @torch.no_grad()
    def play():
        now, reward = state, 0.0
        for _ in range(pick(16, 2)):
            push = policy(torch.stack(now, -1)).squeeze(-1)
            now = advance(*now, push)
            reward = reward + now[2].cos().mean()
        return reward

    for _ in range(2):
        play()  # every compilation happens here
    return play


class Layer(nn.Module):
    """A layer of a stand-in for a heat solver that keeps its values within bounds."""

    def __init__(self, dim, on_device):
        super().__init__()
        self.norm, self.up, self.down = nn.LayerNorm(dim), nn.Linear(dim, dim), nn.Linear(dim, dim)
        self.on_device, self.limit = on_device, 4.0

    def forward(self, x):
        x = x + self.down(F.gelu(self.up(self.norm(x))))
        peak = x.detach().abs().amax()
        if self.on_device:
            return x * (self.limit / peak).clamp(max=1.0)
        if peak.item() > self.limit:  # PLANT
            x = x * (self.limit / peak)
        return x


@case(
    "a compiled solver whose layers each ask the host whether a value is too large",
    "framework",
    codes=("FW510", "FW503"),
    functions=("forward", "learn_heat"),
    plant_in="Layer.forward",
)
def f_heat_graph_breaks(fixed):
    dim = pick(512, 8)
    with DEV:
        net = nn.Sequential(*(Layer(dim, fixed) for _ in range(pick(6, 2)))).to(BF16)
    opt = adamw(net)
    model = compiled(net)
    before = torch.randn(pick(2048, 8), dim, device=DEV, dtype=BF16)
    after = torch.randn_like(before)

    def learn_heat():
        loss = F.mse_loss(model(before), after)
        opt.zero_grad()
        loss.backward()
        opt.step()
        return loss.detach()

    for _ in range(2):
        learn_heat()
    return learn_heat
