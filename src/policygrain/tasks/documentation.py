"""The page about problem sets, written from the registry."""

from __future__ import annotations

from collections.abc import Iterator

from .registry import Dataset, GitHome, HubHome, dataset, names

HEAD = r"""# Benchmarks and training sets

What the registry knows; `policygrain data list --markdown` writes this page from
[`datasets/`](../src/policygrain/tasks/datasets). Each set is a versioned file of data: where it lives and under which
hash, how its columns become problems, how answers are compared, by which protocol it is judged. No problem text is
kept here.

## How to get them
```
policygrain data list                                      # what there is, and what of it is in the folder
policygrain data fetch math500 aime24 --root FOLDER        # without names: every set
policygrain data check --root FOLDER                       # counts, content, columns, ids; exit code 2 when wrong
policygrain data overlaps dapo_math_17k math500 amc23 --root FOLDER
```

`fetch` downloads a set from its pinned home, verifies it (Git blob id, or the revision of a Hugging Face dataset),
turns it into JSON Lines, compares the result with a recorded digest of its problems and answers, and only then writes
it. It leaves alone what is there and right, and goes on where it was interrupted. Proxies are taken from the usual
variables (`HTTPS_PROXY`); `POLICYGRAIN_MIRROR` names another place that serves GitHub's raw files, `HF_ENDPOINT`
another hub.

**Without a network**: fetch elsewhere and carry the folder over, or bring files of your own: one JSON object a line
with `id`, `problem`, `answer` and the columns that a set keeps. Other bytes are fine, other problems are not: `check`
compares the digest of problems and answers in their order, in which white space and ids do not count.

**In a study**, a set's name stands where a family's or a file's does; `data.root`, else `POLICYGRAIN_DATA`, says
where the files are. A study whose sets are missing or wrong is refused before anything is spent. `size` takes the
first so many problems; what it leaves is no longer the benchmark, so do not call it by its name.

```yaml
data: {root: FOLDER, train: [dapo_math_17k], train_size: 16591}
evaluation:
  benchmarks:
    - {name: MATH-500, source: math500}
    - {name: AIME24, source: aime24, sampling: {n: 32, temperature: 0.6, max_tokens: 8192}}
```

## Among the training prompts
`prepare` compares training prompts with every benchmark that is not synthetic and writes `data/contamination.json`:
for each benchmark the pairs of ids that are `exact` (the same letters and digits one after the other) or `near`
(Jaccard similarity of the sets of words and numbers of at least 0.8, both of at least 8). All such pairs are found,
none is estimated. Paraphrases are missed, and problems cut from one template are taken for near; the list is there to
be read.

"""

TABLE = """| set | problems | role | samples | temperature | metric | answers | source |
|---|---|---|---|---|---|---|---|
"""


def markdown() -> str:
    """The whole page."""
    sets = sorted((dataset(name) for name in names()), key=lambda d: (d.role, d.name))
    rows = "".join(f"| {' | '.join(_cells(d))} |\n" for d in sets)
    return f"{HEAD}## Protocols\n{TABLE}{rows}\n" + "\n".join("\n".join(_section(d)) for d in sets)


def _cells(d: Dataset) -> tuple[str, ...]:
    drawn = ("–", "–")
    if d.sampling:
        drawn = (str(d.sampling.n), f"{d.sampling.temperature:g}" if d.sampling.temperature else "greedy")
    return f"`{d.name}`", str(d.count), d.role, *drawn, d.metric or "–", _answers(d), _citation(d)


def _answers(d: Dataset) -> str:
    said = []
    if d.answers.relative_tolerance is not None:
        said.append(f"within {d.answers.relative_tolerance:.0%} of the gold answer")
    if d.answers.absolute_tolerance is not None:
        said.append("within a row's own tolerance")
    if d.answers.list_answer is not None:
        said.append("all of several")
    return ", ".join(said) or "equivalent"


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
    return "none known; bring the file"


def _section(d: Dataset) -> Iterator[str]:
    yield f"## {d.name}"
    yield f"{d.title}. Version {d.version}, in `{d.file}`."
    yield ""
    yield from (f"* {note}" for note in d.notes)
    if d.prompt:
        yield f"* Prompt: {d.prompt}"
    yield f"* Home: {_home(d)}."
    yield f"* Columns checked: {d.fields.checked}."
    yield f"* Licence: {d.licence}."
    yield ""
