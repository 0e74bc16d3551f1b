"""Seconds and memory of `policygrain-lab anatomy` on a made-up file of a million tokens, in a process of its own.

    python benchmarks/anatomy.py [--tokens 1000000] [--out benchmarks/anatomy.json]

The targets are a minute and 2 GB on two cores of an idle machine. Responses have 50 to 950 tokens, eight a group.
"""

from __future__ import annotations

import json
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch

from common import parser_of, provenance, save

TARGET_SECONDS, TARGET_MB = 60, 2000


def write(path: Path, tokens: int) -> int:
    """Rollouts of at least ``tokens`` tokens; how many they are."""
    generator = torch.Generator().manual_seed(0)
    count = number = 0
    with path.open("w", encoding="utf-8") as file:
        while count < tokens or number % 8:
            length = int(torch.randint(50, 950, (1,), generator=generator))
            old = -3 * torch.rand(length, generator=generator)
            new = (old + 0.1 * torch.randn(length, generator=generator)).clamp(max=0)
            row: dict[str, Any] = {"old_log_probs": old.tolist(), "log_probs": new.tolist()}
            row |= {"reward": float(number % 3 == 0), "group": number // 8, "staleness": number % 4}
            file.write(json.dumps(row) + "\n")
            count, number = count + length, number + 1
    return count


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokens", type=int, default=1_000_000)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "rollouts.jsonl"
        tokens = write(path, arguments.tokens)
        command = [sys.executable, "-m", "policygrain_lab.cli", "anatomy", "--rollouts", str(path)]
        command += ["--advantages", "method"]
        started = time.perf_counter()
        subprocess.run([*command, "--out", str(Path(folder) / "a.html")], stdout=subprocess.DEVNULL, check=True)
        seconds = time.perf_counter() - started
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    report: dict[str, Any] = {
        **provenance(),
        "tokens": tokens,
        "seconds": seconds,
        "processor_seconds": used.ru_utime + used.ru_stime,
        "megabytes": used.ru_maxrss / 1024,
        "targets": {"seconds": TARGET_SECONDS, "megabytes": TARGET_MB},
    }
    print(f"{tokens:,} tokens: {seconds:.0f} s ({report['processor_seconds']:.0f} s of processor time), "
          f"{report['megabytes']:.0f} MB")  # fmt: skip
    save(report, arguments.out)


if __name__ == "__main__":
    main()
