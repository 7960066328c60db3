"""Samples come from slow storage, one after another, in the main process.

class: data_loading
codes: DL101 DL108
"""

import sys
import time

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Remote(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        time.sleep(0.002)  # PLANT
        return torch.full((64,), float(index % 7)), index % 3


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 3))
    optimizer = torch.optim.Adam(model.parameters(), fused=True)
    for step, (rows, labels) in enumerate(DataLoader(Remote(), batch_size=8)):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(rows), labels).backward()
        optimizer.step()
        if step + 1 == int(sys.argv[1]):
            break
    print(f"trained {step + 1} steps")


if __name__ == "__main__":
    main()
