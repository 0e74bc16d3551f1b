"""Who uses the tests' SLURM: `snakemake --profile slurm` in a checkout, a study whose runs are disturbed."""

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import yaml

from policygrain.files import read_json_lines
from policygrain.job_state import FINGERPRINT
from policygrain.paths import StudyFolder
from policygrain.study import load_study
from policygrain.study.fingerprint import Fingerprints
from policygrain.study.runs import Run

from ..support.slurm import Cluster

STUDY = Path(__file__).parents[1] / "support" / "disturbed.yaml"
STEPS = 16
TIMEOUT = 900  # seconds; the machine may have other things to do
DISTURBED = ("cancelled", "requeued")
TWO_NODES = "on_two_nodes+trainer=trl"
# Where their jobs go: an expression that Snakemake evaluates for each job.
PLACES = "'gpu' if wildcards.arm == 'on_gpu' else 'cpu'"


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
        study = load_study(self.home / "studies" / "disturbed.yaml")
        fingerprint = Fingerprints(study).process([Run(arm, 0)])
        return str(StudyFolder(Path("results") / study.name).done("train", f"{arm}/0", fingerprint))

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
        name = re.compile(rf"_{re.escape(arm)}_0_{FINGERPRINT}$")  # the job's wildcards
        found = [(job, state) for job, state, comment in self.cluster.jobs("all") if name.search(comment)]
        return sorted(found, key=lambda pair: int(pair[0]))

    def assert_as_undisturbed(self, arm: str) -> None:
        assert [row["step"] for row in read_json_lines(self.metrics(arm))] == list(range(STEPS + 1))
        assert self.metrics(arm).read_bytes() == self.metrics("undisturbed").read_bytes()
