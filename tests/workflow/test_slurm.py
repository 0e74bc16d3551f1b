"""`snakemake --profile slurm all` on a real SLURM: from start to end, and through what happens on clusters."""

import itertools
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from policygrain.files import read_json

from ..support.files import read_lines
from ..support.leftovers import with_in_environment
from ..support.slurm import Cluster
from ..support.small import SMALL
from ..support.snakemake import copy_checkout
from ..trainers.test_command import SCRIPT, TRAINING

STUDY = Path(__file__).parents[1] / "support" / "disturbed.yaml"
STEPS = 16
TIMEOUT = 900  # seconds; the machine may have other things to do
DISTURBED = ("cancelled", "requeued")
TWO_NODES = "on_two_nodes+trainer=trl"


class User:
    """Who types commands in a checkout on the login node."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster, self.home = cluster, home
        # The checkout's own package, and its tests for the methods above.
        path = f"{home / 'src'}{os.pathsep}{home}"
        self.environment = {**cluster.environment, "PYTHONPATH": path, "MLFLOW_TRACKING_URI": ""}
        self.runs = home / "results" / "disturbed" / "runs"
        self.profile = home / "slurm" / "config.yaml"
        self.profile_as_it_stands = self.profile.read_text()

    @contextmanager
    def typing(self, *arguments: str, study: str = "disturbed.yaml") -> Iterator[subprocess.Popen[str]]:
        """`snakemake --profile slurm …`, in the foreground of a terminal of its own."""
        command = [sys.executable, "-m", "snakemake", "--profile", "slurm", *arguments]
        with (self.home / "terminal.txt").open("w") as terminal:
            process = subprocess.Popen(
                [*command, "--configfile", f"studies/{study}"],
                cwd=self.home,
                env=self.environment,
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=subprocess.STDOUT,
                text=True,
                start_new_session=True,
                # A shell that runs the tests in the background has them ignore Ctrl-C; a terminal does not.
                preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def snakemake(self, *arguments: str, study: str = "disturbed.yaml", code: int = 0) -> str:
        """Type it and wait for its end; what it printed."""
        with self.typing(*arguments, study=study) as process:
            assert process.wait(timeout=TIMEOUT) == code, self.printed
        return self.printed

    @property
    def printed(self) -> str:
        return (self.home / "terminal.txt").read_text()

    def trained(self, arm: str) -> str:
        """The file that says that an arm is trained."""
        return f"results/disturbed/runs/{arm}/seed0/summary.json"

    def metrics(self, arm: str) -> Path:
        return self.runs / arm / "seed0" / "metrics.jsonl"

    def steps(self, arm: str) -> int:
        return len(self.metrics(arm).read_text().splitlines()) if self.metrics(arm).exists() else 0

    def slow_down(self, arm: str, seconds: float | None) -> None:
        """How long each update of ``arm`` takes from now on; None: no longer than it must."""
        path = self.home / "slow" / arm
        if seconds is None:
            path.unlink(missing_ok=True)
            return
        path.parent.mkdir(exist_ok=True)
        path.with_suffix(".new").write_text(str(seconds))
        path.with_suffix(".new").replace(path)

    def edit_profile(self, **train: Any) -> None:
        """Ask for something else for training jobs than the profile as it stands does."""
        profile = yaml.safe_load(self.profile_as_it_stands)
        profile["set-resources"]["train"] |= train
        self.profile.write_text(yaml.safe_dump(profile))

    def jobs_of(self, arm: str) -> list[tuple[str, str]]:
        """(id, state) of an arm's training jobs, those that are over too, oldest first."""
        name = re.compile(rf"_{re.escape(arm)}_0(_disturbed)?$|_{re.escape(arm)}_0_")  # the job's wildcards
        found = [(job, state) for job, state, comment in self.cluster.jobs("all") if name.search(comment)]
        return sorted(found, key=lambda pair: int(pair[0]))

    def state(self, arm: str) -> str:
        """The state of an arm's newest job; empty if it has none."""
        return next((state for _, state in reversed(self.jobs_of(arm))), "")

    def wait_for_its_middle(self, arm: str) -> None:
        self.cluster.wait(lambda: self.steps(arm) >= 3, TIMEOUT, f"{arm} is in its middle")
        assert self.steps(arm) < STEPS, f"{arm} was trained before anything happened to it"

    def assert_as_undisturbed(self, arm: str) -> None:
        assert [row["step"] for row in read_lines(self.metrics(arm))] == list(range(STEPS + 1))
        assert self.metrics(arm).read_bytes() == self.metrics("undisturbed").read_bytes()


pytestmark = pytest.mark.slurm


@pytest.fixture(scope="module")
def user(cluster, root, tmp_path_factory):
    """A copy of the tree, with the studies above; of the profile only the pause between two looks is shortened."""
    home = tmp_path_factory.mktemp("login") / "policygrain"
    copy_checkout(root, home)
    shutil.copy(STUDY, home / "studies")
    profile = home / "slurm" / "config.yaml"
    text, count = re.subn(r"(before-status-checks:) \d+", r"\1 1", profile.read_text())
    assert count == 1
    profile.write_text(text)
    return User(cluster, home)


def test_the_smoke_study_runs_from_start_to_end_and_then_there_is_nothing_to_do(user):
    user.snakemake("all", study="smoke.yaml")
    results = user.home / "results" / "smoke"
    assert (results / "figures" / "benchmarks.pdf").read_bytes().startswith(b"%PDF")
    assert "running_total" in (results / "tables" / "results.csv").read_text()
    assert (results / "report.html").exists() and (results / "mlflow.json").exists()
    submitted = {path.name for path in (user.home / ".snakemake" / "slurm_logs").iterdir()}
    computing = {f"rule_{name}" for name in ("start_model", "train", "evaluate")}
    assert submitted == computing, "what computes, and only that"
    log = results / "logs" / "evaluate" / "grpo.log"
    assert re.search(r"on \S+, job \d+", log.read_text()), "a log says where"
    assert "Nothing to be done" in user.snakemake("all", study="smoke.yaml")


@pytest.fixture(scope="module")
def disturbed(user):
    """Two are disturbed in their middle, and Ctrl-C ends the call in the middle of a third."""
    arms, cluster = (*DISTURBED, "interrupted"), user.cluster
    for arm in arms:
        user.slow_down(arm, 1.0)
    with user.typing(*(user.trained(arm) for arm in ("undisturbed", *arms))) as call:
        for arm, words in (("cancelled", ["scancel"]), ("requeued", ["scontrol", "requeue"])):
            user.wait_for_its_middle(arm)
            cluster.ask(*words, user.jobs_of(arm)[0][0])
            user.slow_down(arm, None)
        user.wait_for_its_middle("interrupted")
        user.slow_down("interrupted", 3600)
        ended = {"undisturbed", *DISTURBED}
        cluster.wait(
            lambda: all(user.state(arm) == "COMPLETED" for arm in ended), 2 * TIMEOUT, "the others are trained"
        )
        assert call.poll() is None, user.printed
        os.killpg(call.pid, signal.SIGINT)
        assert call.wait(timeout=TIMEOUT) != 0
    return user


def assert_resumed(user: User, arm: str, states: list[str], restarts: int) -> None:
    jobs = user.jobs_of(arm)
    assert [state for _, state in jobs] == states
    assert f"Restarts={restarts} " in user.cluster.ask("scontrol", "show", "job", jobs[-1][0])
    user.assert_as_undisturbed(arm)


@pytest.mark.parametrize(
    ("arm", "states", "restarts"),
    [
        ("cancelled", ["CANCELLED", "COMPLETED"], 0),  # Snakemake submits another job.
        ("requeued", ["COMPLETED"], 1),  # SLURM starts the same job again.
    ],
)
def test_a_disturbed_run_ends_as_the_undisturbed_one(arm, states, restarts, disturbed):
    assert_resumed(disturbed, arm, states, restarts)


@pytest.fixture(scope="module")
def resumed(disturbed):
    """After the next call, beside a run that fails."""
    user, cluster = disturbed, disturbed.cluster
    cluster.wait(lambda: not cluster.jobs(), TIMEOUT, "no job is left")
    assert [state for _, state in user.jobs_of("interrupted")] == ["CANCELLED"]
    assert 3 <= user.steps("interrupted") < STEPS
    user.slow_down("interrupted", None)
    with user.typing(*(user.trained(arm) for arm in ("interrupted", "broken")), "--retries", "0") as call:
        assert call.wait(timeout=TIMEOUT) == 1, user.printed
    return user


def test_control_c_cancels_the_jobs_and_the_next_call_resumes(resumed):
    resumed.assert_as_undisturbed("interrupted")


def test_a_job_that_fails_shows_the_end_of_its_log(resumed):
    assert re.search(r"policygrain: .*broken/seed0: .*not finite", resumed.printed), resumed.printed
    assert "Traceback" not in resumed.printed


@pytest.mark.release
def test_a_run_without_time_stops_by_itself_and_ends_as_the_undisturbed_one(resumed):
    """Two Snakemakes start before the trainer does and asks how much time it has."""
    user, arm = resumed, "out_of_time"
    user.slow_down(arm, 3.0)
    with user.typing(user.trained(arm)) as call:
        user.cluster.wait(lambda: user.state(arm) == "RUNNING", TIMEOUT, "it has begun")
        user.cluster.ask("scontrol", "update", f"JobId={user.jobs_of(arm)[0][0]}", "TimeLimit=2")
        user.cluster.wait(lambda: user.state(arm) == "FAILED", TIMEOUT, "it has stopped")
        user.slow_down(arm, None)
        assert call.wait(timeout=TIMEOUT) == 0, user.printed
    assert_resumed(user, arm, ["FAILED", "COMPLETED"], 0)


@pytest.mark.release
def test_two_nodes_train_one_run_of_which_a_process_is_killed(resumed):
    """The same tokens are sampled as by one process, and numbers differ by the order of their sums."""
    user = resumed
    user.edit_profile(mpi="srun", nodes=2, tasks_per_node=2)
    user.slow_down("on_two_nodes", 1.0)
    with user.typing(user.trained(TWO_NODES)) as call:
        # After the checkpoint of step 4, in the middle of the run.
        user.cluster.wait(lambda: user.steps(TWO_NODES) > 5 or call.poll() is not None, TIMEOUT, "it is in its middle")
        [last] = with_in_environment("SLURM_PROCID=3\0", "SLURM_STEP_NUM_TASKS=4\0", f"{user.cluster.folder}/")
        os.kill(last, signal.SIGKILL)
        user.slow_down("on_two_nodes", None)
        assert user.steps(TWO_NODES) < STEPS and call.wait(timeout=TIMEOUT) == 0, user.printed
    jobs = user.jobs_of(TWO_NODES)
    assert [state for _, state in jobs] == ["FAILED", "COMPLETED"]
    assert "NumNodes=2 " in user.cluster.ask("scontrol", "show", "job", jobs[-1][0])
    assert read_json(user.metrics(TWO_NODES).parent / "summary.json")["environment"]["ranks"] == 4
    rows, alone = (read_lines(user.metrics(arm)) for arm in (TWO_NODES, "undisturbed"))
    assert [row["step"] for row in rows] == list(range(STEPS + 1))
    for row, expected in zip(rows, alone, strict=True):
        # The share of tokens whose entropy fell: at a step's first update it neither fell nor rose, but for rounding.
        numbers = {name: value for name, value in expected.items() if name != "mask_share"}
        assert {name: row[name] for name in numbers} == pytest.approx(numbers, rel=2e-3, abs=1e-5)


@pytest.mark.release
def test_a_script_of_ones_own_trains_in_jobs_and_its_models_are_evaluated(user):
    (user.home / "script.py").write_text(SCRIPT)
    study = {
        **SMALL,
        "name": "scripted",
        "seeds": [0, 1],
        "training": TRAINING,
        "methods": {"mine": {"label": "My loss"}, "other": {"label": "Another"}},
        "experiments": {"headline": {"methods": ["mine", "other"]}},
    }
    (user.home / "studies" / "scripted.yaml").write_text(yaml.safe_dump(study))
    user.snakemake("all", study="scripted.yaml")
    runs, jobs = user.home / "results" / "scripted" / "runs", " ".join(job[2] for job in user.cluster.jobs("all"))
    for method, seed in itertools.product(("mine", "other"), (0, 1)):
        run = runs / method / f"seed{seed}"
        assert [row["step"] for row in read_lines(run / "metrics.jsonl")] == [0, 1, 2, 3, 4]
        assert (run / "evaluation" / "records.json").exists() and f"{method}_{seed}" in jobs
    assert (user.home / "results" / "scripted" / "report.html").exists()


def test_the_check_passes_on_this_cluster(user):
    """What it prints for a rule are the options of a job."""

    def run(*command: str) -> str:
        options: Any = {"cwd": user.home, "env": user.environment, "text": True, "timeout": TIMEOUT}
        return subprocess.check_output(command, **options)

    user.edit_profile()
    check = [sys.executable, "-m", "policygrain.cli", "check", "studies/smoke.yaml"]
    [options] = re.findall("^train: (.*)", run(*check, "--slurm"), flags=re.M)
    assert " of them evaluated." in run("srun", *shlex.split(options), *check)
