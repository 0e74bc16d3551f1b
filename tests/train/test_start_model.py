"""Initial models: built again where stale, refused where damaged; every tool reads the same tokens from them."""

import re
import shutil
from collections.abc import Callable
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from transformers import AutoProcessor, AutoTokenizer

from policygrain.data.families import ARITHMETIC, CHARACTERS, EOS, FAMILIES, demonstrations, generate
from policygrain.errors import UserError
from policygrain.model.loading import load_tokenizer
from policygrain.paths import DataFolder, StartFolder
from policygrain.results import start_model
from policygrain.study import Study
from policygrain.train import start_model as module
from policygrain.train.start_model import check_start_model, ensure_start_model

from ..conftest import ROOT
from ..support.engines import save_tiny
from ..support.files import flip_bit, load_script, snapshot
from ..support.small import prepare, small_study, train_small, trained

QUICK = {"steps": 3, "mixed_steps": 3, "batch_size": 4}


def quick_study(**changes: Any) -> Study:
    """The small study with an initial model that takes no time."""
    return small_study(**{"model": {"warm_start": QUICK}} | changes)


def build(study: Study, folder: Path) -> StartFolder:
    """The study's data and initial model, in ``folder``."""
    data, start = DataFolder(folder / "data"), StartFolder(folder / "start")
    prepare(study, data)
    ensure_start_model(study, 0, data, start)
    return start


@pytest.fixture(scope="module")
def quick(tmp_path_factory):
    """Data and an initial model, to be copied."""
    return build(quick_study(), tmp_path_factory.mktemp("quick")).path.parent


@pytest.fixture
def built(quick, tmp_path):
    return StartFolder(Path(shutil.copytree(quick, tmp_path / "built")) / "start")


def test_a_start_model_that_is_up_to_date_is_left_and_a_stale_one_is_built_again(built):
    before = {path: path.stat().st_mtime_ns for path in built.path.rglob("*")}
    build(quick_study(training={"steps": 9, "threads": 1}), built.path.parent)  # which decide nothing about it
    assert {path: path.stat().st_mtime_ns for path in built.path.rglob("*")} == before
    record = start_model(built)
    assert (record.digest, record.seed, record.steps) == (check_start_model(built.path), 0, 3)
    stale = build(quick_study(model={"warm_start": QUICK | {"steps": 4}}), built.path.parent)
    assert start_model(stale).steps == 4 and check_start_model(stale.path) != record.digest


def test_a_start_model_of_the_same_inputs_is_copied_from_a_study_beside_it(built, tmp_path, monkeypatch):
    data, here = DataFolder(built.path.parent / "data"), StartFolder(tmp_path / "start")
    damaged = StartFolder(Path(shutil.copytree(built.path, tmp_path / "damaged")))
    flip_bit(damaged.path / "model.safetensors")
    built_again: list[int] = []
    monkeypatch.setattr(module, "build_start_model", lambda _, seed, *rest: built_again.append(seed))
    for study, seed, beside in ((quick_study(), 0, [damaged]), (quick_study(), 1, [built])):
        ensure_start_model(study, seed, data, here, beside)
    assert built_again == [0, 1] and not here.path.exists()
    ensure_start_model(quick_study(), 0, data, here, [damaged, here, built])
    assert check_start_model(here.path) == check_start_model(built.path) and built_again == [0, 1]


@pytest.mark.parametrize(
    ("damage", "name"),
    [(flip_bit, "model.safetensors"), (Path.unlink, "tokenizer.json"), (Path.unlink, "config.json")],
)
def test_a_damaged_start_model_is_built_again_or_refused(damage, name, built, made, tmp_path):
    """Built again by its own command; refused, with nothing moved, where it is given to a run that has ended."""
    digest, whole, study = check_start_model(built.path), snapshot(built.path), quick_study(training={"steps": 1})
    run = train_small(study, tmp_path / "run", made[0], built.path)
    ended = snapshot(run)
    damage(built.path / name)
    with pytest.raises(UserError, match=r"^.*start: its files are not those that start\.json names: .*[Rr]emove.*$"):
        train_small(study, run, made[0], built.path)
    assert snapshot(run).keys() == ended.keys()
    build(quick_study(), built.path.parent)
    assert check_start_model(built.path) == digest
    again = snapshot(built.path)
    assert again | {"start/start.json": b""} == whole | {"start/start.json": b""}


def test_a_folder_that_is_no_start_model_is_not_replaced(made, tmp_path):
    """A model of the user's, say, is not removed."""
    other = StartFolder(tmp_path / "model")
    other.path.mkdir()
    (other.path / "config.json").write_text("{}")
    with pytest.raises(UserError, match=r"model: contains files but no start\.json"):
        ensure_start_model(quick_study(), 0, DataFolder(made[0]), other)
    assert snapshot(other.path) == {"model/config.json": b"{}"}
    (other.path / "config.json").unlink()  # an empty folder is as good as none
    ensure_start_model(quick_study(), 0, DataFolder(made[0]), other)
    assert other.record.exists()


@pytest.mark.parametrize("changes", [{"data": {"train": ["plain_sum"]}}, {"prompt": {"template": "{problem} Answer:"}}])
def test_text_that_a_model_of_characters_would_not_see_is_refused(changes, tmp_path):
    with pytest.raises(UserError, match=r"has no token for '[WA]'.* Set model\.tiny\.vocabulary"):
        build(quick_study(**changes), tmp_path)


def test_a_pretrained_model_is_fine_tuned_and_made_again_if_it_changes(built, tmp_path):
    """Its demonstrations become likelier; another pretrained model under the same name is another initial model."""
    digest = check_start_model(built.path)
    tuning = {"steps": 30, "batch_size": 8, "learning_rate": 1e-3, "compute": "float32"}
    study = small_study(model={"start": str(built.path), "sft": tuning})
    start = build(study, tmp_path)
    record = start_model(start)
    assert record.settings["start_model"] == digest != check_start_model(start.path) and record.steps == 30
    short = small_study(model={"start": str(built.path), "sft": tuning | {"steps": 1}})
    assert record.final_loss < 0.95 * start_model(build(short, tmp_path / "short")).final_loss
    before = snapshot(start.path)
    build(study, tmp_path)
    assert snapshot(start.path) == before
    shutil.copytree(start.path, built.path, dirs_exist_ok=True)
    (built.path / "start.json").unlink()
    build(study, tmp_path)
    again = start_model(start)
    assert again.settings["start_model"] != digest
    half = small_study(model={"start": str(built.path), "sft": tuning | {"compute": "bfloat16"}})
    assert start_model(build(half, tmp_path)).digest != again.digest


CHARACTER = module.character_tokenizer()


OPENED: dict[str, Callable[[str], Any]] = {
    "this package": load_tokenizer,
    "transformers": AutoTokenizer.from_pretrained,
    "TRL": partial(AutoProcessor.from_pretrained, truncation_side="left", padding_side="left"),
    "vLLM": lambda folder: pytest.importorskip("vllm.tokenizers").get_tokenizer(folder),
}


@pytest.fixture(scope="module", params=["characters", "bpe"])
def saved(request, tmp_path_factory):
    """A tokenizer, the folder of a tiny model that has it, and families whose text it can encode."""
    if request.param == "characters":
        tokenizer, families = CHARACTER, [family.__name__ for family in ARITHMETIC]
    else:
        texts = [problem.problem for family in FAMILIES for problem in generate(family, "train", 20, seed=0)]
        tokenizer, families = module.bpe_tokenizer(texts, 300), [*FAMILIES]
    return tokenizer, save_tiny(tmp_path_factory.mktemp("tiny"), tokenizer), families


@pytest.mark.parametrize("by", OPENED)
def test_all_tools_read_the_same_tokens(by, saved):
    own, folder, families = saved
    other = OPENED[by](folder)
    assert (other.pad_token_id, other.eos_token_id, len(other)) == (own.pad_token_id, own.eos_token_id, len(own))
    worked = demonstrations(families, "tokens", error_rate=0.1, direct_share=0.2)
    texts = [f"{question}\n{response}{EOS}" for question, response in islice(worked, 200)]
    texts += [f"{problem.problem}\n" for family in families for problem in generate(family, "test", 200, seed=1)]
    for text, ids in zip(texts, own(texts, add_special_tokens=False).input_ids, strict=True):
        assert other(text, add_special_tokens=False).input_ids == ids, text
        assert other.decode(ids) == text


@given(st.lists(st.sampled_from(CHARACTERS), max_size=40))
def test_each_character_is_one_token_with_its_place_as_id(symbols):
    r"""Of any text in these characters, `\\boxed{` included; ids are what models were trained with."""
    text = "".join(symbols)
    ids = CHARACTER.encode(text, add_special_tokens=False)
    assert CHARACTER.decode(ids) == text and all(token < len(CHARACTERS) for token in ids)
    assert [CHARACTERS[token] for token in ids] == re.findall(r"\\boxed\{|<\|pad\|>|<\|end\|>|[\s\S]", text)


def test_updates_by_muon_are_those_of_torch():
    torch.manual_seed(0)
    start = [torch.randn(shape) for shape in [(8, 8), (16, 8), (8, 16), (8, 8)]]
    ours, theirs = ([w.clone().requires_grad_() for w in start] for _ in range(2))
    reference = torch.optim.Muon(theirs, lr=0.1, weight_decay=0.1, adjust_lr_fn="original")
    optimizers = [module.Muon(ours, lr=0.1, weight_decay=0.1), reference]
    for _ in range(5):
        for one, other in zip(ours, theirs, strict=True):
            one.grad = torch.randn_like(one)
            other.grad = one.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for one, other, before in zip(ours, theirs, start, strict=True):
        difference, moved = (one - other).norm().item(), (other - before).norm().item()
        assert 0 < difference < 0.02 * moved  # torch iterates in bfloat16


SCRIPT = ROOT / "studies/fetch_smollm2.py"


@pytest.mark.release
def test_three_steps_of_a_fetched_model(tmp_path):
    """Fetched, verified, trained, with rewards that are not all the same."""
    folder, data, script = tmp_path / "smollm2-135m-instruct", DataFolder(tmp_path / "data"), load_script(SCRIPT)
    try:
        assert "rounded to 4 bits" in script.fetch(folder)
    except SystemExit as error:
        pytest.skip(str(error))
    assert script.fetch(folder).endswith("there already")
    study = small_study(
        model={"start": str(folder)},
        prompt={"template": "{problem} Answer with one short sentence.", "chat": True},
        data={"train": ["plain_sum"], "train_size": 60, "validation_size": 4},
        extraction="qwen_math",
        training={"steps": 3, "max_tokens": 16, "validate_every": 3, "learning_rate": 1e-5, "threads": 2},
    )
    prepare(study, data)
    rows = trained(study, tmp_path / "run", (data.path, folder))
    assert [row["step"] for row in rows] == [0, 1, 2, 3]
    assert all(row["mismatch_mean"] < 0.01 and row["gradient_norm"] >= 0 for row in rows[:3])
