"""verl: the prompts, sampling seeds and minibatches of a study's own loop (docs/your-trainer.md).

verl loads both classes by its configuration. They read what an export writes into `extra_info`: the ids of each prompt,
a sampling seed for each of its responses, and its place in the run.
"""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import transfer_queue
from verl.experimental.agent_loop.agent_loop import AgentLoopBase, AgentLoopOutput
from verl.trainer.ppo.v1.replay_buffer import ReplayBuffer
from verl.utils.profiler import simple_timer


class SeededAgentLoop(AgentLoopBase):
    """One response to a prompt, sampled with the seed that the export gives to it."""

    def __init__(self, *arguments: Any, hf_model_type: str | None = None, **named: Any) -> None:
        super().__init__(*arguments, hf_model_type=None, **named)  # no chat tokens, because prompts are token ids

    async def run(self, sampling_params: dict[str, Any], **row: Any) -> AgentLoopOutput:
        """Sample the response number ``row["session_id"]`` of a prompt."""
        info, metrics = row["extra_info"], {"num_preempted": -1}
        prompt_ids = [int(i) for i in info["prompt_ids"]]
        # SGLang reads `sampling_seed`, and only with deterministic inference.
        seed = "sampling_seed" if self.rollout_config.name == "sglang" else "seed"
        with simple_timer("generate_sequences", metrics):
            output = await self.server_manager.generate(
                request_id=uuid4().hex,
                prompt_ids=prompt_ids,
                sampling_params={**sampling_params, seed: int(info["seeds"][row["session_id"]])},
            )
        ids = output.token_ids[: self.rollout_config.response_length]
        return AgentLoopOutput(
            prompt_ids=prompt_ids,
            response_ids=ids,
            response_mask=[1] * len(ids),
            response_logprobs=output.log_probs[: len(ids)] if output.log_probs else None,
            num_turns=2,
            metrics=metrics,
            extra_fields={**output.extra_fields, "turn_scores": [], "tool_rewards": []},
        )


class OrderedReplayBuffer(ReplayBuffer):
    """Batches in the order of the training file; verl's own are in the order in which responses end."""

    def _materialize_batch(self, partition_id: str, selected_prompt_uids: list[str], partition_snapshot: Any) -> Any:
        batch = super()._materialize_batch(partition_id, selected_prompt_uids, partition_snapshot)
        rows = transfer_queue.kv_batch_get(keys=batch.keys, partition_id=partition_id, select_fields=["index"])
        places = [(int(index), int(key.split("_")[1])) for index, key in zip(rows["index"], batch.keys, strict=True)]
        batch.reorder(sorted(range(len(places)), key=places.__getitem__))
        return batch
