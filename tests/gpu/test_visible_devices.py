"""Several unlike devices: every figure is that of the device that torch means, however it is numbered."""

from __future__ import annotations

import pytest

from autoaccum.units import GIB, MIB
from autoaccum.virtual import VirtualGpu
from tests.conftest import Cli, WriteWorkload

from .conftest import WIDE, Rig

pytestmark = pytest.mark.gpu

SMALL = VirtualGpu(total_bytes=2 * GIB, context_bytes=128 * MIB, other_bytes=1 * GIB, name="small")
LARGE = VirtualGpu(total_bytes=6 * GIB, context_bytes=384 * MIB, other_bytes=512 * MIB, name="large")


def expected(gpu: VirtualGpu) -> dict[str, object]:
    return {
        "kind": "cuda",
        "name": gpu.name,
        "total_bytes": gpu.total_bytes,
        "free_bytes": gpu.total_bytes - gpu.other_bytes,
        "overhead_bytes": gpu.context_bytes,
        "overhead_told": True,
        "repeatable": True,
        "capability": gpu.capability,
        "multiprocessors": gpu.multiprocessors,
    }


def look(cli: Cli, device: str, **variables: str) -> tuple[str, dict[str, object]]:
    """Give the UUID of the device that `autoaccum env` finds, and the rest."""
    found = cli("env", "--device", device, "--json", **variables).report["device"]
    return found.pop("uuid"), found


@pytest.mark.parametrize(
    ("visible", "device", "gpu"),
    [("0,1", "cuda", SMALL), ("0,1", "cuda:1", LARGE), ("1", "cuda", LARGE), ("1,0", "cuda:1", SMALL)],
)
def test_an_index_counts_as_cuda_visible_devices_leaves_it(
    visible: str, device: str, gpu: VirtualGpu, cli: Cli, rig: Rig
) -> None:
    variables = rig([SMALL, LARGE], CUDA_VISIBLE_DEVICES=visible)

    _, found = look(cli, device, **variables)

    assert found == expected(gpu)


def test_devices_can_be_made_visible_by_uuid(cli: Cli, rig: Rig) -> None:
    variables = rig([SMALL, LARGE])
    small, _ = look(cli, "cuda:0", **variables)
    large, _ = look(cli, "cuda:1", **variables)
    assert small != large

    by_uuid = {**variables, "CUDA_VISIBLE_DEVICES": f"GPU-{large},GPU-{small}"}

    assert look(cli, "cuda:0", **by_uuid) == (large, expected(LARGE))
    assert look(cli, "cuda:1", **by_uuid) == (small, expected(SMALL))


def test_a_probe_of_the_second_device_keeps_to_the_second_device(cli: Cli, rig: Rig, workload: WriteWorkload) -> None:
    path = workload(
        """
        def loss(model, batch):
            assert control.used_bytes(device=0) == 1 << 30, "the first device was touched"
            return forward(model, batch)
        """,
        base=WIDE,
    )

    ran = cli("probe", path, "--target-batch", "64", "--device", "cuda:1", "--json", **rig([SMALL, LARGE]))

    assert ran.code == 0, ran.err
    assert ran.report["device"]["name"] == "large"
    assert ran.report["plan"]["peak_bytes"] > SMALL.total_bytes


def test_a_device_that_does_not_exist_is_exit_5(cli: Cli, rig: Rig, workload: WriteWorkload) -> None:
    ran = cli("probe", workload(base=WIDE), "--target-batch", "4", "--device", "cuda:7", **rig(SMALL))

    assert ran.code == 5
    assert ran.error == "error: cuda:7 does not exist: torch sees 1 (cuda:0 to cuda:0)"
