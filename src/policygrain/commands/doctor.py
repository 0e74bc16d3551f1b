"""`policygrain check --slurm`: what a cluster refuses, before jobs wait for it."""

from __future__ import annotations

import shlex
import subprocess
from pathlib import Path
from types import SimpleNamespace

import yaml

from ..errors import UserError, did_you_mean

SUBMITTED = ("start_model", "train", "train_arm", "evaluate", "evaluate_all")  # rules whose jobs a cluster runs


def check_cluster(profile: Path) -> None:
    """Ask SLURM whether it accepts the request of each rule, and print it. UserError with all that are refused."""
    refused = []
    for rule, words in requests(profile).items():
        print(f"{rule}: {shlex.join(words)}", flush=True)
        command = ["sbatch", "--test-only", *words, "--wrap=true"]
        asked = subprocess.run(command, capture_output=True, text=True, check=False)
        if asked.returncode:
            refused.append(f"{profile}, {rule}: {asked.stderr.strip().splitlines()[-1]}")
    if refused:
        raise UserError("\n".join(refused))


class Wanted(dict[str, object]):
    """The resources of a rule, as Snakemake's executor reads those of a job."""

    __getattr__ = dict.get


def requests(profile: Path) -> dict[str, list[str]]:
    """Rule → the options of sbatch by which Snakemake's executor requests its resources. UserError for wrong ones."""
    from snakemake.resources import Resources
    from snakemake_executor_plugin_slurm.submit_string import get_submit_command
    from snakemake_executor_plugin_slurm.utils import set_gres_string

    fixed, found = {"run_uuid": "x", "slurm_logfile": "x", "comment_str": "x", "workdir": None}, {}
    try:
        content = yaml.safe_load(profile.read_text(encoding="utf-8"))
        own, default = (content.get(key) or {} for key in ("set-resources", "default-resources"))
        options = {key: content.get(f"slurm-{key}") for key in ("qos", "reservation")}
        options |= {"requeue": False, "no_requeue": False}  # srun has no such options
        for rule in SUBMITTED:
            wanted = Wanted(Resources.from_mapping({**default, **(own.get(rule) or {})}).unwrapped_items())
            job, named = SimpleNamespace(resources=wanted, threads=1), dict.fromkeys(("account", "partition"), "")
            named |= {n: shlex.join([f"--{n}={wanted[f'slurm_{n}']}"]) for n in named if f"slurm_{n}" in wanted}
            words = shlex.split(get_submit_command(job, {**fixed, **named}, SimpleNamespace(**options)))
            found[rule] = [*words[words.index("--comment") + 2 :], *shlex.split(set_gres_string(job))]
    except Exception as error:  # those of Snakemake, its executor, YAML and files have no common class
        raise UserError(f"{profile}: cannot be read as a Snakemake profile: {error}") from error
    for rule in own.keys() - set(SUBMITTED):
        hint = did_you_mean(rule, SUBMITTED)
        raise UserError(f"{profile}: set-resources: {rule!r} is not a rule that runs as a job.{hint}")
    return found
