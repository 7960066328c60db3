"""A loop over the rows of a tensor, one small operator after another.

class: framework
codes: FW516 FW517
"""

import sys

import torch
from torch import nn


def discounted(rewards, gamma):
    total = torch.zeros(())
    returns = torch.zeros_like(rewards)
    for i in range(len(rewards) - 1, -1, -1):
        total = rewards[i] + gamma * total  # PLANT
        returns[i] = total
    return returns


def main():
    torch.manual_seed(0)
    policy = nn.Sequential(nn.Linear(8, 32), nn.Tanh(), nn.Linear(32, 1))
    optimizer = torch.optim.Adam(policy.parameters(), fused=True)
    states = torch.randn(400, 8)
    for step in range(int(sys.argv[1])):
        with torch.no_grad():
            target = discounted(states[:, 0], 0.99)
        optimizer.zero_grad()
        (policy(states).squeeze(1) - target).square().mean().backward()
        optimizer.step()
    print(f"trained {step + 1} steps")


if __name__ == "__main__":
    main()
