"""A data set that decodes in the main process.

class: data_loading
codes: DL101 DL108
"""

import sys

import numpy as np
import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


class Pictures(Dataset):
    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        rng = np.random.default_rng(index)
        image = rng.random((3, 48, 48), dtype=np.float32)
        for _ in range(40):
            image = np.sort(image * 0.9 + 0.1, axis=1)  # PLANT
        return torch.from_numpy(image), index % 10


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Flatten(), nn.Linear(3 * 48 * 48, 32), nn.ReLU(), nn.Linear(32, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step, (images, labels) in enumerate(DataLoader(Pictures(), batch_size=8)):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(images), labels)
        loss.backward()
        optimizer.step()
        if step + 1 == int(sys.argv[1]):
            break
    print(f"trained {step + 1} steps")
    sys.exit(3)


if __name__ == "__main__":
    main()
