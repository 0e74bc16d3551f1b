"""From a number in a table to what is behind it: records, seeds, commit, and the command that makes it again."""

from __future__ import annotations

from pathlib import Path

import pandas as pd

from ..errors import UserError, did_you_mean
from ..figures.records import START, Records
from ..files import read_json
from ..study import load_study

ROW = {"results": "arm", "ablation": "arm", "claims": "claim"}


def explain(table: Path, cell: str) -> str:
    """Where the cell ROW,COLUMN of a study's table comes from. Names may be cut short where that is not ambiguous."""
    name, results = table.stem, table.resolve().parent.parent
    if name not in ROW or not (results / "study.yaml").exists():
        raise UserError(f"{table}: no study's table; one is results/STUDY/tables/NAME.csv, NAME of {', '.join(ROW)}.")
    frame = pd.read_csv(table)
    row, _, column = (part.strip() for part in cell.partition(","))
    row = _match(row, frame[ROW[name]].tolist(), "row")
    records = Records(load_study(results / "study.yaml"), results)
    if name == "claims":
        return _claim(frame[frame["claim"] == row], records)
    if name == "results":
        column = _match(column or "average", frame["benchmark"].tolist(), "column")
        line = frame[(frame["arm"] == row) & (frame["benchmark"] == column)].iloc[0]
        interval = f"{line['mean']} [{line['low']}, {line['high']}]"
        head = f"{row}, {column}: {interval} percent, by bootstrap over seeds and problems."
    else:
        line = frame[frame["arm"] == row].iloc[0]
        column, head = (
            "average",
            f"{row}: accuracy {line['accuracy']} percent, over seeds and benchmarks.",
        )
    benchmarks = records.benchmarks if column == "average" else [column]
    return "\n".join([head, *_behind(row, benchmarks, records)])


def _match(word: str, names: list[str], what: str) -> str:
    names = list(dict.fromkeys(names))
    found = (
        [n for n in names if n == word] or [n for n in names if n.startswith(word)] or [n for n in names if word in n]
    )
    if len(found) != 1:
        hint = f" It could be {', '.join(found)}." if found else did_you_mean(word, names)
        raise UserError(f"--cell: there is no one {what} {word!r}.{hint}")
    return found[0]


def _behind(arm: str, benchmarks: list[str], records: Records) -> list[str]:
    """Each seed's share of a number, with its files, commit and command."""
    lines = []
    rows = records.evaluations[(records.evaluations["arm"] == arm) & records.evaluations["benchmark"].isin(benchmarks)]
    for seed, part in rows.groupby("seed"):
        accuracy = 100 * part["accuracy"].mean()
        problems = sum(len(p) for p in part["per_problem"])
        lines.append(f"\nseed {seed}: {accuracy:.2f} percent of {problems} problems in {len(part)} benchmark(s)")
        if arm == START:
            continue
        folder = records.results / "runs" / arm / f"seed{seed}"
        summary = read_json(folder / "summary.json")
        lines += [
            f"  samples  {folder}/evaluation/{{{','.join(benchmarks)}}}.jsonl",
            f"  run      {folder}, key {summary['key']}, model {summary['model_digest']}",
            f"  from     start model {summary['start']['digest']}, data {summary['data']['train']}",
            f"  commit   {summary['commit'] or 'unknown'}, {summary['hardware']}",
            f"  again    policygrain train --config {records.results}/study.yaml --arm {arm} --seed {seed}"
            f" --start {records.results}/start/seed{seed} --data {records.results}/data --run-dir again/seed{seed}",
        ]
    if not lines:
        raise UserError(f"{records.results}/evaluation: no record of {arm!r}.")
    return lines


def _claim(rows: pd.DataFrame, records: Records) -> str:
    """The comparisons of one claim."""
    lines = [f"{rows.iloc[0]['claim']}: {rows.iloc[0]['verdict']}"]
    for _, row in rows.dropna(subset="statistic").iterrows() if "statistic" in rows else []:
        metric = f" of {row['metric']}" if isinstance(row["metric"], str) and row["metric"] else ""
        lines.append(
            f"\n{row['statistic']}{metric}: {row['of']} {row['claimed']} {row['than']}: {row['effect']:.4g} "
            f"[{row['low']:.4g}, {row['high']:.4g}] over {row['seeds']:.0f} seeds, corrected p {row['p_corrected']:.3g}"
        )
        source = {"accuracy": "evaluation/*.jsonl", "probe": "probe/seed*.json"}
        where = source.get(row["statistic"], f"runs/{{{row['of']},{row['than']}}}/seed*/metrics.jsonl")
        lines.append(f"  records  {records.results}/{where}")
    return "\n".join(lines)
