"""Writes the report of a study: one self-contained HTML file."""

from __future__ import annotations

import base64
import re
from collections import defaultdict
from collections.abc import Sequence
from importlib import resources
from pathlib import Path
from urllib.parse import urlsplit

from markupsafe import Markup

from ..errors import UserError
from ..figures import TABLES
from ..figures.catalogue import FIGURES
from ..files import atomic_text
from ..paths import START
from ..provenance import devices
from ..records import ModelEvaluation
from ..results import StudyResults
from ..text import markdown_table, shortened, unbroken
from . import overview
from .html import content_security_policy, render, tables
from .samples import first_rows

FIRST = "benchmarks"  # the figure of the first screen
LONGEST = 400  # characters of a response that are shown
VERSIONS = ("python", "torch", "transformers")


def write_report(results: StudyResults, captions: Path, out: Path) -> None:
    """Write the report of a study to ``out``.

    ``captions`` is a folder with a file NAME.rst per figure and table. UserError if a figure or table is missing.
    """
    study, folder = results.study, results.folder
    evaluated = overview.rows(results) if results.matrix.evaluated else []
    names = sorted(study.figures, key=lambda name: name != FIRST)
    texts = {name: _read(folder.table(name, ".md")) for name in TABLES}
    page = render(
        resources.files(__package__) / "page.html",
        policy=content_security_policy(),
        title=study.title or study.name,
        name=study.name,
        warnings=overview.warnings(results, evaluated),
        overview=_overview(results, evaluated),
        comparisons=[unbroken(text) for text in overview.comparisons(results)],
        figures=[
            {
                "name": name,
                "title": FIGURES[name].title,
                **_image(folder.figure(name, ".svg")),
                "caption": _caption(captions, name),
            }
            for name in names
        ],
        samples=samples(results),
        tables={name: tables(text) for name, text in texts.items()},
        captions={name: _caption(captions, name) for name in TABLES},
        protocol=protocol(results),
        provenance=provenance(results),
        cost=cost(results),
        tracked=tracked(results),
    )
    atomic_text(out, page)


def _overview(results: StudyResults, evaluated: Sequence[overview.Row]) -> Markup:
    if not evaluated:
        return Markup()
    shown = overview.cells(results, evaluated)
    return tables(f"{markdown_table(overview.HEADER, shown, 'lr')}\n{overview.note(results, evaluated)}")


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError as error:
        raise UserError(f"{path}: cannot be read ({error.strerror}); run `snakemake figures` first.") from error


def _image(path: Path) -> dict[str, str]:
    """An SVG file as a data URL, and its width on the page: a figure of five inches has 44 rem."""
    svg = _read(path)
    points = re.search(r'<svg [^>]*?width="([\d.]+)pt"', svg)
    width = f"{44 / 5 / 72 * float(points[1]):.1f}rem" if points else "44rem"
    return {"image": "data:image/svg+xml;base64," + base64.b64encode(svg.encode()).decode(), "width": width}


def _caption(folder: Path, name: str) -> str:
    path = folder / f"{name}.rst"
    return " ".join(path.read_text(encoding="utf-8").split()) if path.exists() else ""


def _evaluations(results: StudyResults) -> list[ModelEvaluation]:
    """The evaluations of runs, without those of initial models."""
    return [e for name, e in results.model_evaluations.items() if not name.startswith(f"{START}/")]


def samples(results: StudyResults) -> list[dict[str, str]]:
    """The first responses of one evaluated model to each benchmark, with their grades, as rows of a table."""
    rows = first_rows(results)
    shown = rows.drop(columns=["id", "truncated"]).astype(str)
    return [{str(key): shortened(value, LONGEST) for key, value in row.items()} for row in shown.to_dict("records")]


def provenance(results: StudyResults) -> dict[str, str]:
    """Commits, versions and hardware of the runs, each value once."""
    summaries = list(results.summaries.values())

    def each(values: list[str]) -> str:
        return ", ".join(dict.fromkeys(v for v in values if v)) or "unknown"

    vllm = [v for e in _evaluations(results) for k, v in e.facts.versions.items() if k.startswith("vllm")]
    return {
        "commit": each([s.environment.commit for s in summaries]),
        "hardware": each([s.environment.hardware for s in summaries]),
        **{name: each([s.environment.versions.get(name, "") for s in summaries]) for name in VERSIONS},
        "vllm": each(vllm),
        # A folder by its name, since its path on the machine that trained has no meaning elsewhere.
        "initial models": each([f"{Path(results.study.model.start).name} {s.inputs.start_model}" for s in summaries]),
    }


def cost(results: StudyResults) -> dict[str, str]:
    """The cost of training and evaluation: seconds of their processes, device hours, generated tokens."""
    summaries, evaluations = list(results.summaries.values()), _evaluations(results)
    finals = [s.final for s in summaries]
    evaluated = [sum(e.facts.seconds.values()) for e in evaluations]
    machines = [s.environment.hardware for s in summaries] + [e.facts.hardware for e in evaluations]
    hours: defaultdict[str, float] = defaultdict(float)
    for hardware, seconds in zip(machines, [*(f.seconds for f in finals), *evaluated], strict=True):
        count, device = devices(hardware)
        hours[f"{device}-hours"] += count * seconds / 3600
    tokens = sum(r.tokens for e in evaluations for r in e.records)
    return {
        "training": f"{sum(f.seconds for f in finals):,.0f} s in {len(finals)} runs, "
        f"{sum(f.tokens for f in finals):,} generated tokens, {sum(f.updates for f in finals):,} optimizer steps",
        "evaluation": f"{sum(evaluated):,.0f} s for {len(evaluations)} models, {tokens:,} generated tokens",
        "in all": ", ".join(f"{n:,.2f} {device}" for device, n in sorted(hours.items())) or "none yet",
    }


def protocol(results: StudyResults) -> dict[str, str]:
    """The evaluation protocol of the final models."""
    evaluations = _evaluations(results)
    if not evaluations:
        return {}
    first = evaluations[0].protocol
    by_sampling: dict[str, list[str]] = {}
    for name, benchmark in first["benchmarks"].items():
        s = benchmark["sampling"]
        how = "greedy" if s["temperature"] == 0 else f"{s['n']} samples at temperature {s['temperature']:g}"
        by_sampling.setdefault(f"{how}, at most {s['max_tokens']} tokens", []).append(name.replace("_", " "))
    return {
        "sampling": "; ".join(f"{how}: {', '.join(names)}" for how, names in by_sampling.items()),
        "problems": ", ".join(f"{r.benchmark.replace('_', ' ')} {r.problems}" for r in evaluations[0].records),
        "engine": first["engine"],
        "grader": first["grader"],
        "prompt": first["prompt"],
        "seed": str(first["seed"]),
    }


def tracked(results: StudyResults) -> dict[str, str]:
    """The addresses of the study's MLflow server and of its runs there.

    Empty if it was not tracked, or in a file or by a server of this machine, which readers elsewhere cannot open.
    """
    tracking = results.tracking
    server = urlsplit(tracking.uri if tracking else "")
    host = server.hostname or ""
    local = host in ("localhost", "::1", "0.0.0.0") or host.startswith("127.")
    if tracking is None or server.scheme not in ("http", "https") or local:
        return {}
    return {"uri": tracking.uri, "runs": f"{tracking.uri.rstrip('/')}/#/experiments/{tracking.experiment}/runs"}
