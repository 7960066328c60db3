"""A generator and a discriminator with an optimizer each, and statistics in plain Python.

class: framework
codes: FW517
steps: optimizer
"""

import sys

import torch
from torch import nn


def histogram(values):
    bins = [0] * 50
    for value in values:
        bins[min(int(abs(value) * 10), 49)] += 1  # PLANT
    return bins


def main():
    torch.manual_seed(0)
    generator, critic = nn.Linear(16, 32), nn.Linear(32, 1)
    first = torch.optim.SGD(generator.parameters(), lr=0.01)
    second = torch.optim.SGD(critic.parameters(), lr=0.01)
    noise, real = torch.randn(64, 16), torch.randn(64, 32)
    for step in range(int(sys.argv[1])):
        second.zero_grad()
        (critic(generator(noise).detach()).mean() - critic(real).mean()).backward()
        second.step()
        first.zero_grad()
        (-critic(generator(noise)).mean()).backward()
        first.step()
        bins = histogram(real.flatten().tolist() * 8)
    print(f"trained {step + 1} steps, {sum(bins)} values")


if __name__ == "__main__":
    main()
