"""A study: what is trained, on what, how it is judged and drawn. One typed configuration, read in one place."""

from .arms import Arm, Run
from .load import load_study, parse_study
from .schema import Study

__all__ = ["Arm", "Run", "Study", "load_study", "parse_study"]
