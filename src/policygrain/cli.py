"""The command line. Each command runs one stage of the pipeline or shows results, and works without Snakemake."""

from __future__ import annotations

import gc
import os
import sys
import time
from collections.abc import Collection, Sequence

from .errors import left

# Options that several words may follow, `--seeds 0 1 2`; the parser knows them once per word.
SEVERAL = {"--seed", "--seeds", "--arm", "--arms", "--a", "--b", "--stop"}


def main(argv: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code; ``argv`` is the command line's by default."""
    words = list(sys.argv[1:] if argv is None else argv)
    if words and words[0] in left():
        print(f"policygrain: {words[0]!r} {left()[words[0]]}.", file=sys.stderr)
        return 2
    try:
        from .commands.app import app, call
    except ModuleNotFoundError as error:
        needed = f"commands need the pipeline: pip install './policygrain[study]' beside the clone ({error})"
        print(f"policygrain: {needed}.", file=sys.stderr)
        return 2
    if os.environ.get("SLURM_PROCID") == "0":
        # The first line of a job's log. Snakemake shows SLURM's own log as well, unless the rule's log is empty.
        job = os.environ["SLURM_JOB_ID"]
        print(f"{time.strftime('%F %T')} on {os.uname().nodename}, job {job}", file=sys.stderr)
    # Importing torch and transformers creates a million permanent objects; garbage collection during the imports takes
    # a sixth of the start-up time of a short run. `load_model` enables the collector again.
    gc.disable()
    try:
        return call(app, repeated(words))
    finally:
        gc.enable()


def repeated(words: Sequence[str], several: Collection[str] = SEVERAL) -> list[str]:
    """The command line with `--seeds 0 1` as `--seeds 0 --seeds 1`; ``several``: the options that words may follow."""
    spread: list[str] = []
    option, values = "", 0
    for word in words:
        if word.startswith("-") and not word.removeprefix("-")[:1].isdecimal():
            option, values = (word if word in several else ""), 0
        elif option:
            values += 1
            spread += [option] if values > 1 else []
        spread.append(word)
    return spread


if __name__ == "__main__":
    sys.exit(main())
