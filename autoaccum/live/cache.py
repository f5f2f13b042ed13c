"""A plan kept in a file, with what it depends on. It is never trusted: what does not hold is told, and replaced."""

from __future__ import annotations

import json
import os
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from autoaccum.plans import Plan, rank_share
from autoaccum.records import Budget, Request
from autoaccum.units import format_bytes

_SCHEMA = 2
_GROWN = 1.1  # with so much more memory free than then, a larger micro-batch may fit


def load(path: Path, key: Mapping[str, str], request: Request, budget: Budget, held_bytes: int) -> Plan | list[str]:
    """Give the plan in the file, or the warnings that say why there is none; a missing file is worth none.

    `held_bytes` is what the process holds now, before any trial.
    """
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        return []
    except OSError as error:
        return [_ignored(path, f"cannot be read ({error.strerror})")]
    except (ValueError, RecursionError):
        return [_ignored(path, "is not JSON")]
    if not isinstance(content, dict) or content.get("schema") != _SCHEMA or not isinstance(content.get("key"), dict):
        return [_ignored(path, "is no plan of this version of autoaccum")]
    changed = [name for name, text in key.items() if content["key"].get(name) != text]
    if changed:
        return [_ignored(path, f"was made for another {' and another '.join(changed)}")]
    plan, limit, held = _plan(content.get("plan"), request), content.get("limit_bytes"), content.get("held_bytes")
    if plan is None or limit is None or not _whole(limit) or type(held) is not int or held < 0:
        return [_ignored(path, "holds no plan for what was asked")]
    misfit = _misfit(plan, held_bytes - held, limit, budget)
    return plan if misfit is None else [_ignored(path, misfit)]


def save(path: Path, key: Mapping[str, str], plan: Plan, budget: Budget, held_bytes: int) -> list[str]:
    """Write the plan, all of it or nothing; give the warnings of a file that cannot be written."""
    content = {
        "schema": _SCHEMA,
        "key": dict(key),
        "limit_bytes": budget.limit_bytes,
        "held_bytes": held_bytes,
        "plan": plan.to_dict(),
    }
    name = None
    try:
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", dir=path.parent, suffix=".tmp", delete=False) as file:
            name = file.name
            json.dump(content, file, indent=1)
        os.replace(name, path)  # noqa: PTH105  (atomic, on every system)
    except OSError as error:
        return [f"the plan cannot be kept in {path}: {error.strerror}"]
    finally:
        if name is not None:
            with suppress(OSError):
                os.unlink(name)  # noqa: PTH108  (gone already, if all went well)
    return []


def _ignored(path: Path, why: str) -> str:
    return f"{path} {why}: the plan in it is not used, and a new one takes its place"


def _misfit(plan: Plan, grown_bytes: int, limit_bytes: int, budget: Budget) -> str | None:
    """Say why a plan does not suit the memory that there is now, of which the process itself holds so much more."""
    if plan.peak_bytes is None or plan.peak_bytes + grown_bytes > budget.limit_bytes:
        return f"needs more than the {format_bytes(budget.limit_bytes)} that there are now"
    if budget.source != "user" and budget.limit_bytes > _GROWN * limit_bytes:
        return f"was made for {format_bytes(limit_bytes)}, and there are {format_bytes(budget.limit_bytes)} now"
    return None


def _plan(data: Any, request: Request) -> Plan | None:
    """Give the plan if it is whole, and reaches the target exactly."""
    try:
        plan = Plan.from_dict(data)
    except (AttributeError, TypeError, ValueError, KeyError):
        return None
    sizes = plan.micro_batches
    numbers = (plan.micro_batch, plan.accumulation_steps, plan.world_size, plan.effective_batch, *sizes)
    if not all(map(_whole, numbers)) or not sizes:
        return None
    if type(plan.peak_bytes) is not int or type(plan.headroom_bytes) is not int:
        return None
    if type(plan.samples_per_second) not in (float, type(None)):
        return None
    if type(plan.measured) is not bool or type(plan.options) is not dict:
        return None
    wanted = rank_share(request.target_batch, request.world_size)
    exact = sum(sizes) == wanted and plan.effective_batch == request.target_batch
    fits = max(sizes) == plan.micro_batch and len(sizes) == plan.accumulation_steps
    return plan if exact and fits and plan.world_size == request.world_size else None


def _whole(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0
