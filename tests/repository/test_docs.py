"""The documentation agrees with the code: presets, parameters, links, references, tests, metrics, generated tables."""

from __future__ import annotations

import ast
import functools
import importlib
import inspect
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

from policygrain.figures.catalogue import FIGURES
from policygrain.files import read_json_lines
from policygrain.merging import merge
from policygrain.objective import method, method_names
from policygrain.paths import StudyFolder
from policygrain.study import load_study, parse_study
from policygrain.study.schema import Study

from ..conftest import ROOT
from ..support.files import load_script
from ..support.small import SMALL, small_study, train_small

DOCS = ROOT / "docs"
METHODS = DOCS / "methods"
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    ROOT / "benchmarks/README.md",
    ROOT / "results/README.md",
    *sorted(DOCS.rglob("*.md")),
]
PAGES = [page for page in sorted(METHODS.glob("*.md")) if "`" in page.read_text().partition("\n")[0]]

every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))
every_page = pytest.mark.parametrize("path", PAGES, ids=lambda p: p.stem)


def cells(line: str) -> list[str]:
    """The cells of a table row."""
    return [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def tables(text: str) -> list[tuple[list[str], list[list[str]]]]:
    """Every table of a page: its header and its rows."""
    found = []
    for block in re.findall(r"(?:^\|.*\n?)+", text, flags=re.M):
        header, _, *rows = block.strip().splitlines()
        found.append((cells(header), [cells(row) for row in rows]))
    return found


def code(cell: str) -> list[str]:
    """The text in backticks."""
    return re.findall(r"`([^`]+)`", cell)


def section(text: str, title: str) -> str:
    """The text under a heading of the second level."""
    match = re.search(rf"^## {re.escape(title)}\n(.*?)(?=^## |\Z)", text, flags=re.M | re.S)
    assert match, f"no section {title!r}"
    return match[1]


# ---- links ----------------------------------------------------------------------------------------------------------


def anchors(path: Path) -> set[str]:
    """Anchors that GitHub and mkdocs make from the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_relative_links_resolve(path: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists(), f"{path}: {target}"
        assert there.is_relative_to(ROOT), f"{path}: {target} leaves the repository"
        if anchor:
            assert anchor in anchors(there), f"{path}: {target}"


def test_the_first_page_of_the_documentation_is_the_readme() -> None:
    """With links from where it is."""
    text = re.sub(r"\]\((?!https?:|#|docs/)", "](../", (ROOT / "README.md").read_text())
    assert (DOCS / "index.md").read_text() == text.replace("](docs/", "](")
    assert len(text.splitlines()) <= 90


@every_document
def test_references_to_the_code_can_be_imported(path: Path) -> None:
    """`module:name` as in [`objective.ratio:Block`](…/ratio.py); the link is to the file of that module."""
    pattern = r"\[`([a-z_.]+)(?::(\w+))?`\]\(([^)]+\.py)\)"
    for module_name, name, target in re.findall(pattern, path.read_text()):
        module = importlib.import_module(f"policygrain.{module_name}")
        assert not name or hasattr(module, name), f"{path}: {module_name}:{name}"
        assert Path(module.__file__ or "").resolve() == (path.parent / target).resolve(), f"{path}: {target}"


@every_document
def test_names_that_examples_import_exist(path: Path) -> None:
    for example in re.findall(r"^```python\n(.*?)^```", path.read_text(), flags=re.M | re.S):
        for module_name, names in re.findall(r"^ *from (policygrain[\w.]*) import (\([^)]*\)|.*)", example, flags=re.M):
            try:
                module = importlib.import_module(module_name)
            except ModuleNotFoundError as error:  # verl, which has an environment of its own
                assert not str(error.name).startswith("policygrain"), path
                continue
            for name in re.findall(r"(\w+)(?: as \w+)?,?", names.partition("#")[0]):
                assert hasattr(module, name), f"{path}: {module_name} has no {name}"


@functools.cache
def functions_of(path: Path) -> set[str]:
    """Names of the functions in a test file."""
    return {node.name for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.FunctionDef)}


@every_document
def test_named_tests_exist(path: Path) -> None:
    """The name of a test follows the link to its file."""
    file: Path | None = None
    for target, name in re.findall(r"\]\(([^)]+)\)|`(test_\w+)`", path.read_text()):
        if target:
            file = (path.parent / target).resolve() if re.search(r"test_\w+\.py$", target) else file
        else:
            assert file is not None and name in functions_of(file), f"{path}: {name} is not in {file}"


@every_document
def test_equations_avoid_what_renderers_break(path: Path) -> None:
    """GitHub reads a backslash before punctuation as Markdown, and does not render these commands."""
    text = path.read_text()
    assert text.count("$$") % 2 == 0
    for equation in text.split("$$")[1::2]:
        assert equation.startswith("\n") and equation.endswith("\n")
        assert not re.search(r"\\[^a-zA-Z]|\\operatorname|\\text\b|[<>*]|\n\n", equation), equation
        assert equation.count("{") == equation.count("}") and equation.count(r"\left") == equation.count(r"\right")


# ---- generated tables -----------------------------------------------------------------------------------------------


@functools.cache
def generator() -> ModuleType:
    """docs/generate.py, which is no part of the package."""
    return load_script(DOCS / "generate.py")


@pytest.mark.release
@every_document
def test_generated_blocks_are_up_to_date(path: Path) -> None:
    text = path.read_text()
    assert generator().fill(text) == text, "run `make docs-tables`"


def test_every_generated_block_is_on_one_page() -> None:
    found = [name for page in generator().PAGES for _, name, _ in generator().MARKED.findall(page.read_text())]
    assert sorted(found) == sorted(generator().BLOCKS)


# ---- methods --------------------------------------------------------------------------------------------------------


def presets_of(page: Path) -> list[str]:
    """The presets that the title of a page names."""
    return code(page.read_text().partition("\n")[0])


def test_every_preset_has_one_page() -> None:
    assert sorted(preset for page in METHODS.glob("*.md") for preset in presets_of(page)) == sorted(method_names())


@every_page
def test_a_page_has_an_objective_and_cites_its_papers(path: Path) -> None:
    text = path.read_text()
    assert "$$" in section(text, "The objective") and section(text, "Implementation choices").strip()
    for preset in presets_of(path):
        for number in re.findall(r"\d{4}\.\d{5}", method(preset).source):
            assert number in text, f"{path}: {preset}'s source {number}"


def test_every_preset_says_who_else_has_it() -> None:
    text = (METHODS / "README.md").read_text()
    ((_, rows),) = tables(section(text, "Who else has it"))
    assert sorted(name for row in rows for name in code(row[0])) == sorted(method_names())
    assert all((row[1] and "](" in row[2]) or row[2] == "the same" for row in rows)


# ---- metrics --------------------------------------------------------------------------------------------------------


def glossary() -> dict[str, set[str]]:
    """Metric names by the file that they are written to."""
    text = (DOCS / "glossary.md").read_text()
    timings = section(text, "Timings")
    names = {}
    for file, part in (("metrics", text.replace(timings, "")), ("timings", timings)):
        rows = [row for _, rows in tables(part) for row in rows]
        assert all(len(row) == 5 and all(row) for row in rows), "metric, meaning, unit, range, check when"
        listed = [name for row in rows for name in code(row[0])]
        assert len(listed) == len(set(listed))
        names[file] = set(listed)
    return names


def test_the_glossary_lists_exactly_the_metrics_of_a_run(made: tuple[Path, Path], tmp_path: Path) -> None:
    # TEPO, a method with prediction heads, whose loss is logged, and one with both corrections for other policies.
    corrected = {"base": "grpo", "off_policy_bound": 0.5, "sampler": {"correction_cap": 2.0}}
    arms = ["tepo", "mpo_heads", "corrected"]
    study = small_study(experiments={"headline": {"methods": arms}}, methods={"corrected": corrected})
    runs = [train_small(study, tmp_path / arm, *made, arm) for arm in arms]
    for file, listed in glossary().items():
        rows = [row for run in runs for row in read_json_lines(run / f"{file}.jsonl")]
        assert listed == {key for row in rows for key in row} - {"step"}, file


def test_what_the_readme_says_of_the_exact_cases_is_what_was_measured(root: Path) -> None:
    """Without a clip, the reward averaged over training minus the token ratio's."""
    cases = json.loads((root / "docs" / "cases.json").read_text())["cases"]
    gain = {c["title"]: {e["name"]: e["difference"] for e in c["estimators"] if e["clip"] is None} for c in cases}
    stale = gain["Coordination under staleness"]
    assert max(stale, key=lambda name: stale[name][0]).startswith("joint block")
    for case in ("Irrelevant tokens that drifted", "Train–inference mismatch"):
        found = gain[case]
        assert found["none"][0] > found["sequence"][0] and found["sequence"][1] > 0
    apart = {name for name, (mean, _, _) in gain["On-policy"].items() if abs(mean) > 1e-9}
    assert apart == {"MPO block, K=5", "prefix"}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(out)]
    subprocess.run(command, cwd=ROOT, check=True, capture_output=True)
    return out


@pytest.mark.release
@pytest.mark.parametrize("width", [400, 1400])
@pytest.mark.parametrize("page", ["methods/mpo", "methods", "results"])
def test_wide_tables_and_formulas_scroll_in_their_box(
    page: str, width: int, site: Path, chromium: Callable[..., Any], tmp_path: Path
) -> None:
    """A wide table or formula has a parent that scrolls; on a wide screen few tables need it."""
    script = """<script>addEventListener("load", () => setTimeout(() => {
      const wide = [...document.querySelectorAll("article table, article math[display=block]")], free = [];
      for (const one of wide) {
        let box = one.parentElement;
        while (box.tagName !== "ARTICLE" && getComputedStyle(box).overflowX !== "auto") box = box.parentElement;
        if (box.tagName === "ARTICLE") free.push(one.tagName);
      }
      const fits = document.documentElement.scrollWidth <= document.documentElement.clientWidth;
      document.body.dataset.shown = `${wide.length > 0} ${free} ${fits}`;
    }, 300))</script>"""
    path = site / page / "index.html"
    copy = path.with_name(f"probe{width}.html")
    copy.write_text(path.read_text().replace("</body>", f"{script}</body>"))
    done = chromium(copy.as_uri(), f"--window-size={width},900", "--virtual-time-budget=3000", "--dump-dom")
    copy.unlink()
    assert 'data-shown="true  true"' in done.stdout


@pytest.mark.release
def test_the_site_shows_formulas_and_loads_nothing_from_elsewhere(site: Path) -> None:
    pages = {path: path.read_text() for path in site.rglob("*.html")}
    assert "<math" in pages[site / "methods" / "tepo" / "index.html"]
    for path, text in pages.items():
        assert "arithmatex" not in text, path
        assert not re.search(r"<(script|link rel=.stylesheet.|img)[^>]* (src|href)=.https?:", text), path


@pytest.mark.parametrize(
    "path",
    [ROOT / "README.md", *(page for page in sorted(DOCS.rglob("*.md")) if page != DOCS / "index.md")],  # the same text
    ids=lambda p: str(p.relative_to(ROOT)),
)
def test_parts_of_study_files_are_accepted(path: Path) -> None:
    """Blocks of YAML whose keys are those of a study: with a base as they are, else as part of a small study."""
    for block in re.findall(r"```yaml\n(.*?)```", path.read_text(), re.S):
        part = yaml.safe_load(block)
        if isinstance(part, dict) and set(part) <= set(Study.model_fields):
            parse_study(part if "base" in part else merge(SMALL, part, replace=("model",)), path)


@every_document
def test_the_first_command_of_a_page_can_be_run(path: Path) -> None:
    """A page says that commands are in .venv, or how they are installed, before it uses them."""
    if path.name == "CHANGELOG.md":
        return
    for block in re.findall(r"```(?:bash)?\n(.*?)```", path.read_text(), re.S):
        for line in block.splitlines():
            if line.startswith(
                ("source .venv/bin/activate", "pip install ./policygrain", "pip install './policygrain")
            ):
                return
            assert not re.match(r"(policygrain|snakemake)\b", line), f"{line!r}: nothing before it says where this is"


def test_figures_of_the_documentation_are_shown_on_a_page() -> None:
    text = "\n".join(path.read_text() for path in DOCUMENTS)
    unlinked = [path.name for path in (DOCS / "figures").iterdir() if f"figures/{path.name}" not in text]
    assert unlinked == []


def test_the_page_on_results_has_the_figures_of_the_laptop_study() -> None:
    (_, mine), (_, others) = (
        table for table in tables((DOCS / "reading-results.md").read_text()) if table[0][0].startswith("figure")
    )
    drawn = load_study(ROOT / "studies/laptop-full.yaml").figures
    assert sorted(name for row in mine for name in code(row[0])) == sorted(drawn)
    assert sorted(name for row in others for name in code(row[0])) == sorted(set(FIGURES) - set(drawn))


def test_the_page_of_results_names_what_studies_write() -> None:
    layout = inspect.getsource(StudyFolder)
    ((_, rows),) = tables((ROOT / "results" / "README.md").read_text())
    first = {name.split("/")[0] for row in rows for name in code(row[0])}
    assert first == set(re.findall(r'(?:self\.path / |Inside\()"([a-z]+(?:\.html|\.yaml)?)"', layout)) | {
        "runs",
        "start",
    }
