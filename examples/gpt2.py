"""GPT-2 small, 124 million parameters over 1024 tokens: more than a CPU likes to train, and quickly rehearsed.

autoaccum rehearse examples/gpt2.py --target-batch 512 --gpu l4,a100-40gb --what-if checkpoint,bf16
"""

import torch
from torch import nn
from torch.nn import functional

VOCABULARY, CONTEXT, WIDTH, HEADS, LAYERS = 50304, 1024, 768, 12, 12


class Block(nn.Module):
    """Attention, then an MLP, each on a normalised residual stream."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Give the stream with this block's part added."""
        q, k, v = self.qkv(self.norm1(x)).unflatten(-1, (3, HEADS, -1)).permute(2, 0, 3, 1, 4)
        attended = functional.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        return x + torch.as_tensor(self.mlp(self.norm2(x)))


class GPT2(nn.Module):
    """Token and position embeddings, blocks, and a head whose weights are those of the tokens."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        self.blocks = nn.Sequential(*(Block() for _ in range(LAYERS)))
        self.norm, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        self.head.weight = self.tokens.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Give the logits of the next token at every position."""
        positions = torch.arange(ids.shape[1], device=ids.device)
        return torch.as_tensor(self.head(self.norm(self.blocks(self.tokens(ids) + self.positions(positions)))))


def build_model() -> nn.Module:
    return GPT2()


def make_batch(size: int) -> dict[str, torch.Tensor]:
    return {"ids": torch.randint(VOCABULARY, (size, CONTEXT + 1))}


def loss(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    inputs, targets = batch["ids"][:, :-1], batch["ids"][:, 1:]
    return functional.cross_entropy(model(inputs).flatten(0, 1), targets.flatten())


def build_optimizer(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=6e-4, betas=(0.9, 0.95), weight_decay=0.1)
