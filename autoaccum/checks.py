"""What can be seen to be wrong with a request before anything is started for it."""

from __future__ import annotations

import hashlib
from dataclasses import replace
from pathlib import Path
from typing import Any

from autoaccum import device as devices
from autoaccum.errors import UsageError
from autoaccum.knobs.names import parse_allow
from autoaccum.outputs import check_file
from autoaccum.plans import rank_share
from autoaccum.records import Request
from autoaccum.solve import SPLITS
from autoaccum.tuning.results import OBJECTIVES
from autoaccum.units import choice, parse_budget, whole_number
from autoaccum.workload import check_syntax, split_spec


def check(request: Request) -> Request:
    """Give the request with its file's digest, or raise for what is wrong."""
    whole_number("--target-batch", request.target_batch)
    whole_number("--world-size", request.world_size)
    if request.reference_batch is not None:
        whole_number("--reference-batch", request.reference_batch)
    whole_number("--tune-trials", request.tune_trials, least=0)
    choice("split", request.split, SPLITS)
    choice("objective", request.objective, OBJECTIVES)
    _seconds("--timeout", request.timeout)
    if isinstance(request.tune_seconds, str) or not 0 <= request.tune_seconds < float("inf"):
        raise UsageError(f"--tune-seconds must be a number of seconds, 0 or more, not {request.tune_seconds}")
    if not 0 <= request.seed < 2**63:
        raise UsageError(f"--seed must be between 0 and 2**63 - 1, not {request.seed}")
    parse_allow(request.allow)
    rank_share(request.target_batch, request.world_size)
    devices.check_name(request.device)
    if request.memory_budget is not None:
        parse_budget(request.memory_budget, total_bytes=1 << 40)
    if request.snapshot is not None:
        check_file("--snapshot", Path(request.snapshot))
    path = split_spec(request.workload)[0]
    check_syntax(path)
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return replace(request, workload_digest=digest, started_in=request.started_in or str(Path.cwd()))


def _seconds(name: str, value: Any) -> None:
    if isinstance(value, str) or not 0 < value < float("inf"):
        raise UsageError(f"{name} must be a number of seconds above 0, not {value}")
