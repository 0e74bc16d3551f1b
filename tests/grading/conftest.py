import pytest

from policygrain.grading import MathGrader


@pytest.fixture(scope="session")
def grader():
    with MathGrader(workers=2) as opened:
        yield opened
