"""verl as the trainer of a run: exports the run, trains it in verl's own environment, and reads its results.

On one GPU and without dynamic sampling verl samples and updates as the loop does (`integrations.verl_paired`). verl
saves periodically; a resumed run repeats the steps after the last checkpoint.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import Stopped, UserError
from ..integrations.options import EXPORTED
from .launch import RAY_ADDRESS
from .verl_config import CONFIG, RECORD, verl_python
from .verl_export import check_unchanged, export
from .verl_results import final_model, logs_in, read_back

if TYPE_CHECKING:
    from ..paths import DataFolder, RunFolder
    from ..records import FinalMetrics
    from ..study import Study
    from ..study.runs import Arm
    from ..train.stopping import Stop

POLL_SECONDS = 1.0
END_SECONDS = 20.0  # from SIGTERM to SIGKILL
# The kernel kills verl when this process is killed (PR_SET_PDEATHSIG is 1): otherwise verl would go on training in the
# folder while the next command starts verl there again.
END_WITH_PARENT = "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9); os.execv(sys.argv[1], sys.argv[1:])"
LAST_LINES = 15  # of verl's output, in the message of a failed run


def train(
    study: Study, arm: Arm, seed: int, *, start: str, data: DataFolder, run: RunFolder, stop: Stop | None = None
) -> FinalMetrics:
    """Train the model in ``start`` as an arm of a study, from verl's newest checkpoint in ``run`` if there is one."""
    import torch

    folder, settings = run.verl, arm.training(study)
    is_trained = final_model(folder, settings.steps).exists()
    if not (is_trained or torch.cuda.is_available() or "device" in settings.verl.get("trainer", {})):
        raise UserError(
            "training.trainer: verl trains on GPUs, and none is visible here. Request GPUs, or name another device of "
            "verl in training.verl.trainer.device."
        )
    if (folder / RECORD).exists():
        check_unchanged(folder)
    else:
        from_start = study.model_copy(update={"model": study.model.model_copy(update={"start": start})})
        _print(run, export(from_start, arm, seed, data, folder, max(1, torch.cuda.device_count())))
    if not is_trained:
        _run_verl(folder, run, stop)
    final, notes = read_back(folder, settings, arm.method(study).sampler.dynamic, run)
    _print(run, notes)
    return final


def _print(run: RunFolder, notes: list[str]) -> None:
    for note in notes:
        print(f"{run.path}: note: {note}.", file=sys.stderr)


def _run_verl(folder: Path, run: RunFolder, stop: Stop | None) -> None:
    """Run verl until it has ended. Stopped on a signal or at the time limit; UserError if verl fails."""
    place, output = folder.resolve(), folder / "verl.log"
    # A log for each attempt, because verl's logger overwrites its file.
    log = place / f"metrics{len(logs_in(folder)) + 1:04d}.jsonl"
    own = {EXPORTED: str(place), "VERL_FILE_LOGGER_PATH": str(log)}
    python = str(verl_python())
    verl = [python, "-m", "verl.trainer.main_ppo", "--config-path", str(place), "--config-name", CONFIG]
    verl += on_several_nodes(own)
    with output.open("ab") as file:
        # In a session of its own, so that a signal to this process does not end verl before this process decides.
        process = subprocess.Popen(
            [python, "-c", END_WITH_PARENT, *verl],
            cwd=place,
            stdout=file,
            stderr=file,
            env=os.environ | own,
            start_new_session=True,
        )
        try:
            while process.poll() is None:
                time.sleep(POLL_SECONDS)
                if stop is not None and (reason := stop.after_step(0.0)) is not None:
                    raise Stopped(f"{run.path}: stopped by {reason}; {_resumes(folder)}")
        finally:
            _end(process)
    if process.returncode:
        last = "\n".join(output.read_text(errors="replace").splitlines()[-LAST_LINES:])
        raise UserError(
            f"{run.path}: verl ended with exit code {process.returncode}; {_resumes(folder)} See {output}; "
            f"the last lines:\n{last}"
        )


def on_several_nodes(variables: dict[str, str]) -> list[str]:
    """Changes to verl's configuration if `launch` has started Ray on the nodes of a job; none otherwise.

    Ray was started before the environment ``variables`` of this run were known, so the configuration passes them on.
    """
    if RAY_ADDRESS not in os.environ:
        return []
    ray = "++ray_kwargs.ray_init"
    return [
        f"++trainer.nnodes={os.environ.get('SLURM_STEP_NUM_NODES', '1')}",
        f"{ray}.address=auto",  # Ray reads RAY_ADDRESS
        f"{ray}.num_cpus=null",
        f"{ray}.num_gpus=null",
        *(f"{ray}.runtime_env.env_vars.{name}='{value}'" for name, value in variables.items()),
    ]


def _resumes(folder: Path) -> str:
    """The step from which the same command resumes, for messages."""
    newest = folder / "checkpoints" / "latest_checkpointed_iteration.txt"
    if newest.exists():
        return f"the same command resumes from verl's checkpoint of step {newest.read_text().strip()}."
    return "verl had saved no checkpoint, so the same command starts from the beginning (training.checkpoint_every)."


def _end(process: subprocess.Popen[bytes]) -> None:
    """End verl and the processes of its session."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        try:
            os.killpg(process.pid, number)
            process.wait(END_SECONDS)
        except ProcessLookupError:
            return
        except subprocess.TimeoutExpired:
            continue
