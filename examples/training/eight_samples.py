"""The demo of many tutorials, as they print it and as it should be: 8 samples, windows of 4, one sample at a time.

    python examples/training/eight_samples.py

The tutorials add up four gradients and step without dividing by four: an update four times as large as that of a batch
of four. Here it diverges. The stepper divides by what it counted, and equals the batch of four.
"""

import copy

import torch
from torch import nn

import autoaccum

INPUTS = torch.tensor([[1.0, 2], [2, 1], [3, 4], [4, 3], [5, 6], [6, 5], [7, 8], [8, 7]])
LABELS = torch.tensor([[3.0], [3], [7], [7], [11], [11], [15], [15]])
WINDOW, EPOCHS = 4, 20


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, labels = batch
    return nn.functional.mse_loss(model(inputs), labels)


def as_printed(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        optimizer.zero_grad()
        for i in range(len(INPUTS)):
            loss(model, (INPUTS[i : i + 1], LABELS[i : i + 1])).backward()
            if (i + 1) % WINDOW == 0:
                optimizer.step()
                optimizer.zero_grad()


def with_the_stepper(model: nn.Module) -> None:
    plan = autoaccum.Plan.of(target_batch=WINDOW, micro_batch=1)
    step = plan.stepper(model, torch.optim.SGD(model.parameters(), lr=0.01), loss)
    for _ in range(EPOCHS):
        for start in range(0, len(INPUTS), plan.rank_batch):
            step((INPUTS[start : start + plan.rank_batch], LABELS[start : start + plan.rank_batch]))


def without_accumulation(model: nn.Module) -> None:
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for _ in range(EPOCHS):
        for start in range(0, len(INPUTS), WINDOW):
            optimizer.zero_grad()
            loss(model, (INPUTS[start : start + WINDOW], LABELS[start : start + WINDOW])).backward()
            optimizer.step()


def main() -> None:
    torch.manual_seed(0)
    fresh = nn.Linear(2, 1)
    print(f"{'before':<28} loss {loss(fresh, (INPUTS, LABELS)).item():.4g}")
    for name, train in (
        ("as the tutorials print it", as_printed),
        ("with the stepper", with_the_stepper),
        ("batches of 4, for comparison", without_accumulation),
    ):
        model = copy.deepcopy(fresh)
        train(model)
        print(f"{name:<28} loss {loss(model, (INPUTS, LABELS)).item():.4g} after {EPOCHS} epochs")


if __name__ == "__main__":
    main()
