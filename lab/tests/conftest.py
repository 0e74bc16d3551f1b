"""Fixtures of the package's own tests that these use, too, and one of their own."""

import pytest

from tests.conftest import made

__all__ = ["made", "start"]


@pytest.fixture(scope="session")
def start(tmp_path_factory):
    """A tiny model whose responses have different lengths: the end-of-sequence token is likely from the start."""
    from tests.support.engines import save_tiny  # of which the environments of other trainers lack a part

    return save_tiny(tmp_path_factory.mktemp("start"))
