"""Re-encodes the results of a study, a folder or an archive of one, as small files for the pages in this folder.

    python encode.py RESULTS NAME [METRIC ...]

``records/NAME.parquet`` has a row for each validation of a run, and for each measurement without training:

* `measure`: `run`, `round` (updates on the rollouts of one policy) or `estimate` (of a gradient);
* `arm`, `seed`, `initial_model` (several seeds may share one) and `step` (optimizer steps);
* `accuracy` of sampled responses to the validation problems, 0 to 1, and their mean `length` in tokens;
* `cosine` of an estimate with the true gradient;
* each METRIC, mean over the steps since the previous validation, or as it is then if it begins with `total_`.

Numbers have four significant digits. ``records/NAME.scores.csv.gz`` has a row for each final or initial model and
benchmark: `sampled` and `greedy` have a digit for each problem, the number of correct responses among `n`. Last,
``records/NAME.study.yaml`` is the study file with its base merged, as it was run.
"""

from __future__ import annotations

import json
import math
import re
import sys
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

RECORDS = Path(__file__).parent / "records"
INITIAL = "initial model"
MEASURED = ["accuracy", "length", "cosine"]


class Results:
    """The files of a study, in a folder or in a ZIP archive."""

    def __init__(self, path: Path) -> None:
        self.read: Callable[[str], str]
        if path.is_dir():
            self.names = sorted(p.relative_to(path).as_posix() for p in path.rglob("*") if p.is_file())
            self.read = lambda name: (path / name).read_text(encoding="utf-8")
        else:
            archive = zipfile.ZipFile(path)
            self.names = sorted(archive.namelist())
            self.read = lambda name: archive.read(name).decode("utf-8")

    def matching(self, pattern: str) -> Iterator[tuple[Any, str]]:
        """Match and content of each file whose whole name matches."""
        for name in self.names:
            if match := re.fullmatch(pattern, name):
                yield match, self.read(name)


def arm_name(folder: str) -> str:
    """The present name of an arm: `off_policy_steps` was once called `ahead`."""
    return folder.replace("+ahead=", "+off_policy_steps=")


def runs(results: Results, metrics: list[str]) -> Iterator[dict[str, Any]]:
    """The validations of each run."""
    for match, text in results.matching(r"runs/([^/]+)/seed(\d+)/metrics\.jsonl"):
        seed = int(match[2])
        settings = json.loads(results.read(match[0].replace("metrics.jsonl", "run.json")))["settings"]
        since: list[dict[str, Any]] = []
        for line in map(json.loads, text.splitlines()):
            if line.get("validation_accuracy") is not None:
                values = {metric: mean([row.get(metric) for row in since]) for metric in metrics}
                values |= {metric: line.get(metric) for metric in metrics if metric.startswith("total_")}
                model = {"seed": seed, "initial_model": settings.get("start_seed", seed)}
                found = {"accuracy": line["validation_accuracy"], "length": line.get("validation_length")}
                yield {"measure": "run", "arm": arm_name(match[1]), **model, "step": line["step"], **found, **values}
                since = []
            since.append(line)


def measurements(results: Results) -> Iterator[dict[str, Any]]:
    """Rounds, each from the policy before it, and estimates of gradients; means over stages and pools."""
    for match, text in results.matching(r"(round|estimator)s/seed(\d+)\.json"):
        rows = pd.DataFrame(json.loads(text)["rows"])
        if rows.empty:  # nothing could be measured
            continue
        model = {"seed": int(match[2]), "initial_model": int(match[2])}
        if match[1] == "round":
            for (arm, updates), some in rows.groupby(["method", "updates"]):
                yield {"measure": "round", "arm": arm, **model, "step": updates, "accuracy": some["reward"].mean()}
            yield {"measure": "round", "arm": "before", **model, "step": 0, "accuracy": rows["before"].mean()}
            continue
        for (arm, updates), some in rows[rows["cosine"].notna()].groupby(["estimator", "updates"]):
            cosine = some["cosine"].map(lambda interval: interval[0]).mean()
            yield {"measure": "estimate", "arm": arm, **model, "step": updates, "cosine": cosine}


def scores(results: Results) -> Iterator[dict[str, Any]]:
    """The scores of each evaluated model on each benchmark; the arm of an initial model is `INITIAL`."""
    for match, text in results.matching(r"(?:runs/([^/]+)|start)/seed(\d+)/evaluation/records\.json"):
        for record in json.loads(text)["records"]:
            yield {
                "arm": arm_name(match[1] or INITIAL),
                "seed": int(match[2]),
                "benchmark": record["benchmark"],
                "n": record["n"],
                "sampled": digits(record["per_problem"], record["n"]),
                "greedy": digits(record.get("greedy") or [], 1),
            }


def digits(values: list[float], n: int) -> str:
    """The number of correct responses to each problem, of ``n`` at most 9."""
    return "".join(str(round(value * n)) for value in values)


def mean(values: list[float | None]) -> float | None:
    """The mean of the values that are there."""
    there = [value for value in values if value is not None]
    return math.fsum(there) / len(there) if there else None


def main(path: Path, name: str, metrics: list[str]) -> None:
    """Write the files of one study."""
    results = Results(path)
    table = pd.DataFrame([*runs(results, metrics), *measurements(results)])
    numbers = [column for column in [*MEASURED, *metrics] if column in table and table[column].notna().any()]
    table = table[["measure", "arm", "seed", "initial_model", "step", *numbers]]
    for column in numbers:
        table[column] = table[column].map(lambda value: float(f"{value:.4g}")).astype("float32")
    table = table.astype({"seed": "int32", "initial_model": "int32", "step": "int32"})
    manifest = json.loads(results.read("MANIFEST.json")) if "MANIFEST.json" in results.names else {}
    commits = {json.loads(text)["environment"]["commit"] for _, text in results.matching(r"runs/.*/summary\.json")}
    facts = {"study": name, "commit": " ".join(sorted(commits)), "hardware": manifest.get("hardware", "")}
    RECORDS.mkdir(exist_ok=True)
    packed = pa.Table.from_pandas(table, preserve_index=False).replace_schema_metadata(facts)
    pq.write_table(packed, RECORDS / f"{name}.parquet", compression="zstd", compression_level=19)
    evaluated = list(scores(results))
    if any(score["arm"] != INITIAL for score in evaluated):
        file = RECORDS / f"{name}.scores.csv.gz"
        pd.DataFrame(evaluated).to_csv(
            file, index=False, compression={"method": "gzip", "compresslevel": 9, "mtime": 0}
        )
    study = re.sub(r"^( +)ahead:", r"\1off_policy_steps:", results.read("study.yaml"), flags=re.MULTILINE)
    (RECORDS / f"{name}.study.yaml").write_text(study, encoding="utf-8")
    sizes = sum(file.stat().st_size for file in RECORDS.glob(f"{name}.*"))
    print(f"{name}: {len(table)} rows, {len(evaluated)} scores, {sizes:,} bytes; {facts['commit']}")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2], sys.argv[3:])
