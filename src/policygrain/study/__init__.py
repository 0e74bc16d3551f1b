"""A study: what is trained, on what, how it is judged and drawn. One typed configuration, read in one place."""

from .load import load_study, parse_study
from .runs import Arm, Run
from .schema import Study

__all__ = ["Arm", "Run", "Study", "load_study", "parse_study"]
