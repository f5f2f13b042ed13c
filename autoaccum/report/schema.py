"""The JSON schema of report.json, made from the records, so that it cannot say anything else.

    python -m autoaccum.report.schema > autoaccum/report/schema.json

The file is what other programs read; a test compares the two.
"""

from __future__ import annotations

import json
import types
import typing
from dataclasses import MISSING, fields
from enum import StrEnum
from typing import Any

from autoaccum.records import Record
from autoaccum.report.record import SCHEMA_VERSION, Report

_PLAIN = {int: "integer", float: "number", str: "string", bool: "boolean"}


def build() -> dict[str, Any]:
    """Give the schema. A field may be added within a version, so others than those it knows are no fault."""
    definitions: dict[str, Any] = {}
    root = _record(Report, definitions)
    root["properties"]["schema_version"] = {"const": SCHEMA_VERSION}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "report.json of autoaccum",
        "description": "Bytes are integers, times are seconds; null is what was not measured. docs/report-format.md",
        **root,
        "$defs": definitions,
    }


def _record(kind: type[Record], definitions: dict[str, Any]) -> dict[str, Any]:
    hints = typing.get_type_hints(kind)
    kept = [f for f in fields(kind) if not f.metadata.get("transient")]  # type: ignore[arg-type]
    # What came with a later version of autoaccum has a default, and may be missing in an older file.
    required = [f.name for f in kept if f.default is MISSING and f.default_factory is MISSING]
    properties = {f.name: _type(hints[f.name], definitions) for f in kept}
    always = ["schema_version"] if kind is Report else []
    return {"type": "object", "required": [*always, *required], "properties": properties}


def _type(hint: Any, definitions: dict[str, Any]) -> dict[str, Any]:
    if isinstance(hint, types.UnionType):
        return {"anyOf": [_type(each, definitions) for each in typing.get_args(hint)]}
    if hint is type(None):
        return {"type": "null"}
    if typing.get_origin(hint) is tuple:
        return {"type": "array", "items": _type(typing.get_args(hint)[0], definitions)}
    if typing.get_origin(hint) is dict:
        return {"type": "object"}
    if issubclass(hint, Record):
        if hint.__name__ not in definitions:
            definitions[hint.__name__] = {}  # its place, should it hold one of its own kind
            definitions[hint.__name__] = _record(hint, definitions)
        return {"$ref": f"#/$defs/{hint.__name__}"}
    if issubclass(hint, StrEnum):
        return {"enum": [str(each) for each in hint]}
    return {"type": _PLAIN[hint]}


if __name__ == "__main__":
    print(json.dumps(build(), indent=2))
