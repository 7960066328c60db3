"""Vision: classification, segmentation and detection on small convolutional nets."""

from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, Dataset

from zoo.harness import DEV, case, compiled, pick, pinned


class ConvStage(nn.Module):
    def __init__(self, cin, cout, depth, stride=2):
        super().__init__()
        layers = []
        for i in range(depth):
            layers += [
                nn.Conv2d(cin if i == 0 else cout, cout, 3, stride if i == 0 else 1, 1, bias=False),
                nn.BatchNorm2d(cout),
                nn.ReLU(),
            ]
        self.layers = nn.Sequential(*layers)

    def forward(self, x):
        return self.layers(x)


class Classifier(nn.Module):
    def __init__(self, widths, depth, classes):
        super().__init__()
        chans = [3, *widths]
        self.stages = nn.ModuleList(ConvStage(a, b, depth) for a, b in pairwise(chans))
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, x):
        for stage in self.stages:
            x = stage(x)
        return self.head(x.mean((2, 3)))


class Segmenter(nn.Module):
    def __init__(self, width, classes):
        super().__init__()
        self.body = nn.Sequential(ConvStage(3, width, 2), ConvStage(width, width, 4, stride=1))
        self.out = nn.Conv2d(width, classes, 1)

    def forward(self, x):
        return F.interpolate(self.out(self.body(x)), scale_factor=2.0)


class Photos(Dataset):
    """Decodes nothing: the photo metric distortion alone costs milliseconds a sample."""

    def __init__(self, side):
        self.side = side

    def __len__(self):
        return 1_000_000

    def __getitem__(self, i):
        rng = np.random.default_rng(i)
        image = rng.random((3, self.side, self.side), dtype=np.float32)
        image = np.power(image, rng.uniform(0.8, 1.2))
        image = (image - image.mean((1, 2), keepdims=True)) / image.std((1, 2), keepdims=True)
        return torch.from_numpy(image), i % 10


@case(
    "one loader worker for a costly augmentation",
    "data_loading",
    codes=("DL102", "DL108"),
    functions=("train_epoch_step",),
    light=True,
)
def dl_single_worker(fixed):
    model = Classifier((64, 128, 256), 2, 10).to(DEV)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    workers = 10 if fixed else 1  # PLANT
    loader = DataLoader(
        Photos(pick(224, 16)),
        pick(24, 2),
        num_workers=pick(workers, 1),
        pin_memory=DEV.type == "cuda",
    )
    stream = iter(loader)

    def train_epoch_step():
        images, labels = next(stream)
        images = images.to(DEV, non_blocking=True)
        labels = labels.to(DEV, non_blocking=True)
        opt.zero_grad()
        F.cross_entropy(model(images), labels).backward()
        opt.step()

    return train_epoch_step


@case(
    "bf16 convolutions in NCHW: cuDNN transposes around every one",
    "compute",
    also=("memory",),
    codes=("CP208",),
    functions=("forward", "fit_batch"),
)
def cp_conv_nchw(fixed):
    layout = torch.channels_last if fixed else torch.contiguous_format  # PLANT
    model = Classifier((96, 192, 384), 3, 100).to(DEV, torch.bfloat16, memory_format=layout)
    opt = torch.optim.SGD(model.parameters(), lr=0.01, fused=True)
    side = pick(224, 16)
    x = torch.randn(pick(96, 2), 3, side, side, device=DEV, dtype=torch.bfloat16)
    x = x.to(memory_format=layout)
    y = torch.randint(0, 100, (x.shape[0],), device=DEV)

    def fit_batch():
        opt.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        opt.step()

    return fit_batch


@case(
    "per-class IoU read back with .item() for every class",
    "framework",
    codes=("FW503",),
    functions=("mean_iou",),
    plant_in="mean_iou",
    light=True,
)
def fw_item_iou(fixed):
    model = Segmenter(pick(48, 4), 21).to(DEV)
    opt = torch.optim.AdamW(model.parameters(), lr=1e-3, fused=True)
    side = pick(96, 16)
    x = torch.randn(pick(8, 2), 3, side, side, device=DEV)
    y = torch.randint(0, 21, (x.shape[0], side, side), device=DEV)
    log = []

    def train_segmenter():
        opt.zero_grad()
        logits = model(x)
        F.cross_entropy(logits, y).backward()
        opt.step()
        guess = logits.detach().argmax(1)
        log.append(iou_on_device(guess, y, 21) if fixed else mean_iou(guess, y, 21))
        del log[:-1]

    return train_segmenter


def mean_iou(guess, truth, classes):
    scores = []
    for k in range(classes):
        inter = ((guess == k) & (truth == k)).sum().item()  # PLANT
        union = ((guess == k) | (truth == k)).sum().item()
        scores.append(inter / max(union, 1))
    return sum(scores) / classes


def iou_on_device(guess, truth, classes):
    pairs = torch.zeros(classes * classes, device=DEV)
    ones = torch.ones((), device=DEV).expand(guess.numel())
    pairs.index_add_(0, (truth * classes + guess).flatten(), ones)
    table = pairs.view(classes, classes)
    inter = table.diagonal()
    return (inter / (table.sum(0) + table.sum(1) - inter).clamp(min=1)).mean()


@case(
    "regions cropped and resized one box at a time",
    "framework",
    codes=("FW516",),
    functions=("crop_regions",),
    plant_in="crop_regions",
)
def fw_roi_loop(fixed):
    backbone = ConvStage(3, 32, 2).to(DEV)
    head = nn.Linear(32 * 49, 64).to(DEV)
    images = torch.randn(4, 3, pick(256, 64), pick(256, 64), device=DEV)
    rng = np.random.default_rng(0)
    corner = rng.integers(0, pick(90, 8), (pick(160, 6), 2))
    boxes = np.concatenate([corner, corner + rng.integers(8, 24, corner.shape)], 1)
    owner = rng.integers(0, 4, len(boxes))
    dev_boxes = torch.tensor(boxes, device=DEV, dtype=torch.float32)
    dev_owner = torch.tensor(owner, device=DEV)

    @torch.no_grad()
    def detect():
        maps = backbone(images)
        if fixed:
            crops = sample_regions(maps, dev_boxes, dev_owner)
        else:
            crops = crop_regions(maps, boxes, owner)
        return head(crops.flatten(1))

    return detect


def crop_regions(maps, boxes, owner):
    crops = []
    for (y0, x0, y1, x1), who in zip(boxes, owner, strict=True):
        crops.append(F.adaptive_avg_pool2d(maps[who, :, y0:y1, x0:x1], 7))  # PLANT
    return torch.stack(crops)


def sample_regions(maps, boxes, owner):
    t = torch.linspace(0, 1, 7, device=DEV)
    ys = boxes[:, 0:1] + t * (boxes[:, 2:3] - boxes[:, 0:1])
    xs = boxes[:, 1:2] + t * (boxes[:, 3:4] - boxes[:, 1:2])
    ys, xs = ys.long()[:, :, None], xs.long()[:, None, :]
    return maps.permute(0, 2, 3, 1)[owner[:, None, None], ys, xs].permute(0, 3, 1, 2).contiguous()


@case(
    "for-loop SGD over the tensors of a deep thin convnet",
    "framework",
    codes=("FW507",),
    active=3,
    functions=("sgd_batch",),
    light=True,
)
def fw_sgd_foreach_off(fixed):
    model = Classifier((16, 24, 32, 48), pick(14, 1), 10).to(DEV)
    options = {"fused": True} if fixed else {"foreach": False}  # PLANT
    opt = torch.optim.SGD(
        model.parameters(), lr=0.1, momentum=0.9, nesterov=True, weight_decay=1e-4, **options
    )
    x = torch.randn(16, 3, 64, 64, device=DEV)
    y = torch.randint(0, 10, (16,), device=DEV)

    def sgd_batch():
        opt.zero_grad()
        F.cross_entropy(model(x), y).backward()
        opt.step()

    return sgd_batch


@case(
    "classifier head with an odd number of classes (21841)",
    "compute",
    codes=("CP202",),
    functions=("finetune_head",),
)
def cp_odd_classes(fixed):
    classes = 21888 if fixed else 21841  # PLANT
    head = nn.Linear(pick(1536, 16), pick(classes, 11), bias=False).to(DEV, torch.bfloat16)
    opt = torch.optim.SGD(head.parameters(), lr=0.01, fused=True)
    feats = torch.randn(pick(4096, 4), head.in_features, device=DEV, dtype=torch.bfloat16)
    y = torch.randint(0, pick(21841, 11), (feats.shape[0],), device=DEV)
    feats.requires_grad_()

    def finetune_head():
        opt.zero_grad()
        feats.grad = None
        F.cross_entropy(head(feats), y).backward()
        opt.step()

    return finetune_head


def focal_loss(logits, target):
    p = torch.sigmoid(logits)
    ce = F.binary_cross_entropy_with_logits(logits, target, reduction="none")
    p_t = p * target + (1 - p) * (1 - target)
    alpha = 0.25 * target + 0.75 * (1 - target)
    return (alpha * (1 - p_t) ** 2 * ce).mean()  # PLANT


@case(
    "focal loss as a chain of element-wise kernels",
    "memory",
    also=("compute",),
    codes=("CP212", "MM311"),
    functions=("focal_loss",),
    plant_in="focal_loss",
)
def ew_focal_loss(fixed):
    loss_of = compiled(focal_loss) if fixed else focal_loss
    head = nn.Conv2d(16, 21, 1).to(DEV)
    side = pick(256, 8)
    x = torch.randn(pick(24, 2), 16, side, side, device=DEV)
    target = (torch.rand(x.shape[0], 21, side, side, device=DEV) > 0.9).float()

    def loss_step():
        head.zero_grad()
        loss_of(head(x), target).backward()

    return loss_step


@case(
    "pageable copies of video clips",
    "data_loading",
    also=("memory",),
    codes=("DL105",),
    functions=("train_clip",),
    light=True,
)
def h2d_pageable_clips(fixed):
    net = nn.Sequential(
        nn.Conv3d(3, 32, (3, 7, 7), (1, 4, 4), (1, 3, 3)),
        nn.ReLU(),
        nn.Conv3d(32, 64, 3, 2, 1),
        nn.ReLU(),
        nn.AdaptiveAvgPool3d(1),
        nn.Flatten(),
        nn.Linear(64, 50),
    ).to(DEV)
    opt = torch.optim.SGD(net.parameters(), lr=0.01)
    shape = (pick(12, 2), 3, pick(32, 4), pick(112, 16), pick(112, 16))
    clips = [torch.randn(shape) for _ in range(3)]
    if fixed:
        clips = [pinned(c) for c in clips]
    y = torch.randint(0, 50, (shape[0],), device=DEV)
    turn = [0]

    def train_clip():
        turn[0] += 1
        clip = clips[turn[0] % 3].to(DEV, non_blocking=fixed)  # PLANT
        opt.zero_grad()
        F.cross_entropy(net(clip), y).backward()
        opt.step()

    return train_clip
