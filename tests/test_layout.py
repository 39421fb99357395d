"""What holds for the source as a whole."""

from __future__ import annotations

import ast
import dataclasses
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from hilore_planner.options import Options
from hilore_planner.plan import Figures, PlacementPlan, Provenance, UnitSource
from hilore_planner.solvers import CompressedForm, PlacementProblem, Position, Solution, Unit

ROOT = Path(__file__).parent.parent
PACKAGE = ROOT / "hilore_planner"
SOURCES = sorted(PACKAGE.rglob("*.py"))


@pytest.mark.parametrize("name", ["passes", "solvers"])
def test_the_root_links_lead_into_the_package(name: str) -> None:
    link = ROOT / name
    assert link.is_symlink()
    assert os.readlink(link) == f"hilore_planner/{name}"
    assert link.resolve() == PACKAGE / name


def test_types_are_shipped() -> None:
    assert (PACKAGE / "py.typed").exists()


def _lines(node: ast.FunctionDef | ast.AsyncFunctionDef) -> int:
    """Of a function, but for its docstring."""
    first, end = node.body[0], node.end_lineno or 0
    if ast.get_docstring(node) is None:
        return end - node.lineno + 1
    return end - (first.end_lineno or 0) + first.lineno - node.lineno


@pytest.mark.parametrize("source", SOURCES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_and_functions_stay_short(source: Path) -> None:
    text = source.read_text(encoding="utf-8")
    assert text.count("\n") <= 300
    too_long = [
        f"{node.name} ({_lines(node)} lines)"
        for node in ast.walk(ast.parse(text))
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef)) and _lines(node) > 40
    ]
    assert not too_long


def _imports(source: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(source.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            yield node.module


def test_private_torch_is_reached_through_compat_alone() -> None:
    private = ("torch._functorch", "torch._inductor", "torch._dynamo")
    users = {
        str(source.relative_to(PACKAGE))
        for source in SOURCES
        for name in _imports(source)
        if name.startswith(private)
    }
    parts = (
        "compat",
        "compat_casts",
        "compat_compile",
        "compat_cpp",
        "compat_kernels",
        "compat_ops",
    )
    assert users <= {f"passes/{part}.py" for part in parts}


def test_the_solvers_load_no_torch() -> None:
    script = "import hilore_planner.solvers, sys; assert 'torch' not in sys.modules"
    subprocess.run([sys.executable, "-W", "error", "-c", script], check=True)


def test_the_docs_name_every_option() -> None:
    text = (ROOT / "docs" / "options.md").read_text(encoding="utf-8")
    for option in dataclasses.fields(Options):
        assert f"| `{option.name}` |" in text


@pytest.mark.parametrize(
    "record",
    [
        *(PlacementPlan, PlacementProblem, Solution, Unit, Position, CompressedForm),
        *(UnitSource, Figures, Provenance),
    ],
)
def test_the_docs_name_every_field_of_a_plan(record: Any) -> None:
    text = (ROOT / "docs" / "plan-file.md").read_text(encoding="utf-8")
    for field in dataclasses.fields(record):
        assert f"`{field.name}`" in text or field.name == "codec"


def test_links_in_the_docs_lead_somewhere() -> None:
    for page in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for target in re.findall(r"\]\((?!http)([^)#]+)\)", page.read_text(encoding="utf-8")):
            assert (page.parent / target).exists(), f"{page.name}: {target}"
