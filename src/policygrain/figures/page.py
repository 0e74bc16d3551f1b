"""The report of a study: one self-contained HTML file, from a Jinja template that escapes all that a study says."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Iterable
from importlib import resources
from pathlib import Path

import pandas as pd
from jinja2 import Environment, StrictUndefined

from ..errors import UserError
from ..files import atomic_text
from ..paths import START
from ..provenance import devices
from ..records import ModelEvaluation
from ..results import StudyResults, evaluated_samples
from ..text import shortened, unbroken
from . import overview, tables
from .catalogue import FIGURES
from .tables import Part

EACH, LONGEST = 3, 400  # responses to each benchmark that are shown, and their characters
SHOWN = ["benchmark", "problem", "response", "gold", "answer", "outcome"]


def write_report(results: StudyResults, captions: Path, out: Path) -> None:
    """Write the report of a study to ``out``.

    ``captions`` is a folder with a file NAME.rst per figure and table. UserError if a figure is missing.
    """
    study = results.study
    names = sorted(study.figures, key=lambda name: name != "benchmarks")
    environment = Environment(autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    environment.filters["unbroken"] = unbroken
    template = environment.from_string((resources.files(__package__) / "page.html").read_text(encoding="utf-8"))
    page = template.render(
        title=study.title or study.name,
        name=study.name,
        warnings=overview.warnings(results),
        overview=[tables.overview(results)] if results.matrix.evaluated else [],
        comparisons=overview.comparisons(results),
        figures=[{"name": name, "title": _title(name), **_image(results, name)} for name in names],
        captions={path.stem: " ".join(path.read_text(encoding="utf-8").split()) for path in captions.glob("*.rst")},
        accuracies=tables.results_table(results)[1],
        contrasts=tables.contrasts(results)[1],
        ablation=tables.ablation(results)[1],
        samples=samples(results),
        protocol=protocol(results),
        provenance=provenance(results) | cost(results),
    )
    atomic_text(out, page)


def _title(name: str) -> str:
    return (FIGURES[name].__doc__ or "").splitlines()[0].removesuffix(".")


def _image(results: StudyResults, name: str) -> dict[str, str]:
    """A figure as a data URL, and its width on the page: of a figure of 6.9 inches, 49.7 rem."""
    path = results.folder.figure(name, ".svg")
    try:
        svg = path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `snakemake figures` first.") from error
    points = float(re.findall(r'<svg [^>]*?width="([0-9.]+)pt"', svg)[0])
    image = "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode()
    return {"image": image, "width": f"{points / 10:.1f}rem"}


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
    """The evaluations of runs, without those of initial models."""
    return [e for name, e in results.model_evaluations.items() if not name.startswith(f"{START}/")]


def provenance(results: StudyResults) -> dict[str, str]:
    """Commits, versions and hardware of the runs, each value once."""
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

    def hours(processes: Iterable[tuple[str, float]]) -> str:
        found: defaultdict[str, float] = defaultdict(float)
        for hardware, seconds in processes:
            count, device = devices(hardware)
            found[device] += count * seconds / 3600
        return ", ".join(f"{n:,.2f} {device}-hours" for device, n in sorted(found.items())) or "nothing yet"

    summaries, evaluations = results.summaries.values(), _evaluations(results)
    finals = [summary.final for summary in summaries]
    sampled = [final.tokens for final in finals]
    generated = "an unknown number of" if None in sampled else f"{sum(filter(None, sampled)):,}"
    tokens = sum(record.tokens for e in evaluations for record in e.records)
    return {
        "training": f"{hours((s.environment.hardware, s.final.seconds) for s in summaries)} in {len(finals)} runs, "
        f"{generated} generated tokens, {sum(f.updates for f in finals):,} optimizer steps",
        "evaluation": f"{hours((e.facts.hardware, sum(e.facts.seconds.values())) for e in evaluations)} for "
        f"{len(evaluations)} models, {tokens:,} generated tokens",
    }


def protocol(results: StudyResults) -> dict[str, str]:
    """The evaluation protocol of the final models."""
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
