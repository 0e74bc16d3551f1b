"""Tiny models: a small Qwen2 with random weights and its own tokenizer, fine-tuned on noisy demonstrations.

Fine-tuning (the warm start) stops at a medium accuracy on purpose: the model mostly answers directly, which rarely
succeeds, and sometimes writes out its steps, which often does. Reinforcement learning can then improve on the model's
greedy decoding.
"""

from __future__ import annotations

import itertools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from tokenizers import AddedToken, pre_tokenizers, trainers
from torch import Tensor
from tqdm import tqdm

from ..data.families import BOXED, CHARACTERS, EOS, PAD, demonstrations
from .engine import Rollout
from .scoring import micro_batches, score_tokens

if TYPE_CHECKING:
    from transformers import PreTrainedModel, PreTrainedTokenizerBase, Qwen2ForCausalLM, Qwen2Tokenizer

    from ..data.prompts import PromptRenderer
    from ..study.schema import TinyModel, WarmStart

# About the size at which a small model is fastest on one core.
MICRO_BATCH_TOKENS = 2048
# Coefficients of Muon's quintic iteration, which Jordan et al. chose for a steep slope at 0.
A, B, C = 3.4445, -4.7750, 2.0315


def character_tokenizer() -> Qwen2Tokenizer:
    r"""One token per character of the synthetic problems, and one for ``\boxed{``; other characters have none."""
    byte_level = {" ": "Ġ", "\n": "Ċ"}  # as a byte-level vocabulary writes them
    tokenizer = _qwen2({byte_level.get(symbol, symbol): i for i, symbol in enumerate(CHARACTERS)})
    tokenizer.add_tokens([AddedToken(BOXED, normalized=False)])
    return tokenizer


def bpe_tokenizer(texts: Iterable[str], size: int) -> Qwen2Tokenizer:
    """Byte-level BPE with a vocabulary of ``size``, trained on ``texts``; it can encode any text."""
    tokenizer = _qwen2({symbol: i for i, symbol in enumerate((PAD, EOS))})
    trainer = trainers.BpeTrainer(
        vocab_size=size,
        special_tokens=[PAD, EOS],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.backend_tokenizer.train_from_iterator(texts, trainer)
    return tokenizer


def _qwen2(vocabulary: dict[str, int]) -> Qwen2Tokenizer:
    """A tokenizer of the class that AutoTokenizer opens for every Qwen2, whatever class its folder names.

    That class splits text in its own way and reads only vocabulary, merges and added tokens from the folder, so the
    tokens of a text must depend on these alone.
    """
    from transformers import Qwen2Tokenizer

    return Qwen2Tokenizer(
        vocab=vocabulary,
        unk_token=PAD,
        pad_token=PAD,
        eos_token=EOS,
        padding_side="left",
        clean_up_tokenization_spaces=False,
    )


def build(spec: TinyModel, tokenizer: PreTrainedTokenizerBase, seed: int) -> Qwen2ForCausalLM:
    """A Qwen2 of the given shape, initialised at random from ``seed``: tied embeddings, float32."""
    from transformers import Qwen2Config, Qwen2ForCausalLM

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
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return Qwen2ForCausalLM(config)


def finetune(
    model: PreTrainedModel,
    renderer: PromptRenderer,
    families: list[str],
    levels: list[int],
    spec: WarmStart,
    seed: int,
    optimizers: Sequence[torch.optim.Optimizer] | None = None,
) -> list[float]:
    """Supervised fine-tuning of ``model`` in place; returns the loss of each step in nats per response token.

    ``optimizers``: by default those of tiny models.
    """
    tokenizer = renderer.tokenizer
    with_steps = demonstrations(families, f"{seed}/scratchpad", spec.error_rate, 0.0, levels)
    mixed = demonstrations(families, f"{seed}/mixed", spec.error_rate, spec.direct_share, levels)

    def rate(step: int) -> float:
        """Linear warm-up over the first twentieth of the steps, then cosine decay to a quarter of the learning rate."""
        decay = max(0.25, 0.5 + 0.5 * math.cos(math.pi * step / spec.steps))
        return min((step + 1) / max(1, spec.steps // 20), decay)

    optimizers = optimizers or _optimizers(model, spec.learning_rate)
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


def _optimizers(model: PreTrainedModel, learning_rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the weight matrices, which needs half as many steps as AdamW here; AdamW for embeddings and norms."""
    matrices = [p for n, p in model.named_parameters() if p.ndim == 2 and "embed" not in n]
    others = [p for n, p in model.named_parameters() if p.ndim != 2 or "embed" in n]
    adamw = torch.optim.AdamW(others, lr=learning_rate, betas=(0.9, 0.98))
    return [Muon(matrices, lr=5 * learning_rate, weight_decay=0.01), adamw]


class Muon(torch.optim.Optimizer):
    """Muon (https://kellerjordan.github.io/posts/muon/) with Nesterov momentum, for matrices, as `torch.optim.Muon`.

    torch iterates in bfloat16, whose emulation took most of a step on processors without bfloat16 instructions. Here
    the iteration is in float32, for all matrices of one shape together.
    """

    def __init__(self, params: Iterable[Tensor], lr: float, weight_decay: float, momentum: float = 0.95) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay, "momentum": momentum})

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> None:  # type: ignore[override]
        """One update of all matrices."""
        for group in self.param_groups:
            shapes: dict[Any, list[tuple[Tensor, Tensor]]] = defaultdict(list)
            for weight in group["params"]:
                state = self.state[weight]
                if not state:
                    state["momentum"] = torch.zeros_like(weight)
                state["momentum"].lerp_(weight.grad, 1 - group["momentum"])
                shapes[weight.shape].append((weight, weight.grad.lerp(state["momentum"], group["momentum"])))
            for (rows, columns), pairs in shapes.items():
                weights, directions = zip(*pairs, strict=True)
                rate = group["lr"] * max(1.0, rows / columns) ** 0.5
                for weight, update in zip(weights, orthogonalised(torch.stack(directions)), strict=True):
                    weight.mul_(1 - group["lr"] * group["weight_decay"]).sub_(update, alpha=rate)


def orthogonalised(matrices: Tensor, steps: int = 5) -> Tensor:
    """Matrices [n, rows, columns] with all singular values moved close to 1, by Newton–Schulz iteration."""
    wide = matrices.mT if matrices.shape[1] > matrices.shape[2] else matrices
    x = wide / wide.norm(dim=(1, 2), keepdim=True).clamp(min=1e-7)
    for _ in range(steps):
        gram = x @ x.mT
        x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=B, alpha=C), x, beta=A)
    return x.mT if wide is not matrices else x
