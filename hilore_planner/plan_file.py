"""Plan files: JSON whose differences read well, written whole or not at all.

Keys are sorted, and each unit, position, source and placement has a line of its own, so that a
line-based diff of two plans shows the units that changed.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from hilore_planner.errors import PlanFileError

T = TypeVar("T")
Json = Any

_SPREAD = frozenset(
    {
        "$",
        "$.advice",
        "$.fixed_parts",
        "$.head",
        "$.head.ways",
        "$.problem",
        "$.problem.units",
        "$.problem.positions",
        "$.provenance",
        "$.provenance.options",
        "$.solution",
        "$.solution.placement",
        "$.solution.witness",
        "$.sources",
    }
)
"""Containers whose entries are written one a line; everything else stays on its entry's line."""


def write(path: Path, plan: object) -> None:
    """Writes a plan; an interrupted or failed write leaves what was there before.

    Raises:
        PlanFileError: the folder is missing or cannot be written to.
    """
    target = path.resolve()
    draft = target.with_name(f".{target.name}.{os.getpid()}.tmp")
    try:
        with draft.open("w", encoding="utf-8") as file:
            file.write(dump(plan))
            file.flush()
            os.fsync(file.fileno())
        draft.replace(target)
    except OSError as error:
        raise PlanFileError(f"cannot write plan {path}: {error.strerror}") from error
    finally:
        draft.unlink(missing_ok=True)


def dump(plan: object) -> str:
    """The text of a plan's file."""
    return "".join(_text("$", msgspec.to_builtins(plan), "")) + "\n"


def _text(path: str, value: Json, indent: str) -> Iterator[str]:
    if path not in _SPREAD or not value:
        yield json.dumps(value, ensure_ascii=False, sort_keys=True)
        return
    inner = indent + "  "
    if isinstance(value, dict):
        entries = [
            (f"{json.dumps(key, ensure_ascii=False)}: ", f"{path}.{key}", value[key])
            for key in sorted(value)
        ]
    else:
        entries = [("", f"{path}[]", entry) for entry in value]
    opening, closing = "{}" if isinstance(value, dict) else "[]"
    yield opening
    for index, (label, entry_path, entry) in enumerate(entries):
        yield f"{',' if index else ''}\n{inner}{label}"
        yield from _text(entry_path, entry, inner)
    yield f"\n{indent}{closing}"


def read(path: Path, plan_type: type[T], schema: int) -> T:
    """Reads a plan's file into ``plan_type``; what it means is not checked here.

    Raises:
        PlanFileError: no such file, cut short, not JSON, not a plan, another schema, or a field
            that is missing, unknown or of the wrong type, with its path.
    """
    raw = _read_json(path)
    _check_is_plan(path, raw, schema)
    try:
        plan = msgspec.convert(raw, plan_type)
    except msgspec.ValidationError as error:
        raise PlanFileError(f"plan {path}: {_with_unit_name(str(error), raw)}") from error
    for unknown in _unknown_fields("$", raw, msgspec.to_builtins(plan)):
        raise PlanFileError(f"plan {path}: unknown field {_with_unit_name(unknown, raw)}")
    return plan


def _read_json(path: Path) -> Json:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise PlanFileError(f"cannot read plan {path}: {error.strerror}") from error
    if not data.strip():
        raise PlanFileError(f"plan {path} is empty")
    try:
        return msgspec.json.decode(data)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        if "truncated" in str(error):
            raise PlanFileError(f"plan {path} is cut short after {len(data)} bytes") from error
        raise PlanFileError(f"plan {path} is not JSON: {error}") from error


def _check_is_plan(path: Path, raw: Json, schema: int) -> None:
    if not isinstance(raw, Mapping) or not {"schema", "problem", "solution"} <= raw.keys():
        raise PlanFileError(f"{path} is JSON but no plan: it has no schema, problem and solution")
    if raw["schema"] != schema:
        raise PlanFileError(
            f"plan {path} has schema {raw['schema']!r}; this version reads schema {schema}: "
            "read it with the version that wrote it, or plan anew"
        )


def _with_unit_name(message: str, raw: Json) -> str:
    """Adds the unit's name to a message whose path counts units."""
    found = re.search(r"units\[(\d+)\]", message)
    if found is None:
        return message
    unit = raw["problem"]["units"][int(found[1])]
    named = isinstance(unit, Mapping) and "name" in unit
    return f"{message} (unit {unit['name']!r})" if named else message


def _unknown_fields(path: str, raw: Json, known: Json) -> Iterator[str]:
    """Paths of fields in ``raw`` that decoding has passed over."""
    if isinstance(raw, dict):
        for key, value in raw.items():
            if key not in known:
                yield f"`{path}.{key}`"
            else:
                yield from _unknown_fields(f"{path}.{key}", value, known[key])
    elif isinstance(raw, list):
        for index, (value, known_value) in enumerate(zip(raw, known, strict=True)):
            yield from _unknown_fields(f"{path}[{index}]", value, known_value)
