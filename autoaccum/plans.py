"""A plan: the answer of a probe, and where its training step begins."""

from __future__ import annotations

import html
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from typing import TYPE_CHECKING, Any, Self

from autoaccum.errors import UsageError
from autoaccum.knobs.names import of_options, words
from autoaccum.records import Evidence, Knobs, Record
from autoaccum.units import format_bytes, whole_number

if TYPE_CHECKING:
    import plotly.graph_objects as go  # noqa: TID251  (a type)
    import torch

    from autoaccum.training.stepper import Stepper
    from autoaccum.training.windows import Window


def rank_share(target_batch: int, world_size: int) -> int:
    """Give the samples of one rank; the ranks' shares are equal, or the target cannot be exact."""
    if target_batch % world_size:
        below = target_batch - target_batch % world_size
        choices = f"{below} or {below + world_size}" if below else str(world_size)
        raise UsageError(
            f"a target batch of {target_batch} cannot be shared equally by {world_size} ranks: take {choices}"
        )
    return target_batch // world_size


@dataclass(frozen=True, kw_only=True, slots=True)
class Plan(Record):
    """Micro-batches whose sum over steps and ranks is the effective batch, exactly."""

    micro_batch: int  # the largest of micro_batches
    accumulation_steps: int
    micro_batches: tuple[int, ...]  # of one rank
    world_size: int
    effective_batch: int
    peak_bytes: int | None = None
    headroom_bytes: int | None = None
    samples_per_second: float | None = None
    measured: bool = False  # this micro-batch was run; else the figures are predictions
    options: dict[str, Any] = field(default_factory=dict)  # what it asks for besides sizes: fields of Knobs
    evidence: Evidence | None = field(default=None, repr=False, compare=False, metadata={"transient": True})

    @property
    def rank_batch(self) -> int:
        """The samples that one rank processes for one update: the loader's batch size."""
        return sum(self.micro_batches)

    @property
    def even(self) -> bool:
        """Whether all micro-batches have the same size."""
        return len(set(self.micro_batches)) == 1

    @property
    def sizes(self) -> str:
        """The micro-batches in short: "64", or "2 x 52 + 8 x 51"."""
        if self.even:
            return str(self.micro_batch)
        return " + ".join(f"{len(list(same))} x {size}" for size, same in groupby(self.micro_batches))

    def __str__(self) -> str:
        """Give the plan in words: "micro-batch 64 x 8 accumulation steps = 512 with bf16 autocast"."""
        steps = f"{self.accumulation_steps} accumulation step{'s' if self.accumulation_steps > 1 else ''}"
        ranks = f" x {self.world_size} ranks" if self.world_size > 1 else ""
        options = f" with {', '.join(words(Knobs.from_dict(self.options)))}" if self.options else ""
        if self.even:
            return f"micro-batch {self.micro_batch} x {steps}{ranks} = {self.effective_batch}{options}"
        return f"micro-batches {self.sizes} in {steps}{ranks} = {self.effective_batch}{options}"

    @classmethod
    def of(
        cls, *, target_batch: int, micro_batch: int, world_size: int = 1, options: Mapping[str, Any] | None = None
    ) -> Self:
        """Give the plan of those who know their numbers; the last micro-batch takes the rest.

        `options` are those of another plan, or such as `{"precision": "bf16", "checkpoint": "all"}`.

        >>> Plan.of(target_batch=100, micro_batch=32).micro_batches
        (32, 32, 32, 4)
        """
        for name, value in (("target_batch", target_batch), ("micro_batch", micro_batch), ("world_size", world_size)):
            whole_number(name, value)
        rank_batch = rank_share(target_batch, world_size)
        whole, rest = divmod(rank_batch, micro_batch)
        micro_batches = (micro_batch,) * whole + ((rest,) if rest else ())
        return cls(
            micro_batch=micro_batches[0],
            accumulation_steps=len(micro_batches),
            micro_batches=micro_batches,
            world_size=world_size,
            effective_batch=target_batch,
            options=of_options(options or {}).options,
        )

    def prepare(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer] | None = None,
    ) -> None:
        """Turn on what `options` asks for, in place: before the model is wrapped in DDP or sharded.

        `plan.stepper` does so itself where that was not done. What is on already is left alone. Precision is no
        property of a model: `plan.stepper` computes the loss under autocast; in a loop of your own, open it there.

        >>> plan.prepare(model)
        >>> model = DistributedDataParallel(model)
        """
        from autoaccum.knobs.prepare import prepare
        from autoaccum.training.guards import as_optimizers

        prepare(of_options(self.options), model, [] if optimizer is None else as_optimizers(optimizer))

    def stepper(
        self,
        model: torch.nn.Module,
        optimizer: torch.optim.Optimizer | Sequence[torch.optim.Optimizer],
        loss: Callable[[Any, Any], Any],
        *,
        clip: float | None = None,
        scaler: torch.amp.GradScaler | None = None,
        noise_scale: bool = False,
    ) -> Stepper:
        """Give the training step: called with a rank's whole batch, it makes one exact update of it.

        `loss(model, batch)` returns a mean over the batch, or `(loss_sum, count)`. `clip` is the largest norm of the
        gradient, `scaler` a torch.amp.GradScaler; `noise_scale` has the gradient noise scale estimated. What
        `options` asks for is turned on in the model and the optimizer, as `plan.prepare` does.

        >>> step = plan.stepper(model, optimizer, loss, clip=1.0)
        >>> for batch in DataLoader(data, batch_size=plan.rank_batch):
        ...     out = step(batch)
        ...     if not out.skipped:
        ...         scheduler.step()
        """
        from autoaccum.training.stepper import Stepper

        return Stepper(
            model,
            optimizer,
            loss,
            micro_batches=self.micro_batches,
            world_size=self.world_size,
            clip=clip,
            scaler=scaler,
            noise_scale=noise_scale,
            knobs=of_options(self.options),
        )

    def windows(self, loader: Iterable[Any], *, device: torch.device | str | None = None) -> Iterator[Window]:
        """Give the windows of a loop that one call cannot serve, a GAN's or one of RL; micro-batches go to `device`.

        What `options` asks for is yours to turn on: with `plan.prepare`, and the precision with `torch.autocast`.

        >>> for window in plan.windows(DataLoader(data, batch_size=plan.rank_batch), device="cuda"):
        ...     with window.update(optimizer, clip=1.0) as update:
        ...         for batch in window:
        ...             update.backward(loss(model, batch))
        """
        from autoaccum.training.windows import windows

        if self.world_size > 1:
            raise UsageError("plan.windows is for one process: with several ranks use plan.stepper")
        return windows(loader, self.micro_batches, device)

    def plot(self) -> go.Figure:
        """Give the picture of memory that the plan rests on, as a plotly figure.

        >>> plan.plot().show()
        """
        if self.evidence is None:
            raise UsageError("this plan comes without measurements: plot one that a probe has found")
        from autoaccum.pictures.figure import memory_figure
        from autoaccum.pictures.memory import picture

        return memory_figure(picture(self.evidence))

    def _repr_html_(self) -> str:
        facts = {
            "micro-batches": ", ".join(map(str, sorted(set(self.micro_batches), reverse=True))),
            "peak": None if self.peak_bytes is None else format_bytes(self.peak_bytes),
            "headroom": None if self.headroom_bytes is None else format_bytes(self.headroom_bytes),
            "samples/s": None if self.samples_per_second is None else f"{self.samples_per_second:.4g}",
            "figures": "measured" if self.measured else "predicted" if self.peak_bytes is not None else None,
        }
        rows = "".join(f"<tr><th>{k}</th><td>{html.escape(v)}</td></tr>" for k, v in facts.items() if v is not None)
        return f"<div><b>{html.escape(str(self))}</b><table>{rows}</table></div>"
