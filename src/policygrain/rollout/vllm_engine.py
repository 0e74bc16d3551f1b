"""vLLM in this process: one engine, continuous batching, weights exchanged in place."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, cast

from ..model.weights import full_weights
from .engine import Request, Response

if TYPE_CHECKING:
    from transformers import PreTrainedModel

KV_GIB = 1
MAX_SEQUENCES = 512


class VllmEngine:
    """The model in ``start``; its context length bounds prompt and response together."""

    name = "vllm"

    def __init__(self, start: str) -> None:
        # In-process, so that weights can be handed over; two OpenMP threads stall each other on a busy machine.
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        os.environ.setdefault("VLLM_CPU_KVCACHE_SPACE", str(KV_GIB))
        os.environ.setdefault("OMP_NUM_THREADS", "1")
        os.environ.setdefault("VLLM_NO_USAGE_STATS", "1")
        from transformers import AutoConfig
        from vllm import LLM

        config: Any = AutoConfig.from_pretrained(start)
        self._llm = LLM(
            model=start,
            # Left to itself, vLLM would make bfloat16 of float32 weights.
            dtype=cast(Any, str(config.dtype or "float32").removeprefix("torch.")),
            enforce_eager=True,
            max_num_seqs=MAX_SEQUENCES,
            # Prompts are read whole: a request with a seed whose prompt is cut into chunks fails on a CPU.
            enable_chunked_prefill=False,
            max_num_batched_tokens=max(8192, config.max_position_embeddings),
            logprobs_mode="processed_logprobs",
            # Token ids in, token ids out: the tokenizer, and what vLLM makes of its files, stays outside.
            skip_tokenizer_init=True,
            seed=0,
        )

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response per request, in order."""
        from vllm import SamplingParams

        params = [
            SamplingParams(
                seed=r.seed % 2**31,
                max_tokens=r.max_tokens,
                temperature=r.temperature,
                top_p=r.top_p,
                logprobs=0 if r.log_probs else None,
                detokenize=False,
            )
            for r in requests
        ]
        prompts = [{"prompt_token_ids": r.prompt_ids} for r in requests]
        outputs = self._llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())  # type: ignore[arg-type]
        responses = []
        for output in outputs:
            best = output.outputs[0]
            ids = list(best.token_ids)
            found = zip(best.logprobs, ids, strict=True) if best.logprobs else ()
            log_probs = [chosen[token].logprob for chosen, token in found if chosen]
            responses.append(Response(ids, best.finish_reason == "stop", log_probs))
        return responses

    def load_weights(self, model: PreTrainedModel) -> None:
        """Copy these weights into the engine and drop what it cached under the old ones."""
        # Under all names: with tied embeddings the parameters alone would leave the output head as it was.
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": full_weights(model)})
        if self._llm.reset_prefix_cache() is False:
            raise RuntimeError("vLLM did not reset its prefix cache: responses would come from old weights")
