"""The registry of problem sets, on made-up problems and a local server: fetching, checking, names, near-duplicates."""

from __future__ import annotations

import hashlib
import http.server
import json
import re
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from policygrain.cli import main
from policygrain.errors import UserError
from policygrain.study import parse_study
from policygrain.study.schema import Prompt
from policygrain.tasks import check, contamination, convert, registry
from policygrain.tasks.families import FAMILIES
from policygrain.tasks.fetch import BLOCK, blob_id, fetch
from policygrain.tasks.problem import Problem, read_problems
from policygrain.tasks.prompts import PromptRenderer
from policygrain.tasks.registry import Dataset
from policygrain.tasks.sources import contaminated, prepare

from ..support.small import SMALL, small_study

# The seven of the papers' table, and what else the folder of real sets holds.
SEVEN = ("aime24", "aime25", "amc23", "math500", "omni_math_rule", "olympiadbench", "minerva")
RECORDED = (*SEVEN, "amc12_83", "gsm8k", "gsm8k_train", "math_train", "dapo_math_17k")

# ---- the registry ---------------------------------------------------------------------------------------------------


def test_every_set_is_described_whole_and_no_name_is_a_familys() -> None:
    assert {*RECORDED, "omni_math", "math"} == set(registry.names())
    assert not set(registry.names()) & set(FAMILIES)
    files = [f for name in registry.names() for f in (registry.dataset(name).file, *registry.dataset(name).aliases)]
    assert len(files) == len(set(files))
    for name in RECORDED:
        assert registry.dataset(name).content and registry.dataset(name).sha256


def test_full_and_rule_gradable_omni_math_are_told_apart() -> None:
    full, rule = registry.dataset("omni_math"), registry.dataset("omni_math_rule")
    assert (full.count, rule.count) == (4428, 2821)
    assert full.file not in (rule.file, *rule.aliases)


@pytest.mark.parametrize("name", registry.names())
def test_the_protocol_is_that_of_the_studies_compared_with(name: str) -> None:
    """2505.22617: AIME and AMC avg@32 at temperature 0.6, the others greedy."""
    chosen = registry.protocol(name)
    if registry.dataset(name).role == "training":
        assert chosen is None
    elif name.startswith(("aime", "amc")):
        assert chosen and (chosen.n, chosen.temperature) == (32, 0.6)
    else:
        assert chosen and (chosen.n, chosen.temperature) == (1, 0.0)


def test_the_page_is_what_the_registry_says(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """After a change: `make schema`."""
    assert main(["data", "list", "--markdown"]) == 0
    assert capsys.readouterr().out == (root / "docs" / "benchmarks.md").read_text()


# ---- made-up sets ---------------------------------------------------------------------------------------------------

ROWS = [
    {"n": i, "question": f"How much is {i} and {i}?", "solution": f"It is \\boxed{{{2 * i}}}."} for i in range(3000)
]
SOURCE = "".join(json.dumps(row) + "\n" for row in ROWS).encode()
PAIRS = [(str(row["question"]), str(2 * i)) for i, row in enumerate(ROWS)]


def made_up(source: bytes = SOURCE, **changes: Any) -> Dataset:
    """A set that lives in a file with these bytes."""
    home = {"repository": "some/where", "commit": "0" * 40, "path": "data/a file.jsonl", "blob": blob_id(source)}
    fields = {
        "id": {"column": "n", "form": "made-up-{0}"},
        "problem": {"column": "question"},
        "answer": {"column": "solution", "convert": ["last_boxed"]},
        "checked": "by hand",
    }
    data: dict[str, Any] = {
        "title": "Made up",
        "version": 1,
        "role": "training",
        "home": home,
        "file": "made_up.jsonl",
        "sha256": None,
        "content": check.content_digest(PAIRS),
        "count": len(ROWS),
        "fields": fields,
        "citation": "none",
        "licence": "none",
        "changelog": ["1: made up"],
    }
    return registry.parse("made_up", {**data, **changes})


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"colour": "red"}, "colour: Extra inputs"),
        ({"version": 2}, "must tell of version 2"),
        ({"role": "benchmark"}, "has `sampling` and `metric`"),
        ({"answers": {"list_answer": "many"}}, "column 'many' is not kept"),
        ({"content": "abc"}, "content: String should match"),
    ],
)
def test_a_wrong_registry_file_is_named(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(UserError, match=f"problem set made_up(.|\n)*{re.escape(message)}"):
        made_up(**changes)


def test_an_unknown_conversion_is_named() -> None:
    fields = made_up().fields.model_dump()
    fields["answer"]["convert"] = ["last_box"]
    with pytest.raises(UserError, match=r"'last_box'.*Did you mean 'last_boxed'"):
        made_up(fields=fields)


@pytest.mark.parametrize(
    ("name", "text", "converted"),
    [
        ("last_boxed", r"so \boxed{1}, no: \boxed{\frac{1}{2}}.", r"\frac{1}{2}"),
        ("last_boxed", r"\boxed{1} and $\boxed 2$.", "2"),
        ("last_boxed", r"\boxed\pi", r"\pi"),
        ("last_boxed", r"\boxed{}", ""),
        ("last_boxed", r"\boxed{never closed", ""),
        ("last_boxed", r"the end is $\boxed$", ""),
        ("last_boxed", "nothing", ""),
        ("after_hashes", "2+2=4 #### no\n#### 1,234", "1234"),
        ("integer", "27.0", "27"),
        ("integer", "-3.00", "-3"),
        ("integer", "2.5", "2.5"),
        ("strip_dollars", " $\\pi$ ", "\\pi"),
        ("strip_dollars", "$1$, $2$", "$1$, $2$"),
        ("repair_frac", "\x0crac{1}{2}", r"\frac{1}{2}"),
        ("drop_boxed_request", r"Why? Let's think step by step and output the final answer within \boxed{}.", "Why?"),
        ("drop_boxed_request", r"What is \boxed{}?", r"What is \boxed{}?"),
        (
            "drop_answer_line_request",
            "Solve the following math problem step by step. The last line (…) is the answer.\n\nWhy?\n\n"
            'Remember to put your answer on its own line after "Answer:".',
            "Why?",
        ),
    ],
)
def test_conversions(name: str, text: str, converted: str) -> None:
    assert convert.CONVERSIONS[name](text) == converted


def test_parquet_and_nested_columns(tmp_path: Path) -> None:
    import pandas

    path = tmp_path / "set.parquet"
    row = {"prompt": [{"role": "user", "content": "1+1"}], "reward_model": {"ground_truth": 2.0}, "level": [1]}
    pandas.DataFrame([{**row, "prompt": []}, row]).to_parquet(path)
    fields = {
        "id": {"form": "p-{row:03}"},
        "problem": {"column": ["nowhere", "prompt.0.content"]},
        "answer": {"column": "reward_model.ground_truth", "convert": ["integer"]},
        "keep": ["level"],
        "leave_out": [0],
        "checked": "by hand",
    }
    (found,) = convert.convert(made_up(fields=fields), [path])
    assert (found["id"], found["problem"], found["answer"], list(found["level"])) == ("p-001", "1+1", "2", [1])


# ---- fetching -------------------------------------------------------------------------------------------------------


class Server(http.server.ThreadingHTTPServer):
    """Serves one file under every path and keeps the Range header of each request."""

    content = SOURCE
    ranges: list[str | None]
    cut_after: list[int]  # one number per reply that ends too early, in bytes
    knows_ranges = True


class Handler(http.server.BaseHTTPRequestHandler):
    server: Server

    def do_GET(self) -> None:
        asked = self.headers.get("Range")
        self.server.ranges.append(asked)
        if "missing" in self.path:
            self.send_error(404)
            return
        first = int(asked.removeprefix("bytes=").rstrip("-")) if asked and self.server.knows_ranges else 0
        body = self.server.content[first:]
        if asked and self.server.knows_ranges and not body:
            self.send_error(416)
            return
        self.send_response(206 if first else 200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body[: self.server.cut_after.pop(0)] if self.server.cut_after else body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[Server]:
    with Server(("127.0.0.1", 0), Handler) as running:
        running.ranges, running.cut_after = [], []
        thread = threading.Thread(target=running.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True)
        thread.start()
        monkeypatch.setenv("POLICYGRAIN_MIRROR", f"http://127.0.0.1:{running.server_address[1]}/")
        yield running
        running.shutdown()


def part_of(dataset: Dataset, folder: Path) -> Path:
    home = dataset.home
    assert isinstance(home, registry.GitHome)
    return folder / f".made_up-{home.blob[:12]}.jsonl.part"


def left(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.iterdir())


def test_a_set_is_fetched_once(server: Server, tmp_path: Path) -> None:
    folder = tmp_path / "new" / "folder"
    assert fetch(made_up(), folder).endswith("made_up.jsonl: 3000 problems")
    problems = read_problems(folder / "made_up.jsonl")
    assert [(p.problem, p.answer) for p in problems] == PAIRS and problems[7].id == "made-up-7"
    assert left(folder) == ["made_up.jsonl"] and server.ranges == [None]
    assert fetch(made_up(), folder).endswith("there already") and server.ranges == [None]
    assert check.check(made_up(), folder).copy == "equal"


def test_what_came_before_is_not_asked_for_again(server: Server, tmp_path: Path) -> None:
    part_of(made_up(), tmp_path).write_bytes(SOURCE[:100_000])
    fetch(made_up(), tmp_path)
    assert server.ranges == ["bytes=100000-"] and left(tmp_path) == ["made_up.jsonl"]


def test_a_connection_that_breaks_is_taken_up_where_it_broke(server: Server, tmp_path: Path) -> None:
    server.cut_after = [BLOCK, 10]
    fetch(made_up(), tmp_path)
    assert server.ranges == [None, f"bytes={BLOCK}-", f"bytes={BLOCK + 10}-"]


def test_a_server_without_ranges_sends_all_again(server: Server, tmp_path: Path) -> None:
    server.knows_ranges, server.cut_after = False, [BLOCK]
    fetch(made_up(), tmp_path)
    assert len(server.ranges) == 2 and len(read_problems(tmp_path / "made_up.jsonl")) == len(ROWS)


def test_a_file_that_never_comes_whole_is_kept_for_the_next_time(server: Server, tmp_path: Path) -> None:
    server.cut_after = [1000, 1000, 1000]
    with pytest.raises(UserError, match=rf"ended after 3000 of {len(SOURCE)} bytes.*goes on from there"):
        fetch(made_up(), tmp_path)
    assert part_of(made_up(), tmp_path).read_bytes() == SOURCE[:3000]
    fetch(made_up(), tmp_path)
    assert server.ranges[-1] == "bytes=3000-"


def test_a_complete_part_needs_no_more_bytes_and_a_wrong_one_is_thrown_away(server: Server, tmp_path: Path) -> None:
    part_of(made_up(), tmp_path).write_bytes(SOURCE)
    fetch(made_up(), tmp_path)
    (tmp_path / "made_up.jsonl").unlink()
    part_of(made_up(), tmp_path).write_bytes(b"?" * 5000)
    with pytest.raises(UserError, match="wrong checksum"):
        fetch(made_up(), tmp_path)
    assert left(tmp_path) == []


def test_other_bytes_than_the_pinned_ones_are_refused(server: Server, tmp_path: Path) -> None:
    server.content = SOURCE.replace(b"How much", b"How many")
    with pytest.raises(UserError, match=f"wrong checksum: .*{blob_id(server.content)}.*{blob_id(SOURCE)}"):
        fetch(made_up(), tmp_path)
    assert left(tmp_path) == []


def test_another_count_or_content_is_refused(server: Server, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="3000 problems in its source instead of 3001"):
        fetch(made_up(count=3001), tmp_path)
    with pytest.raises(UserError, match=r"mapping of columns is wrong for it \(by hand\)"):
        fetch(made_up(content="0" * 64), tmp_path)
    assert not (tmp_path / "made_up.jsonl").exists()
    # The verified source is still there and need not come again.
    fetch(made_up(), tmp_path)
    assert len(server.ranges) == 1


def test_a_missing_column_names_file_and_line(server: Server, tmp_path: Path) -> None:
    lines = SOURCE.split(b"\n")
    lines[4] = b'{"n": 4, "quest\xc2\xadion": "?"}'
    server.content = b"\n".join(lines)
    with pytest.raises(UserError, match=r"\.jsonl, line 5: no column 'question'; there is 'n', 'quest"):
        fetch(made_up(server.content), tmp_path)
    server.content = SOURCE.replace(b"{6}", b"{}")
    with pytest.raises(UserError, match=r"\.jsonl, line 4: the answer is empty"):
        fetch(made_up(server.content), tmp_path)


def test_a_server_that_does_not_have_it_and_no_server(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = made_up().home
    assert home is not None
    with pytest.raises(UserError, match="the server says 404"):
        fetch(made_up(home={**home.model_dump(), "path": "missing.jsonl"}), tmp_path)
    monkeypatch.setenv("POLICYGRAIN_MIRROR", "http://127.0.0.1:1")
    with pytest.raises(UserError, match=r"cannot be fetched: .*refused.*HTTPS_PROXY.*POLICYGRAIN_MIRROR"):
        fetch(made_up(), tmp_path)


def test_a_set_without_a_home_has_to_be_brought(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"No pinned place .*put made_up\.jsonl there yourself"):
        fetch(made_up(home=None), tmp_path)


def test_a_wrong_file_is_not_overwritten(server: Server, tmp_path: Path) -> None:
    (tmp_path / "made_up.jsonl").write_text('{"id": 1, "problem": "1+1", "answer": "2"}\n')
    with pytest.raises(UserError, match=r"1 problems instead of 3000.*not overwritten"):
        fetch(made_up(), tmp_path)
    assert server.ranges == []


# ---- checking -------------------------------------------------------------------------------------------------------


def test_check_names_what_is_wrong(tmp_path: Path) -> None:
    dataset = made_up(count=2, content=check.content_digest([("1+1", "2"), ("2+2", "4")]))
    path = tmp_path / "made_up.jsonl"

    def faults(*rows: dict[str, object]) -> str:
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
        return "; ".join(check.check(dataset, tmp_path).faults)

    one, two = {"id": 1, "problem": "1+1", "answer": "2"}, {"id": 2, "problem": "2+2", "answer": "4"}
    assert faults(one, two) == ""
    # White space and ids are no content; order, problems and answers are.
    assert faults({**one, "id": "x"}, {**two, "problem": " 2+2\n"}) == ""
    assert "wrong content" in faults(two, one)
    assert "wrong content" in faults(one, {**two, "answer": "5"})
    assert "1 problems instead of 2" in faults(one)
    assert "1 ids occur more than once" in faults(one, {**two, "id": 1})
    assert "line 2: no 'answer'" in faults(one, {**two, "answer": ""})
    assert "line 1: no 'problem'" in faults({"question": "1+1", "answer": "2"})
    dataset = made_up(sha256=hashlib.sha256(path.read_bytes()).hexdigest(), content=None, count=1)
    assert check.require(dataset, tmp_path, "here") == path


def test_check_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["data", "check", "--root", str(tmp_path)]) == 2
    assert "none of the registered sets is here" in capsys.readouterr().err
    (tmp_path / "aime24.jsonl").write_text('{"id": 1, "problem": "1+1", "answer": "2"}\n')
    assert main(["data", "check", "--root", str(tmp_path)]) == 2
    shown = capsys.readouterr()
    assert re.search(r"aime24 +1 +not what is recorded +WRONG", shown.out)
    assert shown.err.count("policygrain:") == 1 and "1 problems instead of 30" in shown.err
    assert main(["data", "check", "aime25", "--root", str(tmp_path)]) == 2
    assert "no such file" in capsys.readouterr().err
    assert main(["data", "check", "aime26", "--root", str(tmp_path)]) == 2
    assert "'aime26' is no registered problem set. Did you mean 'aime2" in capsys.readouterr().err


def test_list_and_fetch_on_the_command_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert main(["data", "list", "--root", str(tmp_path)]) == 0
    assert re.search(r"math500 +benchmark +1 +500 +no +math500\.jsonl", capsys.readouterr().out)
    assert main(["data", "list", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["aime25"]["count"] == 30
    monkeypatch.delenv("POLICYGRAIN_DATA", raising=False)
    assert main(["data", "fetch", "math500"]) == 2
    assert "name the folder to download into: --root" in capsys.readouterr().err
    monkeypatch.setenv("POLICYGRAIN_MIRROR", "http://127.0.0.1:1")
    assert main(["data", "fetch", "math500", "aime24", "--root", str(tmp_path)]) == 2
    shown = capsys.readouterr().err
    assert "math500: http" in shown and "aime24: http" in shown and "Traceback" not in shown


# ---- names in studies -----------------------------------------------------------------------------------------------


def study_with(train: list[str], benchmarks: list[dict[str, object]], root: Path) -> Any:
    data = {**SMALL["data"], "train": train, "root": str(root)}
    model = {**SMALL["model"], "warm_start": {"steps": 0}}
    evaluation = {**SMALL["evaluation"], "benchmarks": benchmarks}
    return parse_study({**SMALL, "data": data, "model": model, "evaluation": evaluation}, Path("study.yaml"))


def test_a_missing_or_wrong_set_stops_a_study_before_anything_is_spent(tmp_path: Path) -> None:
    benchmarks: list[dict[str, object]] = [{"name": "m", "source": "math500"}]
    with pytest.raises(
        UserError, match=rf"evaluation\.benchmarks\[0\]\.source: .*policygrain data fetch math500 --root {tmp_path}"
    ):
        study_with(["count"], benchmarks, tmp_path)
    (tmp_path / "math500.jsonl").write_text('{"problem": "1+1", "answer": "2"}\n')
    with pytest.raises(UserError, match=r"1 problems instead of 500.*data fetch math500"):
        study_with(["count"], benchmarks, tmp_path)
    with pytest.raises(UserError, match=r"data\.train\[0\]: 'gsm8k_trian'.*Did you mean 'gsm8k_train'"):
        study_with(["gsm8k_trian"], [{"name": "count", "source": "count"}], tmp_path)


def test_how_answers_are_compared_comes_with_the_problem(tmp_path: Path) -> None:
    path = tmp_path / "own.jsonl"
    path.write_text('{"problem": "p", "answer": "1, 2", "list_answer": true, "absolute_tolerance": 0.1}\n')
    (problem,) = read_problems(path)
    assert problem.list_answer and problem.absolute_tolerance == 0.1 and problem.relative_tolerance is None
    for wrong in ('"list_answer": "yes"', '"relative_tolerance": "much"', '"absolute_tolerance": -1'):
        path.write_text(f'{{"problem": "p", "answer": "1", {wrong}}}\n')
        with pytest.raises(UserError, match=rf"line 1: {wrong.split(chr(34))[1]}: .* is expected, got"):
            read_problems(path)


def test_named_sets_in_a_study(benchmarks_folder: Path, tmp_path: Path) -> None:
    names = ["minerva", "olympiadbench", "amc23", "omni_math_rule"]
    benchmarks: list[dict[str, object]] = [{"name": name, "source": name} for name in names]
    study = study_with(
        ["gsm8k_train"], [*benchmarks, {"name": "few", "source": "math500", "size": 7}], benchmarks_folder
    )
    prepare(study, tmp_path)
    prepared = {name: read_problems(tmp_path / "benchmarks" / f"{name}.jsonl") for name in [*names, "few"]}
    assert {name: len(problems) for name, problems in prepared.items()} == {
        **{name: registry.dataset(name).count for name in names},
        "few": 7,
    }
    assert all(p.relative_tolerance == 0.01 and not p.list_answer for p in prepared["minerva"])
    assert sum(p.list_answer for p in prepared["olympiadbench"]) == 94
    assert [p.absolute_tolerance for p in prepared["olympiadbench"] if p.absolute_tolerance is not None] == [0.1]
    assert len(read_problems(tmp_path / "train.jsonl")) == SMALL["data"]["train_size"]
    assert set(json.loads((tmp_path / "contamination.json").read_text())) == {*names, "few"}


# ---- the real sets --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", RECORDED)
def test_the_recorded_sets_are_right(name: str, benchmarks_folder: Path) -> None:
    dataset = registry.dataset(name)
    report = check.check(dataset, benchmarks_folder)
    assert not report.faults and report.copy == "recorded" and report.count == dataset.count


def test_the_seven_benchmarks_are_rendered(benchmarks_folder: Path) -> None:
    from policygrain.model.tiny import bpe_tokenizer

    problems = {name: check.load(registry.dataset(name), benchmarks_folder / file) for name, file in seven_files()}
    tokenizer = bpe_tokenizer([p.problem for p in problems["math500"][:100]], 512)
    renderer = PromptRenderer(tokenizer, Prompt(template="{problem}\nPut the final answer in \\boxed{}.\n"))
    for name, found in problems.items():
        for problem in found[:40]:
            ids = renderer.ids(problem.problem)
            assert tokenizer.decode(ids) == f"{problem.problem}\nPut the final answer in \\boxed{{}}.\n", name


def seven_files() -> list[tuple[str, str]]:
    return [(name, "omni_math.jsonl" if name == "omni_math_rule" else f"{name}.jsonl") for name in SEVEN]


def raw(folder: Path, file: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / file).read_text().split("\n") if line]


@pytest.mark.parametrize("name", ["aime24", "aime25", "amc23", "amc12_83", "math500"])
def test_ids_made_by_the_registry_are_those_of_the_recorded_files(name: str, benchmarks_folder: Path) -> None:
    dataset = registry.dataset(name)
    for row in raw(benchmarks_folder, dataset.file):
        row["unique_id"] = row["source"]
        assert convert._identity(row, dataset.fields.id, 0, "here") == row["id"]


@pytest.mark.parametrize(
    ("name", "column"),
    [
        ("gsm8k_train", "solution"),
        ("math_train", "solution"),
        ("olympiadbench", "answer_raw"),
        ("amc23", "answer_raw"),
        ("amc12_83", "answer_raw"),
    ],
)
def test_answers_made_by_the_registry_are_those_of_the_recorded_files(
    name: str, column: str, benchmarks_folder: Path
) -> None:
    dataset = registry.dataset(name)
    for row in raw(benchmarks_folder, dataset.file):
        answer = row[column]
        for conversion in dataset.fields.answer.convert:
            answer = convert.CONVERSIONS[conversion](answer)
        assert answer == row["answer"], row["id"]


@pytest.mark.parametrize("name", RECORDED)
def test_conversions_of_problems_leave_the_recorded_ones_alone(name: str, benchmarks_folder: Path) -> None:
    dataset = registry.dataset(name)
    path = check.find(dataset, benchmarks_folder)
    assert path is not None
    rows = raw(benchmarks_folder, path.name)
    for row in rows:
        for conversion in dataset.fields.problem.convert:
            assert convert.CONVERSIONS[conversion](row["problem"]).strip() == row["problem"].strip(), row["id"]
    if dataset.fields.id.column is None:
        # Ids count source rows, so what is left out is what ids pass over.
        places = {dataset.fields.id.form.format(row=i): i for i in range(dataset.count + len(dataset.fields.leave_out))}
        passed_over = set(places.values()) - {places[row["id"]] for row in rows}
        assert passed_over == set(dataset.fields.leave_out)


REBUILT: dict[str, Callable[[int, dict[str, Any]], dict[str, Any]]] = {
    "gsm8k_train": lambda _, row: {"question": row["problem"], "answer": row["solution"]},
    "aime25": lambda i, row: {
        "id": 90 + i,
        "problem": row["problem"],
        "solution": row["answer"],
        "answer": row["answer"],
        "url": row["url"],
        "question": row["problem"],
    },
}


@pytest.mark.parametrize("name", REBUILT)
def test_a_published_file_rebuilt_to_the_bit_is_fetched(
    name: str, server: Server, tmp_path: Path, benchmarks_folder: Path
) -> None:
    """Where a recorded file has all that its source has, the source can be written again, to the pinned blob id."""
    dataset = registry.dataset(name)
    rows = raw(benchmarks_folder, dataset.file)
    server.content = "".join(json.dumps(REBUILT[name](i, row)) + "\n" for i, row in enumerate(rows)).encode()
    assert isinstance(dataset.home, registry.GitHome) and blob_id(server.content) == dataset.home.blob
    fetch(dataset, tmp_path)
    assert check.check(dataset, tmp_path).copy == "equal"
    fetched = read_problems(tmp_path / dataset.file)
    assert [(p.id, p.problem, p.answer) for p in fetched] == [(r["id"], r["problem"], r["answer"]) for r in rows]


# ---- near-duplicates ------------------------------------------------------------------------------------------------


def problem(identity: object, text: str) -> Problem:
    return Problem(str(identity), text, "0", "made up")


def test_words_and_numbers_count_and_layout_does_not() -> None:
    assert contamination.tokens(r"Let $x^2 \ge \dfrac{12}{\sqrt{y}}$.") == ["let", "x", "2", "ge", "12", "sqrt", "y"]
    assert contamination.tokens("设\\left(a\\right)为") == ["设", "a", "为"]
    a = problem("a", r"Find $\frac{1}{2}$ of THE sum, please!")
    b = problem("b", r"find \left(1/2\right) of the sum please")
    assert contamination.TrainingIndex([a]).overlaps([b]) == [contamination.Overlap("b", "a", "exact", 1.0)]


def test_near_is_eight_tenths_of_at_least_eight_words() -> None:
    words = ["one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten"]
    index = contamination.TrainingIndex([problem("t", " ".join(words))])

    def similarity(text: list[str]) -> list[float]:
        return [o.similarity for o in index.overlaps([problem("b", " ".join(text))])]

    assert similarity(words[:8]) == [0.8]
    assert similarity(words[:7]) == []
    assert similarity(words[::-1]) == [1.0]
    assert similarity([*words[:9], "other"]) == [0.8182]
    assert similarity([*words[:8], "some", "other"]) == []


def test_texts_without_words_are_like_nothing() -> None:
    assert contamination.TrainingIndex([problem("t", "$$!?$$")]).overlaps([problem("b", "...")]) == []


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdefghijklmnopq"), min_size=1, max_size=14), min_size=2, max_size=24))
def test_every_near_pair_is_found(texts: list[list[str]]) -> None:
    """Prefix filtering leaves nothing out: against all pairs, one by one."""
    half = len(texts) // 2
    train = [problem(i, " ".join(text)) for i, text in enumerate(texts[:half])]
    benchmark = [problem(i, " ".join(text)) for i, text in enumerate(texts[half:])]
    expected = set()
    for i, a in enumerate(texts[half:]):
        for j, b in enumerate(texts[:half]):
            shared, union = len({*a} & {*b}), len({*a} | {*b})
            if a == b or (min(len({*a}), len({*b})) >= 8 and 10 * shared >= 8 * union):
                expected.add((str(i), str(j)))
    found = contamination.TrainingIndex(train).overlaps(benchmark)
    assert {(o.benchmark, o.training) for o in found} == expected and len(found) == len(expected)


def test_synthetic_splits_are_not_compared(tmp_path: Path) -> None:
    """They share no question by construction, though their questions are alike in words."""
    prepare(small_study(), tmp_path)
    assert json.loads((tmp_path / "contamination.json").read_text()) == {"count": []}
    assert contaminated(tmp_path, "count") == set()


def test_contamination_of_files_is_written_with_the_data(tmp_path: Path) -> None:
    texts = [
        f"How many ways are there to place {i} rooks on a board of side {i * i} without attack?" for i in range(40)
    ]
    (tmp_path / "train.jsonl").write_text("".join(json.dumps({"problem": t, "answer": "1"}) + "\n" for t in texts))
    (tmp_path / "test.jsonl").write_text(
        json.dumps({"id": "seen", "problem": texts[3].upper(), "answer": "1"})
        + "\n"
        + json.dumps(
            {"id": "new", "problem": "Name the smallest prime that has seven digits, all of them odd.", "answer": "1"}
        )
        + "\n"
    )
    study = study_with(["train.jsonl"], [{"name": "test", "source": "test.jsonl"}], tmp_path)
    prepare(study, tmp_path / "data")
    assert contaminated(tmp_path / "data", "test") == {"seen"}


# Benchmark problems that are among the training prompts, by us: what the notes of the registry say too.
FOUND = {
    "dapo_math_17k": {"amc23": 15, "amc12_83": 34, "math500": 22, "omni_math_rule": 389, "olympiadbench": 50},
    "math_train": {"math500": 54, "omni_math_rule": 59, "olympiadbench": 6},
    "gsm8k_train": {},
}
TITLES = {"dapo_math_17k": "DAPO-Math-17k", "math_train": "MATH's training split", "gsm8k_train": "GSM8K's"}


@pytest.fixture(scope="module")
def overlapping(benchmarks_folder: Path) -> dict[tuple[str, str], list[contamination.Overlap]]:
    """Every recorded training set against every recorded benchmark."""
    sets = {name: registry.dataset(name) for name in RECORDED}
    problems = {name: check.load(d, check.require(d, benchmarks_folder, "here")) for name, d in sets.items()}
    indices = {name: contamination.TrainingIndex(problems[name]) for name, d in sets.items() if d.role == "training"}
    return {
        (training, name): index.overlaps(problems[name])
        for training, index in indices.items()
        for name, d in sets.items()
        if d.role == "benchmark"
    }


def test_what_the_notes_say_of_overlaps_is_what_is_found(
    overlapping: dict[tuple[str, str], list[contamination.Overlap]],
) -> None:
    for (training, benchmark), pairs in overlapping.items():
        found = len({pair.benchmark for pair in pairs})
        assert found == FOUND[training].get(benchmark, 0), (training, benchmark)
        said = re.findall(rf"(\d+) of them are in {TITLES[training]}", " ".join(registry.dataset(benchmark).notes))
        assert said == ([str(found)] if found else []), (training, benchmark)


def test_near_duplicates_agree_with_a_second_opinion(
    overlapping: dict[tuple[str, str], list[contamination.Overlap]], benchmarks_folder: Path
) -> None:
    """621 benchmark problems are found by both, eight by us alone, one by the second opinion alone.

    spaces: six pairs whose letters and digits are the same and whose spaces are not, so that their words differ.
    The second opinion lists only 50 of the 184 pairs of DAPO-Math-17k and omni_math_rule that it found to be the same.
    few words: two pairs at the least number of words, where it matters which of LaTeX's commands counts as one.
    threshold: one pair a hair above 0.8 by our words, and below it by others.
    """
    path = benchmarks_folder / "OVERLAPS.json"
    if not path.exists():
        pytest.skip(f"no {path.name} in {benchmarks_folder}")
    second = json.loads(path.read_text())
    words = {
        (name, row["id"]): set(contamination.tokens(row["problem"]))
        for name in RECORDED
        for row in raw(benchmarks_folder, check.find(registry.dataset(name), benchmarks_folder).name)  # type: ignore[union-attr]
    }
    agreed = 0
    kinds = {"spaces": 0, "few words": 0, "threshold": 0}
    for (training, benchmark), pairs in overlapping.items():
        files = [check.find(registry.dataset(name), benchmarks_folder) for name in (training, benchmark)]
        key = "|".join(file.name for file in files if file)
        theirs = {i: (j, s) for i, j, s in second["fuzzy"][key]} | {
            i: (j, 1.0) for i, j in second["exact"][key]["pairs"]
        }
        ours = {o.benchmark: o for o in sorted(pairs, key=lambda o: (o.kind == "exact", o.similarity))}
        agreed += len(ours.keys() & theirs.keys())
        for identity in ours.keys() ^ theirs.keys():
            overlap = ours.get(identity)
            partner = overlap.training if overlap else theirs[identity][0]
            fewest = min(len(words[benchmark, identity]), len(words[training, partner]))
            similarity = overlap.similarity if overlap else theirs[identity][1]
            if fewest < contamination.FEWEST_TOKENS:
                kinds["few words"] += 1
            elif overlap and overlap.kind == "exact" and similarity < contamination.THRESHOLD:
                kinds["spaces"] += 1
            else:
                assert abs(similarity - contamination.THRESHOLD) < 0.02, (training, benchmark, identity, similarity)
                kinds["threshold"] += 1
    assert (agreed, kinds) == (621, {"spaces": 6, "few words": 2, "threshold": 1})
