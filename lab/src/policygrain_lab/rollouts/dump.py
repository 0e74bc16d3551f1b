"""Writes rollouts of TRL or of your own loop to a folder that `policygrain-lab anatomy` and `calibrate` read.

verl writes such a folder if the environment variable POLICYGRAIN_DUMP names it (dump_verl.py).
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from policygrain.integrations.options import UnsupportedOption

DIGITS = 7  # after the point of a log-probability, as many as float32 has


class RolloutWriter:
    """Writes responses to ``folder``/rank_N.jsonl, and says when it is `full`; a file of an earlier run is replaced.

    With the number of ``processes``, rank 0 removes the files of an earlier run that had more of them.
    """

    def __init__(
        self, folder: str | Path, rank: int = 0, most_tokens: int = 1_000_000, processes: int | None = None
    ) -> None:
        self.path, self.most_tokens, self.tokens = Path(folder) / f"rank_{rank}.jsonl", most_tokens, 0
        self.processes = processes if rank == 0 else None

    @property
    def full(self) -> bool:
        """Whether ``most_tokens`` have been written."""
        return self.tokens >= self.most_tokens

    def write(self, extent: Tensor, columns: Mapping[str, Any]) -> None:
        """A row per response, from the first to the last 1 of ``extent`` [batch, tokens].

        ``columns``: tensors [batch, tokens] or [batch], lists with an entry per response, or None, which is left out.
        """
        given = {name: x for name, x in {"mask": extent, **columns}.items() if x is not None}
        shown = {name: x.detach().cpu() if isinstance(x, Tensor) else x for name, x in given.items()}
        self.path.parent.mkdir(parents=True, exist_ok=True)
        if self.processes is not None and not self.tokens:
            now = {f"rank_{rank}.jsonl" for rank in range(self.processes)}
            for stale in self.path.parent.glob("rank_*.jsonl"):
                if stale.name not in now:
                    stale.unlink()
        # Processes that write nothing must not remove the file of one that does.
        with self.path.open("a" if self.tokens else "w", encoding="utf-8") as file:
            for i, row in enumerate(extent.cpu() != 0):
                inside = row.nonzero().flatten().tolist() or [0]
                cells = {}
                for name, values in shown.items():
                    value = values[i]
                    if isinstance(value, Tensor):
                        value = (value[inside[0] : inside[-1] + 1] if value.ndim else value).tolist()
                    cells[name] = _rounded(value)
                file.write(json.dumps(cells) + "\n")
                self.tokens += len(inside)


def _rounded(value: Any) -> Any:
    if isinstance(value, list):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, DIGITS)  # NaN: an engine could not score the token
    return value


def dump_trl(trainer: Any, folder: str | Path, first_step: int = 0, most_tokens: int = 1_000_000) -> RolloutWriter:
    """Let a GRPOTrainer of TRL, or a subclass, write its rollouts from ``first_step`` on; call before `train()`.

    Each micro-batch is written as it was trained on: log-probabilities and entropies of the old and the current policy,
    log-probabilities of vLLM and of the initial model if TRL has them, advantage, reward, group, token ids, step and
    staleness (updates since the rollouts were sampled). Batches of rollouts are written whole, until ``most_tokens``
    are reached. UnsupportedOption with `use_liger_kernel`.
    """
    if trainer.args.use_liger_kernel:
        raise UnsupportedOption(
            "use_liger_kernel: its loss gives no log-probabilities; leave it out to write rollouts."
        )
    from policygrain.integrations.trl import fields_of

    accelerator = trainer.accelerator
    writer = RolloutWriter(folder, accelerator.process_index, most_tokens, accelerator.num_processes)
    score, loss = trainer._get_per_token_logps_and_entropies, trainer._compute_loss
    generate, grade = trainer._generate_and_score_completions, trainer._calculate_rewards
    scored: list[tuple[Any, ...]] = []  # outputs of passes since the last rollouts or loss
    state: dict[str, Any] = {"generations": 0, "writes": False}

    def scoring(*args: Any, **kwargs: Any) -> Any:
        if not torch.is_grad_enabled():
            kwargs["compute_entropy"] = True
        scored.append(score(*args, **kwargs))
        return scored[-1]

    def grading(*args: Any, **kwargs: Any) -> Any:
        state["rewards"] = grade(*args, **kwargs)
        return state["rewards"]

    def generating(inputs: Any) -> Any:
        scored.clear()
        output = generate(inputs)
        if trainer.model.training:
            old, rows = output.get("old_per_token_logps"), len(output["completion_mask"])
            mine = rows * trainer.accelerator.process_index + torch.arange(rows)
            rewards = (state["rewards"] * trainer.reward_weights.to(state["rewards"])).nansum(1).cpu()
            output["dumped_group"] = (state["generations"] * len(rewards) + mine) // trainer.num_generations
            output["dumped_reward"] = rewards[mine]
            if (entropies := next((outputs[1] for outputs in scored if outputs[0] is old), None)) is not None:
                output["old_entropies"] = entropies
            state["generations"] += 1
        return output

    def losing(model: Any, inputs: Any) -> Any:
        scored.clear()
        value = loss(model, inputs)
        new, entropy = scored.pop()[:2]
        args, step = trainer.args, trainer.state.global_step
        used = trainer._step % (args.steps_per_generation * args.num_iterations)  # micro-batches since the rollouts
        if used == 0:  # so that groups are whole
            state["writes"] = step >= first_step and not writer.full
        if not (trainer.model.training and state["writes"]):
            return value
        columns = fields_of(inputs, new, entropy) | {
            "rollout_weights": None,  # follow from the log-probabilities
            "completion_ids": inputs["completion_ids"],
            "prompt_ids": [
                x[m != 0].tolist() for x, m in zip(inputs["prompt_ids"], inputs["prompt_mask"], strict=True)
            ],
            "reward": inputs["dumped_reward"],
            # Each pass over the same rollouts has groups of its own.
            "group": [f"{group}.{used // args.steps_per_generation}" for group in inputs["dumped_group"].tolist()],
        }
        constants = {"step": step, "top_p": args.top_p, "staleness": used // args.gradient_accumulation_steps}
        columns |= {name: [value] * len(new) for name, value in constants.items()}
        writer.write(inputs["completion_mask"], columns)
        return value

    trainer._get_per_token_logps_and_entropies, trainer._compute_loss = scoring, losing
    trainer._generate_and_score_completions, trainer._calculate_rewards = generating, grading
    return writer
