"""Tests of figures, of the report and of the copy in MLflow, and their cases."""

from pathlib import Path

import yaml

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())
