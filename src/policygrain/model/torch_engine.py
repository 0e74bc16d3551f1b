"""Sampling without vLLM: with the model of transformers, or with a `SmallModel`, whose cache is written in place."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from .device import compute_dtype
from .engine import Request, Rollout, ends_of
from .loading import merged
from .small import LanguageModel, SmallModel

if TYPE_CHECKING:
    from transformers import PreTrainedModel

# Finished rows are removed from the batch once less than this share of its rows is still running.
KEEP_SHARE = 0.85


class TorchEngine:
    """Samples in left-padded batches of prompts of similar length, with a random stream per request."""

    def __init__(self, model: LanguageModel, eos_id: int, pad_id: int, batch_size: int = 256) -> None:
        self.eos_id, self.pad_id, self.batch_size = eos_id, pad_id, batch_size
        self.load_weights(model)

    def load_weights(self, model: LanguageModel) -> None:
        """Sample from ``model``; from a copy if it is sharded, has an adapter or computes in another precision."""
        full = merged(model, dtype=compute_dtype(model))
        assert full is not None
        if not isinstance(full, SmallModel) and SmallModel.fits(full.config):
            full = SmallModel(full.config, full.state_dict(), full.generation_config)
        self.model = full
        self.ends = torch.tensor(ends_of(full, self.eos_id), device=full.device)

    def sleep(self) -> None:
        """Nothing to release."""

    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        order = sorted(range(len(requests)), key=lambda i: (requests[i].max_tokens, len(requests[i].prompt_ids)))
        responses: dict[int, Rollout] = {}
        was_training = self.model.training
        self.model.eval()
        with torch.inference_mode():
            for start in range(0, len(order), self.batch_size):
                chunk = order[start : start + self.batch_size]
                responses.update(zip(chunk, self._batch([requests[i] for i in chunk]), strict=True))
        self.model.train(was_training)
        return [responses[i] for i in range(len(requests))]

    def _batch(self, requests: list[Request]) -> list[Rollout]:
        device, width = self.model.device, max(len(r.prompt_ids) for r in requests)
        longest = max(r.max_tokens for r in requests)
        sample = Sampling(requests, longest, device)
        limit = torch.tensor([r.max_tokens for r in requests], device=device)

        # Each distinct prompt is prefilled once; its cache rows are then repeated for the requests that share it.
        prompts = list(dict.fromkeys(tuple(r.prompt_ids) for r in requests))
        number = {prompt: i for i, prompt in enumerate(prompts)}
        prompt_of = torch.tensor([number[tuple(r.prompt_ids)] for r in requests], device=device)
        ids = torch.tensor([[self.pad_id] * (width - len(p)) + list(p) for p in prompts], device=device)
        prompt_mask = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts], device=device)
        position = (prompt_mask.long().cumsum(1) - 1).clamp(min=0)  # counted from the first token
        model, length = self.model, width + longest
        decode = SmallDecoder(model, length) if isinstance(model, SmallModel) else Decoder(model)
        logits = decode(ids, position, prompt_mask)[prompt_of]
        decode.select_rows(prompt_of)
        attention = torch.zeros((len(requests), length), dtype=torch.bool, device=device)
        attention[:, :width] = prompt_mask[prompt_of]
        position = position[prompt_of, -1]

        tokens = torch.full((len(requests), longest), self.pad_id, device=device)
        log_probs = torch.zeros((len(requests), longest), device=device)
        active = torch.arange(len(requests), device=device)  # index of the request of each row in the cache
        going = limit > 0  # rows whose response is not over
        for step in range(longest):
            chosen, chosen_log_probs = sample(logits, active, step)
            tokens[active, step], log_probs[active, step] = chosen, chosen_log_probs  # cut off at the end
            going = going & ~torch.isin(chosen, self.ends) & (step + 1 < limit[active])
            count = int(going.sum())
            if count == 0:
                break
            # Finished rows stay in the batch until there are enough of them to be worth copying the cache.
            if count < KEEP_SHARE * len(active):
                keep = going.nonzero().squeeze(1)
                decode.select_rows(keep)
                active, chosen, position, attention, going = (
                    rows[keep] for rows in (active, chosen, position, attention, going)
                )
            position = position + 1
            attention[:, width + step] = True
            # In this shape transformers uses the mask as it is instead of building one in each step.
            mask = attention[:, None, None, : width + step + 1]
            logits = decode(chosen.unsqueeze(1), position.unsqueeze(1), mask)
        is_end = torch.isin(tokens, self.ends)
        ends = torch.where(is_end.any(1), is_end.int().argmax(1), longest)
        lengths, finished = (ends + 1).minimum(limit).tolist(), (ends < limit).tolist()
        return [
            Rollout(request.prompt_ids, tokens[i, :n].tolist(), finished[i], log_probs[i, :n].tolist())
            for i, (request, n) in enumerate(zip(requests, lengths, strict=True))
        ]


class Sampling:
    """Draws the next token of each row by the temperature, nucleus and uniform numbers of its request."""

    def __init__(self, requests: Sequence[Request], longest: int, device: torch.device) -> None:
        temperature = torch.tensor([r.temperature for r in requests], device=device).unsqueeze(1)
        self.greedy = temperature.squeeze(1) == 0
        self.temperature = torch.where(temperature == 0, 1.0, temperature)
        self.top_p = torch.tensor([r.top_p for r in requests], device=device).unsqueeze(1)
        # A stream of uniform numbers per request, so that a response does not depend on the rest of the batch.
        noise = np.stack([np.random.Generator(np.random.Philox(r.seed)).random(longest) for r in requests])
        self.uniforms = torch.from_numpy(noise).to(device)
        self.any_greedy, self.any_nucleus = bool(self.greedy.any()), bool((self.top_p < 1).any())

    def __call__(self, logits: Tensor, active: Tensor, step: int) -> tuple[Tensor, Tensor]:
        """Tokens [rows] and their log-probabilities under the distribution that is sampled.

        ``logits`` [rows, vocabulary]; ``active`` [rows]: the request of each row. Temperature 0: greedy.
        """
        log_p = torch.log_softmax(logits / self.temperature[active], dim=-1)
        p = log_p.double().exp_()
        if self.any_nucleus:
            ranked, index = p.sort(dim=-1, descending=True)
            # Nucleus: the smallest set of most probable tokens whose total probability reaches top_p.
            ranked = torch.where(ranked.cumsum(-1) - ranked < self.top_p[active], ranked, 0.0)
            p = torch.zeros_like(p).scatter(1, index, ranked)
            log_p = (p / p.sum(-1, keepdim=True)).log().float()
        # Inverse transform sampling; clamped because rounding may leave the last sum below the uniform number.
        sums = p.cumsum(-1)
        uniform = (self.uniforms[active, step] * sums[:, -1]).unsqueeze(1)
        token = torch.searchsorted(sums, uniform, right=True).clamp_(max=p.shape[1] - 1)
        if self.any_greedy:
            token = torch.where(self.greedy[active].unsqueeze(1), logits.argmax(-1, keepdim=True), token)
        return token.squeeze(1), log_p.gather(1, token).squeeze(1)


class Decoder:
    """Next-token logits of any model, with a cache of keys and values."""

    def __init__(self, model: PreTrainedModel) -> None:
        from transformers import DynamicCache

        self.model, self.cache = model, DynamicCache()

    def select_rows(self, rows: Tensor) -> None:
        """Go on with the rows of these indices, in this order."""
        self.cache.batch_select_indices(rows)

    def __call__(self, ids: Tensor, position: Tensor, attention: Tensor) -> Tensor:
        """Next-token logits [rows, vocabulary], float32, after tokens ``ids`` [rows, tokens] at ``position``.

        ``attention`` is the mask over the cache, to which the tokens are appended.
        """
        out = self.model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=position,
            past_key_values=self.cache,
            use_cache=True,
            logits_to_keep=1,
        )
        return out.logits[:, -1].float()


class SmallDecoder(Decoder):
    """The same for a small model, whose weights it copies: they must not change while it is used.

    It starts with prompts and goes on a token a time, up to ``length`` tokens in a row. Its cache is written in place.
    """

    def __init__(self, model: SmallModel, length: int) -> None:
        self.small, self.layers, self.used, self.length = model, model.layers(), 0, length
        self.buffers: list[list[Tensor]] = []  # of each layer, keys and values: [rows, heads, tokens, size]

    def select_rows(self, rows: Tensor) -> None:
        """As in `Decoder`; the buffers then have room for ``length`` tokens."""
        for layer in self.buffers:
            for i, x in enumerate(layer):
                layer[i] = x.new_empty((len(rows), x.shape[1], self.length, x.shape[3]))
                torch.index_select(x[:, :, : self.used], 0, rows, out=layer[i][:, :, : self.used])

    def __call__(self, ids: Tensor, position: Tensor, attention: Tensor) -> Tensor:
        (rows, tokens), model, end = ids.shape, self.small, self.used + ids.shape[1]
        if not self.used:  # padding attends to itself, because values of an empty sum would be NaN
            causal = torch.ones((tokens, tokens), dtype=torch.bool, device=ids.device).tril()
            attention = (attention[:, None, None] & causal) | causal.diag().diag()
        mask = torch.where(attention, 0.0, -torch.inf).to(model.dtype)

        def attend(number: int, *qkv: Tensor) -> Tensor:
            q, k, v = (x.view(rows, tokens, -1, model.size).transpose(1, 2) for x in qkv)
            if self.used:
                keys, values = self.buffers[number]
                keys[:, :, self.used : end], values[:, :, self.used : end] = k, v
                k, v = keys[:, :, :end], values[:, :, :end]
            else:
                self.buffers.append([k, v])
            out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=model.heads != model.kv_heads)
            return out.transpose(1, 2)

        states = model(ids.flatten(), position.flatten(), attend, self.layers)
        self.used = end
        return F.linear(states.view(rows, tokens, -1)[:, -1], model.unembedding).float()
