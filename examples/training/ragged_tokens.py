"""A GPT on sequences of many lengths, whose loss is a mean over tokens; and what the usual loop makes of it.

    python examples/training/ragged_tokens.py
    autoaccum verify examples/training/ragged_tokens.py
    autoaccum verify examples/training/ragged_tokens.py:wrong

A mean over the tokens of each micro-batch gives short sequences in a small micro-batch the weight of many. Return the
sum and the count, and the stepper divides by the tokens of the whole window, however it was split.
"""

import torch
from torch import nn
from torch.nn import functional

import autoaccum

VOCABULARY, LENGTH, WIDTH, IGNORED = 64, 24, 32, -100
Batch = dict[str, torch.Tensor]


class Gpt(nn.Module):
    """Token and position embeddings, two causal blocks, a head."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(LENGTH, WIDTH)
        layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(WIDTH, VOCABULARY)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        """Give the logits of the next token at every position."""
        mask = nn.Transformer.generate_square_subsequent_mask(ids.shape[1], device=ids.device)
        hidden = self.tokens(ids) + self.positions(torch.arange(ids.shape[1], device=ids.device))
        return torch.as_tensor(self.head(self.blocks(hidden, mask=mask.to(hidden.dtype), is_causal=True)))


def build_model() -> nn.Module:
    return Gpt()


def make_batch(size: int) -> Batch:
    """Give counting sequences of 4 to LENGTH tokens; what lies behind their end has the label IGNORED."""
    start, stride = torch.randint(VOCABULARY, (size, 1)), torch.randint(1, 4, (size, 1))
    ids = (start + stride * torch.arange(LENGTH + 1)) % VOCABULARY
    ends = torch.randint(4, LENGTH + 1, (size, 1))
    return {"ids": ids[:, :-1], "labels": torch.where(torch.arange(LENGTH) < ends, ids[:, 1:], IGNORED)}


def loss(model: nn.Module, batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    logits, labels = model(batch["ids"]).flatten(0, 1), batch["labels"].flatten()
    loss_sum = functional.cross_entropy(logits, labels, ignore_index=IGNORED, reduction="sum")
    return loss_sum, (labels != IGNORED).sum()


def mean_of_each_micro_batch(model: nn.Module, batch: Batch) -> torch.Tensor:
    loss_sum, count = loss(model, batch)
    return loss_sum / count


wrong = autoaccum.Workload(build_model=build_model, make_batch=make_batch, loss=mean_of_each_micro_batch)


def main() -> None:
    torch.manual_seed(0)
    plan = autoaccum.Plan.of(target_batch=32, micro_batch=12)  # 12 + 12 + 8
    model = build_model()
    step = plan.stepper(model, torch.optim.AdamW(model.parameters(), lr=3e-3), loss, clip=1.0)
    for update in range(61):
        out = step(make_batch(plan.rank_batch))
        if update % 20 == 0:
            print(f"update {update:>2}  loss {out.loss:.3f} over {out.count} tokens  gradient norm {out.grad_norm:.2f}")
    verdicts = (autoaccum.verify(model, each, make_batch) for each in (loss, mean_of_each_micro_batch))
    for verdict in verdicts:
        print(verdict.sentence)


if __name__ == "__main__":
    main()
