"""Steps before and after Snakemake's jobs: study lock, study file, progress line, and live runs in MLflow."""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path
from typing import Any

from snakemake.logging import logger
from snakemake.settings.enums import Quietness

from ..errors import UserError
from ..files import atomic_text
from ..job_state import lock_workflow, wait_for_jobs
from ..progress import WorkflowProgress
from ..study import study_text
from .jobs import LOCAL, Jobs


class Session:
    """One call of Snakemake outside jobs; ``workflow`` is its Workflow object."""

    def __init__(self, workflow: Any, jobs: Jobs) -> None:
        self._workflow, self._jobs, self._folder = workflow, jobs, jobs.folder
        self._progress: WorkflowProgress | None = None

    def start(self) -> None:
        """Before the first job. Exits if another workflow, or jobs of a killed one, are running this study."""
        try:
            lock_workflow(self._folder)
            if getattr(self._workflow.executor_plugin, "name", "") != "slurm":
                wait_for_jobs(self._folder)
        except UserError as error:
            sys.exit(f"policygrain: {error}")
        # Every command reads the resolved study there.
        path, text = self._folder.study, study_text(self._jobs.study, self._folder.study)
        if not path.exists() or path.read_text(encoding="utf-8") != text:
            atomic_text(path, text)
        self._show_progress()
        if self._jobs.study.tracking.live:
            self._follow_in_mlflow()

    def succeed(self) -> None:
        """After the last job. Exits with an error if inputs of a target rule, such as `all`, are missing.

        With `ancient` inputs Snakemake skips jobs that depend on a forced one (`-f`, `-R`), and exits with 0.
        """
        self.end()
        targets = [job for job in self._workflow.dag.targetjobs if job.rule.norun]
        missing = [path for job in targets for path in job.input if not Path(path).exists()]
        if missing:
            sys.exit(
                f"policygrain: {self._folder.path}: the study is not finished: {len(missing)} files are missing, such "
                f"as {missing[0]}. Run the same command again, without options that force jobs."
            )
        if all(Path(path).exists() for path in self._jobs.report_page.outputs):
            print(f"The report is in {self._folder.report}.", file=sys.stderr)

    def end(self) -> None:
        """Remove the progress line."""
        if self._progress:
            self._progress.close()

    def _left(self) -> Counter[str]:
        """Jobs that have not ended, by rule."""
        return Counter(job.rule.name for job in self._workflow.dag.needrun_jobs() if not job.rule.norun)

    def _show_progress(self) -> None:
        """Replace Snakemake's output by a progress line, unless `-p`, `--verbose` or `--quiet` was given."""
        settings = self._workflow.output_settings
        changed = set(settings.quiet or ()) != {Quietness.HOST, Quietness.REASON}
        if settings.printshellcmds or settings.verbose or changed:
            return
        self._progress = WorkflowProgress(self._left, frozenset(LOCAL))
        for handler in logger.handlers:
            if handler.name == "DefaultStreamHandler":
                handler.addFilter(self._progress.lets_pass)
        logger.addHandler(self._progress)

    def _follow_in_mlflow(self) -> None:
        """Start a process that logs the steps of runs while they are trained; it ends with this process."""
        command = [sys.executable, "-m", "policygrain.cli", "track", "--follow", str(os.getpid())]
        command += ["--config", str(self._folder.study), "--results", str(self._folder.path)]
        environment = {**os.environ, "PYTHONPATH": f"{self._workflow.basedir}/src"}
        with self._folder.tracking_log.open("w") as file:
            # In its own session, so that Ctrl-C stops only the workflow, and this process can record that in MLflow.
            subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=file, stderr=file, start_new_session=True, env=environment
            )


def check_cores(settings: Any) -> None:
    """Exit if `--cores`, `--local-cores` or `--jobs` is 0: Snakemake would wait forever."""
    for option in ("cores", "local_cores", "nodes"):
        number = getattr(settings, option)
        if number is not None and number < 1:
            name = {"nodes": "jobs"}.get(option, option.replace("_", "-"))
            sys.exit(f"policygrain: --{name} {number}: give at least 1, or leave it out.")
