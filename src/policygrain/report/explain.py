"""Where a number of a table comes from: records, seeds, commits, and the command that reproduces it."""

from __future__ import annotations

import shlex
from pathlib import Path

import pandas as pd

from ..analysis.ledger import EVALUATED
from ..errors import UserError, did_you_mean
from ..results.layout import START
from ..results.reader import StudyResults
from ..study.fingerprint import start_seed
from ..study.runs import Run

ROW = {"results": "arm", "ablation": "arm", "claims": "claim"}


def explain(table: Path, cell: str) -> str:
    """Where the cell ROW,COLUMN of a table comes from, as text. Names may be abbreviated if that is unambiguous."""
    name, folder = table.stem, table.resolve().parent.parent
    if name not in ROW or not table.is_file():
        raise UserError(f"{table}: not a table of a study (results/STUDY/tables/NAME.csv, NAME: {', '.join(ROW)}).")
    results = StudyResults(folder)
    frame = pd.read_csv(table)
    row, _, column = (part.strip() for part in cell.partition(","))
    row = _match(row, frame[ROW[name]].tolist(), "row")
    if name == "claims":
        return _claim(frame[frame["claim"] == row], results)
    if name == "results":
        column = _match(column or "average", frame["benchmark"].tolist(), "column")
        line = frame[(frame["arm"] == row) & (frame["benchmark"] == column)].iloc[0]
        interval = f"{line['mean']} [{line['low']}, {line['high']}]"
        head = f"{row}, {column}: {interval} percent, 95% interval over {line['n']} {line['unit']}."
    else:
        line = frame[frame["arm"] == row].iloc[0]
        column, head = "average", f"{row}: accuracy {line['accuracy']} percent, over seeds and benchmarks."
    benchmarks = results.benchmarks if column == "average" else [column]
    return "\n".join([head, *_behind(row, benchmarks, results)])


def _match(word: str, names: list[str], what: str) -> str:
    """The name that ``word`` stands for: an exact match, else the only name that begins with it or contains it."""
    names = list(dict.fromkeys(names))
    found = (
        [n for n in names if n == word] or [n for n in names if n.startswith(word)] or [n for n in names if word in n]
    )
    if len(found) != 1:
        hint = f" It matches {', '.join(found)}." if found else did_you_mean(word, names)
        raise UserError(f"--cell: {what} {word!r} is not the name of exactly one {what}.{hint}")
    return found[0]


def _behind(arm: str, benchmarks: list[str], results: StudyResults) -> list[str]:
    """The lines of each seed: its accuracy, files, commit and command."""
    lines = []
    table, folder = results.evaluations, results.folder
    rows = table[(table["arm"] == arm) & table["benchmark"].isin(benchmarks)]
    for seed, part in rows.groupby("seed"):
        accuracy = 100 * part["accuracy"].mean()
        problems = sum(len(p) for p in part["per_problem"])
        evaluation = folder.evaluation(f"{arm}/seed{seed}")
        lines.append(f"\nseed {seed}: {accuracy:.2f} percent of {problems} problems in {len(part)} benchmark(s)")
        lines.append(f"  samples  {evaluation.path}/{{{','.join(benchmarks)}}}.jsonl")
        if arm == START:
            continue
        run = Run(arm, int(str(seed)))
        summary = results.summaries[run]
        start = folder.start(start_seed(results.study, run.seed)).path
        command = ["policygrain", "train", "--config", folder.study, "--arm", arm, "--seed", run.seed]
        command += ["--start", start if results.study.model.start == "tiny" else results.study.model.start]
        command += ["--data", folder.data.path, "--run-dir", f"again/seed{run.seed}"]
        lines += [
            f"  run      {results.run_folder(run).path}, key {summary.key}, model {summary.model_digest}",
            f"  from     initial model {summary.inputs.start_model}, data {summary.inputs.train}",
            f"  commit   {summary.environment.commit or 'unknown'}, {summary.environment.hardware}",
            f"  again    {shlex.join(map(str, command))}",
        ]
    if not lines:
        raise UserError(f"{folder.path}: no evaluation of {arm!r}.")
    return lines


def _claim(rows: pd.DataFrame, results: StudyResults) -> str:
    """The verdict and the comparisons of one claim, with their records."""
    lines = [f"{rows.iloc[0]['claim']}: {rows.iloc[0]['verdict']}"]
    folder = results.folder
    for _, row in rows.dropna(subset="statistic").iterrows() if "statistic" in rows else []:
        p = min(row["p_holds"], row["p_opposite"], row["p_smaller"])
        lines.append(
            f"\n{row['comparison']}: {row['effect']:.4g} [{row['low']:.4g}, {row['high']:.4g}] {row['effect_unit']} "
            f"over {row['n']:.0f} {row['unit']}: {row['finding']} (corrected p {p:.3g})"
        )
        both = f"{{{row['of']},{row['than']}}}"
        source = {
            **dict.fromkeys(EVALUATED, folder.evaluation(f"{both}/seed*").record),
            "estimator": folder.estimators("*"),
            "round": folder.rounds("*"),
        }
        lines.append(f"  records  {source.get(row['statistic'], folder.run(both, '*').metrics)}")
    return "\n".join(lines)
