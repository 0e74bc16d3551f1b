"""Generates the documentation page about problem sets from the registry."""

from __future__ import annotations

from collections.abc import Iterator

from .registry import Dataset, GitHome, HubHome, dataset, names

HEAD = r"""# Benchmarks and training sets

The registered problem sets; `policygrain data list --markdown` generates this page from
[`datasets/`](../src/policygrain/tasks/datasets). Each set is a versioned file with its source and hash, the conversion
of its columns to problems, the comparison of answers, and the evaluation protocol. The repository contains no problem
text.

## How to get them
```
source .venv/bin/activate                                  # once per shell
policygrain data list                                      # all sets, and which of them are in the folder
policygrain data fetch math500 aime24 --root FOLDER        # without names: every set
policygrain data check --root FOLDER                       # counts, content, columns, ids; exit code 2 when wrong
policygrain data overlaps dapo_math_17k math500 amc23 --root FOLDER
```

`fetch` downloads a set from its pinned source, verifies it (Git blob id, or the revision of a Hugging Face dataset),
converts it to JSON Lines, compares the result with a recorded digest of its problems and answers, and only then writes
it. Files that are there and right are not downloaded again, and interrupted downloads are resumed. Proxies are set by
the usual variables (`HTTPS_PROXY`); `POLICYGRAIN_MIRROR` sets another server of GitHub's raw files, `HF_ENDPOINT`
another hub.

**Without a network**: fetch elsewhere and copy the folder, or use your own files: one JSON object per line with `id`,
`problem`, `answer` and the columns that the set keeps. The bytes may differ, the problems may not: `check` compares the
digest of problems and answers in order, ignoring white space and ids.

**In a study**, a set's name can be used like the name of a family or a file; the files are in `data.root`, else in
`POLICYGRAIN_DATA`. A study with missing or wrong sets is refused before any computation. `size` takes the first
problems of a set; report such a subset under another name.

```yaml
data: {root: FOLDER, train: [dapo_math_17k], train_size: 16591}
evaluation:
  benchmarks:
    - {name: MATH-500, source: math500}
    - {name: AIME24, source: aime24, sampling: {n: 32, temperature: 0.6, max_tokens: 8192}}
```

## Contamination
`prepare` compares training prompts with every benchmark that is not synthetic and writes `data/contamination.json`:
for each benchmark the pairs of ids that are `exact` duplicates (the same sequence of letters and digits) or `near`
duplicates (Jaccard similarity of the sets of words and numbers of at least 0.8, both of at least 8). All such pairs are
found. Paraphrases are not, and different problems from one template may be listed as near, so check the list.

"""

TABLE = """| set | problems | role | samples | temperature | metric | answers | source |
|---|---|---|---|---|---|---|---|
"""


def markdown() -> str:
    """The page as Markdown."""
    sets = sorted((dataset(name) for name in names()), key=lambda d: (d.role, d.name))
    rows = "".join(f"| {' | '.join(_cells(d))} |\n" for d in sets)
    return f"{HEAD}## Protocols\n{TABLE}{rows}\n" + "\n".join("\n".join(_section(d)) for d in sets)


def _cells(d: Dataset) -> tuple[str, ...]:
    sampling = ("–", "–")
    if d.sampling:
        sampling = (str(d.sampling.n), f"{d.sampling.temperature:g}" if d.sampling.temperature else "greedy")
    return f"`{d.name}`", str(d.count), d.role, *sampling, d.metric or "–", _answers(d), _citation(d)


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


def _section(d: Dataset) -> Iterator[str]:
    yield f"## {d.name}"
    yield f"{d.title}. Version {d.version}, in `{d.file}`."
    yield ""
    yield from (f"* {note}" for note in d.notes)
    if d.prompt:
        yield f"* Prompt: {d.prompt}"
    yield f"* Source: {_home(d)}."
    yield f"* Columns checked: {d.fields.checked}."
    yield f"* Licence: {d.licence}."
    yield ""
