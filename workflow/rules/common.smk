# The study and its jobs (src/policygrain/commands/jobs.py), and what the rules have in common.
import shlex
import sys
from pathlib import Path

from policygrain.errors import UserError
from policygrain.commands.jobs import Jobs
from policygrain.paths import StudyFolder
from policygrain.study import parse_study
from policygrain.trainers.launch import launcher

CONFIG_FILE = Path([*workflow.config_settings.configfiles, "config.yaml"][0])

try:
    STUDY = parse_study(config, CONFIG_FILE)
    FOLDER = StudyFolder(Path("results") / STUDY.name)
    JOBS = Jobs.of_results(STUDY, FOLDER)
except UserError as error:
    sys.exit(f"policygrain: {error}")


# Params of all rules. The command is that of the interpreter that runs Snakemake, launched in several processes where
# the resources say so. As a function of resources it is not recorded, so another place of the environment reruns nothing.
COMMON = {
    "policygrain": lambda w, resources: (
        f"{launcher(resources)}{shlex.quote(sys.executable)} -m policygrain.cli"
    ),
    "study": str(FOLDER.study),
}


def stage(words, done="{output:q}", log=">>"):
    """The shell command of a stage. Attempts at one job have one log; other logs are written anew."""
    return f"exec {{params.policygrain}} {words} --config {{params.study:q}} --done {done} {log}{{log:q}} 2>&1"


def inputs_of(rule):
    """What a job reads. `ancient`: names decide whether something is done, not file times, which a copy changes."""
    return lambda w: ancient(JOBS.of(rule, dict(w.items())).inputs)


wildcard_constraints:
    arm=r"[^/]+",
    seed=r"\d+",
    seeds=r"\d+(\+\d+)*",
    shard=r"\d+",
    fingerprint=r"[0-9a-f]{16}",
