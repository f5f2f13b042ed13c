from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from autoaccum.errors import UsageError, WorkloadError
from autoaccum.workload import adamw, check_syntax, default_loss, load, split_spec
from tests.conftest import WriteWorkload


@pytest.fixture(autouse=True)
def _leave_imports_alone() -> Iterator[None]:
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def test_two_functions_are_enough(workload: WriteWorkload) -> None:
    loaded = load(str(workload()))

    assert loaded.loss is default_loss
    assert loaded.build_optimizer is adamw


def test_a_file_imports_its_neighbours_as_a_script_would(workload: WriteWorkload, tmp_path: Path) -> None:
    (tmp_path / "my_neighbour_module.py").write_text("WIDTH = 3")
    path = workload("import my_neighbour_module\ndef build_model(): return nn.Linear(my_neighbour_module.WIDTH, 1)")

    assert load(str(path)).build_model().in_features == 3


@pytest.mark.parametrize("name", ["made", "make"])
def test_a_named_workload_or_a_function_returning_one_is_taken(workload: WriteWorkload, name: str) -> None:
    path = workload("""
        import autoaccum
        made = autoaccum.Workload(build_model=build_model, make_batch=make_batch)
        def make(): return made
    """)

    assert load(f"{path}:{name}").make_batch(5)[0].shape == (5, 64)


def test_a_name_that_is_no_workload_is_an_error(workload: WriteWorkload) -> None:
    path = workload("other = 3")

    with pytest.raises(WorkloadError, match=r"neither an autoaccum\.Workload"):
        load(f"{path}:other")
    with pytest.raises(WorkloadError, match="defines no missing"):
        load(f"{path}:missing")


def test_a_missing_function_is_named(workload: WriteWorkload) -> None:
    with pytest.raises(WorkloadError, match=r"defines no build_model\(\)"):
        load(str(workload(base="def make_batch(size): ...")))


def test_a_file_of_named_workloads_tells_their_names(workload: WriteWorkload) -> None:
    path = workload("""
        import autoaccum
        small = autoaccum.Workload(build_model=build_model, make_batch=make_batch)
        del build_model
    """)

    with pytest.raises(WorkloadError, match=r"no build_model\(\); it holds small: write .*model\.py:small"):
        load(str(path))
    with pytest.raises(WorkloadError, match=r"no smal; it holds small"):
        load(f"{path}:smal")


def test_the_default_loss_needs_a_tensor_as_target() -> None:
    with pytest.raises(WorkloadError, match="the target is a list, not a tensor"):
        default_loss(torch.nn.Linear(2, 2), (torch.zeros(3, 2), [0, 1, 0]))


def test_a_function_that_is_none_is_an_error(workload: WriteWorkload) -> None:
    with pytest.raises(WorkloadError, match=r"loss in .* is not a function"):
        load(str(workload("loss = 3")))


def test_a_syntax_error_is_found_with_its_line_before_anything_runs(workload: WriteWorkload) -> None:
    with pytest.raises(WorkloadError, match=r"model\.py:\d+: syntax error"):
        check_syntax(workload("def build_model(:"))


@pytest.mark.parametrize(("spec", "words"), [("gone.py", "no file"), (".", "folder"), ("gone.py:made", "no file")])
def test_a_path_that_is_no_file_is_a_usage_error(spec: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        split_spec(spec)


def test_a_file_of_another_kind_is_a_usage_error(tmp_path: Path) -> None:
    (tmp_path / "model.txt").touch()

    with pytest.raises(UsageError, match="not a Python file"):
        split_spec(str(tmp_path / "model.txt"))


def test_the_default_optimizer_leaves_frozen_parameters_out() -> None:
    model = torch.nn.Linear(2, 2)
    model.weight.requires_grad_(False)

    assert [p is model.bias for group in adamw(model).param_groups for p in group["params"]] == [True]


def test_a_model_without_parameters_cannot_be_trained() -> None:
    with pytest.raises(WorkloadError, match="without parameters"):
        adamw(torch.nn.ReLU())


def test_the_default_loss_is_cross_entropy_for_classes() -> None:
    model, x, y = torch.nn.Linear(3, 4), torch.randn(5, 3), torch.randint(4, (5,))

    assert torch.equal(default_loss(model, (x, y)), torch.nn.functional.cross_entropy(model(x), y))


def test_the_default_loss_is_cross_entropy_over_every_token() -> None:
    model, x, y = torch.nn.Linear(3, 4), torch.randn(5, 7, 3), torch.randint(4, (5, 7))

    expected = torch.nn.functional.cross_entropy(model(x).view(35, 4), y.view(35))
    assert torch.equal(default_loss(model, (x, y)), expected)


def test_the_default_loss_is_mse_for_floats() -> None:
    model, x, y = torch.nn.Linear(3, 4), torch.randn(5, 3), torch.randn(5, 4)

    assert torch.equal(default_loss(model, [x, y]), torch.nn.functional.mse_loss(model(x), y))


def test_the_default_loss_of_a_dict_batch_is_the_models_own() -> None:
    class Own(torch.nn.Module):
        def forward(self, ids: torch.Tensor, labels: torch.Tensor) -> SimpleNamespace:
            return SimpleNamespace(loss=(ids * labels).sum())

    assert default_loss(Own(), {"ids": torch.ones(3), "labels": torch.ones(3)}) == 3


@pytest.mark.parametrize("batch", [torch.zeros(3), (torch.zeros(3),), "text"])
def test_other_batches_need_a_loss_of_ones_own(batch: object) -> None:
    with pytest.raises(WorkloadError, match=r"loss\(model, batch\) of your own"):
        default_loss(torch.nn.Identity(), batch)
