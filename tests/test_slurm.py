"""`snakemake --profile slurm all` on a real SLURM: from start to end, and through what happens on clusters."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import pytest

from policygrain.files import read_json_lines

from .slurm import GPUS_PER_NODE, NODES, Cluster

pytestmark = pytest.mark.slurm

STEPS = 16
PATIENCE = 400  # seconds; the machine may have other things to do
# Two studies of one name, so that the second one finds what the first one has made. `undisturbed` and the methods to
# be disturbed are the same but for a name that decides nothing.
STUDY = f"""\
base: smoke.yaml
name: cluster
seeds: [0]
seeds_per_process: 1
training: {{steps: {STEPS}, checkpoint_every: 4}}
methods:
  undisturbed: {{base: grpo, ratio: {{name: "tests.slow:slow", name_of_run: undisturbed}}}}
experiments:
  headline: {{methods: [grpo, undisturbed]}}
evaluation: {{engine: transformers}}
figures: [benchmarks, dynamics]
"""
DISTURBED = ("cancelled", "requeued", "out_of_time", "hung", "interrupted", "on_gpu")
SECOND_STUDY = "base: cluster.yaml\nname: cluster\nmethods:\n  broken: {base: grpo, ratio: 'tests.slow:broken'}\n"
SECOND_STUDY += "".join(
    f"  {arm}: {{base: undisturbed, ratio: {{name: 'tests.slow:slow', name_of_run: {arm}}}}}\n" for arm in DISTURBED
)
SECOND_STUDY += f"experiments:\n  headline: {{methods: [{', '.join(DISTURBED)}, broken]}}\n"

Done = subprocess.CompletedProcess[str]


class User:
    """Who types commands in a checkout on the login node."""

    def __init__(self, cluster: Cluster, home: Path) -> None:
        self.cluster, self.home = cluster, home
        # The checkout's own package, and its tests for the methods above.
        path = f"{home / 'src'}{os.pathsep}{home}"
        self.environment = {**cluster.environment, "PYTHONPATH": path, "MLFLOW_TRACKING_URI": ""}
        self.runs = home / "results" / "cluster" / "runs"

    @contextmanager
    def typing(self, *arguments: str, study: str = "cluster.yaml") -> Iterator[subprocess.Popen[str]]:
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
            )
            try:
                yield process
            finally:
                if process.poll() is None:
                    os.killpg(process.pid, signal.SIGKILL)
                    process.wait()

    def snakemake(self, *arguments: str, study: str = "cluster.yaml", code: int = 0) -> str:
        """Type it and wait for its end; what it printed."""
        with self.typing(*arguments, study=study) as process:
            assert process.wait(timeout=PATIENCE) == code, self.printed
        return self.printed

    @property
    def printed(self) -> str:
        return (self.home / "terminal.txt").read_text()

    def trained(self, arm: str) -> str:
        return str((self.runs / arm / "trained-0.json").relative_to(self.home))

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

    def jobs_of(self, arm: str) -> list[tuple[str, str]]:
        """(id, state) of an arm's training jobs, those that are over too, oldest first."""
        found = [(job, state) for job, state, comment in self.cluster.jobs("all") if comment.endswith(f"_{arm}_0")]
        return sorted(found, key=lambda pair: int(pair[0]))

    def assert_as_undisturbed(self, arm: str) -> None:
        assert [row["step"] for row in read_json_lines(self.metrics(arm))] == list(range(STEPS + 1))
        assert self.metrics(arm).read_bytes() == self.metrics("undisturbed").read_bytes()


@pytest.fixture(scope="module")
def user(cluster: Cluster, root: Path, tmp_path_factory: pytest.TempPathFactory) -> User:
    """A copy of the tree, with the studies above; of the profile only the pause between two looks is shortened."""
    home = tmp_path_factory.mktemp("login") / "policygrain"
    shutil.copytree(root, home, ignore=shutil.ignore_patterns(".*", "results", "__pycache__"))
    (home / "studies" / "cluster.yaml").write_text(STUDY)
    (home / "studies" / "disturbed.yaml").write_text(SECOND_STUDY)
    profile = home / "slurm" / "config.yaml"
    text, count = re.subn(r"(before-status-checks:) \d+", r"\1 1", profile.read_text())
    assert count == 1
    profile.write_text(text)
    return User(cluster, home)


@pytest.fixture(scope="module")
def finished(user: User) -> User:
    """After `snakemake --profile slurm all`."""
    user.snakemake("all")
    return user


def test_a_study_runs_from_start_to_end(finished: User) -> None:
    results = finished.home / "results" / "cluster"
    assert (results / "figures" / "benchmarks.pdf").read_bytes().startswith(b"%PDF")
    assert "running_total" in (results / "tables" / "results.csv").read_text()
    assert (results / "report.html").exists() and (results / "mlflow.done").exists()
    submitted = {path.name for path in (finished.home / ".snakemake" / "slurm_logs").iterdir()}
    assert submitted == {"rule_start_model", "rule_train", "rule_probe", "rule_evaluate"}, (
        "what computes, and only that"
    )


def test_a_second_time_there_is_nothing_to_do(finished: User) -> None:
    assert "Nothing to be done" in finished.snakemake("all")


@pytest.fixture(scope="module")
def disturbed(finished: User) -> dict[str, list[str]]:
    """Arm → final states of its jobs; four training jobs at once, in whose middle something happens."""
    user, cluster = finished, finished.cluster
    arms = DISTURBED[:4]
    states: dict[str, list[str]] = {}
    for arm in arms:
        user.slow_down(arm, 2.0 if arm == "out_of_time" else 0.5)
    with user.typing(*map(user.trained, arms), study="disturbed.yaml") as snakemake:

        def wait(condition: Callable[[], object], what: str) -> None:
            cluster.wait(lambda: condition() or snakemake.poll() is not None, PATIENCE, what)
            assert snakemake.poll() is None, user.printed

        def job(arm: str, *states: str) -> str | None:
            return next((job for job, state in user.jobs_of(arm)[:1] if state in states), None)

        def limit_to_a_minute(arm: str) -> None:
            cluster.ask("scontrol", "update", f"JobId={job(arm, 'RUNNING')}", "TimeLimit=1")

        # Two Snakemakes start before the trainer does and asks how much time it has.
        wait(lambda: job("out_of_time", "RUNNING"), "out_of_time runs")
        limit_to_a_minute("out_of_time")
        for arm in ("cancelled", "requeued", "hung"):
            wait(partial(lambda arm: user.steps(arm) >= 3, arm), f"{arm} trains")
            if arm == "hung":
                user.slow_down(arm, 600)  # no step boundary before the time is over: SLURM has to kill
                limit_to_a_minute(arm)
                continue
            if arm == "cancelled":
                cluster.ask("scancel", str(job(arm, "RUNNING")))
            else:
                cluster.ask("scontrol", "requeue", str(job(arm, "RUNNING")))
            user.slow_down(arm, None)
        for arm in ("out_of_time", "hung"):
            wait(partial(job, arm, "FAILED", "TIMEOUT"), f"{arm} runs into its limit")
            assert user.steps(arm) < STEPS
            user.slow_down(arm, None)
        assert snakemake.wait(timeout=PATIENCE) == 0, user.printed
    for arm in arms:
        states[arm] = [state for _, state in user.jobs_of(arm)]
    return states


@pytest.mark.parametrize(
    ("arm", "first"),
    [
        ("cancelled", {"CANCELLED"}),
        ("requeued", {"COMPLETED"}),  # the same job, twice
        # It stops by itself before SLURM would stop it; on a busy machine the minute may be over before it trains.
        ("out_of_time", {"FAILED", "TIMEOUT"}),
        ("hung", {"TIMEOUT"}),
    ],
)
def test_a_disturbed_run_ends_as_the_undisturbed_one(
    arm: str, first: set[str], disturbed: dict[str, list[str]], finished: User
) -> None:
    assert disturbed[arm][0] in first and disturbed[arm][-1] == "COMPLETED"
    assert len(disturbed[arm]) == (1 if arm == "requeued" else 2)
    finished.assert_as_undisturbed(arm)


def test_control_c_cancels_the_jobs_and_the_next_call_resumes(finished: User) -> None:
    user, cluster = finished, finished.cluster
    user.slow_down("interrupted", 1.0)
    with user.typing(user.trained("interrupted"), study="disturbed.yaml") as snakemake:
        cluster.wait(lambda: user.steps("interrupted") >= 3, PATIENCE, "it trains")
        os.killpg(snakemake.pid, signal.SIGINT)
        assert snakemake.wait(timeout=PATIENCE) != 0
    cluster.wait(lambda: not cluster.jobs(), PATIENCE, "no job is left")
    assert [state for _, state in user.jobs_of("interrupted")] == ["CANCELLED"]
    user.slow_down("interrupted", None)
    user.snakemake(user.trained("interrupted"), study="disturbed.yaml")
    user.assert_as_undisturbed("interrupted")


def test_a_failing_job_shows_the_end_of_its_log(finished: User) -> None:
    printed = finished.snakemake(finished.trained("broken"), "--retries", "0", study="disturbed.yaml", code=1)
    assert re.search(r"policygrain: .*broken/seed0: .*not finite", printed), printed
    assert "Traceback" not in printed


def test_gpus_are_granted_as_asked_and_waited_for(finished: User) -> None:
    user, cluster = finished, finished.cluster
    if not cluster.has_gpus:
        pytest.skip("no devices can be made here (mknod), so there are no GPUs to grant")
    asked = ["train:gpu=1", "train:slurm_partition=gpu", "train:runtime=5"]
    blockers = [
        cluster.ask("sbatch", "--parsable", "--output=/dev/null", f"--gpus={GPUS_PER_NODE}", "--wrap=exec sleep 300")
        for _ in NODES
    ]
    user.slow_down("on_gpu", 0.1)
    with user.typing(user.trained("on_gpu"), "--set-resources", *asked, study="disturbed.yaml") as snakemake:

        def waits() -> bool:
            jobs = user.jobs_of("on_gpu")
            return bool(jobs) and cluster.ask("squeue", "-h", "-j", jobs[0][0], "-o", "%T %r") == "PENDING Resources"

        cluster.wait(waits, PATIENCE, "the job waits for a GPU")
        assert "gres/gpu=1" in cluster.ask("scontrol", "show", "job", user.jobs_of("on_gpu")[0][0])
        cluster.ask("scancel", blockers[0])
        assert snakemake.wait(timeout=PATIENCE) == 0, user.printed
    cluster.ask("scancel", blockers[1])
    assert (user.home / "slow" / "on_gpu.gpus").read_text() == "0"
    user.assert_as_undisturbed("on_gpu")


def test_the_doctor_finds_this_cluster_in_order_and_a_wrong_profile(user: User) -> None:
    command = [sys.executable, "-m", "policygrain.cli", "doctor", "--slurm", "--config", "studies/cluster.yaml"]

    def ask(*more: str) -> Done:
        return subprocess.run(
            [*command, *more], cwd=user.home, env=user.environment, capture_output=True, text=True, check=False
        )

    well = ask()
    assert well.returncode == 0, well.stdout + well.stderr
    assert "partitions: cpu, gpu" in well.stdout and "sees folder and environment" in well.stdout
    assert not list((user.home / "results").glob(".doctor*"))
    wrong = user.home / "wrong.yaml"
    wrong.write_text("set-resources: {train: {slurm_partition: gpuu}, evaluate: {gpu: 8}}\n")
    ill = ask("--profile", str(wrong))
    assert ill.returncode == 2, ill.stdout + ill.stderr
    assert "there is no partition 'gpuu'" in ill.stdout and "8 GPUs a node asked, 'cpu' has" in ill.stdout
