"""The registered problem sets: their protocols, and a section for each."""

from __future__ import annotations

from policygrain.data.registry import Dataset, GitHome, HubHome, dataset, names

from .common import block, table

COLUMNS = ["set", "problems", "role", "samples", "temperature", "metric", "answers", "source"]


@block("problem-sets")
def problem_sets() -> str:
    """The table of protocols, and the sections."""
    sets = sorted((dataset(name) for name in names()), key=lambda d: (d.role, d.name))
    return "\n".join(["## Protocols", table(COLUMNS, [_cells(d) for d in sets]), *map(_section, sets)])


def _cells(d: Dataset) -> list[str]:
    sampling = ("–", "–")
    if d.sampling:
        sampling = (str(d.sampling.n), f"{d.sampling.temperature:g}" if d.sampling.temperature else "greedy")
    return [f"`{d.name}`", str(d.count), d.role, *sampling, d.metric or "–", _answers(d), _citation(d)]


def _answers(d: Dataset) -> str:
    rules = []
    if d.answers.relative_tolerance is not None:
        rules.append(f"within {d.answers.relative_tolerance:.0%} of the gold answer")
    if d.answers.absolute_tolerance is not None:
        rules.append("within a tolerance per row")
    if d.answers.list_answer is not None:
        rules.append("all of a list")
    if d.code is not None:
        rules.append("programs, run against tests")
    return ", ".join(rules) or "equivalent"


def _citation(d: Dataset) -> str:
    if d.citation.startswith("http"):
        return f"[page]({d.citation})"
    return f"[{d.citation}](https://arxiv.org/abs/{d.citation})"


def _home(d: Dataset) -> str:
    if isinstance(d.home, GitHome):
        return f"`{d.home.path}` of github.com/{d.home.repository} at `{d.home.commit[:12]}`, blob `{d.home.blob[:12]}`"
    if isinstance(d.home, HubHome):
        files = d.home.files[0] if len(d.home.files) == 1 else f"{len(d.home.files)} files"
        return f"`{files}` of huggingface.co/datasets/{d.home.dataset} at `{d.home.revision[:12]}`"
    return "none known; add the file yourself"


def _section(d: Dataset) -> str:
    lines = [
        f"\n## {d.name}",
        f"{d.title}. Version {d.version}, in `{d.file}`.",
        "",
        *(f"* {note}" for note in d.notes),
    ]
    if d.prompt:
        lines.append(f"* Prompt: {d.prompt}")
    lines += [f"* Source: {_home(d)}.", f"* Columns checked: {d.fields.checked}.", f"* Licence: {d.licence}."]
    return "\n".join(lines)
