from collections.abc import Iterator

import pytest

from policygrain.grading import MathGrader


@pytest.fixture(scope="session")
def grader() -> Iterator[MathGrader]:
    with MathGrader(workers=2) as opened:
        yield opened
