"""The data and the start model that tests of the trainer share."""

from __future__ import annotations

from pathlib import Path

import pytest

from ..support.small import make_start


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """(data, start model) of the small study, to be read only."""
    return make_start(tmp_path_factory.mktemp("small"))
