"""Check a study file and print how many arms and runs it has."""

from __future__ import annotations

import argparse

from . import add_study_option


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the command's options."""
    add_study_option(parser)


def run(arguments: argparse.Namespace) -> None:
    """Read the study, which raises UserError for what is wrong, and count its arms and runs."""
    from ..study import load_study
    from ..study.fingerprint import Fingerprints
    from ..study.runs import check_methods
    from ..tasks.sources import check_sources, source_digests

    study = load_study(arguments.config)
    check_methods(study)
    check_sources(study)
    fingerprints = Fingerprints(study, source_digests(study))
    matrix = fingerprints.matrix
    counts = f"{len(matrix.arms)} arms, {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated"
    print(f"{study.name}: {counts}; digest {fingerprints.figures()}.")
