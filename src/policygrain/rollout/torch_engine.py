"""Sampling with the transformers model itself, for tiny models and for machines without vLLM."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..model.precision import compute_dtype
from ..model.sequences import position_ids
from ..model.weights import merged
from .decoder import SmallDecoder
from .engine import Request, Response
from .kv_cache import InPlaceCache

# Finished rows are removed from the batch once less than this share of its rows is still running.
KEEP_SHARE = 0.85


class TorchEngine:
    """Samples in left-padded batches of prompts of similar length, with a random stream per request."""

    name = "transformers"

    def __init__(self, model: PreTrainedModel, eos_id: int, pad_id: int, batch_size: int = 256) -> None:
        self.eos_id, self.pad_id, self.batch_size = eos_id, pad_id, batch_size
        self.load_weights(model)

    def load_weights(self, model: PreTrainedModel) -> None:
        """Sample from ``model``; from a copy if it is sharded, has an adapter or computes in another precision."""
        full = merged(model, dtype=compute_dtype(model))
        assert full is not None
        self.model = full

    def sleep(self) -> None:
        """Nothing to release."""

    def generate(self, requests: Sequence[Request]) -> list[Response]:
        """One response per request, in order."""
        order = sorted(range(len(requests)), key=lambda i: (requests[i].max_tokens, len(requests[i].prompt_ids)))
        responses: dict[int, Response] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            for start in range(0, len(order), self.batch_size):
                chunk = order[start : start + self.batch_size]
                responses.update(zip(chunk, self._batch([requests[i] for i in chunk]), strict=True))
        self.model.train(was_training)
        return [responses[i] for i in range(len(requests))]

    def _batch(self, requests: list[Request]) -> list[Response]:
        device = self.model.device
        width = max(len(r.prompt_ids) for r in requests)
        longest = max(r.max_tokens for r in requests)
        temperature = torch.tensor([r.temperature for r in requests], device=device).unsqueeze(1)
        top_p = torch.tensor([r.top_p for r in requests], device=device).unsqueeze(1)
        limit = torch.tensor([r.max_tokens for r in requests], device=device)
        # A stream of uniform numbers per request, so that a response does not depend on the rest of the batch.
        noise = np.stack([np.random.Generator(np.random.Philox(r.seed)).random(longest) for r in requests])
        uniforms = torch.from_numpy(noise).to(device)

        # Each distinct prompt is prefilled once; its cache rows are then repeated for the requests that share it.
        prompts = list(dict.fromkeys(tuple(r.prompt_ids) for r in requests))
        number = {prompt: i for i, prompt in enumerate(prompts)}
        prompt_of = torch.tensor([number[tuple(r.prompt_ids)] for r in requests], device=device)
        ids = torch.tensor([[self.pad_id] * (width - len(p)) + list(p) for p in prompts], device=device)
        prompt_mask = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts], device=device)
        position = position_ids(prompt_mask)
        cache = InPlaceCache(self.model.config.num_hidden_layers, width + longest)
        logits = self._forward(ids, prompt_mask, position, cache)[prompt_of]
        cache.select_rows(prompt_of)
        attention = torch.zeros((len(requests), width + longest), dtype=torch.bool, device=device)
        attention[:, :width] = prompt_mask[prompt_of]
        position = position[prompt_of, -1]
        decode = SmallDecoder(self.model) if SmallDecoder.fits(self.model) else self._decode

        tokens = torch.full((len(requests), longest), self.pad_id, device=device)
        log_probs = torch.zeros((len(requests), longest), device=device)
        lengths = torch.zeros(len(requests), dtype=torch.long, device=device)
        finished = torch.zeros(len(requests), dtype=torch.bool, device=device)
        active = torch.arange(len(requests), device=device)  # index of the request of each row in the cache
        calls = ToolCalls(requests)
        for step in range(longest):
            chosen, chosen_log_probs = _sample(logits, temperature[active], top_p[active], uniforms[active, step])
            going = ~finished[active] & (step < limit[active])
            calls.write(active, going, chosen, chosen_log_probs)
            rows = active[going]
            tokens[rows, step], log_probs[rows, step] = chosen[going], chosen_log_probs[going]
            lengths[rows] += 1
            finished[rows] = chosen[going] == self.eos_id
            going = ~finished[active] & (step + 1 < limit[active])
            count = int(going.sum())
            if count == 0:
                break
            # Finished rows stay in the batch until there are enough of them to be worth copying the cache.
            if count < KEEP_SHARE * len(active):
                keep = going.nonzero().squeeze(1)
                cache.select_rows(keep)
                active, chosen, position = active[keep], chosen[keep], position[keep]
            position = position + 1
            attention[active, width + step] = True
            logits = decode(chosen, position, attention[active, : width + step + 1], cache)
        return [
            Response(tokens[i, :n].tolist(), bool(f), log_probs[i, :n].tolist(), calls.masks.get(i))
            for i, (n, f) in enumerate(zip(lengths.tolist(), finished.tolist(), strict=True))
        ]

    def _decode(self, ids: Tensor, position: Tensor, attention: Tensor, cache: InPlaceCache) -> Tensor:
        """Next-token logits [rows, vocabulary] after tokens ``ids`` [rows]; same arguments as `SmallDecoder`."""
        # In this shape transformers uses the mask as it is instead of building one in each step.
        return self._forward(ids.unsqueeze(1), attention[:, None, None, :], position.unsqueeze(1), cache)

    def _forward(self, ids: Tensor, attention: Tensor, position: Tensor, cache: InPlaceCache) -> Tensor:
        """Next-token logits [rows, vocabulary], float32; ``ids`` [rows, tokens] are appended to the cache."""
        out = self.model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=position,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[:, -1].float()
        return logits


class ToolCalls:
    """The tokens that tools still have to write, and which tokens of each response are the policy's."""

    def __init__(self, requests: Sequence[Request]) -> None:
        self.tools = {i: request.tool for i, request in enumerate(requests) if request.tool is not None}
        self.ids: dict[int, list[int]] = {i: [] for i in self.tools}
        self.masks: dict[int, list[bool]] = {i: [] for i in self.tools}
        self._waiting: dict[int, deque[int]] = {i: deque() for i in self.tools}

    def write(self, active: Tensor, going: Tensor, chosen: Tensor, log_probs: Tensor) -> None:
        """Replace sampled tokens in ``chosen`` by those that tools write here. All are [rows].

        ``active``: the request of each row; ``going``: whether its response has a token here.
        """
        if not self.tools:
            return
        for row, (i, is_going, token) in enumerate(zip(active.tolist(), going.tolist(), chosen.tolist(), strict=True)):
            if not is_going or i not in self.tools:
                continue
            waiting, ids = self._waiting[i], self.ids[i]
            self.masks[i].append(not waiting)
            if waiting:
                ids.append(waiting.popleft())
                chosen[row], log_probs[row] = ids[-1], 0.0
            else:
                ids.append(token)
                waiting.extend(self.tools[i].output(ids))


def _sample(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Next tokens [batch] and their log-probabilities under the sampled distribution. Temperature 0: greedy."""
    greedy = (temperature == 0).squeeze(1)
    log_p = torch.log_softmax(logits / torch.where(temperature == 0, 1.0, temperature), dim=-1)
    p = log_p.double().exp()
    if bool((top_p < 1).any()):
        ranked, index = p.sort(dim=-1, descending=True)
        # Nucleus: the smallest set of most probable tokens whose total probability reaches top_p.
        ranked = torch.where(ranked.cumsum(-1) - ranked < top_p, ranked, 0.0)
        p = torch.zeros_like(p).scatter(1, index, ranked)
        log_p = (p / p.sum(-1, keepdim=True)).log().float()
    # Inverse transform sampling; clamped because rounding may leave the last sum below the uniform number.
    sums = p.cumsum(-1)
    sampled = (
        torch.searchsorted(sums, uniform.unsqueeze(1) * sums[:, -1:], right=True).clamp(max=p.shape[1] - 1).squeeze(1)
    )
    token = torch.where(greedy, logits.argmax(-1), sampled)
    return token, log_p.gather(1, token.unsqueeze(1)).squeeze(1)
