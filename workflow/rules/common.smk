# The study, read and checked once, and what the other rules need of it.
import sys

import yaml

from policygrain.errors import UserError
from policygrain.figures import TABLES
from policygrain.files import atomic_text
from policygrain.study import parse_study
from policygrain.study.runs import run_matrix

CONFIG_FILE = Path([*workflow.config_settings.configfiles, "config.yaml"][0])

try:
    STUDY = parse_study(config, CONFIG_FILE)
except UserError as error:
    sys.exit(f"policygrain: {error}")

MATRIX = run_matrix(STUDY)
RESULTS = f"results/{STUDY.name}"
STUDY_FILE = f"{RESULTS}/study.yaml"


def policygrain(wildcards, resources):
    """The command: of the interpreter that runs Snakemake, or of the conda environment, which lacks this package.

    What resources might decide Snakemake does not record, so another place of the environment trains nothing again.
    """
    if workflow.deployment_settings.deployment_method:
        return f"env PYTHONPATH={workflow.basedir}/src python -m policygrain.cli"
    return f"{sys.executable} -m policygrain.cli"


FIGURE_FILES = [
    *(
        f"{RESULTS}/figures/{name}.{suffix}"
        for name in STUDY.figures
        for suffix in ("pdf", "png")
    ),
    *(
        f"{RESULTS}/tables/{name}.{suffix}"
        for name in TABLES
        for suffix in ("csv", "md")
    ),
]


def write_study():
    """Keep the resolved study beside its results; every command reads it there."""
    content = STUDY.model_dump(mode="json") | {"base": None}
    atomic_text(
        Path(STUDY_FILE), yaml.safe_dump(content, sort_keys=False, allow_unicode=True)
    )


def parent(path):
    """The folder of a file; lint wants params that name one to be read off an input or output."""
    return str(Path(path).parent)


def launch(resources):
    """What starts the processes that train one run together; nothing where it is one process (no `mpi`)."""
    if not resources.get("mpi"):
        return ""
    nodes = resources.get("nodes")
    tasks = resources.get("tasks") or (nodes or 1) * resources.tasks_per_node
    where = f"--nodes={nodes} " if nodes else ""
    gpus = f"--gpus={resources.gpu} " if resources.get("gpu") else ""
    # A step does not inherit the job's CPUs per task; and ranks whose neighbour was killed are not to wait for it.
    cpus = f"--cpus-per-task={resources.get('cpus_per_task', 1)} --kill-on-bad-exit=1"
    return f"{resources.mpi} {where}--ntasks={tasks} {cpus} {gpus}"


def unique(items):
    """Each once, in order."""
    return list(dict.fromkeys(items))


def start_seed(seed):
    """The seed of the start model that a run begins from."""
    return seed if STUDY.model.warm_start_per_seed else STUDY.seeds[0]


# Where the start models are: folders that a rule makes, or what the study names. {seed} stands for the seed.
START_MODEL = (
    f"{RESULTS}/start/seed{'{seed}' if STUDY.model.warm_start_per_seed else STUDY.seeds[0]}"
    if STUDY.model.start == "tiny"
    else STUDY.model.start
)


def start_model(seed):
    """Where a run's start model is."""
    return START_MODEL.replace("{seed}", str(seed))


def start_records(seeds):
    """Files that say the start models are there; nothing to wait for where the pipeline does not make them."""
    made = STUDY.model.start == "tiny"
    return [f"{start_model(seed)}/start.json" for seed in seeds] if made else []


def run_content(arm, seed):
    """All that decides a run's result besides its inputs: a change of it, and only that, trains the run again."""
    chosen = MATRIX.arms[arm]
    return {
        "method": chosen.method(STUDY).data(),
        "training": chosen.training(STUDY).deciding(),
        "prompt": STUDY.prompt.model_dump(),
        "grader": STUDY.grader,
        "model": [STUDY.model.start, STUDY.model.revision, STUDY.model.dtype]
        + ([STUDY.model.lora.model_dump()] if STUDY.model.lora else []),
        "seed": int(seed),
    }


# A training process takes some seeds of an arm, an engine process some checkpoints: starting up is not free.
TRAINED = {
    run: f"{RESULTS}/runs/{runs[0].arm}/trained-{'+'.join(str(r.seed) for r in runs)}.json"
    for runs in MATRIX.processes(STUDY.seeds_per_process)
    for run in runs
}
BATCH = STUDY.evaluation.runs_per_engine
SHARDS = {
    f"{i // BATCH:02d}": MATRIX.evaluated[i : i + BATCH]
    for i in range(0, len(MATRIX.evaluated), BATCH)
}
# The start models are judged like any other, with the first shard.
START_SEEDS = sorted({start_seed(seed) for seed in STUDY.seeds})


wildcard_constraints:
    seeds=r"\d+(\+\d+)*",


def seeds_of(wildcard):
    """The seeds in the name of what a training process leaves."""
    return [int(seed) for seed in wildcard.split("+")]


def shard_models(shard):
    """NAME → model folder, of everything a shard judges."""
    runs = {
        f"{run.arm}/seed{run.seed}": f"{RESULTS}/{run.folder}/model"
        for run in SHARDS[shard]
    }
    starts = (
        {f"start/seed{seed}": start_model(seed) for seed in START_SEEDS}
        if shard == min(SHARDS)
        else {}
    )
    return {**starts, **runs}


def model_arguments(w):
    """The models of a shard, as the command line takes them."""
    return [f"{name}={folder}" for name, folder in shard_models(w.shard).items()]


def shard_inputs(w):
    """What the evaluation of a shard reads."""
    first = w.shard == min(SHARDS)
    return {
        "benchmarks": rules.prepare.output.benchmarks,
        "contamination": rules.prepare.output.contamination,
        "start": start_records(START_SEEDS) if first else [],
        "runs": unique(TRAINED[run] for run in SHARDS[w.shard]),
    }


# Jobs that draw a shard's responses between them; a single one does not need to be told apart from its judging.
PARTS = STUDY.evaluation.parts


def shard_parts(w):
    """What says that a shard's responses were drawn, where other jobs do that."""
    numbers = range(PARTS) if PARTS > 1 else []
    return [f"{RESULTS}/evaluation/{w.shard}.part{number}" for number in numbers]
