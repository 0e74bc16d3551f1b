"""Commands about a study before it is run."""

from __future__ import annotations

import json
from argparse import Namespace
from pathlib import Path
from typing import TYPE_CHECKING

from .declare import CONFIG, JSON, command, flag, one_of, option, path

if TYPE_CHECKING:
    from ..study.fingerprint import Fingerprints
    from ..study.runs import RunMatrix


@command(CONFIG, path("study", "study file, without --config", nargs="?", metavar="STUDY"))
def check(arguments: Namespace) -> None:
    """Check a study file and print how many arms and runs it has."""
    from ..doctor.gate import check_study
    from ..study import load_study
    from ..study.fingerprint import Fingerprints
    from ..tasks.sources import source_digests

    study = load_study(arguments.study or arguments.config)
    check_study(study)
    print(counts(Fingerprints(study, source_digests(study))))


def counts(fingerprints: Fingerprints, matrix: RunMatrix | None = None) -> str:
    """How many arms and runs a study has, and the digest of all that its results depend on.

    ``matrix``: the runs of its results; by default those that it plans.
    """
    matrix = matrix or fingerprints.matrix
    numbers = f"{len(matrix.arms)} arms, {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated"
    return f"{fingerprints.study.name}: {numbers}; digest {fingerprints.figures()}."


@command(
    path("studies", "study file; its data may be missing", nargs="+", metavar="STUDY"),
    option("--device", "device of the constants (default: cpu for tiny models, else h100)", metavar="NAME"),
    option("--gpus", "number of available devices (default: those of one run)", type=int, metavar="N"),
    option("--per-run", "devices per run (default: the fewest that it fits on)", type=int, metavar="N"),
    path("--constants", "YAML file that overrides the package's constants", metavar="FILE"),
    JSON,
    one_of(
        flag("--markdown", "one row per study"),
        path("--power", "seeds and device-hours of a verdict, by the spread in these records", metavar="RESULTS"),
        path("--against", "compare with the records of the finished study", metavar="RESULTS"),
        path("--calibrate", "fit constants to the records of such a study", metavar="RESULTS"),
    ),
    path("--out", "with --calibrate: YAML file for the constants", metavar="FILE"),
)
def plan(arguments: Namespace) -> None:
    """Estimate what a study costs, before anything is submitted.

    Jobs, device-hours, tokens, memory and disk come from a cost model that states its assumptions.
    """
    from ..cost import measured, table
    from ..cost.constants import read_constants
    from ..cost.estimate import estimate
    from ..errors import UserError
    from ..files import atomic_text
    from ..results.reader import StudyResults
    from ..study import load_study

    constants = read_constants(arguments.constants)
    studies = [load_study(path) for path in arguments.studies]
    devices = [arguments.device or ("cpu" if s.model.start == "tiny" else "h100") for s in studies]
    if (arguments.against or arguments.calibrate) and len(studies) > 1:
        raise UserError("plan: --against and --calibrate read the records of one study; name one study.")
    if arguments.calibrate and arguments.out is None:
        raise UserError("plan: --calibrate needs --out FILE for the constants.")
    if arguments.power and (len(studies) > 1 or arguments.json):
        raise UserError("plan: --power is of one study, and prints a table; name one study, without --json.")
    if arguments.against:
        rows = measured.against(StudyResults(arguments.against, studies[0]), constants, constants.device(devices[0]))
        print(json.dumps(rows, indent=1) if arguments.json else table.comparison(rows).rstrip())
        return
    if arguments.calibrate:
        import yaml

        fitted = measured.calibrate(StudyResults(arguments.calibrate, studies[0]), constants, devices[0])
        atomic_text(arguments.out, yaml.safe_dump(fitted, sort_keys=False, allow_unicode=True))
        print(arguments.out)
        return
    estimates = [
        estimate(study, constants, device, arguments.gpus, arguments.per_run)
        for study, device in zip(studies, devices, strict=True)
    ]
    if arguments.power:
        from ..analysis.power import paired_spreads

        results = StudyResults(arguments.power)
        print(table.power(paired_spreads(results), estimates[0], results.study.name), end="")
    elif arguments.json:
        print(json.dumps(estimates, indent=1, ensure_ascii=False))
    elif arguments.markdown:
        print(table.markdown(estimates), end="")
    else:
        print("\n".join(map(table.detail, estimates)), end="")


@command(
    CONFIG,
    flag("--slurm", "check a cluster, from its login node"),
    path(
        "--profile", "Snakemake profile of the cluster (default: slurm/config.yaml)", default=Path("slurm/config.yaml")
    ),
)
def doctor(arguments: Namespace) -> None:
    """Check this machine, or a SLURM cluster, for everything that a study needs.

    Prints what to change; the exit code is 2 when something is wrong.
    """
    from ..doctor import check_cluster, check_machine, print_findings

    results = Path("results")
    if arguments.slurm:
        print_findings(check_cluster(arguments.config, arguments.profile, results))
    else:
        print_findings(check_machine(arguments.config, results))


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
