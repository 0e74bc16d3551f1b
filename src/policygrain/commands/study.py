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
    flag("--vllm", "with --machine: check that vLLM can start"),
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
    from .check import check_study

    file = arguments.study or arguments.config
    study = load_study(file)
    check_study(study)
    print(counts(Fingerprints(study, source_digests(study) | code_digests(study))), flush=True)
    if arguments.machine or arguments.slurm:
        from .doctor import check_cluster, check_machine

        check_machine(study, Path("results"), arguments.vllm)
        if arguments.slurm:
            check_cluster(study, file, arguments.profile)


def counts(fingerprints: Fingerprints, matrix: RunMatrix | None = None) -> str:
    """Numbers of arms and runs of a study, and the digest of all inputs of its results.

    ``matrix``: the runs to count (default: those that the study plans).
    """
    matrix = matrix or fingerprints.matrix
    numbers = f"{len(matrix.arms)} arms, {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated"
    return f"{fingerprints.study.name}: {numbers}; digest {fingerprints.figures()}."


@command(
    path("study", "study file; its data may be missing", metavar="STUDY"),
    option("--device", "cpu, h100 or h200 (default: cpu for tiny models, else h200)", metavar="NAME"),
    option("--price", "of a device-hour", type=float),
    one_of(
        JSON,
        path("--power", "seeds per arm that a difference needs, from the spread in these results", metavar="RESULTS"),
    ),
)
def plan(arguments: Namespace) -> None:
    """Estimate what a study costs, before anything is submitted.

    Prints jobs, tokens, device-hours and what they are based on.
    """
    from ..results import StudyResults
    from ..study import load_study
    from .plan import estimate, plan_text, power_text

    study = load_study(arguments.study)
    estimated = estimate(study, arguments.device or ("cpu" if study.model.start == "tiny" else "h200"))
    if arguments.json:
        print(json.dumps(estimated, indent=1, ensure_ascii=False))
    elif arguments.power:
        print(power_text(estimated, study, StudyResults(arguments.power)), end="")
    else:
        print(plan_text(estimated, arguments.price), end="")


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
