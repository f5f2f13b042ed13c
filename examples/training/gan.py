"""A GAN: two players, two optimizers, and windows where one call of a step cannot serve.

    python examples/training/gan.py

Each window is walked through twice, once for each player. Both updates are divided by what they counted, as if the
window had been one batch.
"""

import torch
from torch import nn
from torch.nn import functional

import autoaccum

NOISE = 4


def real_points(size: int) -> torch.Tensor:
    """Give points around a circle."""
    angle = 6.2832 * torch.rand(size)
    return torch.stack([angle.cos(), angle.sin()], dim=1) + 0.05 * torch.randn(size, 2)


def judged(critic: nn.Module, points: torch.Tensor, *, real: bool) -> torch.Tensor:
    verdict = critic(points)
    return functional.binary_cross_entropy_with_logits(verdict, torch.full_like(verdict, float(real)))


def main() -> None:
    torch.manual_seed(0)
    torch.set_num_threads(1)  # these networks are too small to share
    generator = nn.Sequential(nn.Linear(NOISE, 64), nn.ReLU(), nn.Linear(64, 2))
    critic = nn.Sequential(nn.Linear(2, 64), nn.LeakyReLU(0.2), nn.Linear(64, 1))
    generator_step = torch.optim.Adam(generator.parameters(), lr=1e-3, betas=(0.5, 0.999))
    critic_step = torch.optim.Adam(critic.parameters(), lr=1e-3, betas=(0.5, 0.999))

    plan = autoaccum.Plan.of(target_batch=256, micro_batch=96)  # 96 + 96 + 64
    loader = (real_points(plan.rank_batch) for _ in range(601))
    for number, window in enumerate(plan.windows(loader)):
        with window.update(critic_step) as critic_update:
            for points in window:
                made = generator(torch.randn(len(points), NOISE)).detach()
                critic_update.backward(judged(critic, points, real=True) + judged(critic, made, real=False))
        with window.update(generator_step, clip=1.0) as generator_update:
            for points in window:
                made = generator(torch.randn(len(points), NOISE))
                generator_update.backward(judged(critic, made, real=True))
        if number % 200 == 0 and critic_update.result is not None and generator_update.result is not None:
            with torch.no_grad():
                radius = generator(torch.randn(1000, NOISE)).norm(dim=1)
            print(
                f"update {number:>4}  critic {critic_update.result.loss:.3f}  "
                f"generator {generator_update.result.loss:.3f}  "
                f"radius of what it makes {radius.mean():.2f} +- {radius.std():.2f}"
            )


if __name__ == "__main__":
    main()
