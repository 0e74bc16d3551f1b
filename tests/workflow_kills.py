"""Disturb whole workflows at random moments, run them to their end, and compare with an undisturbed one.

    python -m tests.workflow_kills --kills 60 --seed 0 --out benchmarks/workflow_kills.json

The study takes a minute on two cores and has every stage: initial models, training, evaluation,
figures, tables, the report and MLflow. After up to ``EPISODE`` disturbances the same command is run to its end. Prints
a line per disturbance, and exits with 1 if a record differs or is missing.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any

import yaml

from policygrain import digests
from policygrain.files import atomic_json, read_json
from policygrain.paths import StudyFolder
from policygrain.provenance import commit, hardware
from policygrain.report.mlflow_store import tracking_uri
from policygrain.results import StudyResults

from .support.leftovers import swept, with_in_environment

ROOT = Path(__file__).parents[1]
EPISODE = 6
STUDY: dict[str, Any] = {
    "base": str(ROOT / "tests/support/every_stage.yaml"),
    "name": "killed",
    "seeds_per_process": 2,
    "training": {"steps": 2, "validate_every": 1},
    "experiments": {"headline": {"methods": ["dapo", "tepo"]}},
    "seeds": [0, 1, 2],
    "evaluation": {"engine": "transformers"},
    "figures": ["dynamics"],
}
KINDS = {
    "session": "SIGKILL to Snakemake and all jobs",
    "snakemake": "SIGKILL to Snakemake alone; its jobs go on",
    "terminate": "SIGTERM to Snakemake",
    "interrupt": "Ctrl-C",
    "stopped": "everything is stopped (SIGSTOP), then killed",
    "second": "a second Snakemake, which must be refused; then everything is killed",
    "damaged": "everything is killed, and a `done` file is emptied, cut off or replaced",
    "disk": "the disk is full until Snakemake has ended (on a file system in memory, by root)",
}
STILL_RUNNING = "jobs of an earlier call, which was killed, are still running"
ALREADY = "this study is being run already, by process"
DISK = 600  # MB; jobs ask for 200 before they start
# Measurements of the machine, which differ from run to run.
MEASURED = ("facts", "environment", "seconds")
OF_THE_MACHINE = re.compile(r"seconds|^system/|^tokens_per_second$|^peak_memory")
LEFT_OVER = re.compile(r"\.tmp$|^tmp|\.superseding|\.partial|\.part\d*$|^\.model|^\.start")


class Workflow:
    """One study in a folder of its own, called again and again by the same command."""

    def __init__(self, folder: Path, mark: dict[str, str], disk: bool = False) -> None:
        """``disk``: on a small file system of its own."""
        folder.mkdir(parents=True)
        if disk:
            subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", folder], check=True)
        self.folder, self.results, self.log = folder, folder / "results" / STUDY["name"], folder / "log"
        self.mark = {"KILLED_IN": f"{folder}/"}
        self.environment = {**os.environ, **mark, **self.mark, "MLFLOW_TRACKING_URI": "", "OMP_NUM_THREADS": "1"}
        (folder / "study.yaml").write_text(yaml.safe_dump(STUDY))
        self.log.touch()

    def start(self) -> subprocess.Popen[bytes]:
        """`snakemake all`, in a session of its own."""
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2"]
        command += ["--directory", str(self.folder), "--configfile", str(self.folder / "study.yaml"), "--", "all"]
        with self.log.open("ab") as log:
            return subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=self.environment, start_new_session=True
            )

    def processes(self) -> list[int]:
        """Snakemake, its jobs, and theirs."""
        return with_in_environment(*(f"{key}={value}" for key, value in self.mark.items()))

    def signal_all(self, number: int) -> None:
        """Send a signal to every process, until there is no new one."""
        reached: set[int] = set()
        while new := set(self.processes()) - reached:
            for process in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            reached |= new

    def disturb(self, process: subprocess.Popen[bytes], kind: str, rng: random.Random) -> list[str]:
        """End Snakemake in one of the ways of KINDS, and wait until it has ended; returns what was wrong."""
        wrong = []
        if kind == "second":
            before = self.log.stat().st_size
            if self.start().wait(600) == 0 or ALREADY.encode() not in self.log.read_bytes()[before:]:
                wrong = ["a second Snakemake was not refused"] if process.poll() is None else []
        if kind == "stopped":
            self.signal_all(signal.SIGSTOP)
            time.sleep(2)
        if kind in ("session", "stopped", "second", "damaged"):
            self.signal_all(signal.SIGKILL)
        elif kind == "snakemake":
            process.kill()
        elif kind == "terminate":
            process.terminate()
        elif kind == "interrupt":
            os.killpg(process.pid, signal.SIGINT)
        if kind == "disk":
            filler = self.folder / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(2**20)):
                    pass
            if process.wait(600) == 0:
                wrong = ["a full disk was not noticed"] if not self.results.joinpath("report.html").exists() else []
            filler.unlink()
        process.wait(600)
        files = sorted(self.results.glob("done/**/*.json"))
        if kind == "damaged" and files:
            path = rng.choice(files)
            content = path.read_bytes()
            path.write_bytes(rng.choice([b"", content[: len(content) // 2], b'{"results": 1}', b"\x00" * 100]))
        return wrong

    def finish(self) -> int:
        """Run to the end; jobs that are left are waited for, as the message says."""
        for _ in range(60):
            before = self.log.stat().st_size
            code = self.start().wait(3600)
            if code == 0 or STILL_RUNNING.encode() not in self.log.read_bytes()[before:]:
                return code
        return code

    def records(self) -> dict[str, Any]:
        """Everything that the study consists of, without times: name → digest or content."""
        study = StudyFolder(self.results)
        found: dict[str, Any] = {}
        for run in sorted((self.results / "runs").glob("*/seed*")):
            found |= {f"{run.parent.name}/{run.name}, {key}": value for key, value in run_records(run).items()}
        for model in sorted((self.results / "start").glob("seed*")):
            found[f"start/{model.name}"] = digests.of_model(model)
        for name, folder in study.evaluations():
            found[f"{name}, evaluation"] = record(folder.record)
            found[f"{name}, samples"] = digests.of_file(folder.samples)
        for path in sorted(self.results.glob("data/**/*.json*")):
            found[str(path.relative_to(self.results))] = digests.of_file(path)
        found["done"] = sorted(str(path.relative_to(self.results)) for path in self.results.glob("done/**/*.json"))
        found["drawn"] = sorted(path.name for part in ("figures", "tables") for path in (self.results / part).iterdir())
        found["results.csv"] = digests.of_file(study.table("results", ".csv"))
        found["report"] = study.report.exists()
        return found | {f"MLflow, run {name}": digest for name, digest in mirrored(self.results).items()}


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


def mirrored(results: Path) -> dict[str, str]:
    """Everything that MLflow has of a study, without measurements, times and the runs' random ids."""
    import mlflow

    found = StudyResults(results)
    client = mlflow.MlflowClient(tracking_uri(found.folder, found.study))
    experiments = client.search_experiments(filter_string=f"name = '{found.study.name}'")
    content: list[Any] = []
    for run in client.search_runs([e.experiment_id for e in experiments]):
        names = sorted(name for name in run.data.metrics if not OF_THE_MACHINE.search(name))
        history = {n: sorted((m.step, m.value) for m in client.get_metric_history(run.info.run_id, n)) for n in names}
        tags = {k: v for k, v in run.data.tags.items() if k.startswith(("arm", "seed"))}
        content.append([str(run.info.run_name), run.info.status, dict(run.data.params), tags, history])
    return {str(i): digests.of_json(each) for i, each in enumerate(sorted(content, key=str))}


def episode(
    workflow: Workflow, kinds: list[str], seconds: float, expected: dict[str, Any], rng: random.Random
) -> tuple[list[str], list[str]]:
    """Disturb a workflow by ``kinds`` in turn, then run it to its end: (kinds that were tried, what was wrong)."""
    tried: list[str] = []
    wrong: list[str] = []
    for kind in kinds:
        before, process = workflow.log.stat().st_size, workflow.start()
        try:
            process.wait(rng.uniform(0.02, 0.35) * seconds)
        except subprocess.TimeoutExpired:
            wrong += workflow.disturb(process, kind, rng)
            tried.append(kind)
            continue
        if STILL_RUNNING.encode() not in workflow.log.read_bytes()[before:]:
            break  # it has ended
    code = workflow.finish()
    if code != 0:
        return tried, [*wrong, f"ended with {code}:\n{workflow.log.read_text()[-4000:]}"]
    found = workflow.records()
    wrong += [f"differs: {key}" for key in sorted({*expected, *found}) if expected.get(key) != found.get(key)]
    left = [path for path in workflow.results.rglob("*") if LEFT_OVER.search(path.name)]
    return tried, [*wrong, *(f"left over: {path.relative_to(workflow.folder)}" for path in left)]


def main() -> int:
    """Disturb workflows ``--kills`` times in all; the exit status is 1 if anything was wrong."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kills", type=int, default=60)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--kind", choices=[*KINDS], action="append", help="only this one (can be repeated)")
    parser.add_argument("--out", type=Path, help="JSON file for the counts, written after every episode")
    parser.add_argument("--keep", type=Path, help="folder for the workflows that differ")
    arguments = parser.parse_args()
    rng, counts, episodes, differ = random.Random(arguments.seed), Counter[str](), 0, 0
    kinds = arguments.kind or [kind for kind in KINDS if kind != "disk" or os.geteuid() == 0]
    with tempfile.TemporaryDirectory(prefix="workflow-kills-") as temporary, swept(Path(temporary)) as mark:
        undisturbed = Workflow(Path(temporary) / "undisturbed", mark)
        started = time.monotonic()
        undisturbed.log.touch()
        if undisturbed.finish() != 0:
            print(undisturbed.log.read_text())
            return 1
        seconds, expected = time.monotonic() - started, undisturbed.records()
        print(f"undisturbed: {seconds:.0f} s, {len(expected)} records", flush=True)
        while counts.total() < arguments.kills:
            episodes += 1
            planned = [rng.choice(kinds) for _ in range(min(EPISODE, arguments.kills - counts.total()))]
            workflow = Workflow(Path(temporary) / str(episodes), mark, disk="disk" in planned)
            tried, wrong = episode(workflow, planned, seconds, expected, rng)
            counts.update(tried)
            differ += bool(wrong)
            print(f"{episodes}: {', '.join(tried) or 'ended first'}: {'; '.join(wrong) or 'the same'}", flush=True)
            if arguments.out:
                by_kind = {text: counts[kind] for kind, text in KINDS.items()}
                content = {"seed": arguments.seed, "hardware": hardware(), "commit": commit(), "kills": by_kind}
                atomic_json(arguments.out, {**content, "episodes": episodes, "differ": differ})
            if wrong and arguments.keep:
                shutil.copytree(workflow.folder, arguments.keep / str(episodes))
            if "disk" in planned:
                subprocess.run(["umount", "--lazy", workflow.folder], check=True)
            shutil.rmtree(workflow.folder)
    return 1 if differ else 0


if __name__ == "__main__":
    sys.exit(main())
