"""Initial models, by fine-tuning of a tiny model or of a pretrained one on noisy demonstrations, and checks of them.

A tiny model is a small Qwen2 with random weights and a tokenizer of its own. Fine-tuning stops at a medium accuracy on
purpose: the model mostly answers directly, which rarely succeeds, and sometimes writes out its steps, which often does.
Reinforcement learning can then improve its greedy decoding.
"""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import torch
from tokenizers import AddedToken, pre_tokenizers, trainers
from torch import Tensor
from tqdm import tqdm
from transformers import Qwen2Config, Qwen2Tokenizer

from .. import digests
from ..data.families import BOXED, CHARACTERS, EOS, PAD, demonstrations, families_to_demonstrate
from ..data.problem import read_problems
from ..data.prompts import PromptRenderer
from ..data.sources import check_characters
from ..errors import UserError
from ..files import model_folder
from ..hub import identity
from ..model.device import gpu_errors, resolve_compute, set_compute_dtype
from ..model.engine import Rollout
from ..model.loading import load_model
from ..model.scoring import micro_batches, score_tokens
from ..model.small import LanguageModel, SmallModel
from ..paths import DataFolder, StartFolder
from ..records import StartModelRecord, write_record
from ..results import start_model
from ..study import Study
from ..study.dependencies import VERSIONS, settings
from ..study.schema import TinyModel, WarmStart

# About the size at which a small model is fastest on one core.
MICRO_BATCH_TOKENS = 2048
# Coefficients of Muon's quintic iteration, which Jordan et al. chose for a steep slope at 0.
A, B, C = 3.4445, -4.7750, 2.0315


def build_start_model(study: Study, seed: int, data: DataFolder, out: StartFolder) -> None:
    """Fine-tune the tiny or the pretrained model of ``study`` on demonstrations, and replace ``out`` by it."""
    started = time.perf_counter()
    torch.set_num_threads(study.training.threads)
    families, spec, optimizers = families_to_demonstrate(study), study.model, None
    tuning = spec.sft or spec.warm_start
    if spec.sft is not None:
        model, tokenizer = load_model(spec.start, spec.revision, fused=False)
        set_compute_dtype(model, resolve_compute(spec.sft.compute))
        optimizers = [torch.optim.AdamW(model.parameters(), lr=tuning.learning_rate, fused=True)]
    else:
        problems = read_problems(data.train)
        check_characters(study, problems, "data.train")
        if spec.tiny.vocabulary is None:
            tokenizer = character_tokenizer()
        else:
            tokenizer = bpe_tokenizer([p.problem for p in problems], spec.tiny.vocabulary)
        model = tiny_model(spec.tiny, tokenizer, seed)
    losses: list[float] = []
    if tuning.steps:
        renderer = PromptRenderer(tokenizer, study.prompt)
        with gpu_errors(study.training):
            losses = finetune(model, renderer, families, study.data.levels, tuning, seed, optimizers)
    last = losses[-50:]
    with model_folder(out.path, again="it builds the initial model") as folder:
        model.save_pretrained(folder)
        tokenizer.save_pretrained(folder)
        record = StartModelRecord(
            seed=seed,
            settings=_made_from(study, seed, data),
            parameters=sum(p.numel() for p in model.parameters()),
            steps=tuning.steps,
            seconds=time.perf_counter() - started,
            final_loss=sum(last) / len(last) if last else None,
            digest=digests.of_model(folder),
        )
        write_record(StartFolder(folder).record, record)


def ensure_start_model(
    study: Study, seed: int, data: DataFolder, out: StartFolder, elsewhere: Iterable[StartFolder] = ()
) -> None:
    """Build the initial model, or copy it from ``elsewhere``, unless ``out`` has the one of these inputs.

    UserError if ``out`` has anything other than an initial model of this pipeline, because it would be lost.
    """
    inputs = _made_from(study, seed, data)
    if _is_made(out, inputs):
        return
    if not out.record.exists() and out.path.exists() and any(out.path.iterdir()):
        raise UserError(
            f"{out.path}: contains files but no {out.record.name}, so it is no initial model of policygrain's. Choose "
            "another folder, or remove this one."
        )
    for other in elsewhere:
        if _is_made(other, inputs):
            with model_folder(out.path, again="it copies the initial model") as folder:
                shutil.copytree(other.path, folder, dirs_exist_ok=True)
            return
    build_start_model(study, seed, data, out)


def _is_made(folder: StartFolder, inputs: dict[str, Any]) -> bool:
    """Whether a folder has the undamaged initial model that is made from these inputs."""
    try:
        record = start_model(folder)
    except UserError:  # none, or of another version
        return False
    return record.settings == inputs and record.digest == digests.of_model(folder.path)


def _made_from(study: Study, seed: int, data: DataFolder) -> dict[str, Any]:
    """The inputs of an initial model: settings, and digests of the training problems and of a pretrained model."""
    model = study.model
    pretrained = {}
    if model.sft is not None:
        compute = str(resolve_compute(model.sft.compute))  # `auto` depends on the machine
        pretrained = {"start_model": identity(model.start, model.revision), "compute": compute}
    made_from = {"version": VERSIONS["start"], "seed": seed, "training_data": digests.of_file(data.train)}
    return {**settings(study, "start_model"), **made_from, **pretrained}


def check_start_model(folder: Path, revision: str | None = None) -> str:
    """The digest of an initial model, or its commit on the hub. UserError if its record has another digest."""
    digest = identity(str(folder), revision)
    made = StartFolder(folder)
    if made.record.exists() and start_model(made).digest != digest:
        raise UserError(
            f"{folder}: its files are not those that {made.record.name} names: one is changed or missing. Remove the "
            "folder and build the initial model again."
        )
    return digest


def character_tokenizer() -> Qwen2Tokenizer:
    r"""One token per character of the synthetic problems, and one for ``\boxed{``; other characters have none."""
    byte_level = {" ": "Ġ", "\n": "Ċ"}  # as a byte-level vocabulary writes them
    tokenizer = _qwen2({byte_level.get(symbol, symbol): i for i, symbol in enumerate(CHARACTERS)})
    tokenizer.add_tokens([AddedToken(BOXED, normalized=False)])
    return tokenizer


def bpe_tokenizer(texts: Iterable[str], size: int) -> Qwen2Tokenizer:
    """Byte-level BPE with a vocabulary of ``size``, trained on ``texts``; it can encode any text."""
    tokenizer = _qwen2({symbol: i for i, symbol in enumerate((PAD, EOS))})
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=size, special_tokens=[PAD, EOS], initial_alphabet=alphabet, show_progress=False
    )
    tokenizer.backend_tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _qwen2(vocabulary: dict[str, int]) -> Qwen2Tokenizer:
    """A tokenizer of the class that AutoTokenizer opens for every Qwen2, whatever class its folder names.

    It reads only vocabulary, merges and added tokens from the folder: the tokens of a text must depend on these alone.
    """
    return Qwen2Tokenizer(
        vocab=vocabulary,
        unk_token=PAD,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def tiny_model(spec: TinyModel, tokenizer: Any, seed: int) -> SmallModel:
    """A Qwen2 of the given shape, initialised at random from ``seed``: tied embeddings, float32."""
    config = Qwen2Config(
        vocab_size=len(tokenizer),
        hidden_size=spec.hidden,
        intermediate_size=spec.intermediate,
        num_hidden_layers=spec.layers,
        num_attention_heads=spec.heads,
        num_key_value_heads=spec.heads,
        max_position_embeddings=spec.context,
        tie_word_embeddings=True,
        pad_token_id=tokenizer.pad_token_id,
        eos_token_id=tokenizer.eos_token_id,
        bos_token_id=None,
    )
    from transformers import Qwen2ForCausalLM

    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return SmallModel(config, Qwen2ForCausalLM(config).state_dict())


def finetune(
    model: LanguageModel,
    renderer: PromptRenderer,
    families: list[str],
    levels: list[int],
    spec: WarmStart,
    seed: int,
    optimizers: Sequence[torch.optim.Optimizer] | None = None,
) -> list[float]:
    """Supervised fine-tuning of ``model`` in place; returns the loss of each step in nats per response token."""
    tokenizer = renderer.tokenizer
    with_steps = demonstrations(families, f"{seed}/scratchpad", spec.error_rate, 0.0, levels)
    mixed = demonstrations(families, f"{seed}/mixed", spec.error_rate, spec.direct_share, levels)

    def rate(step: int) -> float:
        """Linear warm-up over the first twentieth of the steps, then cosine decay to a quarter of the learning rate."""
        decay = max(0.25, 0.5 + 0.5 * math.cos(math.pi * step / spec.steps))
        return min((step + 1) / max(1, spec.steps // 20), decay)

    if optimizers is None:
        # Muon needs half as many steps as AdamW here; embeddings and norms have AdamW.
        matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
        others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
        adamw = torch.optim.AdamW(others, lr=spec.learning_rate, betas=(0.9, 0.98))
        optimizers = [Muon(matrices, lr=5 * spec.learning_rate, weight_decay=0.01), adamw]
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, rate) for optimizer in optimizers]
    losses = []
    progress = tqdm(range(spec.steps), f"initial model, seed {seed}")
    for step in progress:
        # Worked steps first, which take long to learn; direct answers are learnt in the last few steps.
        examples = mixed if step >= spec.steps - spec.mixed_steps else with_steps
        prompts, responses = zip(*itertools.islice(examples, spec.batch_size), strict=True)
        ids = tokenizer(list(responses), add_special_tokens=False)["input_ids"]
        rollouts = [
            Rollout(renderer.ids(prompt), [*response, tokenizer.eos_token_id], True, [])
            for prompt, response in zip(prompts, ids, strict=True)
        ]
        model.zero_grad(set_to_none=True)
        loss, total = 0.0, sum(len(rollout.ids) for rollout in rollouts)
        for rows in micro_batches(rollouts, MICRO_BATCH_TOKENS):
            scores = score_tokens(model, [rollouts[row] for row in rows], temperature=1.0, entropy_gradient=False)
            share = -scores.log_probs.sum() / total
            share.backward()
            loss += share.item()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        for optimizer, schedule in zip(optimizers, schedules, strict=True):
            optimizer.step()
            schedule.step()
        losses.append(loss)
        progress.set_postfix_str(f"loss {loss:.3f}", refresh=False)
    return losses


class Muon(torch.optim.Optimizer):
    """`torch.optim.Muon` (https://kellerjordan.github.io/posts/muon/) in float32, for all matrices of a shape together.

    torch iterates in bfloat16, whose emulation took most of a step on processors without bfloat16 instructions.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        for group in self.param_groups:
            shapes: dict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for weight in group["params"]:
                momentum = self.state[weight].setdefault("momentum", torch.zeros_like(weight))
                momentum.lerp_(weight.grad, 1 - group["momentum"])
                shapes[weight.shape].append((weight, weight.grad.lerp(momentum, group["momentum"])))
            for (rows, columns), pairs in shapes.items():
                weights, directions = zip(*pairs, strict=True)
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for weight, update in zip(weights, orthogonalised(torch.stack(directions)), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)


def orthogonalised(matrices: Tensor) -> Tensor:
    """Matrices [n, rows, columns] with all singular values moved close to 1, by Newton–Schulz iteration."""
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(5):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if wide is not matrices else x
