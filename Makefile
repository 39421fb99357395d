# Needs Python 3.11 or newer and a C++ compiler; everything else goes into .venv. Quick when run again:
# an environment is made anew only when pyproject.toml, constraints.txt or .ci/install change.

SHELL := /usr/bin/env bash
MARKS := -m "not slow$(if $(shell command -v nvidia-smi),, and not gpu)"

# Idle threads sleep instead of spinning: with anything else running on the same cores, spinning takes several times
# the processor time, and spoils what is timed.
export OMP_WAIT_POLICY := passive

.PHONY: help demo test peaks compat clean

help:
	@echo "make demo    install into .venv; one GRPO update checkpointed, compiled and planned (examples/quickstart.py)"
	@echo "make test    install into .venv; ruff, mypy --strict, pytest"
	@echo "make peaks   measured peaks of six small models under caps, with compiled kernels (tens of minutes)"
	@echo "make compat  the tests marked 'compat' on torch 2.11.0, in .venv-torch211 (a large download)"
	@echo "make clean   remove both environments and all caches of the checkout"

demo: .venv/stamp
	.venv/bin/python examples/quickstart.py

test: .venv/stamp
	.venv/bin/ruff check
	.venv/bin/ruff format --check
	.venv/bin/mypy --strict
	.venv/bin/pytest -n 2 --dist worksteal $(MARKS)

peaks: .venv/stamp
	.venv/bin/pytest -m slow

compat: .venv-torch211/stamp
	.venv-torch211/bin/pytest -m "compat and not gpu"

.venv/stamp: pyproject.toml constraints.txt .ci/install
	.ci/install .venv dev,demo
	@touch $@

.venv-torch211/stamp: pyproject.toml constraints.txt .ci/install
	.ci/install .venv-torch211 dev,demo 2.11.0
	@touch $@

clean:
	rm -rf .venv .venv-torch211 .mypy_cache .ruff_cache .pytest_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
