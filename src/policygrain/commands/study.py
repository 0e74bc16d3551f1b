"""Commands about a study before it is run."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

from typer import Argument

from ..errors import UserError
from ..objective import comparison_names, method, method_names
from ..results import StudyResults
from ..study import load_study
from ..study.runs import run_matrix
from .app import CONFIG, Json, app, option

GROUP = "Study"


@app.command(rich_help_panel=GROUP)
def check(
    study: Annotated[Path, Argument(help="study file")] = CONFIG,
    slurm: Annotated[bool, option("ask SLURM whether it accepts the jobs; on a login node", "--slurm")] = False,
    profile: Annotated[Path, option("Snakemake profile of the cluster")] = Path("slurm/config.yaml"),
    as_json: Annotated[bool, option("print the arms and their seeds as JSON", "--json")] = False,
) -> None:
    """Check a study file, and on request a cluster, and print how many arms and runs it has."""
    from .check import check_cluster, check_study

    loaded = load_study(study)
    check_study(loaded)
    name, matrix = loaded.name, run_matrix(loaded)
    if as_json:
        runs = {arm: [run.seed for run in runs] for arm, runs in matrix.by_arm().items()}
        arms = {arm: {"seeds": seeds, "evaluated": arm in matrix.evaluated_arms} for arm, seeds in runs.items()}
        print(json.dumps({"study": name, "arms": arms}, indent=1), flush=True)
    else:
        evaluated = f"{len(matrix.runs)} runs, {len(matrix.evaluated)} of them evaluated"
        print(f"{name}: {len(matrix.arms)} arms, {evaluated}.", flush=True)
    if slurm:
        check_cluster(profile)


@app.command(rich_help_panel=GROUP)
def plan(
    study: Annotated[Path, Argument(help="study file; its data may be missing")],
    device: Annotated[
        str | None, option("cpu, h100 or h200 (default: cpu for tiny models, else h200)", metavar="NAME")
    ] = None,
    as_json: Json = False,
    power: Annotated[
        Path | None,
        option("seeds that a difference needs, from the spread in these results", metavar="RESULTS"),
    ] = None,
) -> None:
    """Estimate what a study costs, before anything is submitted.

    Prints jobs, tokens, device-hours and what they are based on.
    """
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
        print(plan_text(estimated), end="")


@app.command(rich_help_panel=GROUP)
def methods(
    as_json: Json = False,
    config: Annotated[Path | None, option("study file whose own methods are listed, too")] = None,
) -> None:
    """List the methods."""
    groups = {
        "Published methods": [method(name) for name in method_names()],
        "To compare ratios: they differ in the ratio and its clip alone": [method(name) for name in comparison_names()],
    }
    if config:
        groups["Methods of the study"] = [*load_study(config).methods.values()]
    by_name = {method.name: method for listed in groups.values() for method in listed}
    if as_json:
        print(json.dumps({name: m.data() for name, m in by_name.items()}, indent=1, ensure_ascii=False))
        return
    width = max(map(len, by_name))
    for title, listed in groups.items():
        print(f"{title}:")
        for m in listed:
            print(f"  {m.name:{width}}  {m.summary}" + (f"  [{m.source}]" if m.source else ""))
