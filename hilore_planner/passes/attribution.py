"""Where a node comes from: module path, layer, role, source line, and a stable name."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

from torch.fx import Node

from hilore_planner.passes.ops import op_name

_INDEX = re.compile(r"\[['\"]?([^'\"\]]+)['\"]?\]")
_FRAME = re.compile(r'File "([^"]+)", line (\d+)')
_TORCH = re.compile(r"-packages[/\\]torch[/\\]")
_LAYER = re.compile(r"(?:^|\.)(\d+)(?=\.|$)")


@dataclass(frozen=True, slots=True)
class Origin:
    """Attribution of one node."""

    name: str
    """Stable across shapes: ``module:op``, with ``#n`` where a module runs the op several times."""
    kind: str
    """The name with the layer's index replaced by ``*``."""
    module: str
    role: str
    layer: int | None
    op: str
    source: str


def module_path(node: Node) -> str:
    """Path of the innermost module that ran the node (``model.layers.0.mlp``); empty at the root."""
    stack = node.meta.get("nn_module_stack") or {}
    entries = list(stack.values())
    if not entries:
        return ""
    path = re.sub(r"^getattr\((.*),\s*['\"](\w+)['\"]\)$", r"\1.\2", str(entries[-1][0]))
    return _readable(path)


def input_path(placeholder: Node) -> str:
    """Path of the parameter, buffer or argument behind an input of a Dynamo graph (``model.norm.weight``)."""
    argument = placeholder.meta.get("grapharg")
    name = str(argument.source.name) if argument is not None else placeholder.name
    return _readable(re.sub(r"\._(parameters|buffers)\b", "", name)) or placeholder.name


def _readable(path: str) -> str:
    """A guard's way of writing a path, without the local variable it starts from."""
    path = re.sub(r"^[LG]\[['\"][^'\"]*['\"]\]\.?", "", path.replace("._modules", ""))
    return _INDEX.sub(r".\1", path).strip(".")


def source_line(node: Node) -> str:
    """``file.py:line`` of the innermost frame outside torch itself; empty where unknown."""
    frames = _FRAME.findall(node.meta.get("stack_trace") or "")
    if not frames:
        return ""
    users = [frame for frame in frames if not _TORCH.search(frame[0])]
    path, line = (users or frames)[-1]
    return f"{path.rsplit('/', 1)[-1]}:{line}"


def attribute(nodes: Iterable[Node]) -> dict[Node, Origin]:
    """Give every node its origin; names are unique and depend on structure alone, not on sizes."""
    seen: Counter[str] = Counter()
    origins: dict[Node, Origin] = {}
    for node in nodes:
        module, op = module_path(node), op_name(node)
        match = _LAYER.search(module)
        base = f"{module}:{op}" if module else op
        seen[base] += 1
        suffix = f"#{seen[base]}" if seen[base] > 1 else ""
        starred, role = module, module
        if match:
            starred = f"{module[: match.start(1)]}*{module[match.end(1) :]}"
            role = module[match.end(1) + 1 :]
        kind = (f"{starred}:{op}" if module else op) + suffix
        layer = int(match.group(1)) if match else None
        origins[node] = Origin(
            base + suffix, kind, module, role or module, layer, op, source_line(node)
        )
    return origins
