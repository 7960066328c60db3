"""Two workers that cannot keep up: a tokenizer that goes character by character.

class: data_loading
codes: DL102
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader, Dataset


def encode(text, table):
    ids = []
    for char in text:
        ids.append(table.get(char.lower(), 0))  # PLANT
    return ids[-64:]


class Reviews(Dataset):
    def __init__(self):
        self.text = "It was the best of films, it was the worst of films. " * 400
        self.table = {char: i + 1 for i, char in enumerate("abcdefghijklmnopqrstuvwxyz ,.")}

    def __len__(self):
        return 1_000_000

    def __getitem__(self, index):
        return torch.tensor(encode(self.text, self.table)), index % 2


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.EmbeddingBag(32, 16), nn.Linear(16, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    loader = DataLoader(Reviews(), batch_size=8, num_workers=2)
    for step, (ids, labels) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), labels).backward()
        optimizer.step()
        if step + 1 == int(sys.argv[1]):
            break
    print(f"trained {step + 1} steps")


if __name__ == "__main__":
    main()
