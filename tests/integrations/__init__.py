"""Tests of integrations, and what each refuses."""

from pathlib import Path

import yaml

REFUSED = yaml.safe_load(Path(__file__).with_name("refused.yaml").read_text())
