"""Inference whose answers are turned into text by plain Python; nothing but the module is called.

class: framework
codes: FW517 IN612
steps: module
"""

import sys

import torch
from torch import nn


def describe(scores):
    lines = []
    for row in scores:
        lines.append(",".join(f"{value:.4f}" for value in row))  # PLANT
    return "\n".join(lines)


def main():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 64)).eval()
    inputs = torch.randn(256, 32)
    size = 0
    with torch.inference_mode():
        for _ in range(int(sys.argv[1])):
            size = len(describe(model(inputs).tolist()))
    print(f"answered with {size} characters")


if __name__ == "__main__":
    main()
