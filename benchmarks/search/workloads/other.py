"""Models with other shapes of memory: recurrent, embeddings that outweigh all else, and a plain MLP."""

from __future__ import annotations

import torch
from blank import blank, indices, tensor
from torch import nn
from torch.nn import functional

from autoaccum import Workload

_TABLES, _ROWS, _WIDTH = 26, 100_000, 64


class Speech(nn.Module):
    """Three bidirectional LSTM layers over frames."""

    def __init__(self) -> None:
        super().__init__()
        self.recurrent = nn.LSTM(80, 512, num_layers=3, batch_first=True, bidirectional=True)
        self.head = nn.Linear(1024, 256)

    def forward(self, frames: torch.Tensor) -> torch.Tensor:
        """Give scores for every frame."""
        return torch.as_tensor(self.head(self.recurrent(frames)[0]))


class Dlrm(nn.Module):
    """A recommender: tables of embeddings, their products with each other, and an MLP on top."""

    def __init__(self) -> None:
        super().__init__()
        self.tables = nn.ModuleList(nn.Embedding(_ROWS, _WIDTH) for _ in range(_TABLES))
        self.bottom = nn.Sequential(nn.Linear(13, 512), nn.ReLU(), nn.Linear(512, _WIDTH))
        pairs = (_TABLES + 1) ** 2
        self.top = nn.Sequential(
            nn.Linear(pairs, 2048), nn.ReLU(), nn.Linear(2048, 1024), nn.ReLU(), nn.Linear(1024, 1)
        )  # fmt: skip

    def forward(self, dense: torch.Tensor, sparse: torch.Tensor) -> torch.Tensor:
        """Give one score for each event of each session."""
        looked_up = [table(sparse[..., number]) for number, table in enumerate(self.tables)]
        vectors = torch.stack([self.bottom(dense), *looked_up], dim=-2)
        return torch.as_tensor(self.top((vectors @ vectors.transpose(-1, -2)).flatten(-2))).squeeze(-1)


def _mlp() -> nn.Module:
    layers = [part for _ in range(8) for part in (nn.Linear(4096, 4096), nn.GELU())]
    return nn.Sequential(nn.Linear(1024, 4096), *layers, nn.Linear(4096, 1000))


def _utterances(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor(size, 1000, 80), indices(size, 1000)


def _sessions(size: int) -> dict[str, torch.Tensor]:
    return {
        "dense": tensor(size, 256, 13),
        "sparse": indices(size, 256, _TABLES),
        "clicked": tensor(size, 256),
    }


def _clicks(model: nn.Module, batch: dict[str, torch.Tensor]) -> torch.Tensor:
    return functional.binary_cross_entropy_with_logits(model(batch["dense"], batch["sparse"]), batch["clicked"])


def _rows(size: int) -> tuple[torch.Tensor, torch.Tensor]:
    return tensor(size, 64, 1024), indices(size, 64)


def _adagrad(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.Adagrad(model.parameters(), lr=0.01)


lstm = Workload(build_model=blank(Speech), make_batch=_utterances)
dlrm = Workload(build_model=blank(Dlrm), make_batch=_sessions, loss=_clicks, build_optimizer=_adagrad)
mlp = Workload(build_model=blank(_mlp), make_batch=_rows)
