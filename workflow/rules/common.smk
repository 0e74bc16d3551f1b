# The study, and the files that it promises.
import os
import re
import shlex
import sys
from pathlib import Path

from policygrain.commands.app import PARENT
from policygrain.commands.workflow import lock_study, write_settings
from policygrain.errors import UserError
from policygrain.figures import SUFFIXES, TABLES as TABLE_NAMES
from policygrain.paths import START, StudyFolder
from policygrain.study import load_study
from policygrain.study.runs import run_matrix
from policygrain.study.dependencies import start_seed, start_seeds
from policygrain.trainers.launch import launcher

# results/STUDY/settings/ has a file per stage, arm and figure. A file is written only if its content changes; what depends
# on it is then older, and Snakemake makes it again. The lock is held until Snakemake ends, so a second one cannot change
# settings under the jobs of the first.
try:
    # Not Snakemake's `config`: it reads 1e-5 as text, and of a repeated key the last value.
    files, changes = workflow.config_settings.configfiles or ["config.yaml"], workflow.config_settings.config
    STUDY = load_study(*files, changes=changes)
    MATRIX = run_matrix(STUDY)
    if workflow.is_main_process:
        try:
            lock_study(StudyFolder(Path("results") / STUDY.name))
            write_settings(STUDY, StudyFolder(Path("results") / STUDY.name))
        except UserError:
            if not workflow.output_settings.dryrun:
                raise
except (UserError, OSError) as error:  # OSError: a full disk
    sys.exit(f"policygrain: {error}")

os.environ[PARENT] = str(os.getpid())


POLICYGRAIN = f"{shlex.quote(sys.executable)} -m policygrain.cli"  # with the interpreter that runs Snakemake


def launch(wildcards, resources):
    """What starts the processes of a run, where the resources ask for several."""
    return launcher(resources)


def runs_of(arm):
    """The runs of an arm that are evaluated."""
    runs = [run for run in MATRIX.evaluated if run.arm == arm]
    return [f"results/{STUDY.name}/runs/{run.arm}/seed{run.seed}/summary.json" for run in runs]


def initial_models(seeds):
    """The initial models of runs with these seeds; a pretrained model is no file of the study."""
    starts = dict.fromkeys(start_seed(STUDY, int(seed)) for seed in seeds)
    return [f"results/{STUDY.name}/start/seed{start}.json" for start in starts if STUDY.model.is_made]


RUNS = [f"results/{STUDY.name}/runs/{run.arm}/seed{run.seed}/summary.json" for run in MATRIX.runs]
BENCHMARKS = [
    f"results/{STUDY.name}/data/benchmarks/{benchmark.name}.jsonl" for benchmark in STUDY.evaluation.benchmarks
]
EVALUATED = [START, *dict.fromkeys(run.arm for run in MATRIX.evaluated)] if MATRIX.evaluated else []
EVALUATIONS = [f"results/{STUDY.name}/evaluation/{arm}.json" for arm in EVALUATED]
RECORDS = [
    *EVALUATIONS,
    *(path for path, run in zip(RUNS, MATRIX.runs) if run not in MATRIX.evaluated),
]  # of all runs
FIGURES = [f"results/{STUDY.name}/figures/{name}{suffix}" for name in STUDY.figures for suffix in SUFFIXES]
TABLES = [f"results/{STUDY.name}/tables/{name}{suffix}" for name in TABLE_NAMES for suffix in (".csv", ".md", ".tex")]


wildcard_constraints:
    study=re.escape(STUDY.name),
    arm=r"[^/]+",
    seed=r"\d+",
