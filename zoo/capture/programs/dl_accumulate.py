"""Gradient accumulation over four batches: the step is the optimizer's, not the loader's.

class: data_loading
codes: DL101 DL108
steps: optimizer
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Spectra(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        wave = np.sin(np.arange(4096, dtype=np.float64) * (1 + index % 9))
        return torch.from_numpy(smooth(wave)[:128].astype(np.float32)), index % 4


def smooth(wave):
    for width in range(2, 14):
        wave = np.convolve(wave, np.ones(width) / width, mode="same")  # PLANT
    return wave


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(128, 64), nn.Tanh(), nn.Linear(64, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    done = 0
    for turn, (waves, labels) in enumerate(DataLoader(Spectra(), batch_size=4)):
        nn.functional.cross_entropy(model(waves), labels).backward()
        if turn % 4 == 3:
            optimizer.step()
            optimizer.zero_grad()
            done += 1
            if done == int(sys.argv[1]):
                break
    print(f"trained {done} steps")


if __name__ == "__main__":
    main()
