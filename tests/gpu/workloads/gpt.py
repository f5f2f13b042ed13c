"""A small GPT in fp32, with AdamW."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 8192, 256, 128, 4, 3


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + torch.as_tensor(self.mlp(self.norm2(x)))


def build_model() -> nn.Module:
    return nn.Sequential(
        nn.Embedding(VOCABULARY, WIDTH),
        *(Block() for _ in range(LAYERS)),
        nn.Linear(WIDTH, VOCABULARY, bias=False),
    )


def make_batch(size: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.zeros(size, CONTEXT + 1, dtype=torch.long)}


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch["ids"][:, :-1], batch["ids"][:, 1:]
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4)
