from __future__ import annotations

import pytest

from autoaccum import virtual
from autoaccum.errors import UsageError

GIB = 1 << 30
MIB = 1 << 20


def test_a_size_alone_takes_the_defaults() -> None:
    gpu = virtual.parse("24GiB")

    assert gpu == virtual.VirtualGpu(total_bytes=24 * GIB, context_bytes=256 * MIB, other_bytes=0)


def test_settings_follow_the_size_in_any_order() -> None:
    gpu = virtual.parse("8GiB, other=2GiB, context=512MiB")

    assert (gpu.total_bytes, gpu.context_bytes, gpu.other_bytes) == (8 * GIB, 512 * MIB, 2 * GIB)


def test_a_cudnn_workspace_can_be_set() -> None:
    assert virtual.parse("8GiB,cudnn-workspace=64MiB").cudnn_workspace_bytes == 64 * MIB


def test_the_compute_capability_and_the_multiprocessors_can_be_set() -> None:
    gpu = virtual.parse("24GiB,cc=12.0,sms=170")

    assert (gpu.capability, gpu.multiprocessors) == ("12.0", 170)


def test_simulated_time_can_be_asked_for() -> None:
    gpu = virtual.parse("8GiB,gflops=19500,kernel-ns=3000")

    assert (gpu.gflops, gpu.kernel_ns) == (19500, 3000)


def test_the_power_can_be_set() -> None:
    gpu = virtual.parse("8GiB,idle-watts=20.5,busy-watts=450")

    assert (gpu.idle_watts, gpu.busy_watts) == (20.5, 450)


def test_a_context_of_zero_is_allowed() -> None:
    assert virtual.parse("8GiB,context=0").context_bytes == 0


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "does not begin with a size"),
        ("context=512MiB", "does not begin with a size"),
        ("8GiB,", "is not a setting"),
        ("8GiB,other", "is not a setting"),
        ("8GiB,other=", "is not a setting"),
        ("8GiB,other=1GiB,other=2GiB", "sets other twice"),
        ("8GiB,othr=2GiB", "did you mean other?"),
        ("8GiB,other=8GiB", "leaves no memory"),
        ("100MiB", "leaves no memory"),
        ("8", "20GiB"),
        ("8GiB,other=2G", 'unknown unit "G"'),
        ("8GiB,gflops=fast", "is not a number"),
        ("8GiB,kernel-ns=-1", "is not a number"),
        ("8GiB,idle-watts=-5", "such as idle-watts=50"),
        ("8GiB,busy-watts=inf", "such as busy-watts=300"),
        ("8GiB,busy-watt=300", "did you mean busy-watts?"),
        ("8GiB,cc=8", '"cc=8" is not a compute capability: write one such as cc=8.6'),
        ("8GiB,cc=ampere", "is not a compute capability"),
        ("8GiB,sms=0", '"sms=0" is not a number of multiprocessors: write a whole one such as sms=80'),
        ("8GiB,sms=80.5", "is not a number of multiprocessors"),
        ("8GiB,sm=80", "did you mean sms?"),
        ("8GiB,idle-watts=400", "draws 400 W when idle and 300 W when busy"),
    ],
)
def test_a_mistake_is_answered_in_one_line(text: str, says: str) -> None:
    with pytest.raises(UsageError) as caught:
        virtual.parse(text)

    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_name_with_a_comma_is_refused_before_anything_is_built() -> None:
    with pytest.raises(UsageError, match="comma"):
        virtual.environment(virtual.VirtualGpu(total_bytes=GIB, name="one, two"))


def test_more_than_sixteen_devices_are_refused() -> None:
    with pytest.raises(UsageError, match="at most 16"):
        virtual.environment([virtual.VirtualGpu(total_bytes=GIB)] * 17)


def test_the_share_of_cudnns_workspaces_can_be_set() -> None:
    assert virtual.parse("8GiB,cudnn-share=0").cudnn_workspace_share == 0
    assert virtual.parse("8GiB").cudnn_workspace_share == virtual.DEFAULT_WORKSPACE_SHARE
