"""Sampling with the transformers model itself, for tiny models and for machines without vLLM.

For a model of a hundred thousand parameters the module calls of transformers, and its cache, which is concatenated for
each token, take longer than the arithmetic. `SmallDecoder` does this alone, with a cache that is written in place.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from transformers import DynamicCache, PreTrainedModel

from .device import compute_dtype
from .engine import Request, Rollout
from .loading import merged

# Finished rows are removed from the batch once less than this share of its rows is still running.
KEEP_SHARE = 0.85
SMALL = 10_000_000  # parameters; up to about this size the overhead of module calls matters


class TorchEngine:
    """Samples in left-padded batches of prompts of similar length, with a random stream per request."""

    def __init__(self, model: PreTrainedModel, eos_id: int, pad_id: int, batch_size: int = 256) -> None:
        self.eos_id, self.pad_id, self.batch_size = eos_id, pad_id, batch_size
        self.load_weights(model)

    def load_weights(self, model: PreTrainedModel) -> None:
        """Sample from ``model``; from a copy if it is sharded, has an adapter or computes in another precision."""
        full = merged(model, dtype=compute_dtype(model))
        assert full is not None
        self.model = full
        # A response ends at any of these, as in vLLM; chat models often have an end of the turn and one of the text.
        configured = getattr(full.generation_config, "eos_token_id", None)
        ends = {self.eos_id, *(configured if isinstance(configured, list) else [configured])} - {None}
        self.ends = torch.tensor(sorted(ends), device=full.device)

    def sleep(self) -> None:
        """Nothing to release."""

    def generate(self, requests: Sequence[Request]) -> list[Rollout]:
        """One response per request, in order."""
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
        prefill = decode = Decoder(self.model)
        logits = prefill(ids, position, prompt_mask)[prompt_of]
        if SmallDecoder.fits(self.model):
            decode = SmallDecoder(self.model, prefill.cache, width + longest)
        decode.select_rows(prompt_of)
        attention = torch.zeros((len(requests), width + longest), dtype=torch.bool, device=device)
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

    def __init__(self, model: Any) -> None:
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
    """The same for a small Qwen2 or Llama model, whose weights it copies: they must not change while it is used.

    It goes on from a cache of prompts, a token a time, up to ``length`` tokens in a row.
    """

    def __init__(self, model: Any, cache: DynamicCache, length: int) -> None:
        config: Any = model.config
        decoder: Any = model.base_model
        self.heads, self.kv_heads = config.num_attention_heads, config.num_key_value_heads
        self.eps, self.size = config.rms_norm_eps, decoder.layers[0].self_attn.head_dim
        self.embed, self.final = decoder.embed_tokens.weight, decoder.norm.weight
        self.unembed: Tensor = model.get_output_embeddings().weight
        positions = torch.arange(config.max_position_embeddings, device=self.embed.device).unsqueeze(0)
        cos, sin = decoder.rotary_emb(self.embed, positions)
        self.cos, self.sin = cos[0], sin[0]  # [positions, size]
        self.sin[:, : self.size // 2].neg_()  # so that a rotation only exchanges the halves of a vector
        self.layers = [self._weights(layer) for layer in decoder.layers]
        self.used, self.length = cache.get_seq_length(), length
        layers: Any = cache.layers
        self.buffers = [x for layer in layers for x in (layer.keys, layer.values)]  # of each layer, in turn

    @staticmethod
    def fits(model: PreTrainedModel) -> bool:
        """Whether ``model`` has a supported architecture and is small enough for this to be faster."""
        config: Any = model.config
        special = ("use_sliding_window", "attention_dropout", "attention_bias", "mlp_bias")  # a bias of the output, too
        if config.model_type not in ("qwen2", "llama"):  # others may lack some of the keys
            return False
        plain = config.hidden_act == "silu" and not any(getattr(config, name, False) for name in special)
        return plain and model.num_parameters() <= SMALL

    @staticmethod
    def _weights(layer: Any) -> tuple[Any, ...]:
        """Weights of a layer, with projections of the same input concatenated."""
        attention, mlp, norms = layer.self_attn, layer.mlp, (layer.input_layernorm, layer.post_attention_layernorm)
        projections = [attention.q_proj, attention.k_proj, attention.v_proj]
        qkv = torch.cat([p.weight for p in projections])
        bias = None if attention.q_proj.bias is None else torch.cat([p.bias for p in projections])
        gate_up = torch.cat([mlp.gate_proj.weight, mlp.up_proj.weight])
        return *(norm.weight for norm in norms), qkv, bias, attention.o_proj.weight, gate_up, mlp.down_proj.weight

    def select_rows(self, rows: Tensor) -> None:
        """As in `Decoder`; the buffers then have room for ``length`` tokens."""
        for i, x in enumerate(self.buffers):
            self.buffers[i] = x.new_empty((len(rows), x.shape[1], self.length, x.shape[3]))
            torch.index_select(x[:, :, : self.used], 0, rows, out=self.buffers[i][:, :, : self.used])

    def __call__(self, ids: Tensor, position: Tensor, attention: Tensor) -> Tensor:
        """As in `Decoder`."""
        x = self.embed[ids.squeeze(1)]
        cos, sin = self.cos[position], self.sin[position]
        mask = torch.where(attention, 0.0, -torch.inf).to(x.dtype)
        rotated, end = self.heads + self.kv_heads, self.used + 1
        for layer, keys, values in zip(self.layers, self.buffers[::2], self.buffers[1::2], strict=True):
            first_norm, second_norm, to_qkv, bias, to_out, gate_up, down = layer
            h = F.rms_norm(x, x.shape[-1:], first_norm, self.eps)
            qkv = F.linear(h, to_qkv, bias).unflatten(1, (-1, self.size))
            qk = qkv[:, :rotated]
            qk = torch.addcmul(qk * cos, qk.roll(self.size // 2, -1), sin)
            keys[:, :, self.used], values[:, :, self.used] = qk[:, self.heads :], qkv[:, rotated:]
            q, k, v = qk[:, : self.heads].unsqueeze(2), keys[:, :, :end], values[:, :, :end]
            out = F.scaled_dot_product_attention(q, k, v, mask, enable_gqa=self.heads != self.kv_heads)
            x = x + F.linear(out.flatten(1), to_out)
            h = F.rms_norm(x, x.shape[-1:], second_norm, self.eps)
            gate, up = F.linear(h, gate_up).chunk(2, 1)
            x = x + F.linear(F.silu(gate) * up, down)
        self.used = end
        return F.linear(F.rms_norm(x, x.shape[-1:], self.final, self.eps), self.unembed).float()
