"""Problems of families, files, registered sets and a study, their prompts and demonstrations; contamination."""

import itertools
import json
import random
import re
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tokenizers.processors import TemplateProcessing

from policygrain.cli import main
from policygrain.commands.check import check_study
from policygrain.data.contamination import overlaps, tokens
from policygrain.data.families import ENGLISH as families_in_english
from policygrain.data.families import FAMILIES, Demonstrator, demonstrations, generate, split_of
from policygrain.data.problem import Problem, read_problems, with_repeats
from policygrain.data.prompts import PromptRenderer
from policygrain.data.sets import SETS
from policygrain.data.sources import check_golds, contaminated, load, prepare_training
from policygrain.errors import UserError
from policygrain.grading import Item, NumericGrader, Options
from policygrain.grading.extraction import extract
from policygrain.paths import DataFolder
from policygrain.study import Study
from policygrain.study.schema import Prompt
from policygrain.train.start_model import bpe_tokenizer, character_tokenizer

from ..support.files import RECORDED, write_lines
from ..support.small import SMALL, prepare, small_study

CASES = yaml.safe_load(Path(__file__).with_name("cases.yaml").read_text())
GOOD = '{"id": "own-1", "problem": "1+1", "answer": "2"}'


def test_keys_that_say_how_answers_are_compared_and_null_for_a_missing_key(tmp_path):
    path = tmp_path / "own.jsonl"
    line = '{"id": null, "problem": "p", "answer": 0, "source": null, "steps": null, "list_answer": true, '
    path.write_text(f'{line}"absolute_tolerance": 0.1}}\n' * 2)
    first, second = read_problems(path)
    assert first.options == Options(list_answer=True, absolute_tolerance=0.1)
    assert (first.id, first.answer, first.source, first.steps, second.id) == ("own-00001", "0", "own", "", "own-00002")


@pytest.mark.parametrize(("line", "message"), CASES["lines"])
def test_a_line_that_is_no_problem_is_named(line, message, tmp_path):
    path = tmp_path / "set.jsonl"
    path.write_text(f"{GOOD}\n{line}\n")
    with pytest.raises(UserError, match=rf"set\.jsonl, line 2: {message}"):
        read_problems(path)


@pytest.mark.parametrize(("golds", "code", "says"), CASES["answers"])
def test_own_answers(golds, code, says, tmp_path, capsys):
    rows = [{"problem": f"problem {i % 3}", "answer": gold} for i, gold in enumerate(golds)]
    write_lines(tmp_path / "own.jsonl", rows)
    assert main(["data", "check", "own.jsonl", "--root", str(tmp_path)]) == code
    assert says in "".join(capsys.readouterr())


@pytest.mark.usefixtures("bubblewrap")
@pytest.mark.parametrize("case", CASES["programs"])
def test_what_is_wrong_with_tests_is_said(case, tmp_path):
    row = {key: case[key] for key in ("tests", "answer") if case[key]} | {"problem": "p", "entry_point": "f"}
    write_lines(path := tmp_path / "own.jsonl", [row, row])
    with pytest.raises(UserError, match=r"own\.jsonl: own-00001: ") if case["says"] else nullcontext() as caught:
        check_golds([path], "numeric")
    assert not caught or case["says"] in str(caught.value)


def test_rendered_prompts_of_the_sets_decode_to_their_text(benchmarks_folder):
    texts = [problem.problem for name in RECORDED for problem in load(name, benchmarks_folder, 40)]
    tokenizer, end = bpe_tokenizer(texts[:100], 512), "\nPut the final answer in \\boxed{}.\n"
    renderer = PromptRenderer(tokenizer, Prompt(template="{problem}" + end))
    assert [tokenizer.decode(renderer.ids(text)) for text in texts] == [text + end for text in texts]


@pytest.mark.parametrize(("template", "system", "arguments", "prompt"), CASES["templates"])
def test_chat_templates_with_and_without_a_system_role(template, system, arguments, prompt):
    tokenizer = character_tokenizer()
    tokenizer.chat_template = template
    asked = Prompt(template="{problem}", chat=True, system=system, chat_template_kwargs=arguments)
    renderer = PromptRenderer(tokenizer, asked)
    assert renderer.text("1+1") == prompt
    others = [Prompt(template="{problem}", chat=chat) for chat in ((False, True) if arguments else (False,))]
    assert renderer.digest not in [PromptRenderer(tokenizer, other).digest for other in others]


def test_a_thought_that_the_prompt_opens_is_in_the_response_that_is_graded():
    """Cut off in it there is no answer; a prompt that closes the thought, or names its marks, opens none."""
    tokenizer = bpe_tokenizer(["<think> </think> \\boxed{5}"], 300)
    whole = "\\boxed{5}. Wait", "\\boxed{5}</think>\\boxed{6}"
    for end, opening, answers in (
        ("<think>\n", "<think>", [None, "6"]),
        ("<think>\n\n</think>\n\n", "", ["5", "6"]),
        ("In <think>, then", "", ["5", "6"]),
    ):
        renderer = PromptRenderer(tokenizer, Prompt(template="{problem}" + end))
        ids, program = [tokenizer(text)["input_ids"] for text in whole], Problem("", "", "", options=Options(tests="x"))
        assert renderer.responses([program, program], ids) == [*whole]
        texts = renderer.responses([Problem("", "", "")] * 2, ids)
        assert texts == [opening + text for text in whole] and [extract(text) for text in texts] == answers


def test_numbers_are_written_as_in_the_file_and_repeated_problems_keep_what_they_differ_in(tmp_path):
    path, row = tmp_path / "own.jsonl", {"problem": "p", "answer": 0.00001}
    write_lines(path, [row, row, row | {"relative_tolerance": 0.1}, row | {"answer": 1e16}])
    problems = read_problems(path)
    assert [problem.answer for problem in problems[1:]] == ["0.00001", "0.00001", "10000000000000000"]
    assert [*with_repeats(problems).values()] == [2, 1, 1]


def test_a_chat_template_that_is_missing_or_refuses_every_message_is_said():
    tokenizer = character_tokenizer()
    for template, says in ((None, r"prompt\.chat"), ("{{ raise_exception('never') }}", "cannot be used: never")):
        tokenizer.chat_template = template
        with pytest.raises(UserError, match=says):
            PromptRenderer(tokenizer, Prompt(chat=True)).text("1+1")


def test_prompts_begin_as_the_tokenizer_begins_texts():
    """With the beginning-of-sequence token where it adds one, and without the end that some add."""
    plain = PromptRenderer(character_tokenizer(), Prompt(template="{problem}"))
    tokenizer = character_tokenizer()
    tokenizer.add_special_tokens({"bos_token": "<bos>"})
    marks = [("<bos>", tokenizer.bos_token_id), (tokenizer.eos_token, tokenizer.eos_token_id)]
    whole = f"<bos> $A {tokenizer.eos_token}"
    tokenizer.backend_tokenizer.post_processor = TemplateProcessing(single=whole, special_tokens=marks)
    renderer = PromptRenderer(tokenizer, Prompt(template="{problem}"))
    assert renderer.ids("1+1") == [tokenizer.bos_token_id, *plain.ids("1+1")]
    assert renderer.digest != plain.digest
    tokenizer.chat_template = CASES["templates"][0][0]
    assert tokenizer.bos_token_id not in PromptRenderer(tokenizer, Prompt(template="{problem}", chat=True)).ids("1+1")


def study_with(train: list[str], benchmarks: list[dict[str, Any]], root: Path) -> Study:
    data, model = {"train": train, "root": str(root)}, {"warm_start": {"steps": 0}}
    return small_study(data=data, model=model, evaluation={"benchmarks": benchmarks})


@pytest.mark.parametrize(("train", "benchmark", "says"), CASES["sources"])
def test_a_missing_or_wrong_source_stops_a_study(train, benchmark, says, tmp_path):
    write_lines(tmp_path / "aime25.jsonl", [json.loads(GOOD)])
    with pytest.raises(UserError, match=says):
        check_study(study_with(train, [{"name": "b", "source": benchmark}], tmp_path))


def test_sources_are_looked_for_in_the_folder_of_the_environment(tmp_path, monkeypatch):
    monkeypatch.setenv("POLICYGRAIN_DATA", str(tmp_path))
    write_lines(tmp_path / "own.jsonl", [json.loads(GOOD)])
    assert load("own.jsonl", None) == read_problems(tmp_path / "own.jsonl")


def test_registered_sets_in_a_study(benchmarks_folder, tmp_path):
    names = ["minerva", "olympiadbench", "amc23", "omni_math_rule"]
    benchmarks = [*({"name": name, "source": name} for name in names), {"name": "few", "source": "math500", "size": 7}]
    prepare(study_with(["gsm8k_train"], benchmarks, benchmarks_folder), DataFolder(tmp_path))
    prepared = {name: read_problems(tmp_path / "benchmarks" / f"{name}.jsonl") for name in [*names, "few"]}
    counts = {name: SETS[name].count for name in names} | {"few": 7}
    assert {name: len(problems) for name, problems in prepared.items()} == counts
    assert all(p.options.relative_tolerance == 0.01 and not p.options.list_answer for p in prepared["minerva"])
    assert sum(p.options.list_answer for p in prepared["olympiadbench"]) == 94
    assert list(filter(None, (p.options.absolute_tolerance for p in prepared["olympiadbench"]))) == [0.1]
    assert [sum(p.options.text for p in prepared[name]) for name in names] == [5, 3, 0, 11]
    assert len(read_problems(tmp_path / "train.jsonl")) == SMALL["data"]["train_size"]


def test_contamination_is_written_with_the_data(tmp_path):
    """Of files: splits of a family share no question by construction, but many of their words."""
    texts = [f"How many ways are there to place {i} rooks on a board of side {i * i} apart?" for i in range(40)]
    write_lines(tmp_path / "train.jsonl", [{"id": "same", "problem": text, "answer": "1"} for text in texts])
    asked = {"seen": texts[3].upper(), "new": "Name the smallest prime that has seven digits, all of them odd."}
    write_lines(tmp_path / "test.jsonl", [{"id": i, "problem": text, "answer": "1"} for i, text in asked.items()])
    benchmarks = [{"name": name, "source": source} for name, source in (("count", "count"), ("test", "test.jsonl"))]
    study = study_with(["count", "train.jsonl"], benchmarks, tmp_path)
    prepare(study, data := DataFolder(tmp_path / "data"))
    assert contaminated(data, "test") == {"seen"} and contaminated(data, "count") == set()


def test_no_validation_problem_is_trained_on_though_two_sources_have_it(tmp_path):
    for name in ("one", "two"):
        rows = [{"id": f"{name}{i}", "problem": str(i), "answer": "1"} for i in range(60)]
        write_lines(tmp_path / f"{name}.jsonl", rows)
    study = study_with(["one.jsonl", "two.jsonl"], [{"name": "count", "source": "count"}], tmp_path)
    prepare_training(study, data := DataFolder(tmp_path / "data"))
    train, validation = ({p.problem for p in read_problems(path)} for path in (data.train, data.validation))
    assert train and validation and not train & validation


def problems(*texts: str) -> list[Problem]:
    return [Problem(str(i), text, "0") for i, text in enumerate(texts)]


def pair(benchmark: int, training: int, kind: str, similarity: float):
    found = {"benchmark": str(benchmark), "training": str(training), "kind": kind}
    return found | {"similarity": round(similarity, 4)}


def test_words_and_numbers_are_compared_without_layout():
    assert tokens(r"Let $x^2 \ge \dfrac{12}{\sqrt{y}}$.") == ["let", "x", "2", "ge", "12", "sqrt", "y"]
    assert tokens("设\\left(a\\right)为") == ["设", "a", "为"]
    a, b = r"Find $\frac{1}{2}$ of THE sum, please!", r"find \left(1/2\right) of the sum please"
    assert overlaps(problems(a), {"b": problems(b)}) == {"b": [pair(0, 0, "exact", 1.0)]}


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from("abcdefghijklmnopq"), max_size=14), min_size=2, max_size=24))
@example([list("abcdefghij")] * 3 + [list("abcdefgh"), list("abcdefg"), list("jihgfedcba")])
def test_every_near_pair_is_found(texts):
    """As by comparing all pairs: from 8 words and a similarity of 0.8 on. Texts without words have no duplicates."""
    half = len(texts) // 2
    expected = []
    for i, a in enumerate(texts[half:]):
        for j, b in enumerate(texts[:half]):
            shared, union = len({*a} & {*b}), len({*a} | {*b})
            if (a and a == b) or (min(len({*a}), len({*b})) >= 8 and 10 * shared >= 8 * union):
                expected.append(pair(i, j, "exact" if a == b else "near", shared / union))
    train, benchmark = (problems(*map(" ".join, part)) for part in (texts[:half], texts[half:]))
    assert overlaps(train, {"b": benchmark}) == {"b": expected}


ENGLISH = {family.__name__ for family in families_in_english}
LOSSES = ("eats", "loses", "gives", "sells")


def solve(question: str) -> int:
    """The answer computed from the question alone, independently of the worked steps."""
    if question.startswith("What is"):
        x, sign, y = question.removesuffix("?").split()[2:]
        return int(x) + (1 if sign == "plus" else -1) * int(y)
    if " in word " in question:
        wanted, among = question.removeprefix("How many ").removesuffix("?").split(" are there in word ")
        return among.split("-").count(wanted)
    if "How many" in question:
        told = [sentence.split() for sentence in question.split(". ")[:-1]]
        return sum((-1 if words[1] in LOSSES else 1) * int(next(filter(str.isdigit, words))) for words in told)
    family, *words = re.sub(r"\bz([a-z])", r"\1", question).split()  # labels of two letters
    operands = [word[1:] for word in words if word[0].isalpha() and word != "in"]
    match family:
        case "total":
            return sum(map(int, operands))
        case "add":
            return sum((int(x) + int(y)) * 10**i for i, (x, y) in enumerate(operands))
        case "mul":
            return int(words[0]) * sum(int(x) * 10**i for i, x in enumerate(operands))
        case "mod":
            return int("".join(operands)) % int(words[0])
        case "max":
            return max(map(int, operands))
        case "clock":
            value = 0
            for sign, number in ((x[0], int(x[1:])) for x in operands):
                value = {"+": value + number, "-": value - number, "*": value * number}[sign]
            return value % 10
    return operands.count(words[0])


@pytest.mark.parametrize("family", FAMILIES)
@settings(max_examples=60, deadline=None)
@given(seed=st.integers(0, 10**6), level=st.integers(1, 15))
def test_answers_are_right(family, seed, level):
    question, steps, answer = FAMILIES[family](random.Random(seed), level, Demonstrator(random.Random(0)))
    assert int(answer) == solve(question)
    # Before the last step the answer is already found: the final line repeats the scratchpad's result.
    assert NumericGrader().grade([Item(answer, f"{steps}\\boxed{{{answer}}}")]) == ["correct"]


@pytest.mark.parametrize("family", FAMILIES)
def test_hundreds_of_problems_have_the_promised_length_and_splits_are_disjoint_for_all_seeds(family):
    test = generate(family, "test", 300, seed=1)
    assert len({p.problem for p in test}) == 300
    assert generate(family, "test", 300, seed=1) == test != generate(family, "test", 300, seed=2)
    lengths = sorted(len(p.steps) + len(p.answer) + 3 for p in test)  # characters are tokens; \boxed{, }, end
    assert family in ENGLISH or (lengths[60] >= 40 and lengths[240] <= 100)
    splits = enumerate(("train", "validation", "test"))
    questions = [p.problem for seed, split in splits for p in generate(family, split, 200, seed)]
    assert len({*questions}) == len(questions)


def test_demonstrations_have_training_questions_and_both_kinds_of_response():
    stream = demonstrations(list(FAMILIES), "0", error_rate=0.1, direct_share=0.6)
    shown = [next(stream) for _ in range(1000)]
    assert all(split_of(question) == "train" for question, _ in shown)
    assert len({question.split()[0] for question, _ in shown if question.islower()}) == len(FAMILIES) - len(ENGLISH)
    direct = [response.startswith("\\boxed{") for _, response in shown]
    assert 0.55 < sum(direct) / 1000 < 0.65
    items = [Item(str(solve(question)), response) for question, response in shown]
    right = [outcome == "correct" for outcome in NumericGrader().grade(items)]
    assert all(r for r, d in zip(right, direct, strict=True) if d)
    assert 0.3 < sum(r for r, d in zip(right, direct, strict=True) if not d) / (1000 - sum(direct)) < 0.9


def test_levels_of_problems_and_demonstrations_are_those_asked_for():
    problems = generate("largest", "train", 30, seed=1, levels=[12, 14])
    assert {len(p.problem.split()) for p in problems} == {28, 32}
    shown = itertools.islice(demonstrations(["largest"], "0", 0.0, 0.0, levels=[13]), 20)
    assert {len(question.split()) for question, _ in shown} == {30}
