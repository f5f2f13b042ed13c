"""A small GPT on random tokens, with a loss and an optimizer of its own."""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 4096, 128, 192, 6, 4


class Block(nn.Module):
    """Attention, then an MLP, each on a normalised residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the stream with this block's part added."""
        batch, time, _ = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, time, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).reshape(batch, time, WIDTH))
        return x + torch.as_tensor(self.mlp(self.norm2(x)))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a head over the vocabulary."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.head = nn.Linear(WIDTH, VOCABULARY, bias=False)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Give the logits of the next token at every position."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        return torch.as_tensor(self.head(self.blocks(self.tokens(ids) + self.positions(positions))))


def build_model() -> nn.Module:
    return GPT()


def make_batch(size: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.randint(VOCABULARY, (size, CONTEXT + 1))}


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch["ids"][:, :-1], batch["ids"][:, 1:]
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=3e-4, weight_decay=0.1)
