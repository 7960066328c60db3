"""A small language model trained in float32 without tensor cores."""

from __future__ import annotations

import torch
from _clock import options, repeat
from torch import nn
from torch.nn import functional as F

WIDTH, HEADS, LAYERS, LENGTH, BATCH, WORDS = 768, 12, 6, 512, 16, 8192


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(
            nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        size, length, _ = x.shape
        parts = self.qkv(self.before(x)).view(size, length, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(*parts, is_causal=True)
        x = x + self.out(mixed.transpose(1, 2).reshape(size, length, WIDTH))
        return x + self.mlp(self.between(x))


class Language(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(WORDS, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, WORDS)

    def forward(self, words: torch.Tensor) -> torch.Tensor:
        return self.head(self.blocks(self.words(words)))


def main() -> None:
    chosen = options(__doc__ or "")
    if chosen.fixed:
        torch.set_float32_matmul_precision("high")
    model = Language().cuda()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-4, fused=True)
    words = torch.randint(WORDS, (BATCH, LENGTH + 1), device="cuda")

    def step(_: int) -> None:
        optimizer.zero_grad()
        logits = model(words[:, :-1])
        loss = F.cross_entropy(logits.flatten(0, 1), words[:, 1:].flatten())
        loss.backward()
        optimizer.step()

    repeat(step, chosen)


if __name__ == "__main__":
    main()
