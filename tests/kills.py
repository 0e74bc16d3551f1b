"""Kill each stage at random moments, run it again until it ends, and compare its records with an undisturbed run's.

    python -m tests.kills --kills 200 --seed 0

Stages: training; training in the folder of a run with other settings (supersede); evaluation; the MLflow mirror; and
unpacking of an archive. A kill is SIGKILL to the process of the stage, at a moment drawn uniformly from the time that
the stage takes undisturbed. Prints a line per stage and exits with 1 if any record differs or any file is left over.
"""

from __future__ import annotations

import argparse
import os
import random
import re
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"

from policygrain import digests
from policygrain.evaluate.evaluation import evaluate
from policygrain.files import atomic_json, read_json
from policygrain.provenance import commit, hardware
from policygrain.report.freeze import freeze, thaw
from policygrain.results.layout import DataFolder, StudyFolder
from policygrain.results.reader import StudyResults
from policygrain.study import Study
from policygrain.track.store import tracking_uri
from policygrain.track.sync import mirror

from .support.small import SMALL, make_start, small_study, train_small, write_study

# Kills of one episode at most; then the stage is run to its end and compared.
EPISODE = 4
# Shares of the kills by stage. The mirror takes longest, because MLflow creates its tables.
SHARES = {"train": 0.35, "supersede": 0.25, "evaluate": 0.2, "track": 0.08, "thaw": 0.12}
# Measurements of the machine, which differ from run to run.
MEASURED = ("facts", "environment", "seconds")
OF_THE_MACHINE = re.compile(r"seconds|^system/|^tokens_per_second$|^peak_memory")
LEFT_OVER = re.compile(r"\.tmp$|^tmp|\.superseding|\.partial|\.part\d*$|^\.model|^\.start")


@dataclass
class Stage:
    """A stage in a folder of its own: how it is prepared, run, and what is compared afterwards."""

    prepare: Callable[[Path], object]
    run: Callable[[Path], object]
    records: Callable[[Path], dict[str, str]]


def record(path: Path) -> str:
    """Digest of a JSON record without what the machine decides."""
    return digests.of_json(without_measured(read_json(path)))


def without_measured(value: Any) -> Any:
    """A record without its measurements, at any depth."""
    if isinstance(value, dict):
        return {k: without_measured(v) for k, v in value.items() if k not in MEASURED}
    return value


def run_records(run: Path) -> dict[str, str]:
    """What a finished run consists of."""
    return {
        "metrics": digests.of_file(run / "metrics.jsonl"),
        "model": digests.of_model(run / "model"),
        "summary": record(run / "summary.json"),
        "run": record(run / "run.json"),
    }


def evaluation_records(results: Path) -> dict[str, str]:
    """The record and the samples of the evaluated initial model."""
    folder = StudyFolder(results).evaluation("start/seed0")
    return {"record": record(folder.record), "samples": digests.of_file(folder.samples("count"))}


def mirrored(results: Path, measured: bool = True) -> dict[str, str]:
    """Everything that MLflow has of a study, without times and without the runs' random ids.

    ``measured``: with the measurements of the machine, which are the same where the files are.
    """
    import mlflow

    found = StudyResults(results)
    client = mlflow.MlflowClient(tracking_uri(found.folder, found.study))
    experiments = client.search_experiments(filter_string=f"name = '{found.study.name}'")
    content: list[Any] = []
    for run in client.search_runs([e.experiment_id for e in experiments]):
        names = sorted(name for name in run.data.metrics if measured or not OF_THE_MACHINE.search(name))
        history = {n: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, n)) for n in names}
        tags = {k: v for k, v in run.data.tags.items() if k.startswith(("arm", "seed"))}
        content.append([str(run.info.run_name), run.info.status, dict(run.data.params), tags, history])
    return {str(i): digests.of_json(each) for i, each in enumerate(sorted(content, key=str))}


def folder_records(folder: Path) -> dict[str, str]:
    """All files of a folder."""
    return {p.relative_to(folder).as_posix(): digests.of_file(p) for p in sorted(folder.rglob("*")) if p.is_file()}


def stages(base: Path) -> dict[str, Stage]:
    """The stages, on data, an initial model and a finished study that are made once in ``base``."""
    data, start = make_start(base)
    one, other = small_study(), small_study(training={"updates_per_batch": 3})
    train_small(one, base / "one", data, start)
    finished = finished_study(base, data, start, one)
    freeze(finished, base / "study.zip")

    def train(study: Study) -> Callable[[Path], object]:
        return lambda folder: train_small(study, folder / "run", data, start)

    def superseded(folder: Path) -> dict[str, str]:
        [aside] = (folder / "run").glob("superseded-*")
        before = {f"before, {name}": digest for name, digest in run_records(aside).items()}
        return {**run_records(folder / "run"), **before}

    return {
        "train": Stage(lambda folder: None, train(one), lambda folder: run_records(folder / "run")),
        "supersede": Stage(lambda folder: shutil.copytree(base / "one", folder / "run"), train(other), superseded),
        "evaluate": Stage(
            lambda folder: None,
            lambda folder: evaluate(one, {"start/seed0": start}, DataFolder(data), StudyFolder(folder / "results")),
            lambda folder: evaluation_records(folder / "results"),
        ),
        "track": Stage(
            lambda folder: shutil.copytree(finished, folder / "small"),
            lambda folder: mirror(StudyResults(folder / "small")),
            lambda folder: mirrored(folder / "small"),
        ),
        "thaw": Stage(
            lambda folder: None,
            lambda folder: None if (folder / "out").exists() else thaw(base / "study.zip", folder / "out"),
            lambda folder: folder_records(folder / "out"),
        ),
    }


def finished_study(base: Path, data: Path, start: Path, study: Study) -> Path:
    """Results with one trained and evaluated run, as the pipeline leaves them."""
    results = StudyFolder(base / "small")
    for source, target in ((data, results.data.path), (start, results.start(0).path)):
        shutil.copytree(source, target)
    shutil.copytree(base / "one", results.run("grpo", 0).path)
    write_study(results.study, SMALL)
    models = {"start/seed0": results.start(0).path, "grpo/seed0": results.run("grpo", 0).model}
    evaluate(study, models, results.data, results)
    return results.path


def attempt(stage: Stage, folder: Path, kill_after: float | None) -> str:
    """Run a stage in a child process: `killed`, `ended`, or `failed`."""
    child = os.fork()
    if child == 0:
        code = 1
        try:
            os.setpgid(0, 0)
            log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
            os.dup2(log, 1)
            os.dup2(log, 2)
            stage.run(folder)
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stderr.flush()
            os._exit(code)
    deadline = time.monotonic() + (kill_after if kill_after is not None else 600)
    while time.monotonic() < deadline:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            return "ended" if os.waitstatus_to_exitcode(status) == 0 else "failed"
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return "killed" if kill_after is not None else "failed"


def try_stage(name: str, stage: Stage, kills: int, base: Path, rng: random.Random) -> tuple[list[str], dict[str, int]]:
    """Kill one stage ``kills`` times in all; returns what was wrong, and how many kills and episodes there were."""
    reference = fresh(base / name / "undisturbed")
    stage.prepare(reference)
    started = time.monotonic()
    if attempt(stage, reference, None) != "ended":
        return [f"{name}: the undisturbed run failed:\n{(reference / 'log').read_text()}"], {}
    seconds, expected = time.monotonic() - started, stage.records(reference)
    done, episode, wrong = 0, 0, []
    while done < kills:
        episode += 1
        folder = fresh(base / name / str(episode))
        stage.prepare(folder)
        state = "killed"
        for _ in range(min(EPISODE, kills - done)):
            state = attempt(stage, folder, rng.uniform(0, seconds))
            done += state == "killed"
            if state != "killed":
                break
        if state == "killed":
            state = attempt(stage, folder, None)
        if state != "ended":
            wrong.append(f"{name}, episode {episode}: failed after a kill:\n{(folder / 'log').read_text()[-3000:]}")
        elif (found := stage.records(folder)) != expected:
            differing = sorted(k for k in {*expected, *found} if expected.get(k) != found.get(k))
            wrong.append(f"{name}, episode {episode}: differs from the undisturbed run: {', '.join(differing)}")
        else:
            left = [str(p.relative_to(folder)) for p in folder.rglob("*") if LEFT_OVER.search(p.name)]
            wrong += [f"{name}, episode {episode}: left over: {', '.join(left)}"] if left else []
        shutil.rmtree(folder)
    print(f"{name}: {done} kills in {episode} episodes, {len(wrong)} differ ({seconds:.1f} s undisturbed)", flush=True)
    return wrong, {"kills": done, "episodes": episode, "differ": len(wrong)}


def fresh(folder: Path) -> Path:
    """An empty folder."""
    folder.mkdir(parents=True)
    return folder


def main() -> int:
    """Kill all stages; the exit status is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage", choices=[*SHARES], action="append", help="only this one (can be repeated)")
    parser.add_argument("--out", type=Path, help="JSON file for the counts")
    arguments = parser.parse_args()
    os.environ.pop("MLFLOW_TRACKING_URI", None)
    rng, wrong = random.Random(arguments.seed), []
    counts: dict[str, dict[str, int]] = {}
    with tempfile.TemporaryDirectory(prefix="kills-") as temporary:
        base = Path(temporary)
        for name, stage in stages(fresh(base / "made")).items():
            if not arguments.stage or name in arguments.stage:
                found, counts[name] = try_stage(name, stage, round(arguments.kills * SHARES[name]), base, rng)
                wrong += found
    print("\n".join(wrong))
    if arguments.out:
        measured = {"seed": arguments.seed, "hardware": hardware(), "commit": commit(), "stages": counts}
        atomic_json(arguments.out, measured)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
