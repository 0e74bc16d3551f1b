"""The pytest plugin: the fixture `assert_objective`, a table of its outcomes, and `--objectives FILE` for JSON."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from .losses import Comparison

PROPERTY = "policygrain objective"


def pytest_addoption(parser: pytest.Parser) -> None:
    """The option `--objectives`."""
    parser.addoption("--objectives", metavar="FILE", help="write the outcomes of assert_objective as JSON")


@pytest.fixture
def assert_objective(request: pytest.FixtureRequest) -> Callable[..., Comparison]:
    """`policygrain.testing.assert_objective`; its outcomes are listed after all tests."""
    from . import losses

    def check(*arguments: Any, **options: Any) -> Comparison:
        __tracebackhide__ = True
        compared = None
        try:
            compared = losses.assert_objective(*arguments, **options)
        except losses.Differs as error:
            compared = error.comparison
            raise
        finally:
            if compared is not None:
                row = asdict(compared) | {"test": request.node.nodeid}
                request.node.user_properties.append((PROPERTY, row))
        return compared

    return check


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print the outcomes of `assert_objective` after all tests, and write them as JSON with `--objectives`."""
    reports = [report for listed in terminalreporter.stats.values() for report in listed]
    properties = [p for r in reports if getattr(r, "when", "") == "call" for p in r.user_properties]
    rows: list[dict[str, Any]] = [row for name, row in properties if name == PROPERTY]
    if rows:
        terminalreporter.section("objectives")
    for row in rows:
        what = (
            f"is {row['objective']}"
            if not row["problems"]
            else f"is not {row['objective']}, but {row['equals'] or 'no known one'}"
        )
        terminalreporter.line(f"{row['test']}: {what} (cosine {row['cosine']:.4f}, norm {row['norm']:.4g})")
    if path := config.getoption("--objectives"):
        Path(path).write_text(json.dumps(rows, indent=1) + "\n", encoding="utf-8")
