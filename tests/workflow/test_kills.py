"""Whole workflows that are disturbed at random moments and then run to their end: the records of an undisturbed one."""

import contextlib
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from policygrain import digests
from policygrain.files import read_json

from ..conftest import ROOT
from ..support.leftovers import swept, with_in_environment
from ..support.mlflow_store import Store

pytestmark = pytest.mark.release

STUDY = ROOT / "tests/support/killed.yaml"
# Everything is killed, or stopped and then killed; Snakemake alone is killed, and its jobs end; Ctrl-C; a second
# Snakemake is refused; settings are emptied, cut off or replaced; the disk is full until Snakemake ends (by root).
KINDS = ("session", "stopped", "snakemake", "terminate", "interrupt", "second", "damaged", "disk")
ALREADY = b"this study is being run already"
DISK = 600  # MB; jobs ask for 200 before they start
# Measurements of the machine, which differ from run to run: in records, in MLflow; and files that have them.
MEASURED = ("facts", "environment", "seconds")
OF_THE_MACHINE = re.compile(r"seconds|^tokens_per_second$|^peak_memory")
TIMES = re.compile(r"checkpoints/|logs/|timings|status\.json|mlflow\.|lock$|report\.html|results\.md|study\.yaml")
LEFT_OVER = re.compile(r"\.tmp$|^tmp|\.superseding|\.partial|\.part\d*$|^\.model|^\.start")


class Workflow:
    """One study in a folder of its own, called again and again by the same command."""

    def __init__(self, folder: Path, mark: dict[str, str]) -> None:
        self.folder, self.results, self.log = folder, folder / "results" / "killed", folder / "log"
        self.mark = mark | {"KILLED_IN": f"{folder}/"}
        self.log.touch()

    def start(self) -> subprocess.Popen[bytes]:
        """`snakemake all`, in a session of its own."""
        command = [sys.executable, "-m", "snakemake", "--snakefile", str(ROOT / "Snakefile"), "--cores", "2"]
        command += ["--directory", str(self.folder), "--configfile", str(STUDY), "--", "all"]
        environment = {**os.environ, **self.mark, "MLFLOW_TRACKING_URI": "", "OMP_NUM_THREADS": "1"}
        self.size = self.log.stat().st_size
        with self.log.open("ab") as log:
            options: Any = {"stdin": subprocess.DEVNULL, "stdout": log, "stderr": log, "start_new_session": True}
            return subprocess.Popen(command, env=environment, **options)

    def said(self, words: bytes) -> bool:
        """Whether the last call has said it."""
        return words in self.log.read_bytes()[self.size :]

    def signal_all(self, number: int) -> None:
        """Send a signal to Snakemake, its jobs and theirs, until there is no new process."""
        reached: set[int] = set()
        while new := set(with_in_environment(*(f"{k}={v}" for k, v in self.mark.items()))) - reached:
            for process in new:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(process, number)
            reached |= new

    def disturb(self, process: subprocess.Popen[bytes], kind: str, rng: random.Random) -> None:
        """End Snakemake in one of the ways of KINDS, and wait until it has ended."""
        if kind == "second":
            assert (self.start().wait(600) != 0 and self.said(ALREADY)) or process.poll() is not None
        if kind == "stopped":
            self.signal_all(signal.SIGSTOP)
            time.sleep(2)
        if kind in ("session", "stopped", "second", "damaged"):
            self.signal_all(signal.SIGKILL)
        elif kind != "disk":
            numbers = {"snakemake": signal.SIGKILL, "terminate": signal.SIGTERM, "interrupt": signal.SIGINT}
            (os.killpg if kind == "interrupt" else os.kill)(process.pid, numbers[kind])
        else:
            filler = self.folder / "filler"
            with contextlib.suppress(OSError), filler.open("wb", buffering=0) as file:
                while file.write(bytes(2**20)):
                    pass
            assert process.wait(600) != 0 or (self.results / "report.html").exists(), "it was not noticed"
            filler.unlink()
        process.wait(600)
        files = sorted(self.results.glob("settings/**/*.json"))
        if kind == "damaged" and files:
            content = (path := rng.choice(files)).read_bytes()
            path.write_bytes(rng.choice([b"", content[: len(content) // 2], b'{"results": 1}', b"\x00" * 100]))

    def finish(self) -> dict[str, Any]:
        """Run to the end. The records, without times."""
        assert self.start().wait(3600) == 0, self.log.read_text()[-4000:]
        found: dict[str, Any] = {}
        for path in self.results.rglob("*"):
            name = str(path.relative_to(self.results))
            assert not LEFT_OVER.search(path.name), name
            if path.is_file() and not TIMES.search(name):
                found[name] = record(path) if path.suffix == ".json" else digests.of_file(path)
        store = Store(f"sqlite:///{self.results.parent}/mlflow.db", "killed")
        for name, run in store.runs.items():
            metrics = [metric for metric in run.data.metrics if not OF_THE_MACHINE.search(metric)]
            curves = {metric: sorted(store.curve(name, metric)) for metric in metrics}
            found[f"MLflow, {name}"] = run.info.status, dict(run.data.params), curves
        return found


def record(path: Path) -> str:
    """Digest of a JSON record without what the machine decides, at any depth."""

    def without(value: Any) -> Any:
        return {k: without(v) for k, v in value.items() if k not in MEASURED} if isinstance(value, dict) else value

    return digests.of_json(without(read_json(path)))


@pytest.fixture(scope="module")
def mark(tmp_path_factory):
    """Processes with it in their environment end with the tests."""
    with swept(tmp_path_factory.mktemp("swept")) as mark:
        yield mark


@pytest.fixture(scope="module")
def undisturbed(mark, tmp_path_factory):
    """Seconds, and the records."""
    begin, records = time.monotonic(), Workflow(tmp_path_factory.mktemp("undisturbed"), mark).finish()
    return time.monotonic() - begin, records


@pytest.mark.parametrize("seed", range(3))
def test_a_disturbed_workflow_ends_with_the_same_records(seed, undisturbed, mark, tmp_path):
    """By four of the kinds, in turn; the disk is another one, and a small one, where one of them needs it."""
    (seconds, expected), rng = undisturbed, random.Random(seed)
    kinds = rng.sample([kind for kind in KINDS if kind != "disk" or os.geteuid() == 0], 4)
    if "disk" in kinds:
        subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={DISK}m", "tmpfs", tmp_path], check=True)
    try:
        workflow = Workflow(tmp_path, mark)
        for kind in kinds:
            process = workflow.start()
            try:
                process.wait(rng.uniform(0.02, 0.35) * seconds)
            except subprocess.TimeoutExpired:
                workflow.disturb(process, kind, rng)
            else:
                assert process.returncode == 0
        found = workflow.finish()
        assert [key for key in {*expected, *found} if expected.get(key) != found.get(key)] == [], kinds
    finally:
        if "disk" in kinds:
            subprocess.run(["umount", "--lazy", tmp_path], check=True)
