"""Check a study file and print how many arms and runs it has."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING

from . import add_study_option

if TYPE_CHECKING:
    from ..study.fingerprint import Fingerprints


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)
    parser.add_argument("study", type=Path, nargs="?", metavar="STUDY", help="study file, without --config")


def run(arguments: argparse.Namespace) -> None:
    """Read the study, which raises UserError for what is wrong, and count its arms and runs."""
    from ..doctor.gate import check_study
    from ..study import load_study
    from ..study.fingerprint import Fingerprints
    from ..tasks.sources import source_digests

    study = load_study(arguments.study or arguments.config)
    check_study(study)
    print(counts(Fingerprints(study, source_digests(study))))


def counts(fingerprints: Fingerprints) -> str:
    """How many arms and runs a study has, and the digest of all that its results depend on."""
    matrix = fingerprints.matrix
    found = f"{len(matrix.arms)} arms, {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated"
    return f"{fingerprints.study.name}: {found}; digest {fingerprints.figures()}."
