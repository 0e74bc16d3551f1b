"""The report of a study: an HTML page, whose template escapes all that a study says, and a screen of a terminal."""

from __future__ import annotations

import base64
import re
import textwrap
from collections import defaultdict
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import pandas as pd
from jinja2 import Environment, StrictUndefined

from ..analysis import measures
from ..errors import UserError
from ..files import atomic_text
from ..paths import START
from ..provenance import devices
from ..records import ModelEvaluation
from ..results import StudyResults, evaluated_samples
from ..study.dependencies import evaluated_models
from ..text import columns, shortened, unbroken
from . import tables
from .catalogue import FIGURES
from .tables import Part

EACH, LONGEST = 3, 400  # responses to each benchmark that are shown, and their characters
LINES, WIDTH = 15, 80  # of the terminal's last screen
SHOWN = ["benchmark", "problem", "response", "gold", "answer", "outcome"]


def write_report(results: StudyResults, captions: Path, out: Path) -> None:
    """Write the report to ``out``; the folder ``captions`` has a NAME.rst per figure. UserError without a figure."""
    study = results.study
    names = sorted(study.figures, key=lambda name: name != "benchmarks")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["unbroken"] = unbroken
    template = environment.from_string((resources.files(__package__) / "page.html").read_text(encoding="utf-8"))
    page = template.render(
        title=study.title or study.name,
        name=study.name,
        warnings=warnings(results),
        overview=[tables.overview(results)] if results.matrix.evaluated else [],
        comparisons=comparisons(results),
        figures=[_figure(results, name) for name in names],
        captions={path.stem: " ".join(path.read_text(encoding="utf-8").split()) for path in captions.glob("*.rst")},
        accuracies=tables.results_table(results)[1],
        contrasts=tables.contrasts(results)[1],
        ablation=tables.ablation(results)[1],
        samples=samples(results),
        protocol=protocol(results),
        provenance=provenance(results) | cost(results),
    )
    atomic_text(out, page)


def _figure(results: StudyResults, name: str) -> dict[str, str]:
    """A figure with its title, as a data URL, and its width on the page: of a figure of 6.9 inches, 49.7 rem."""
    path = results.folder.figure(name, ".svg")
    try:
        svg = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `snakemake figures` first.") from error
    points = float(re.findall(r'<svg [^>]*?width="([0-9.]+)pt"', svg)[0])
    image = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    title = (FIGURES[name].__doc__ or "").splitlines()[0].removesuffix(".")
    return {"name": name, "title": title, "image": image, "width": f"{points / 10:.1f}rem"}


def samples(results: StudyResults) -> list[Part]:
    """The first responses to each benchmark of one model: the first run that is evaluated, else an initial model."""
    evaluations = results.model_evaluations
    for name in sorted(evaluations, key=lambda name: name.startswith(f"{START}/"))[:1]:
        folder = results.folder.evaluation(name)
        rows = pd.concat([evaluated_samples(folder, record).head(EACH) for record in evaluations[name].records])
        cells = [[shortened(str(value), LONGEST) for value in row] for row in rows[SHOWN].fillna("").to_numpy()]
        return [Part(SHOWN, cells, f"The first {EACH} responses of {name} to each benchmark.")]
    return []


def _evaluations(results: StudyResults) -> list[ModelEvaluation]:
    return [e for name, e in results.model_evaluations.items() if not name.startswith(f"{START}/")]


def provenance(results: StudyResults) -> dict[str, str]:
    made = [summary.environment for summary in results.summaries.values()]
    evaluated = [item for e in _evaluations(results) for item in e.facts.versions.items()]
    # A folder by its name, since its path on the machine that trained has no meaning elsewhere.
    start = Path(results.study.model.start).name + (", fine-tuned," if results.study.model.sft else "")
    values = {
        "commit": [e.commit for e in made],
        "hardware": [e.hardware for e in made],
        **{name: [e.versions.get(name, "") for e in made] for name in ("python", "torch", "transformers")},
        "vllm": [version for package, version in evaluated if package.startswith("vllm")],
        "initial models": [f"{start} {s.inputs.start_model}" for s in results.summaries.values()],
    }
    return {name: ", ".join(dict.fromkeys(filter(None, of))) or "unknown" for name, of in values.items()}


def cost(results: StudyResults) -> dict[str, str]:
    """The cost of training and evaluation: device hours of their processes, and generated tokens."""

    def hours(processes: Iterable[tuple[str, int, int, float]]) -> str:
        found: defaultdict[str, float] = defaultdict(float)
        for hardware, ranks, threads, seconds in processes:
            count, device = devices(hardware)
            found[device] += (ranks if ranks > 1 else count) * (threads if device == "core" else 1) * seconds / 3600
        return ", ".join(f"{n:,.2f} {device}-hours" for device, n in sorted(found.items())) or "nothing yet"

    summaries, evaluations = results.summaries.values(), _evaluations(results)
    finals = [summary.final for summary in summaries]
    trained = [
        (s.environment.hardware, s.environment.ranks, s.training.get("threads", 1), s.final.seconds) for s in summaries
    ]
    sampled = [final.tokens for final in finals]
    generated = "an unknown number of" if None in sampled else f"{sum(filter(None, sampled)):,}"
    tokens = sum(record.tokens for e in evaluations for record in e.records)
    return {
        "training": f"{hours(trained)} in {len(finals)} runs, "
        f"{generated} generated tokens, {sum(f.updates for f in finals):,} optimizer steps",
        "evaluation": f"{hours((e.facts.hardware, 1, 1, sum(e.facts.seconds.values())) for e in evaluations)} for "
        f"{len(evaluations)} models, {tokens:,} generated tokens",
    }


def protocol(results: StudyResults) -> dict[str, str]:
    evaluations = _evaluations(results)
    if not evaluations:
        return {}
    first, each = evaluations[0].protocol, []
    for record in evaluations[0].records:
        s = first["benchmarks"][record.benchmark]["sampling"]
        how = "greedy" if s["temperature"] == 0 else f"{s['n']} samples at temperature {s['temperature']:g}"
        name = record.benchmark.replace("_", " ")
        each.append(f"{name}: {record.problems} problems, {how}, at most {s['max_tokens']} tokens")
    return {"benchmarks": "; ".join(each), **{k: str(first[k]) for k in ("engine", "grader", "prompt", "seed")}}


def check_complete(results: StudyResults) -> None:
    """UserError if a run or an evaluation of the study is missing, or if the record of one is damaged."""
    named = evaluated_models(results.study) if results.matrix.evaluated else {}
    models = [name for of_arm in named.values() for name in of_arm]
    ended = {run.name for run in results.summaries}
    missing = [run.name for run in results.matrix.runs if run.name not in ended]
    missing += [f"the evaluation of {name}" for name in models if name not in results.model_evaluations]
    if missing:
        raise UserError(
            f"{results.folder.path}: the study is not finished: {len(missing)} of its results are missing, such as "
            f"{missing[0]}. Run `snakemake all`, which keeps all others."
        )
    _ = results.steps  # reading them names a file that is damaged


def warnings(results: StudyResults) -> list[str]:
    """Why nothing can be concluded: nothing was ever right, or nothing has learned."""
    if not results.matrix.evaluated:
        return []
    arms, columns = tables.evaluated(results), tables.decodings(results)

    def has_learned(arm: str) -> bool:
        changes = (measures.there(measures.accuracy_difference, results, arm, START, column=c) for c in columns)
        return any((d.low if d.replicated else d.mean) > 0 for d in changes if d)

    if not any(measures.final_accuracy(results, arm, column=column).mean for arm in arms for column in columns):
        return [
            "No response of any model was ever correct. Read some, at the end of the report: the initial model may be "
            "too weak, or the prompt and `extraction` may not fit it."
        ]
    if any(map(has_learned, arms[1:])):
        return []
    return [
        "Nothing has learned: no method is shown to be more accurate than the initial model. The steps, the learning "
        "rate or the seeds may be too few."
    ]


def comparisons(results: StudyResults) -> list[str]:
    texts = []
    for name, setting, auc, sampled, greedy, tokens, p, _, outcome in tables.contrasts(results)[1][0].rows:
        rest = {"final accuracy": sampled, "greedy": greedy, "tokens": tokens}
        numbers = "".join(f"; {what} {text}" for what, text in rest.items() if text)
        texts.append(
            f"{name}{f' ({setting})' if setting else ''}: {auc} points in training ({outcome}, p = {p}){numbers}."
        )
    return texts


def screen(results: StudyResults) -> str:
    head = [line for text in warnings(results) for line in textwrap.wrap(text, WIDTH)]
    compared = [textwrap.wrap(text, WIDTH) for text in comparisons(results)]
    tail = [f"Report: {results.folder.report}    All runs: make ui"]
    if results.matrix.evaluated:
        part = tables.overview(results)
        # Besides the header and two lines of notes.
        room = LINES - len(head) - len(tail) - len(compared[0] if compared else []) - 3
        more = len(part.rows) - room
        note = part.note + f" {more} more arms are in the report." * (more > 0)
        cells = [[shortened(name, 44), *numbers] for name, *numbers in part.rows[:room]]
        head += [*columns(cells, part.header, "lr"), *textwrap.wrap(note, WIDTH)]
    for text in compared:
        head += text if len(head) + len(text) + len(tail) <= LINES else []
    return "\n".join([*head, *tail]).replace("\u00a0", " ")
