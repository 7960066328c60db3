"""Train a small image classifier: the program behind the demo traces.

python train.py --workers 0 --trace before.json.gz
"""

import argparse
import time

import numpy as np
import torch
import torch.nn.functional as F
from torch import nn
from torch.profiler import ProfilerActivity, profile, schedule
from torch.utils.data import DataLoader, Dataset


class Flowers(Dataset):
    """Synthetic photographs with a costly augmentation."""

    def __len__(self):
        return 100_000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = rng.random((3, 128, 128), dtype=np.float32)
        image = augment(image, rng)
        return torch.from_numpy(image), index % 10


def augment(image, rng):
    """Gamma, blur and colour jitter."""
    image = np.power(image, rng.uniform(0.7, 1.4))
    for axis in (1, 2):
        image = (np.roll(image, 1, axis) + image + np.roll(image, -1, axis)) / 3
    return (image * rng.uniform(0.8, 1.2, (3, 1, 1))).astype(np.float32)


def build_model():
    return nn.Sequential(
        nn.Conv2d(3, 64, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(64, 128, 3, 2, 1), nn.ReLU(),
        nn.Conv2d(128, 256, 3, 2, 1), nn.ReLU(),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(256, 10),
    )  # fmt: skip


def train_step(model, optimizer, batches, device):
    images, labels = next(batches)
    images, labels = images.to(device), labels.to(device)
    optimizer.zero_grad()
    loss = F.cross_entropy(model(images), labels)
    loss.backward()
    optimizer.step()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--workers", type=int, default=0)
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--trace", default="trace.json.gz")
    args = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    torch.manual_seed(0)
    model = build_model().to(device)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Flowers(), batch_size=args.batch, num_workers=args.workers)  # PLANT
    batches = iter(loader)

    def run(steps):
        for _ in range(steps):
            train_step(model, optimizer, batches, device)
        if device == "cuda":
            torch.cuda.synchronize()

    run(20)
    times = []
    for _ in range(3):
        start = time.perf_counter()
        run(40)
        times.append((time.perf_counter() - start) / 40 * 1e3)
    print(f"step_ms {sorted(times)[1]:.3f}")

    activities = [ProfilerActivity.CPU]
    if device == "cuda":
        activities.append(ProfilerActivity.CUDA)
    with profile(
        activities=activities,
        schedule=schedule(wait=1, warmup=2, active=3, repeat=1),
        on_trace_ready=lambda p: p.export_chrome_trace(args.trace),
        record_shapes=True,
        with_stack=True,
    ) as prof:
        for _ in range(6):
            train_step(model, optimizer, batches, device)
            prof.step()


if __name__ == "__main__":
    main()
