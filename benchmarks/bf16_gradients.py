"""What is lost when gradients are added up in bf16: the error of the sum against float64, by the number of steps.

A small GPT in bf16; each micro-batch's gradient is added to a bf16 buffer, as training in pure bf16 does, and to a
float32 one. The error is that of the sum alone: both add the same bf16 gradients. Writes results/bf16-gradients/.

python benchmarks/bf16_gradients.py [--repeats 5]
"""

from __future__ import annotations

import argparse
from pathlib import Path
from statistics import median

import pandas as pd
import torch
from torch import nn
from torch.nn import functional

VOCABULARY, LENGTH, WIDTH = 256, 32, 64
STEPS = (2, 4, 8, 16, 32, 64, 128, 256)


def build() -> nn.Module:
    layer = nn.TransformerEncoderLayer(WIDTH, 4, 4 * WIDTH, dropout=0.0, batch_first=True, norm_first=True)
    blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), blocks, nn.Linear(WIDTH, VOCABULARY)).bfloat16()


def micro_gradient(model: nn.Module) -> torch.Tensor:
    ids = torch.randint(VOCABULARY, (2, LENGTH + 1))
    model.zero_grad()
    loss = functional.cross_entropy(model(ids[:, :-1]).flatten(0, 1), ids[:, 1:].flatten())
    torch.autograd.backward(loss)
    return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])


def errors(seed: int) -> dict[int, tuple[float, float]]:
    torch.manual_seed(seed)
    model = build()
    bf16, fp32, exact = (torch.zeros(()).to(dtype) for dtype in (torch.bfloat16, torch.float32, torch.float64))
    found = {}
    for step in range(1, max(STEPS) + 1):
        gradient = micro_gradient(model)
        bf16, fp32, exact = bf16 + gradient, fp32 + gradient.float(), exact + gradient.double()
        if step in STEPS:
            norm = exact.norm()
            found[step] = (float((bf16 - exact).norm() / norm), float((fp32 - exact).norm() / norm))
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, default=Path("results/bf16-gradients"))
    options = parser.parse_args()
    runs = [errors(seed) for seed in range(options.repeats)]
    table = pd.DataFrame(
        {
            "steps": STEPS,
            "bf16_relative_error": [median(run[steps][0] for run in runs) for steps in STEPS],
            "fp32_relative_error": [median(run[steps][1] for run in runs) for steps in STEPS],
        }
    )
    options.out.mkdir(parents=True, exist_ok=True)
    table.to_csv(options.out / "bf16-gradients.csv", index=False, float_format="%.3g")
    print(table.to_string(index=False))


if __name__ == "__main__":
    main()
