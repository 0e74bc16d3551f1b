# The study and its jobs (src/policygrain/plan/jobs.py), and what the rules have in common.
import shlex
import sys
from pathlib import Path

from policygrain.errors import UserError
from policygrain.plan.jobs import Jobs
from policygrain.plan.slurm import launch
from policygrain.results.layout import StudyFolder
from policygrain.study import parse_study

CONFIG_FILE = Path([*workflow.config_settings.configfiles, "config.yaml"][0])

try:
    STUDY = parse_study(config, CONFIG_FILE)
    FOLDER = StudyFolder(Path("results") / STUDY.name)
    JOBS = Jobs.of_results(STUDY, FOLDER)
except UserError as error:
    sys.exit(f"policygrain: {error}")


# Params of all rules. The command is that of the interpreter that runs Snakemake; as a function of resources it is not
# recorded, so another place of the environment reruns nothing.
COMMON = {
    "policygrain": lambda w, resources: f"{shlex.quote(sys.executable)} -m policygrain.cli",
    "study": str(FOLDER.study),
    "data": lambda w: str(FOLDER.data.path),
    "results": lambda w: str(FOLDER.path),
}


def inputs_of(rule):
    """What a job reads. `ancient`: names decide whether something is done, not file times, which a copy changes."""
    return lambda w: ancient(JOBS.of(rule, dict(w.items())).inputs)


def seeds_of(w):
    """The seeds in the name of a job."""
    return w.seeds.split("+")


wildcard_constraints:
    arm=r"[^/]+",
    seed=r"\d+",
    seeds=r"\d+(\+\d+)*",
    shard=r"\d+",
    fingerprint=r"[0-9a-f]{16}",
