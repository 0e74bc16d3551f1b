"""Sampling with the transformers model itself: for tiny models, and for machines without vLLM."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor
from transformers import PreTrainedModel

from ..model.sequences import positions
from ..model.weights import whole
from .decoder import SmallDecoder
from .engine import Request, Response
from .kv_cache import InPlaceCache

# The share of a batch's rows that must still be going for finished ones to be left where they are.
KEEP_SHARE = 0.85


class TorchEngine:
    """Left-padded batches of similar length; a finished row leaves the batch. Randomness belongs to each request."""

    name = "transformers"

    def __init__(self, model: PreTrainedModel, eos_id: int, pad_id: int, batch_size: int = 256) -> None:
        self.eos_id, self.pad_id, self.batch_size = eos_id, pad_id, batch_size
        self.load_weights(model)

    def load_weights(self, model: PreTrainedModel) -> None:
        """Sample from this very model; from a copy, where its weights are spread over ranks or apart in an adapter."""
        plain = whole(model)
        assert plain is not None
        self.model = plain

    def sleep(self) -> None:
        """It holds nothing of its own."""

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
        # A row of uniforms per request: a response does not depend on its neighbours.
        noise = np.stack([np.random.Generator(np.random.Philox(r.seed)).random(longest) for r in requests])
        uniforms = torch.from_numpy(noise).to(device)

        # Each distinct prompt is read once, then fanned out to the requests that share it.
        prompts = list(dict.fromkeys(tuple(r.prompt_ids) for r in requests))
        number = {prompt: i for i, prompt in enumerate(prompts)}
        prompt_of = torch.tensor([number[tuple(r.prompt_ids)] for r in requests], device=device)
        ids = torch.tensor([[self.pad_id] * (width - len(p)) + list(p) for p in prompts], device=device)
        seen = torch.tensor([[False] * (width - len(p)) + [True] * len(p) for p in prompts], device=device)
        place = positions(seen)
        cache = InPlaceCache(self.model.config.num_hidden_layers, width + longest)
        logits = self._forward(ids, seen, place, cache)[prompt_of]
        cache.take(prompt_of)
        attention = torch.zeros((len(requests), width + longest), dtype=torch.bool, device=device)
        attention[:, :width] = seen[prompt_of]
        place = place[prompt_of, -1]
        decode = SmallDecoder(self.model) if SmallDecoder.fits(self.model) else self._decode

        tokens = torch.full((len(requests), longest), self.pad_id, device=device)
        log_probs = torch.zeros((len(requests), longest), device=device)
        lengths = torch.zeros(len(requests), dtype=torch.long, device=device)
        finished = torch.zeros(len(requests), dtype=torch.bool, device=device)
        alive = torch.arange(len(requests), device=device)  # which request each row of the cache belongs to
        for step in range(longest):
            chosen, chosen_log_probs = _sample(logits, temperature[alive], top_p[alive], uniforms[alive, step])
            going = ~finished[alive] & (step < limit[alive])
            rows = alive[going]
            tokens[rows, step], log_probs[rows, step] = chosen[going], chosen_log_probs[going]
            lengths[rows] += 1
            finished[rows] = chosen[going] == self.eos_id
            going = ~finished[alive] & (step + 1 < limit[alive])
            count = int(going.sum())
            if count == 0:
                break
            # Finished rows ride along until there are enough of them to be worth the copy.
            if count < KEEP_SHARE * len(alive):
                keep = going.nonzero().squeeze(1)
                cache.take(keep)
                alive, chosen, place = alive[keep], chosen[keep], place[keep]
            place = place + 1
            attention[alive, width + step] = True
            logits = decode(chosen, place, attention[alive, : width + step + 1], cache)
        return [
            Response(tokens[i, :n].tolist(), bool(f), log_probs[i, :n].tolist())
            for i, (n, f) in enumerate(zip(lengths.tolist(), finished.tolist(), strict=True))
        ]

    def _decode(self, ids: Tensor, place: Tensor, attention: Tensor, cache: InPlaceCache) -> Tensor:
        """One more token for every row, [rows] → logits [rows, vocabulary]."""
        # The mask is the rows' own, and in its final shape it is not built again at each step.
        return self._forward(ids.unsqueeze(1), attention[:, None, None, :], place.unsqueeze(1), cache)

    def _forward(self, ids: Tensor, attention: Tensor, place: Tensor, cache: InPlaceCache) -> Tensor:
        """Logits of the next token [rows, vocabulary], float32; the cache grows by ``ids`` [rows, tokens]."""
        out = self.model(
            input_ids=ids,
            attention_mask=attention,
            position_ids=place,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        )
        logits: Tensor = out.logits[:, -1].float()
        return logits


def _sample(logits: Tensor, temperature: Tensor, top_p: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
    """Next tokens [batch] and their log-probabilities under the sampled distribution. Temperature 0: the likeliest."""
    greedy = (temperature == 0).squeeze(1)
    log_p = torch.log_softmax(logits / torch.where(temperature == 0, 1.0, temperature), dim=-1)
    p = log_p.double().exp()
    if bool((top_p < 1).any()):
        ranked, index = p.sort(dim=-1, descending=True)
        # The smallest set of tokens whose probability reaches top_p: those before which less than top_p is gathered.
        ranked = torch.where(ranked.cumsum(-1) - ranked < top_p, ranked, 0.0)
        p = torch.zeros_like(p).scatter(1, index, ranked)
        log_p = (p / p.sum(-1, keepdim=True)).log().float()
    # Inverse transform sampling; clamped because rounding may leave the last sum below the uniform.
    sums = p.cumsum(-1)
    drawn = (
        torch.searchsorted(sums, uniform.unsqueeze(1) * sums[:, -1:], right=True).clamp(max=p.shape[1] - 1).squeeze(1)
    )
    token = torch.where(greedy, logits.argmax(-1), drawn)
    return token, log_p.gather(1, token.unsqueeze(1)).squeeze(1)
