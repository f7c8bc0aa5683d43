"""Options shared by all tests: rewriting expected texts, the size of random runs, and no silent skips on a GPU."""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("tilec")
    group.addoption("--bless", action="store_true", help="rewrite the expected texts of tests/ui and other golden files")
    group.addoption("--soundness-kernels", type=int, default=500, help="how many random kernels to judge (default 500)")
    group.addoption("--soundness-seed", type=int, default=0, help="seed of the first random kernel (default 0)")


@pytest.fixture
def bless(request: pytest.FixtureRequest) -> bool:
    """True where expected texts are to be rewritten."""
    return bool(request.config.getoption("--bless"))


@pytest.fixture
def soundness_kernels(request: pytest.FixtureRequest) -> int:
    return int(str(request.config.getoption("--soundness-kernels")))


@pytest.fixture
def soundness_seed(request: pytest.FixtureRequest) -> int:
    return int(str(request.config.getoption("--soundness-seed")))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item: pytest.Item) -> Generator[None, Any, None]:
    """A test marked `gpu` that skips has not shown anything: report it as failed."""
    outcome = yield
    report: pytest.TestReport = outcome.get_result()
    if report.skipped and item.get_closest_marker("gpu") is not None and not hasattr(report, "wasxfail"):
        report.outcome = "failed"
        report.longrepr = f"a GPU test was skipped, which counts as a failure: {report.longrepr}"
