# The study, read and checked once, and what the other rules need of it.
import os
import shlex
import subprocess
import sys
from collections import Counter

from snakemake.logging import logger

from policygrain.doctor.leftover_jobs import cancel_leftovers, report_leftovers
from policygrain.errors import UserError
from policygrain.figures import SUFFIXES, TABLES
from policygrain.files import atomic_text
from policygrain.results.layout import START, StudyFolder
from policygrain.results.locks import lock_workflow, wait_for_jobs
from policygrain.results.reader import prepared_data
from policygrain.results.start import start_identity
from policygrain.study import parse_study, study_text
from policygrain.study.fingerprint import (
    Fingerprints,
    measured_starts,
    start_processes,
    start_seed,
    start_seeds,
    together,
)
from policygrain.tasks.sources import source_digests
from policygrain.progress import WorkflowProgress

# Snakemake would wait for a core for ever.
for option in ("cores", "local_cores", "nodes"):
    number = getattr(workflow.resource_settings, option)
    if number is not None and number < 1:
        name = {"nodes": "jobs"}.get(option, option.replace("_", "-"))
        sys.exit(f"policygrain: --{name} {number}: give at least 1, or leave it out.")

CONFIG_FILE = Path([*workflow.config_settings.configfiles, "config.yaml"][0])

try:
    STUDY = parse_study(config, CONFIG_FILE)
    FOLDER = StudyFolder(Path("results") / STUDY.name)
    PREPARED = prepared_data(FOLDER.data)
    START_MODEL = start_identity(STUDY, FOLDER)
except UserError as error:
    sys.exit(f"policygrain: {error}")

# Digests of the files that problems are read from; of those that are not at hand, what `prepare` recorded.
FINGERPRINTS = Fingerprints(
    STUDY,
    {**(PREPARED.sources if PREPARED else {}), **source_digests(STUDY)},
    start=START_MODEL,
)
MATRIX = FINGERPRINTS.matrix


def policygrain(wildcards, resources):
    """The command, of the interpreter that runs Snakemake, or of the conda environment, which lacks this package.

    Params that depend on resources are not recorded, so another place of the environment reruns nothing.
    """
    if workflow.deployment_settings.deployment_method:
        return f"env PYTHONPATH={shlex.quote(f'{workflow.basedir}/src')} python -m policygrain.cli"
    return f"{shlex.quote(sys.executable)} -m policygrain.cli"


# A job's declared output is a small file whose name holds the fingerprint of all that its result depends on. Inputs are
# `ancient`: whether something is done is decided by these names, not by file times, which a copy of a folder changes.
def done(rule, name, fingerprint):
    """The file that says that a job has ended."""
    return str(FOLDER.done(rule, name, fingerprint))


def log_of(rule, name):
    """Where a job writes its messages."""
    return str(FOLDER.log(rule, name))


wildcard_constraints:
    arm=r"[^/]+",
    seed=r"\d+",
    seeds=r"\d+(\+\d+)*",
    shard=r"\d+",
    fingerprint=r"[0-9a-f]{16}",


# The problems that training reads, and all problems. With the files themselves, so that they are written again where they
# are missing and a job needs them.
PREPARE = [
    done("prepare", "training", FINGERPRINTS.training_data),
    done("prepare", "all", FINGERPRINTS.data()),
]
TRAINING_DATA = [
    PREPARE[0],
    str(FOLDER.data.train),
    str(FOLDER.data.validation),
]
ALL_DATA = [
    *TRAINING_DATA,
    PREPARE[1],
    str(FOLDER.data.contamination),
    *(str(FOLDER.data.benchmark(b.name)) for b in STUDY.evaluation.benchmarks),
]
TRACKED = [done("track", "mlflow", FINGERPRINTS.tracking()), str(FOLDER.tracking)]
REPORTED = [done("report", "report", FINGERPRINTS.tracking()), str(FOLDER.report)]


def start_folder(seed):
    """Where a start model is, by its seed: in a folder that a rule makes, or what the study names."""
    return (
        str(FOLDER.start(seed).path)
        if STUDY.model.start == "tiny"
        else STUDY.model.start
    )


def of_starts(rule, starts, fingerprint):
    """The jobs that make, or measure, start models, several in one process."""
    return [
        done(rule, "seed" + "+".join(map(str, own)), together(map(fingerprint, own)))
        for own in start_processes(STUDY, starts)
    ]


# The start models of the study's seeds, and the jobs that make them. An experiment may have other seeds.
STARTS = {
    seed: job
    for own in start_processes(STUDY, start_seeds(STUDY))
    for job in of_starts("start_model", own, FINGERPRINTS.start_model)
    for seed in own
}


def start_done(seeds):
    """The jobs that make the start models of these runs; none where the study names one."""
    if STUDY.model.start != "tiny":
        return []
    own = dict.fromkeys(start_seed(STUDY, seed) for seed in seeds)
    others = [seed for seed in own if seed not in STARTS]
    shared = dict.fromkeys(STARTS[s] for s in own if s in STARTS)
    return [*shared, *of_starts("start_model", others, FINGERPRINTS.start_model)]


def evaluates_itself(arm):
    """Whether the process that trains an arm evaluates its models."""
    return STUDY.evaluation.after_training and any(
        run.arm == arm for run in MATRIX.evaluated
    )


# Run → the job that trains it: a process trains some seeds of an arm one after the other.
TRAINED = {
    run: done(
        "train",
        f"{run.arm}/{'+'.join(str(r.seed) for r in runs)}",
        FINGERPRINTS.process(runs),
    )
    for runs in MATRIX.processes(STUDY.seeds_per_process)
    for run in runs
}
MEASURED = [
    *of_starts(
        "estimators",
        measured_starts(STUDY, STUDY.estimators),
        FINGERPRINTS.estimators,
    ),
    *of_starts("rounds", measured_starts(STUDY, STUDY.rounds), FINGERPRINTS.rounds),
]


# Shard → runs: an engine process evaluates some models, unless the processes that trained them did. Start models are
# evaluated with the first shard.
SIZE = STUDY.evaluation.runs_per_engine
LEFT = [] if STUDY.evaluation.after_training else MATRIX.evaluated
SHARDS = {
    f"{i // SIZE:02d}": LEFT[i : i + SIZE] for i in range(0, len(LEFT) or 1, SIZE)
}


def shard_starts(shard):
    """The seeds of the start models that are evaluated with a shard: all with the first one."""
    return start_seeds(STUDY) if shard == "00" else []


EVALUATED = [
    done("evaluate", shard, FINGERPRINTS.evaluation(runs, shard_starts(shard)))
    for shard, runs in SHARDS.items()
]
# Everything that is trained, evaluated and measured.
RECORDS = [
    ancient(path) for path in [*dict.fromkeys(TRAINED.values()), *EVALUATED, *MEASURED]
]


def shard_models(shard):
    """The models of a shard as the command line takes them: NAME=FOLDER."""
    runs = {run.name: FOLDER.run(run.arm, run.seed).model for run in SHARDS[shard]}
    starts = {f"{START}/seed{seed}": start_folder(seed) for seed in shard_starts(shard)}
    return [f"{name}={folder}" for name, folder in {**starts, **runs}.items()]


def shard_inputs(w):
    """What must have ended before a shard is evaluated."""
    trained = dict.fromkeys(TRAINED[run] for run in SHARDS[w.shard])
    return [
        ancient(path)
        for path in [*ALL_DATA, *start_done(shard_starts(w.shard)), *trained]
    ]


def own_fingerprints():
    """By which jobs in a queue are known as this workflow's."""
    paths = [*start_done(STUDY.seeds), *TRAINED.values(), *MEASURED, *EVALUATED]
    return {Path(path).stem.rpartition("-")[2] for path in paths}


FIGURE_FILES = [
    *(
        done("figure", name, FINGERPRINTS.figures())
        for name in (*STUDY.figures, *TABLES)
    ),
    *(str(FOLDER.figure(name, s)) for name in STUDY.figures for s in SUFFIXES),
    *(str(FOLDER.table(name, s)) for name in TABLES for s in (".csv", ".md")),
]


def exit_if_unfinished():
    """End with an error where files are missing that a target rule, such as `all`, asks for.

    With `ancient` inputs Snakemake leaves out jobs behind one that is forced (`-f`, `-R`), and then ends with 0.
    """
    targets = [job for job in workflow.dag.targetjobs if job.rule.norun]
    missing = [path for job in targets for path in job.input if not Path(path).exists()]
    if missing:
        sys.exit(
            f"policygrain: {FOLDER.path}: the study is not finished: {len(missing)} files are missing, such as "
            f"{missing[0]}. Run the same command again, without options that force jobs."
        )


# Rules whose jobs take seconds.
SHORT = frozenset({"prepare", "figure", "table", "track", "report_page"})
# The handler of Snakemake's log that shows the progress, while jobs are running.
PROGRESS = []


def jobs_left():
    """Jobs that have not ended, by rule."""
    jobs = workflow.dag.needrun_jobs()
    return Counter(job.rule.name for job in jobs if not job.rule.norun)


def show_progress():
    """Show a line instead of a paragraph for each job, unless other output is requested (`-p`, `--verbose`, `--quiet`)."""
    settings = workflow.output_settings
    changed = set(settings.quiet or ()) != {Quietness.HOST, Quietness.REASON}
    if settings.printshellcmds or settings.verbose or changed:
        return
    progress = WorkflowProgress(jobs_left, SHORT)
    PROGRESS.append(progress)
    for handler in logger.handlers:
        if handler.name == "DefaultStreamHandler":
            handler.addFilter(progress.lets_pass)
    logger.addHandler(progress)


def end_progress():
    """Take the line away."""
    for progress in PROGRESS:
        progress.close()


def write_study():
    """Write the resolved study beside its results; every command reads it there."""
    text = study_text(STUDY, FOLDER.study)
    if not FOLDER.study.exists() or FOLDER.study.read_text(encoding="utf-8") != text:
        atomic_text(FOLDER.study, text)


def follow_in_mlflow():
    """Start the process that logs the steps of runs to MLflow while they are trained; it ends with this one."""
    command = [
        sys.executable,
        "-m",
        "policygrain.cli",
        "track",
        "--follow",
        str(os.getpid()),
    ]
    command += ["--config", str(FOLDER.study), "--results", str(FOLDER.path)]
    with FOLDER.tracking_log.open("w") as file:
        # In a session of its own: Ctrl-C stops the workflow, and this process then says so in MLflow.
        subprocess.Popen(
            command,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
            env={**os.environ, "PYTHONPATH": f"{workflow.basedir}/src"},
        )


def submits_to_slurm():
    """Whether this Snakemake submits jobs, and neither runs them here nor is one of them."""
    return "slurm" == getattr(workflow.executor_plugin, "name", "")


def launch(resources):
    """What starts the processes that train one run together; nothing where it is one process (no `mpi`)."""
    if not resources.get("mpi"):
        return ""
    nodes = resources.get("nodes")
    tasks = resources.get("tasks") or (nodes or 1) * resources.tasks_per_node
    where = f"--nodes={nodes} " if nodes else ""
    gpus = f"--gpus={resources.gpu} " if resources.get("gpu") else ""
    # A step does not inherit the job's CPUs per task; ranks must not wait for one that was killed.
    cpus = f"--cpus-per-task={resources.get('cpus_per_task', 1)} --kill-on-bad-exit=1"
    return f"{resources.mpi} {where}--ntasks={tasks} {cpus} {gpus}"
