from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.golden_text import Golden

settings.register_profile("ci", derandomize=True, deadline=None)
settings.load_profile("ci")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--update-golden", action="store_true", help="write tests/golden from what is printed now"
    )


@pytest.fixture
def golden(request: pytest.FixtureRequest) -> Golden:
    return Golden(update=request.config.getoption("--update-golden"))


@pytest.fixture
def no_kernels(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """:func:`tests.kernels.without_kernels`, for one test."""
    from tests.kernels import without_kernels

    with without_kernels(tmp_path_factory.getbasetemp() / "without-kernels"):
        yield
