# The study, and the files that it promises. results/STUDY/settings/ has a file per stage, arm and figure, which is written
# only if its content changes; what depends on it is then older, and Snakemake makes it again.
import re

from policygrain.commands.workflow import POLICYGRAIN, open_study
from policygrain.figures import SUFFIXES, TABLES as TABLE_NAMES
from policygrain.paths import START
from policygrain.study.dependencies import start_seed
from policygrain.study.runs import run_matrix, train_rules
from policygrain.trainers.launch import launcher

STUDY = open_study(workflow)  # locked until Snakemake ends
MATRIX = run_matrix(STUDY)


def summaries(runs):
    """The records of training runs."""
    return [f"results/{STUDY.name}/runs/{run.arm}/seed{run.seed}/summary.json" for run in runs]


def initial_models(seeds):
    """The initial models of runs with these seeds; a pretrained model is no file of the study."""
    starts = dict.fromkeys(start_seed(STUDY, int(seed)) for seed in seeds)
    return [f"results/{STUDY.name}/start/seed{start}.json" for start in starts if STUDY.model.is_made]


RUNS = summaries(MATRIX.runs)
EVALUATED = [START, *dict.fromkeys(run.arm for run in MATRIX.evaluated)] if MATRIX.evaluated else []
EVALUATIONS = [f"results/{STUDY.name}/evaluation/{arm}.json" for arm in EVALUATED]
RECORDS = [*EVALUATIONS, *summaries(sorted({*MATRIX.runs} - {*MATRIX.evaluated}))]  # of all runs
BENCHMARK_NAMES = [benchmark.name for benchmark in STUDY.evaluation.benchmarks]
BENCHMARKS = [f"results/{STUDY.name}/data/benchmarks/{name}.jsonl" for name in BENCHMARK_NAMES]
FIGURES = [f"results/{STUDY.name}/figures/{name}{suffix}" for name in STUDY.figures for suffix in SUFFIXES]
TABLES = [f"results/{STUDY.name}/tables/{name}{suffix}" for name in TABLE_NAMES for suffix in (".csv", ".md", ".tex")]


wildcard_constraints:
    study=re.escape(STUDY.name),
    arm=r"[^/]+",
    seed=r"\d+",
