"""A workload with alterations, and which of them turned out to change nothing."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch

from autoaccum.alterations import FUSED_LOSS, SGD
from autoaccum.alterations.fused_loss import FusedLoss
from autoaccum.workload import Workload

_KEPT = ("lr", "weight_decay", "maximize", "foreach", "fused")  # of a group's options, what SGD has too


class Altered:
    """Stands between a workload and its trials, for as long as the process lasts."""

    def __init__(self, workload: Workload, names: Sequence[str]) -> None:
        self._original = workload
        self._names = names
        self._was_sgd = False
        self._loss: FusedLoss | None = None
        self._losses = 0

    def workload(self) -> Workload:
        """Give the workload with the alterations; a fused loss takes effect in the whole process."""
        altered = self._original
        if SGD in self._names:
            altered = replace(altered, build_optimizer=self._build_sgd)
        if FUSED_LOSS in self._names:
            self._loss = FusedLoss()
            altered = replace(altered, loss=self._counted)
        return altered

    def idle(self) -> dict[str, str]:
        """Give the alterations that changed nothing so far, each with the reason."""
        found = {}
        if self._was_sgd:
            found[SGD] = "the optimizer is SGD without momentum already"
        if self._loss is not None and self._losses and not self._loss.calls:
            found[FUSED_LOSS] = "the loss does not call cross_entropy with the indices of classes"
        return found

    def _build_sgd(self, model: Any) -> Any:
        built = self._original.build_optimizer(model)
        groups = getattr(built, "param_groups", None) or [{"params": list(model.parameters())}]
        self._was_sgd = isinstance(built, torch.optim.SGD) and not any(group["momentum"] for group in groups)
        return built if self._was_sgd else torch.optim.SGD([_options(group) for group in groups])

    def _counted(self, model: Any, batch: Any) -> Any:
        self._losses += 1
        return self._original.loss(model, batch)


def _options(group: dict[str, Any]) -> dict[str, Any]:
    kept = {key: group[key] for key in _KEPT if group.get(key) is not None}
    return {"params": group["params"], **kept}
