"""Mixed precision with gradient scaling, clipping and a learning-rate schedule, on a GPU if there is one.

    python examples/training/mixed_precision.py

One call of the step is one update: it unscales once, clips once, steps once. The schedule counts updates, not
micro-batches, and not the updates that the scaler skipped because of an overflow.
"""

import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset

import autoaccum

DEVICE = "cuda" if torch.cuda.is_available() else "cpu"
EPOCHS = 3


def loss(model: nn.Module, batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
    inputs, labels = batch
    with torch.autocast(DEVICE, dtype=torch.float16):
        return functional.cross_entropy(model(inputs), labels)


def main() -> None:
    torch.manual_seed(0)
    inputs = torch.randn(1000, 32)
    data = TensorDataset(inputs, (inputs[:, :4].sum(1) > 0).long())
    plan = autoaccum.Plan.of(target_batch=128, micro_batch=48)  # 48 + 48 + 32
    loader = DataLoader(data, batch_size=plan.rank_batch, shuffle=True)  # the last batch has 104: no matter

    model = nn.Sequential(nn.Linear(32, 64), nn.GELU(), nn.Linear(64, 2)).to(DEVICE)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, T_max=EPOCHS * len(loader))
    scaler = torch.amp.GradScaler(DEVICE, init_scale=2.0**24)  # too much at first: it finds its way down
    step = plan.stepper(model, optimizer, loss, clip=1.0, scaler=scaler)

    for epoch in range(EPOCHS):
        skipped = 0
        for batch in loader:
            out = step(batch)
            skipped += out.skipped
            if not out.skipped:
                scheduler.step()
        rate = scheduler.get_last_lr()[0]
        print(f"epoch {epoch}  loss {out.loss:.3f}  skipped {skipped}  scale {scaler.get_scale():g}  rate {rate:.2e}")


if __name__ == "__main__":
    main()
