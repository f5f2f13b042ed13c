"""Models are built on the virtual GPU, so that they may be larger than the host; all else is as if they were not."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from autoaccum.isolate import Worker, WorkerSpec
from autoaccum.records import Outcome, Trial
from autoaccum.units import GIB, MIB
from autoaccum.virtual import VirtualGpu
from tests.conftest import WriteWorkload

from .conftest import Rig, StartWorker

pytestmark = pytest.mark.gpu

# Llama-2-7B, as its configuration has it.
LLAMA = """
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    def build_model():
        config = LlamaConfig(
            vocab_size=32000, hidden_size=4096, intermediate_size=11008, num_hidden_layers=32, num_attention_heads=32
        )
        return LlamaForCausalLM(config)

    def make_batch(size):
        tokens = torch.randint(32000, (size, 256))
        return {"input_ids": tokens, "labels": tokens}
"""
# One of 16 GiB.
LINEAR = """
    import torch

    def build_model():
        return torch.nn.Linear(65536, 65536)

    def make_batch(size):
        return torch.randn(size, 65536), torch.randn(size, 65536)
"""
# What constructors do with parameters, of each one.
ASSORTED = """
    import copy, torch
    from torch import nn
    from torch.nn.utils import parametrizations

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.start = nn.Parameter(torch.zeros(1, 1, 64))
            self.words = nn.Embedding(1000, 64)
            self.encoder = nn.TransformerEncoder(nn.TransformerEncoderLayer(64, 4, batch_first=True), 3)
            self.recurrent = nn.LSTM(64, 64, 2, bidirectional=True, batch_first=True)
            self.normed = parametrizations.weight_norm(nn.Linear(128, 256))
            self.lazy = nn.LazyLinear(64)
            self.lazy(torch.zeros(1, 256))
            with torch.device("meta"):
                empty = nn.Linear(64, 64)
            self.emptied = empty.to_empty(device="cpu")
            self.loaded = copy.deepcopy(self.emptied)
            self.loaded.load_state_dict(self.emptied.state_dict())
            self.moved = nn.Linear(64, 64).to("cuda")
            self.rounded = nn.Linear(64, 64).to(torch.bfloat16).float()
            self.out = nn.Linear(64, 1000, bias=False)
            self.out.weight = self.words.weight
            self.register_buffer("scale", self.words.weight.detach().norm(dim=0))
            self.drop = nn.Dropout([rate for rate in torch.linspace(0, 0.5, 3).tolist() if rate > 0.25][0])
            nn.Linear(4096, 4096)  # and is given up: more than training takes

        def forward(self, tokens):
            x = self.start + self.words(tokens)
            x = self.normed(self.recurrent(self.encoder(x))[0])
            x = self.rounded(self.moved(self.loaded(self.emptied(self.lazy(x)))))
            return self.out(self.drop(x * self.scale))

    def build_model():
        return Net()

    def make_batch(size):
        tokens = torch.randint(1000, (size, 32))
        return tokens, tokens
"""
# A constructor that takes a parameter for a tensor of the host, as one that runs itself once does.
OF_THE_HOST = """
    import torch
    from torch import nn

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.features = nn.Conv2d(3, 8, 3)
            self.out = nn.Linear(self.features(torch.zeros(1, 3, 8, 8)).numel(), 10)

        def forward(self, images):
            return self.out(self.features(images).flatten(1))

    def build_model():
        return Net()

    def make_batch(size):
        return torch.randn(size, 3, 8, 8), torch.randint(10, (size,))

    def loss(model, batch):
        assert not nn.Linear(2, 2).weight.is_cuda  # once the model is built, modules are built as ever
        return nn.functional.cross_entropy(model(batch[0]), batch[1])
"""


def peak_of_the_host(worker: Worker) -> int:
    status = Path(f"/proc/{worker._process.pid}/status").read_text()
    found = re.search(r"VmHWM:\s+(\d+) kB", status)
    assert found is not None
    return int(found[1]) << 10


def peaks(worker: Worker) -> list[tuple[int | None, int | None]]:
    """The bytes of two trials, the first of which builds the model."""
    samples = [worker.run(0, Trial(micro_batch=size), smaller_ran=False).sample for size in (2, 16)]
    assert all(sample.ok for sample in samples), samples
    return [(sample.peak_allocated_bytes, sample.peak_reserved_bytes) for sample in samples]


def test_a_model_of_seven_billion_parameters_trains_and_the_host_hardly_notices(
    workload: WriteWorkload, start_on: StartWorker
) -> None:
    worker = start_on("virtual:200GiB", workload(base=LLAMA))

    answer = worker.run(0, Trial(micro_batch=1), smaller_ran=False)

    assert answer.sample.ok, answer.sample.message
    assert answer.model is not None
    assert (answer.model.parameters, answer.model.optimizer) == (6_738_415_616, "AdamW")
    assert answer.sample.peak_allocated_bytes is not None
    assert answer.sample.peak_allocated_bytes > 4 * 4 * answer.model.parameters
    assert peak_of_the_host(worker) < 2.5 * GIB


def test_a_model_that_does_not_fit_runs_out_as_it_is_moved(workload: WriteWorkload, start_on: StartWorker) -> None:
    worker = start_on("virtual:8GiB", workload(base=LINEAR))

    sample = worker.run(0, Trial(micro_batch=1), smaller_ran=False).sample

    assert sample.outcome is Outcome.OOM
    assert sample.message.startswith("out of memory in moving the model to the device")
    assert peak_of_the_host(worker) < 2.5 * GIB


@pytest.mark.parametrize(("base", "said"), [(ASSORTED, 0), (OF_THE_HOST, 1)])
def test_trials_are_the_same_to_the_byte_as_with_a_model_built_on_the_host(
    base: str, said: int, workload: WriteWorkload, start_on: StartWorker, rig: Rig
) -> None:
    path, limit, printed = workload(base=base), 1000 * MIB, list[bytes]()
    ordinary = start_on("cuda", path, limit, rig(VirtualGpu(total_bytes=GIB)))
    spec = WorkerSpec(device="virtual:1GiB", workload=str(path), limit_bytes=limit)

    with Worker(spec, timeout_seconds=60.0, echo=printed.append) as worker:
        found = peaks(worker)

    assert found == peaks(ordinary)
    assert b"".join(printed).count(b"build_model() does not run on the virtual GPU, and is run on the host: ") == said
