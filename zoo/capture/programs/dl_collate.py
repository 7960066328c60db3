"""A collate function that pads with Python lists.

class: data_loading
codes: DL101 DL108
"""

import sys

import torch
from torch import nn
from torch.utils.data import DataLoader


def pad_batch(samples):
    longest = max(len(tokens) for tokens, _ in samples)
    rows = []
    for tokens, _ in samples:
        rows.append([*tokens, *[0] * (longest - len(tokens))])
    padded = torch.tensor(rows)  # PLANT
    return padded, torch.tensor([label for _, label in samples])


def main():
    torch.manual_seed(0)
    data = [(list(range(1, 400 + i % 100)), i % 2) for i in range(200)] * 1000
    model = nn.Sequential(nn.EmbeddingBag(600, 16), nn.Linear(16, 2))
    optimizer = torch.optim.Adagrad(model.parameters(), lr=0.01)
    loader = DataLoader(data, batch_size=32, collate_fn=pad_batch)
    for step, (ids, labels) in enumerate(loader):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(ids), labels).backward()
        optimizer.step()
        if step + 1 == int(sys.argv[1]):
            break
    print(f"trained {step + 1} steps")


if __name__ == "__main__":
    main()
