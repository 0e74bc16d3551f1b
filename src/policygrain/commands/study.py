"""Commands about a study before it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument

from ..errors import UserError
from .app import Json, command, option

if TYPE_CHECKING:
    from ..objective import Method
    from ..study import Study

GROUP = "Study"
CONFIG = Path("config.yaml")


@command(GROUP)
def check(
    study: Annotated[Path | None, Argument(help="study file (default: config.yaml)")] = None,
    config: Annotated[Path | None, option("the same", "--config")] = None,
    machine: Annotated[bool, option("check this machine, too: disk, GPUs, MLflow", "--machine")] = False,
    vllm: Annotated[bool, option("with --machine: check that vLLM can start", "--vllm")] = False,
    slurm: Annotated[bool, option("check a cluster, from its login node", "--slurm")] = False,
    profile: Annotated[Path, option("Snakemake profile of the cluster")] = Path("slurm/config.yaml"),
    as_json: Annotated[bool, option("print the arms and their seeds as JSON", "--json")] = False,
) -> None:
    """Check a study file, and on request this machine or a cluster, and print how many arms and runs it has."""
    from ..study import load_study
    from .check import check_study

    file = study or config or CONFIG
    loaded = load_study(file)
    check_study(loaded)
    print(json.dumps(arms_of(loaded), indent=1) if as_json else counts(loaded), flush=True)
    if machine or slurm:
        from .doctor import check_cluster, check_machine

        check_machine(loaded, Path("results"), vllm)
        if slurm:
            check_cluster(loaded, file, profile)


def counts(study: Study) -> str:
    """Numbers of arms and runs of a study."""
    from ..study.runs import run_matrix

    matrix = run_matrix(study)
    return f"{study.name}: {len(matrix.arms)} arms, {len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated."


def arms_of(study: Study) -> dict[str, Any]:
    """The study's name, and its arms with their seeds and whether they are evaluated."""
    from ..study.runs import run_matrix

    matrix = run_matrix(study)
    arms = {
        arm: {"seeds": [run.seed for run in runs], "evaluated": arm in matrix.evaluated_arms}
        for arm, runs in matrix.by_arm().items()
    }
    return {"study": study.name, "arms": arms}


@command(GROUP)
def plan(
    study: Annotated[Path, Argument(help="study file; its data may be missing")],
    device: Annotated[
        str | None, option("cpu, h100 or h200 (default: cpu for tiny models, else h200)", metavar="NAME")
    ] = None,
    price: Annotated[float | None, option("of a device-hour")] = None,
    as_json: Json = False,
    power: Annotated[
        Path | None,
        option("seeds that a difference needs, from the spread in these results", metavar="RESULTS"),
    ] = None,
) -> None:
    """Estimate what a study costs, before anything is submitted.

    Prints jobs, tokens, device-hours and what they are based on.
    """
    from ..results import StudyResults
    from ..study import load_study
    from .plan import estimate, plan_text, power_text

    if as_json and power:
        raise UserError("--json: --power prints a table alone; leave one of them out.")
    loaded = load_study(study)
    estimated = estimate(loaded, device or ("cpu" if loaded.model.start == "tiny" else "h200"))
    if as_json:
        print(json.dumps(estimated, indent=1, ensure_ascii=False))
    elif power:
        print(power_text(estimated, loaded, StudyResults(power)), end="")
    else:
        print(plan_text(estimated, price), end="")


@command(GROUP)
def methods(
    as_json: Json = False,
    config: Annotated[Path | None, option("study file whose own methods are listed, too")] = None,
) -> None:
    """List the methods."""
    groups = method_groups(config)
    by_name = {method.name: method for listed in groups.values() for method in listed}
    if as_json:
        print(json.dumps({name: m.data() for name, m in by_name.items()}, indent=1, ensure_ascii=False))
        return
    width = max(map(len, by_name))
    for title, listed in groups.items():
        if listed:
            print(f"{title}:")
        for m in listed:
            print(f"  {m.name:{width}}  {m.summary}" + (f"  [{m.source}]" if m.source else ""))


def method_groups(config: Path | None) -> dict[str, list[Method]]:
    """Published methods, those that compare ratios, and those of a study, by title."""
    from ..objective import comparison_names, method, method_names

    defined = {}
    if config:
        from ..study import load_study

        defined = load_study(config).methods
    groups = {
        "Published methods": method_names(),
        "To compare ratios: they differ in the ratio and its clip alone": comparison_names(),
    }
    groups["Methods of the study"] = [n for n in defined if not any(n in names for names in groups.values())]
    return {
        title: [defined[name] if name in defined else method(name) for name in names] for title, names in groups.items()
    }
