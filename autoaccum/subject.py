"""A workload's file as the subject of trials: built at the first one, kept for the next ones."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from autoaccum.alterations.apply import Altered
from autoaccum.batch import check_rows
from autoaccum.device import Device
from autoaccum.device.placing import build_on
from autoaccum.device.virtual import VirtualDevice
from autoaccum.errors import WorkloadError
from autoaccum.generators import seed_all
from autoaccum.parts import Parts, model_info
from autoaccum.records import ModelInfo
from autoaccum.workload import Workload, load, split_spec


class FileSubject:
    """The model and the optimizer of "FILE.py[:NAME]", in the process that this file has for itself."""

    catches_interrupts = True

    def __init__(self, spec: str, device: Device, seed: int, alterations: Sequence[str] = ()) -> None:
        self.doing = ""
        self._model_info: ModelInfo | None = None
        self._device = device
        self._spec = spec
        self.path = split_spec(spec)[0]
        self._file = str(self.path.resolve())  # the workload may change the folder it runs in
        self._seed = seed
        self._alterations = alterations
        self._altered: Altered | None = None
        self._workload: Workload | None = None
        self._model: torch.nn.Module | None = None
        self._optimizer: Any = None

    def parts(self) -> Parts:
        """Give what the file builds; the model once, the optimizer anew after a failure."""
        if self._workload is None:
            self.doing = "loading the file"
            self.begin()
            self._altered = Altered(load(self._spec), self._alterations)
            self._workload = self._altered.workload()
        if self._model is None:
            self._model = self._build_model(self._workload)
        if self._optimizer is None:
            self.doing = "build_optimizer(model)"
            self._optimizer = self._workload.build_optimizer(self._model)
            if not callable(getattr(self._optimizer, "step", None)):
                raise WorkloadError(f"build_optimizer(model) returned {type(self._optimizer).__name__}, no optimizer")
        parts = Parts(
            model=self._model,
            optimizers=(self._optimizer,),
            make_batch=partial(_make_batch, self._workload),
            loss=self._workload.loss,
        )
        if self._model_info is None:
            self._model_info = model_info(parts)
        return parts

    def take_stock(self) -> ModelInfo | None:
        """Give the facts of what was built: after an update that went well, with the optimizer's state."""
        if self._optimizer is not None and self._model_info is not None:
            self._model_info = model_info(self.parts())
        return self._model_info

    def idle_alterations(self) -> dict[str, str]:
        """Give the alterations that changed nothing so far, each with the reason."""
        return {} if self._altered is None else self._altered.idle()

    def begin(self) -> None:
        """Seed every generator, so that each trial sees the same."""
        seed_all(self._seed)

    def discard(self) -> None:
        """Drop the gradients, and the optimizer with its half-made state."""
        if self._model is not None:
            self._model.zero_grad(set_to_none=True)
        self._optimizer = None

    def place(self, error: BaseException) -> str | None:
        """Give the last line of the file that the error came through."""
        frames = [frame for frame in traceback.extract_tb(error.__traceback__) if frame.filename == self._file]
        return f"{self.path}:{frames[-1].lineno} in {frames[-1].name}" if frames else None

    def _build_model(self, workload: Workload) -> torch.nn.Module:
        self.doing = "build_model()"
        model = self._built(workload)
        if not isinstance(model, torch.nn.Module):
            raise WorkloadError(f"build_model() returned {type(model).__name__}, not a torch.nn.Module")
        self.doing = "moving the model to the device"
        model = model.to(self._device.torch_device)
        if not model.training:  # else a part that was put into eval mode on purpose would leave it
            model.train()
        return model

    def _built(self, workload: Workload) -> Any:
        if not isinstance(self._device, VirtualDevice):
            return workload.build_model()
        return build_on(self._device, workload.build_model, self.begin)


def _make_batch(workload: Workload, size: int) -> Any:
    batch = workload.make_batch(size)
    check_rows(batch, size)
    return batch
