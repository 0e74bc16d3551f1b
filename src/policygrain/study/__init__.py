"""Study files: their keys, how they are read, and the training runs that they define."""

from .load import load_recorded_study, load_study, parse_study, study_text
from .runs import Arm, Run
from .schema import Study

__all__ = ["Arm", "Run", "Study", "load_recorded_study", "load_study", "parse_study", "study_text"]
