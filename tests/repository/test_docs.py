"""The documentation agrees with the code: links, commands, study files, imports, and the tables of presets."""

import importlib
import re
import shlex
import subprocess
from pathlib import Path

import pytest
import typer
import yaml

from policygrain.cli import repeated
from policygrain.commands import app
from policygrain.merging import merge
from policygrain.objective.ratio import Ratio, TokenRatio
from policygrain.study import parse_study
from policygrain.study.schema import Study

from ..conftest import ROOT
from ..support.files import load_script
from ..support.small import SMALL

DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *sorted((ROOT / "docs").rglob("*.md")),
    *sorted((ROOT / "lab").rglob("*.md")),
    ROOT / "benchmarks/README.md",
    ROOT / "results/README.md",
]
every_document = pytest.mark.parametrize("path", DOCUMENTS, ids=lambda p: str(p.relative_to(ROOT)))


def blocks(path: Path, *languages: str) -> list[str]:
    """The content of the fenced blocks with one of these languages; `` is none."""
    found = re.findall(r"^```(\w*)\n(.*?)^```", path.read_text(), flags=re.M | re.S)
    return [content for language, content in found if language in languages]


def anchors(path: Path) -> set[str]:
    """Anchors that GitHub and mkdocs make from the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", path.read_text(), flags=re.M)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@every_document
def test_relative_links_resolve(path):
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text()):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (path.parent / file).resolve() if file else path
        assert there.exists() and there.is_relative_to(ROOT), f"{path}: {target}"
        assert not anchor or anchor in anchors(there), f"{path}: {target}"


def test_pages_that_the_code_names_exist():
    """In messages, comments and study files."""
    pattern = r"\b(docs|lab)/[a-zA-Z_/-]+\.md"
    command = ["git", "grep", "-hoE", pattern, "--", "src", "studies", "lab", "workflow", "tests", "*.yaml", "Makefile"]
    named = subprocess.run(command, cwd=ROOT, check=True, capture_output=True, text=True).stdout.split()
    assert {name for name in named if not (ROOT / name).exists()} == set()


@every_document
def test_python_compiles_and_what_it_imports_exists(path):
    for example in blocks(path, "python"):
        compile(example, str(path), "exec")
        for module_name, names in re.findall(r"^ *from (policygrain[\w.]*) import (\([^)]*\)|.*)", example, flags=re.M):
            try:
                module = importlib.import_module(module_name)
            except ModuleNotFoundError as error:  # a trainer that is not installed here
                assert not re.match(r"policygrain(\.|$)", str(error.name)), path
                continue
            for name in re.findall(r"(\w+)(?: as \w+)?,?", names.partition("#")[0]):
                assert hasattr(module, name), f"{path}: {module_name} has no {name}"


@every_document
def test_commands_have_the_options_that_they_are_given(path):
    if path.name == "CHANGELOG.md":
        return
    for line in "\n".join(blocks(path, "", "bash")).replace("\\\n", " ").splitlines():
        command = re.match(r"(?:\$ )?(?:\.venv/bin/)?policygrain (.*)", line.strip())
        if command:
            words = repeated(shlex.split(command[1].split(" >")[0].split(" | ")[0], comments=True))
            chosen = typer.main.get_command(app)
            while words and words[0] in getattr(chosen, "commands", {}):
                chosen = chosen.commands[words.pop(0)]
            chosen.make_context("policygrain", words, resilient_parsing="--help" in words)


@pytest.mark.parametrize("path", sorted(ROOT.glob("*.md")), ids=lambda p: p.name)
def test_make_targets_that_are_named_exist(path):
    for target in set(re.findall(r"(?:`|^)make ([a-z][\w-]+)", path.read_text(), flags=re.M)):
        done = subprocess.run(["make", "--dry-run", target], cwd=ROOT, capture_output=True, text=True, check=False)
        assert path.name == "CHANGELOG.md" or done.returncode == 0, f"make {target}: {done.stderr}"


@every_document
def test_parts_of_study_files_are_accepted(path):
    """Blocks of YAML whose keys are those of a study: with a base as they are, else as part of a small study."""
    for block in blocks(path, "yaml"):
        part = yaml.safe_load(block)
        if isinstance(part, dict) and set(part) <= set(Study.model_fields):
            whole = part if "base" in part else merge(SMALL, part, replace=("model",))
            folder = ROOT / "studies" if ".." in str(part.get("base")) else ROOT
            parse_study(whole, folder / "example.yaml")


def test_the_tables_of_presets_are_current_and_have_no_parts_of_other_packages(monkeypatch):
    monkeypatch.setitem(Ratio.choices, "elsewhere", type("Elsewhere", (TokenRatio,), {"__module__": "elsewhere"}))
    page = ROOT / "docs/methods/README.md"
    assert load_script(ROOT / "docs/presets.py").fill(page.read_text()) == page.read_text(), "run `make schema`"


def test_the_reference_of_keys_and_their_schema_are_current():
    for path, text in load_script(ROOT / "docs/keys.py").pages().items():
        assert path.read_text() == text, "run `make schema`"
