"""The engine that samples: vLLM in this process, with weights updated in place, or transformers."""

from __future__ import annotations

import gc
import importlib.util
import os
import re
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from importlib.metadata import distributions, version
from typing import Any, cast

import torch
import torch.distributed as dist

from ..errors import UserError
from .device import compute_name, fits_beside_updates
from .engine import Engine, Request, Rollout, ends_of
from .loading import full_weights
from .small import LanguageModel, head_size

MAX_SEQUENCES = 512
GIB = 2**30
MEMORY = re.compile(r"free memory|cache blocks|KV cache is needed|not enough .*memory", re.I)  # in vLLM's errors
_running: list[tuple[Any, VllmEngine]] = []  # at most one: the settings of this process's vLLM engine, and the engine


def resolve_engine(name: str) -> str:
    """The engine that ``name`` stands for: `auto` is vLLM if it is installed. UserError if it is not and is named."""
    # This depends on the environment, not on the machine: jobs with and without a GPU choose the same engine.
    has_vllm = importlib.util.find_spec("vllm") is not None
    if name == "vllm" and not has_vllm:
        raise UserError("engine: vllm is not installed here; run `make setup`, or set the engine to transformers.")
    return ("vllm" if has_vllm else "transformers") if name == "auto" else name


def open_engine(
    name: str,
    start: str,
    model: LanguageModel,
    tokenizer: Any,
    *,
    revision: str | None = None,
    kv_gib: float | None = None,
    colocated: bool = False,
    tokens: int | None = None,
) -> Engine:
    """The engine ``name`` with the weights of ``model``, loaded from ``start``; the keywords are of `VllmEngine`."""
    if resolve_engine(name) == "transformers":
        from .torch_engine import TorchEngine

        return TorchEngine(model, tokenizer.eos_token_id, tokenizer.pad_token_id)
    check_vllm_runs_here()
    dtype = compute_name(model) if colocated else None
    settings: dict[str, Any] = {"revision": revision, "dtype": dtype, "kv_gib": kv_gib, "tokens": tokens}
    settings["colocated"] = colocated
    # A start takes long, so the engine takes the weights of other models of the same shape. Keys with an underscore say
    # where a model was loaded from.
    shape = {key: value for key, value in model.config.to_dict().items() if not key.startswith("_")}
    for opened_for, engine in _running:
        if opened_for == (shape, settings):
            engine.load_weights(model)
            engine.ends = ends_of(model, tokenizer.eos_token_id)
            return engine
    if _running and colocated and torch.cuda.is_available():
        raise UserError("engine: a process can have one vLLM engine with sleep mode, and this one has another already.")
    _running.clear()
    _running.append(((shape, settings), VllmEngine(start, ends_of(model, tokenizer.eos_token_id), **settings)))
    return _running[0][1]


def check_vllm_runs_here() -> None:
    """UserError if the CUDA build of vLLM is installed and no GPU is visible. The CPU build is another package."""
    names = {distribution.name for distribution in distributions() if distribution.name.startswith("vllm")}
    if names == {"vllm"} and "cpu" not in version("vllm") and not torch.cuda.is_available():
        raise UserError(
            "engine: the installed vLLM is the CUDA build, and no GPU is visible here. Request a GPU (on a cluster "
            "`gpu: 1` in slurm/config.yaml), set the engine to transformers, or run `make setup FLAVOUR=cpu`."
        )


class VllmEngine:
    """vLLM with the model in ``start``, in the precision ``dtype`` or its own; ``ends`` are tokens that end a response.

    ``tokens``: of all prompts and responses that are sampled at once; a cache of another size is set by ``kv_gib``.
    ``colocated``: it shares the GPU with a trainer and can sleep.
    """

    def __init__(
        self,
        start: str,
        ends: Sequence[int] = (),
        revision: str | None = None,
        dtype: str | None = None,
        kv_gib: float | None = None,
        colocated: bool = False,
        tokens: int | None = None,
    ) -> None:
        # In-process, so that weights can be passed as tensors; with two OpenMP threads each waits for the other on a
        # busy machine.
        for name in ("HF_HUB_OFFLINE", "OMP_NUM_THREADS", "VLLM_NO_USAGE_STATS"):
            os.environ.setdefault(name, "1")
        os.environ.setdefault("VLLM_ENABLE_V1_MULTIPROCESSING", "0")
        os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
        import vllm
        from transformers import AutoConfig

        self.ends, distributed = ends, dist.is_initialized()
        config: Any = AutoConfig.from_pretrained(start, revision=revision)
        # By default vLLM would cast float32 weights to bfloat16.
        dtype = dtype or str(config.dtype or "float32").removeprefix("torch.")
        text = config.get_text_config()
        context, heads = text.max_position_embeddings, getattr(text, "num_key_value_heads", text.num_attention_heads)
        of_token = 2 * text.num_hidden_layers * heads * head_size(text) * getattr(torch, dtype).itemsize  # keys, values
        needed = None if tokens is None else max(tokens, context) * of_token
        machine = machine_settings(context, kv_gib, colocated, needed)
        self._sleeps = bool(machine.get("enable_sleep_mode"))
        self._asleep = self._fits = False
        self._released = 0  # bytes that the engine gave back when it slept
        self._kv_bytes = machine["kv_cache_memory_bytes"]
        try:
            self._llm = vllm.LLM(
                model=start,
                revision=revision,
                dtype=dtype,  # type: ignore[arg-type]
                max_num_seqs=MAX_SEQUENCES,
                logprobs_mode="processed_logprobs",
                # Token ids in, token ids out: the tokenizer is ours, not the one that vLLM would load.
                skip_tokenizer_init=True,
                max_model_len=-1,  # the model's context, or the longest sequence that the cache has room for
                seed=0,
                **machine,
            )
        except (AttributeError, TypeError, ValueError, RuntimeError) as error:  # the first two: of another version
            first = str(error).partition("\n")[0]
            if not MEMORY.search(str(error)):
                raise UserError(
                    f"vLLM {vllm.__version__} does not start with {start} ({first}); its messages are above. `make "
                    "setup` installs a version that is tested. The engine transformers may start: `evaluation.engine`, "
                    "`training.engine`, --engine of evaluate-model."
                ) from error
            raise UserError(
                f"vLLM with a KV cache of {self._kv_bytes / GIB:.2g} GiB (training.kv_gib) does not fit into the "
                f"free memory, or the cache has no room for a sequence ({first})."
            ) from error
        self._longest = int(self._llm.llm_engine.model_config.max_model_len)
        gc.unfreeze()  # vLLM calls gc.freeze(), which would also exempt the trainer's objects from collection
        if distributed:
            # The engine's finalizer would destroy the process groups of the trainer's ranks.
            cast(Any, self._llm.llm_engine.engine_core)._finalizer.detach()

    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        """One response per request, in order; UserError if one may become longer than the KV cache has room for."""
        from vllm import SamplingParams

        longest = max((len(r.prompt_ids) + r.max_tokens for r in requests), default=0)
        if longest > self._longest:
            raise UserError(
                f"a sequence of {longest} tokens is longer than vLLM can sample with this model and a KV cache of "
                f"{self._kv_bytes / GIB:.2g} GiB: {self._longest} tokens. Set a smaller max_tokens, or for training a "
                "larger training.kv_gib."
            )
        params = [
            SamplingParams(
                seed=r.seed % 2**31,
                max_tokens=r.max_tokens,
                temperature=r.temperature,
                top_p=r.top_p,
                logprobs=0 if r.log_probs else None,
                detokenize=False,
                stop_token_ids=list(self.ends),
            )
            for r in requests
        ]
        prompts = [{"prompt_token_ids": r.prompt_ids} for r in requests]
        with frozen_heap():
            outputs = self._llm.generate(prompts, params, use_tqdm=sys.stderr.isatty())  # type: ignore[arg-type]
        responses = []
        for request, output in zip(requests, outputs, strict=True):
            best = output.outputs[0]
            ids = list(best.token_ids)
            candidates = zip(best.logprobs, ids, strict=True) if best.logprobs else ()
            log_probs = [chosen[token].logprob for chosen, token in candidates if chosen]
            responses.append(Rollout(request.prompt_ids, ids, best.finish_reason == "stop", log_probs))
        return responses

    def load_weights(self, model: LanguageModel) -> None:
        """Wake the engine if it sleeps, copy the weights of ``model`` into it and reset its prefix cache."""
        if self._asleep:
            self._fits = fits_beside_updates(self._released)
            if not self._fits:
                torch.cuda.empty_cache()
            self._llm.wake_up(tags=["weights"])
        # Each tensor is copied into the engine's own layout (fused, split, cast).
        self._llm.collective_rpc("reload_weights", kwargs={"weights_iterator": full_weights(model)})
        if self._asleep:
            # Only now, because loading may need the memory of the cache for a temporary copy of the weights.
            self._llm.wake_up(tags=["kv_cache"])
            self._asleep = False
        if self._llm.reset_prefix_cache() is False:
            raise RuntimeError("vLLM did not reset its prefix cache: responses would come from old weights")

    def sleep(self) -> None:
        """Release the engine's GPU memory, unless there is room for it beside the trainer's."""
        if self._sleeps and not self._asleep and not (self._fits and fits_beside_updates(0)):
            before = torch.cuda.mem_get_info()[0]
            with frozen_heap():
                self._llm.sleep(level=2)  # weights are discarded: `load_weights` loads new ones
            self._released = torch.cuda.mem_get_info()[0] - before
            self._asleep = True


@contextmanager
def frozen_heap() -> Iterator[None]:
    """Context in which collections skip all objects that exist now: vLLM starts some, and each would take 0.4 s."""
    gc.freeze()
    try:
        yield
    finally:
        gc.unfreeze()


def machine_settings(context: int, kv_gib: float | None, colocated: bool, needed: int | None = None) -> dict[str, Any]:
    """vLLM settings that depend on the machine: all differences between an engine on a CPU and on a GPU."""
    if not torch.cuda.is_available():
        return {
            "kv_cache_memory_bytes": int((kv_gib or 1) * GIB),
            "enforce_eager": True,  # compiling takes 15 s
            # On a CPU a request with a seed fails if its prompt is prefilled in chunks.
            "enable_chunked_prefill": False,
            "max_num_batched_tokens": max(8192, context),
        }
    free, total = torch.cuda.mem_get_info()
    most = free // 2  # the other half is for the engine's weights and activations, and for the trainer's updates
    return {
        "kv_cache_memory_bytes": int(kv_gib * GIB) if kv_gib else min(needed or most, most),
        # The line above replaces this, but vLLM checks at its start that this share is free.
        "gpu_memory_utilization": 0.9 * free / total,
        "enable_sleep_mode": colocated,
        "device_ids": [torch.cuda.current_device()],  # the trainer's, where several ranks have one each
    }
