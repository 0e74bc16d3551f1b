"""Fixtures of the package's own tests that these use, too."""

from tests.conftest import in_root, made, root, start

__all__ = ["in_root", "made", "root", "start"]
