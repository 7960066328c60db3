"""A custom loop without optimizer or loader that says where its steps are.

class: framework
codes: FW516 FW517
steps: user
"""

import sys

import torch

import kinetoscope


def relax(grid):
    for row in range(1, 60):
        grid[row] = (grid[row - 1] + grid[row + 1]) / 2  # PLANT
    return grid


def main():
    torch.manual_seed(0)
    grid = torch.rand(64, 64)
    for _ in range(int(sys.argv[1])):
        grid = relax(grid)
        kinetoscope.step()
    print(f"relaxed, {grid.shape}")


if __name__ == "__main__":
    main()
