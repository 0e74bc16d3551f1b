"""Study files: their keys, how they are read, and the training runs that they define."""

from .load import load_study, parse_study, study_text
from .schema import Study

__all__ = ["Study", "load_study", "parse_study", "study_text"]
