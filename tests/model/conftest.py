"""The initial model that tests of engines share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.small import make_start


@pytest.fixture(scope="module")
def start(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_start(tmp_path_factory.mktemp("engine"))[1]
