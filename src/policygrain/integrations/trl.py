"""TRL: `PolicyGrainTrainer`, a GRPOTrainer with any method's objective (docs/your-trainer.md).

TEPO's mask is measured: the entropies of the policy that sampled are kept from TRL's own pass without gradient.
"""

from __future__ import annotations

import inspect
import warnings
from collections.abc import Iterator
from dataclasses import fields
from pathlib import Path
from typing import Any

import torch
import yaml
from accelerate.utils import gather_object
from torch import Tensor
from trl import GRPOConfig, GRPOTrainer

from ..objective import Method
from ..objective.batch import StepTotals, TokenBatch
from ..objective.clip import Vespo
from ..objective.loss import merge_metrics
from ..objective.terms import Kl
from .options import chosen, reads_entropies, refuse, warn_sampler

# Beginnings of the names of options of TRL's loss, which would be ignored, or added to the objective.
OF_THE_LOSS = tuple(yaml.safe_load(Path(__file__).with_name("trl.yaml").read_text())["of_the_loss"])
# TRL's values of `scale_rewards`, for each advantage of a method.
SCALE_REWARDS = {"grpo": ("group", "True", True), "dr_grpo": ("none", "False", False)}


class PolicyGrainTrainer(GRPOTrainer):
    """TRL's GRPOTrainer with the objective of a method: ratio, clip, aggregation and penalties.

    ``micro_batch_statistics`` lets methods that read statistics of the whole step (clip_cov, kl_cov) take those of each
    micro-batch. UnsupportedOption before anything is loaded, for options of TRL's loss that this objective does not
    read, and for methods that need inputs that TRL does not have.
    """

    def __init__(
        self, *args: Any, objective: str | Method = "tepo", micro_batch_statistics: bool = False, **kwargs: Any
    ) -> None:
        self.objective = chosen(objective)
        self.micro_batch_statistics = micro_batch_statistics
        given = kwargs.get("args") or next((a for a in args if hasattr(a, "steps_per_generation")), None)
        config = given or GRPOConfig(bf16=False)  # the defaults, as in TRL; bf16 needs a GPU and is not read here
        wrong = _wrong(self.objective, config, micro_batch_statistics)
        longest = {"max_completion_length": config.max_completion_length}
        refuse(self.objective, "TRL", ("mtp_heads", "groups", "staleness"), wrong, **longest)
        warn_sampler(self.objective, applied=["mask_truncated"])
        # Micro-batches that are accumulated, and those that a batch of rollouts is trained on.
        if config.gradient_accumulation_steps % (config.steps_per_generation * config.num_iterations) == 0:
            warnings.warn(
                "one update per batch of rollouts: all ratios are 1, so ratio, clip and TEPO's mask have no effect. "
                "Set num_iterations=2, or steps_per_generation above gradient_accumulation_steps.",
                stacklevel=2,
            )
        self._reads_entropies = reads_entropies(self.objective)
        self._scored: list[tuple[Tensor, Tensor | None]] = []  # of the passes without gradient, since the last rollouts
        self._totals: StepTotals | None = None  # of the accumulation window
        self._parts: list[dict[str, float]] = []  # metrics of the micro-batches of this step so far
        super().__init__(*args, **kwargs)

    def _get_per_token_logps_and_entropies(self, model: Any, *args: Any, **kwargs: Any) -> Any:
        """As in TRL; the policy's passes without gradient return entropies, too, where the objective reads them."""
        if self._reads_entropies and not torch.is_grad_enabled() and model is not self.ref_model:
            kwargs["compute_entropy"] = True
        outputs = super()._get_per_token_logps_and_entropies(model, *args, **kwargs)
        if not torch.is_grad_enabled():
            self._scored.append(outputs[:2])
        return outputs

    def _generate_and_score_completions(self, inputs: Any) -> Any:
        """As in TRL, with entropies of the policy that sampled, divided into micro-batches like other tensors."""
        self._scored = []
        output = super()._generate_and_score_completions(inputs)
        for log_probs, entropies in self._scored:
            if log_probs is output.get("old_per_token_logps") and entropies is not None:
                output["old_entropies"] = entropies
        self._scored = []
        return output

    def _compute_loss(self, model: Any, inputs: dict[str, Any]) -> Tensor:
        """The objective on a micro-batch, normalised by the whole optimizer step. Scalar with gradient."""
        log_probs, entropy, aux_loss = score(self, model, inputs, compute_aux_loss=self.aux_loss_enabled)
        known = fields_of(inputs, log_probs, entropy)
        if "entropy_gradient" not in self.objective.needs:
            known["entropy"] = entropy.detach()
        if known["rollout_log_probs"] is None:  # without an engine the policy itself has sampled
            known["rollout_log_probs"] = known["old_log_probs"]
        batch = TokenBatch(**known, max_length=self.max_completion_length)
        training = self.model.training
        if training:  # only then TRL knows the steps that are accumulated
            alone = self.current_gradient_accumulation_steps == 1 and self.accelerator.num_processes == 1
            batch = batch.replace(step=self.objective.step_of(batch) if alone else self._step_totals())
        out = self.objective.loss(batch)
        self._log(out.metrics, training)
        # Gradients are averaged over processes and must be summed. In evaluation each process reports its own loss.
        loss = out.loss * (self.accelerator.num_processes if training else 1)
        if self.aux_loss_enabled:
            share = self.current_gradient_accumulation_steps if training else 1
            loss = loss + self.router_aux_loss_coef * aux_loss / share
        return loss

    def _step_totals(self) -> StepTotals:
        size = self.current_gradient_accumulation_steps
        place = self._step % self.args.steps_per_generation
        if place % size and self._totals is not None:
            return self._totals
        window = self._buffered_inputs[place - place % size :][:size]
        lengths = self.accelerator.gather(torch.cat([mask_of(inputs).sum(1) for inputs in window]))
        self._totals = StepTotals(
            n_tokens=max(1, int(lengths.sum())),
            n_responses=max(1, int((lengths > 0).sum())),
            max_length=self.max_completion_length or 1,  # only read if it is set, see `_wrong`
            micro_batch_statistics=self.micro_batch_statistics,
        )
        return self._totals

    def _log(self, parts: dict[str, float], training: bool) -> None:
        """Log metrics of the whole step after its last micro-batch; in evaluation, of each batch."""
        self._parts.append(parts)
        if training and not self.accelerator.sync_gradients:
            return
        merged = merge_metrics(gather_object(self._parts)) if training else parts
        self._parts = []
        metrics = self._metrics["train" if training else "eval"]
        for name, value in merged.items():
            metrics[f"policygrain/{name}"].append(value)
        if "entropy" in merged:
            metrics["entropy"].append(merged["entropy"])


def mask_of(inputs: dict[str, Any]) -> Tensor:
    """1 on the tokens of responses, without tool output. [batch, tokens]."""
    mask: Tensor = inputs["completion_mask"]
    return mask * inputs.get("tool_mask", 1)


def score(trainer: Any, model: Any, inputs: dict[str, Any], **options: Any) -> tuple[Any, ...]:
    """(log-probabilities, entropies, further outputs of TRL) of the responses, [batch, tokens], with gradient."""
    # Inputs of images have the names of parameters.
    passed = inspect.signature(GRPOTrainer._get_per_token_logps_and_entropies).parameters.keys() & inputs.keys()
    scored: tuple[Any, ...] = trainer._get_per_token_logps_and_entropies(
        model,
        torch.cat([inputs["prompt_ids"], inputs["completion_ids"]], dim=1),
        torch.cat([inputs["prompt_mask"], inputs["completion_mask"]], dim=1),
        inputs["completion_ids"].shape[1],
        compute_entropy=True,
        **options,
        **{key: inputs[key] for key in passed},
    )
    return scored


def fields_of(inputs: dict[str, Any], log_probs: Tensor, entropy: Tensor) -> dict[str, Any]:
    """The fields of a TokenBatch that TRL has; `old_entropies` must have been added to its inputs."""
    old, weights = inputs.get("old_per_token_logps"), inputs.get("importance_sampling_ratio")
    return {
        "log_probs": log_probs,
        # Without them the rollouts are of the current policy: TRL leaves the pass out where nothing was updated since.
        "old_log_probs": log_probs.detach() if old is None else old,
        "advantages": inputs["advantages"],
        "mask": mask_of(inputs),
        "entropy": entropy,
        "old_entropy": entropy.detach() if old is None else inputs.get("old_entropies"),
        "ref_log_probs": inputs.get("ref_per_token_logps"),
        "rollout_log_probs": inputs.get("sampling_per_token_logps"),
        "rollout_weights": None if weights is None else weights.expand_as(log_probs),  # TRL's correction for vLLM
    }


def _wrong(objective: Method, config: Any, micro_batch_statistics: bool) -> Iterator[str]:
    needs, beta, truncated = objective.needs, config.beta, objective.sampler.mask_truncated
    advantage, mode = objective.advantage.name, config.vllm_importance_sampling_mode
    accumulated, window = config.gradient_accumulation_steps, config.steps_per_generation
    for field in fields(config):
        if field.name.startswith(OF_THE_LOSS) and (value := getattr(config, field.name)) != field.default:
            yield f"{field.name}={value!r} is an option of TRL's own loss; set it in the method, and leave it out here."
    # TRL loads a reference model where `beta` is not 0; the penalty itself is the objective's.
    if beta and "reference" not in needs:
        yield f"beta={beta} would add a KL penalty that is not the objective's; add a `kl` to its penalties, or beta=0."
    penalties = (part for part in objective.penalties if isinstance(part, Kl) and part.reference == "initial")
    coefficient = next((part.coefficient for part in penalties), None)
    if coefficient not in (None, beta):
        yield f"its KL to the initial model needs beta={coefficient}, which makes TRL load that model (got {beta})."
    if "reference" in needs and not coefficient and not beta:
        yield "it needs the initial model's log-probabilities, for which TRL's beta must not be 0."
    if "reference" in needs and config.sync_ref_model:
        yield "sync_ref_model=True moves the reference model, but the method's is the initial one; set it to False."
    if config.scale_rewards not in SCALE_REWARDS.get(advantage, ()):
        known = " and ".join(f"{name} (scale_rewards={values[0]!r})" for name, values in SCALE_REWARDS.items())
        scaled = f"its advantage is {advantage!r}, and scale_rewards={config.scale_rewards!r} is none or another"
        yield f"{scaled}; TRL has {known}."
    if config.multi_objective_aggregation != "sum_then_normalize":
        yield "its advantage is of the sum of all rewards; set multi_objective_aggregation='sum_then_normalize'."
    if truncated != config.mask_truncated_completions:
        yield f"its sampler has mask_truncated: {truncated}; set mask_truncated_completions={truncated}."
    # TRL's correction for vLLM multiplies the loss; a method may correct by itself, or need it token by token.
    if config.use_vllm and config.vllm_importance_sampling_correction:
        if objective.anchor == "rollout":
            yield "anchor: rollout already corrects for the engine; set vllm_importance_sampling_correction=False."
        if isinstance(objective.clip, Vespo) and not mode.startswith("token"):
            yield f"its clip weights tokens; set vllm_importance_sampling_mode='token_mask' (got {mode!r})."
    if "step_log_probs" in needs and not micro_batch_statistics and (accumulated, config.world_size) != (1, 1):
        yield (
            "it reads statistics of the whole step, and TRL computes a micro-batch at a time: use "
            "gradient_accumulation_steps=1 on one process, or micro_batch_statistics=True."
        )
    if window % accumulated:
        yield (
            f"steps_per_generation={window} is no multiple of gradient_accumulation_steps={accumulated}, so the tokens "
            "of a step are not known at its first micro-batch."
        )
