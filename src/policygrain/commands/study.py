"""Commands about a study before it is run."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .command import CONFIG, JSON, command, flag, one_of, option, path

if TYPE_CHECKING:
    from ..study.fingerprint import Fingerprints
    from ..study.runs import RunMatrix


@command(
    CONFIG,
    path("study", "study file, without --config", nargs="?", metavar="STUDY"),
    flag("--machine", "check this machine, too: disk, GPUs, MLflow"),
    flag("--vllm", "with --machine: start vLLM and sample a token"),
    flag("--slurm", "check a cluster, from its login node: what the profile requests, and the study on its nodes"),
    path(
        "--profile", "Snakemake profile of the cluster (default: slurm/config.yaml)", default=Path("slurm/config.yaml")
    ),
)
def check(arguments: Namespace) -> None:
    """Check a study file, and on request this machine or a cluster, and print how many arms and runs it has."""
    from ..data.sources import source_digests
    from ..study import load_study
    from ..study.fingerprint import Fingerprints, code_digests
    from .check import check_machine, check_study

    file = arguments.study or arguments.config
    study = load_study(file)
    check_study(study)
    print(counts(Fingerprints(study, source_digests(study) | code_digests(study))), flush=True)
    if arguments.machine or arguments.slurm:
        check_machine(study, Path("results"), arguments.vllm)
    if arguments.slurm:
        from .cluster import check_cluster

        check_cluster(study, file, arguments.profile)


def counts(fingerprints: Fingerprints, matrix: RunMatrix | None = None) -> str:
    """Numbers of arms and runs of a study, and the digest of all inputs of its results.

    ``matrix``: the runs to count (default: those that the study plans).
    """
    matrix = matrix or fingerprints.matrix
    numbers = f"{len(matrix.arms)} arms, {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated"
    return f"{fingerprints.study.name}: {numbers}; digest {fingerprints.figures()}."


@command(
    path("studies", "study file; its data may be missing", nargs="+", metavar="STUDY"),
    option("--device", "cpu or h100 (default: cpu for tiny models, else h100)", metavar="NAME"),
    option("--gpus", "number of available devices (default: those of one run)", type=int, metavar="N"),
    option("--per-run", "devices per run (default: the fewest that it fits on)", type=int, metavar="N"),
    one_of(
        JSON,
        flag("--markdown", "one row per study"),
        path(
            "--power",
            "seeds and device-hours that a verdict needs, from the spread in these results",
            metavar="RESULTS",
        ),
    ),
)
def plan(arguments: Namespace) -> None:
    """Estimate what a study costs, before anything is submitted.

    Prints jobs, tokens, device-hours, memory and what they are based on.
    """
    from ..errors import UserError
    from ..results import StudyResults
    from ..study import load_study
    from . import tables
    from .cost import estimate

    if arguments.power and len(arguments.studies) > 1:
        raise UserError("plan: --power needs a single study.")
    estimates = []
    for study in map(load_study, arguments.studies):
        device = arguments.device or ("cpu" if study.model.start == "tiny" else "h100")
        estimates.append(estimate(study, device, arguments.gpus, arguments.per_run))
    if arguments.power:
        from ..analysis.verdicts import paired_spreads

        results = StudyResults(arguments.power)
        print(tables.power(paired_spreads(results), estimates[0], results.study.name), end="")
    elif arguments.json:
        print(json.dumps(estimates, indent=1, ensure_ascii=False))
    elif arguments.markdown:
        print(tables.markdown(estimates), end="")
    else:
        print("\n".join(map(tables.detail, estimates)), end="")


@command(JSON, path("--config", "study file whose own methods are listed, too"))
def methods(arguments: Namespace) -> None:
    """List the methods."""
    from ..objective import comparison_names, method, method_names

    defined = {}
    if arguments.config:
        from ..study import load_study

        defined = load_study(arguments.config).methods
    groups = {
        "Published methods": method_names(),
        "To compare ratios: they differ in the ratio and its clip alone": comparison_names(),
    }
    groups["Methods of the study"] = [n for n in defined if not any(n in names for names in groups.values())]
    by_name = {name: method(name, defined) for names in groups.values() for name in names}
    if arguments.json:
        print(json.dumps({name: m.data() for name, m in by_name.items()}, indent=1, ensure_ascii=False))
        return
    width = max(map(len, by_name))
    for title, names in groups.items():
        if names:
            print(f"{title}:")
        for m in (by_name[name] for name in names):
            print(f"  {m.name:{width}}  {m.summary}" + (f"  [{m.source}]" if m.source else ""))
