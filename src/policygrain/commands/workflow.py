"""What Snakemake does when it reads the workflow: lock the study, and write the settings of its stages."""

from __future__ import annotations

import atexit
import json
import os
import shlex
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from ..data.sources import source_digests
from ..errors import UserError
from ..files import atomic_text, lock, read_json
from ..hub import identity
from ..paths import START, StudyFolder
from ..study import Study, load_study, study_text
from ..study.dependencies import stage_settings
from .app import PARENT

if TYPE_CHECKING:
    from snakemake.workflow import Workflow

POLICYGRAIN = f"{shlex.quote(sys.executable)} -m policygrain.cli"  # with the interpreter that runs Snakemake
STUDY_FILE = "POLICYGRAIN_STUDY"  # environment variable of jobs on a cluster: the study that was submitted
HELD: list[IO[str]] = []  # the lock of this process's study, open until it ends


def open_study(workflow: Workflow) -> Study:
    """The study of a workflow; in the main process it is locked, and the settings of its stages are written.

    It is locked until Snakemake ends, so a second one cannot change settings under the jobs of the first. Exits with a
    message if the study cannot be read, or is being run already and this is no dry run.
    """
    # Not Snakemake's `config`: it reads 1e-5 as text, and of a repeated key the last value.
    given = workflow.config_settings
    os.environ[PARENT] = str(os.getpid())
    try:
        if not workflow.is_main_process and (recorded := os.environ.get(STUDY_FILE)):  # the user's may have changed
            return load_study(recorded)
        study = load_study(*(given.configfiles or ["config.yaml"]), changes=given.config)
        if workflow.is_main_process:
            try:
                lock_study(folder := StudyFolder(Path("results") / study.name))
                write_settings(study, folder, workflow.output_settings.dryrun)
            except UserError:
                if not workflow.output_settings.dryrun:
                    raise
    except (UserError, OSError) as error:  # OSError: a full disk
        sys.exit(f"policygrain: {error}")
    os.environ[STUDY_FILE] = str(StudyFolder(Path("results") / study.name).study)
    return study


def lock_study(folder: StudyFolder) -> None:
    """Lock the study until this process has ended or was killed. UserError if another process has locked it."""
    message = "this study is being run already; wait until that has ended, or stop it with Ctrl-C"
    HELD.append(lock(folder.workflow_lock, message))


def write_settings(study: Study, folder: StudyFolder, dry_run: bool = False) -> None:
    """Write the study, and the settings of its stages, to files; a file is only written if its content changes.

    What is made from a file that has been written is older than it, so Snakemake makes it again. For problems and an
    initial model that are not here, the digests that were recorded stand. A dry run puts all back at its end.
    """
    known = {name: _content(folder.settings(name)) for name in ("data", "benchmarks", f"evaluation/{START}")}
    sources = {**known["data"].get("sources", {}), **known["benchmarks"].get("sources", {}), **source_digests(study)}
    start = None
    if study.model.start != "tiny":
        try:
            start = identity(study.model.start, study.model.revision)
        except UserError:
            of_start = known[f"evaluation/{START}"] or _content(folder.settings("evaluation"))  # of earlier versions
            start = of_start.get("start_model")
    texts = {
        folder.settings(name): json.dumps(content, indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        for name, content in stage_settings(study, sources, start).items()
    }
    for path, text in {folder.study: study_text(study, folder.study), **texts}.items():
        before = path.read_text(encoding="utf-8") if path.exists() else None
        if before != text:
            if dry_run:
                atexit.register(_put_back, path.absolute(), before, path.stat().st_mtime_ns if path.exists() else 0)
            atomic_text(path, text)


def _put_back(path: Path, text: str | None, time: int) -> None:
    if text is None:
        path.unlink()
    else:
        atomic_text(path, text)
        os.utime(path, ns=(time, time))


def _content(path: Path) -> dict[str, Any]:
    try:
        return dict(read_json(path))
    except (UserError, TypeError, ValueError):
        return {}
