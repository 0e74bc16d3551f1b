"""What `make test-gpu` runs on one GPU, in about four minutes: a line for each part, and at the end what failed.

The tests of the modules that compute; a small study with vLLM beside the trainer, by the workflow to its figures;
`evaluate-model` with vLLM; the same study trained by TRL. `--device cpu` rehearses it with the engine of transformers.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
sys.path[:0] = [str(ROOT), str(ROOT / "src")]


def study(folder: Path, name: str, engine: str, compute: str, **training: Any) -> Path:
    """The small study of the tests with this engine in training and evaluation."""
    from tests.support.small import SMALL, write_study

    content = copy.deepcopy(SMALL)
    content |= {"name": name, "figures": ["benchmarks", "dynamics"]}
    content["training"] |= {"engine": engine, "compute": compute, **training}
    content["evaluation"]["engine"] = engine
    return write_study(folder / f"{name}.yaml", content)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", maxsplit=1)[0])
    parser.add_argument("--device", default="cuda", choices=["cuda", "cpu"])
    parser.add_argument("--workers", type=int, default=min(8, os.cpu_count() or 1))
    parser.add_argument("--skip", nargs="*", default=[], choices=["tests", "study", "evaluate-model", "trl"])
    given = parser.parse_args()
    import torch

    if given.device == "cuda" and not torch.cuda.is_available():
        print("no GPU is visible to torch here; `--device cpu` rehearses the parts without one.")
        return 1
    lacks = [name for name in ("vllm", "trl") if importlib.util.find_spec(name) is None]
    with_vllm = given.device == "cuda" and "vllm" not in lacks
    engine, compute = ("vllm", "bfloat16") if with_vllm else ("transformers", "float32")
    print(
        torch.cuda.get_device_name() if given.device == "cuda" else "on a CPU", "; not installed:", lacks or "nothing"
    )
    # One GPU for all processes: the tests' workers and the jobs of a workflow would else wait for each other.
    environment = {**os.environ, "POLICYGRAIN_GPU": "0", "PYTHONPATH": f"{os.environ.get('PYTHONPATH', '')}:{ROOT}/src"}
    environment |= {"MLFLOW_TRACKING_URI": "", "HF_HUB_OFFLINE": "1"}
    with tempfile.TemporaryDirectory() as made:
        folder = Path(made)
        snakemake = ["snakemake", "--snakefile", str(ROOT / "Snakefile"), "--directory", made, "--cores", "1"]
        studies = {
            "study": study(folder, "small-engine", engine, compute),
            "trl": study(folder, "small-trl", "transformers", compute, trainer="trl"),
        }
        model = folder / "results" / "small-engine" / "runs" / "grpo" / "seed0" / "model"
        rooms = [str(ROOT / "tests" / room) for room in ("model", "train", "trainers")]
        options = ["--benchmarks", "count", "--size", "8", "--samples", "2", "--temperature", "1", "--max-tokens", "12"]
        options += ["--engine", engine, "--grader", "numeric", "--prompt", "{problem}\n", "--no-chat"]
        options += ["--out", str(folder / "evaluated")]
        parts = {
            "study": [*snakemake, "--configfile", str(studies["study"]), "--", "all"],
            "evaluate-model": ["policygrain.cli", "evaluate-model", str(model), *options],
            "trl": [*snakemake, "--configfile", str(studies["trl"]), "--", "all"],
            "tests": ["pytest", "-q", "-p", "no:cacheprovider", "-n", str(given.workers), "-m", "not slow", *rooms],
        }
        failed = []
        for name, command in parts.items():
            if name in given.skip or name in lacks:
                continue
            begin = time.monotonic()
            done = subprocess.run(
                [sys.executable, "-m", *command],
                cwd=ROOT if name == "tests" else folder,
                env=environment,
                capture_output=True,
                text=True,
                check=False,
            )
            said = (done.stdout + done.stderr).strip().splitlines()
            counts = [line for line in said if re.search(r"\d+ (passed|failed)", line)]
            end = "ok" if not done.returncode else f"FAILED ({done.returncode})"
            print(f"{name}: {end} after {time.monotonic() - begin:.0f} s {' '.join(counts[-1:])}", flush=True)
            if done.returncode:
                failed.append(name)
                print("\n".join(said[-60:]), flush=True)
    print("1 passed, 0 failed" if not failed else f"0 passed, 1 failed: {', '.join(failed)}")
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
