"""Gradients of objectives on a user's rollouts, projected on random directions, from a model and token ids."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd import forward_ad
from torch.func import functional_call

from policygrain.errors import UserError
from policygrain.model.loading import load_model

from .anatomy import cosines_of
from .coefficients import Work
from .files import Rollouts

FAR = 0.05  # nats by which log-probabilities of model and file may differ on average
TEMPERATURES = (0.3, 0.5, 0.6, 0.7, 0.8, 0.9, 1.0, 1.1, 1.2, 1.5, 2.0)
MICRO_BATCH = 4096  # response tokens, padding included, in a forward pass


def gradient_cosines(
    work: Work, start: str, step: float | None, responses: int, directions: int, temperature: float, seed: int
) -> dict[str, Any]:
    """Cosines of objectives' gradients on ``responses`` of a step (None: the first), and of their coefficients there.

    For a random direction v in parameter space, one pass in forward mode computes v·∇log π_t of every token t. Then
    Σ_t c_t (v·∇log π_t) is the projection of the gradient of an objective with coefficients c, so the passes serve all
    objectives. UserError if rows have no token ids, or if the model's log-probabilities are not those of the file.
    """
    rollouts = work.rollouts
    if "ids" not in rollouts.tokens:
        raise UserError("--model: needs token ids: `prompt_ids` and `completion_ids`, or `token_ids` with a mask.")
    step = min(work.steps) if step is None else step
    if step not in work.steps:
        raise UserError(
            f"--step {step:g}: the rollouts are of steps {', '.join(f'{number:g}' for number in work.steps)}."
        )
    chosen = work.steps[step][:responses].tolist()
    model, _ = load_model(start, fused=False)
    model.set_attn_implementation("eager")  # others have no forward mode
    model.eval()
    size = max(1, MICRO_BATCH // int(rollouts.lengths[chosen].max()))
    batches = [Texts.of(rollouts, chosen[i : i + size]) for i in range(0, len(chosen), size)]
    _check(model, batches[0], temperature)
    generator = torch.Generator().manual_seed(seed)
    columns = []
    for _ in range(directions):
        direction = {name: torch.randn(p.shape, generator=generator).to(p) for name, p in model.named_parameters()}
        columns.append(torch.cat([along(model, direction, texts, temperature) for texts in batches]))
    by_row = {
        row: values[:, place, : rollouts.lengths[row]]
        for _, rows, values, _, _ in work.chunks()
        for place, row in enumerate(rows.tolist())
        if row in chosen
    }
    c = torch.cat([by_row[row] for row in chosen], 1)
    projected = c @ torch.stack(columns, 1)
    gradients, coefficients = cosines_of(projected @ projected.T), cosines_of(c @ c.T)
    apart = (gradients - coefficients).abs()[*torch.triu_indices(len(c), len(c), 1)]
    apart = torch.cat([apart[~apart.isnan()], torch.zeros(1)])
    return {
        "responses": len(chosen),
        "directions": directions,
        "cosines": gradients,
        "coefficient_cosines": coefficients,
        "difference": float(apart.median()),
        "largest": float(apart.max()),
    }


class Texts(NamedTuple):
    """Prompts and responses of some rows. All fields but ``ids`` are [response tokens of all rows]."""

    ids: Tensor  # [rows, tokens], padded on the right, which does not affect the tokens before
    row: Tensor  # of each token in ``ids``
    column: Tensor  # likewise
    log_probs: Tensor  # from the file
    mask: Tensor

    @classmethod
    def of(cls, rollouts: Rollouts, rows: list[int]) -> Texts:
        """The texts of ``rows``."""
        lengths, tokens = rollouts.lengths.tolist(), rollouts.tokens
        ends = rollouts.lengths.cumsum(0).tolist()
        spans = [torch.arange(ends[row] - lengths[row], ends[row]) for row in rows]
        prompts = [torch.tensor(rollouts.prompts[row] if rollouts.prompts else []).long() for row in rows]
        texts = [torch.cat([prompt, tokens["ids"][span]]) for prompt, span in zip(prompts, spans, strict=True)]
        column = torch.cat([len(p) + torch.arange(len(s)) for p, s in zip(prompts, spans, strict=True)])
        place = torch.cat(spans)
        return cls(
            torch.nn.utils.rnn.pad_sequence(texts, batch_first=True),
            torch.arange(len(rows)).repeat_interleave(torch.tensor([len(span) for span in spans])),
            column,
            tokens["log_probs"][place],
            tokens["mask"][place] & (column > 0),  # nothing predicts the first token of a text
        )

    def logits(self, model: Any, parameters: dict[str, Tensor]) -> Tensor:
        """The logits that predict each response token. [tokens, vocabulary]."""
        out = functional_call(model, parameters, (self.ids.to(model.device),), {"use_cache": False})
        return out.logits[self.row, (self.column - 1).clamp(min=0)]

    def score(self, logits: Tensor, temperature: float) -> Tensor:
        """log π of each token. [tokens]."""
        ids = self.ids[self.row, self.column].unsqueeze(1).to(logits.device)
        return (logits.float() / temperature).log_softmax(-1).gather(1, ids).squeeze(1)


def along(model: Any, direction: dict[str, Tensor], texts: Texts, temperature: float) -> Tensor:
    """v·∇log π of each token, for the direction v. [tokens], float64."""
    with torch.no_grad(), forward_ad.dual_level():
        dual = {name: forward_ad.make_dual(p.detach(), direction[name]) for name, p in model.named_parameters()}
        scores = texts.score(texts.logits(model, dual), temperature)
        return forward_ad.unpack_dual(scores).tangent.double().cpu() * texts.mask


@torch.no_grad()
def _check(model: Any, texts: Texts, temperature: float) -> None:
    """UserError, which names the temperature that fits best, if the model's log-probabilities are not the file's."""
    logits = texts.logits(model, dict(model.named_parameters()))
    off = {
        candidate: float((texts.score(logits, candidate).double().cpu() - texts.log_probs)[texts.mask].abs().mean())
        for candidate in (temperature, *TEMPERATURES)
    }
    least, best = min((value, candidate) for candidate, value in off.items())
    if off[temperature] > FAR:
        fits = f"They fit temperature {best:g}: --temperature {best:g}."
        none = f"Nor do they fit another temperature ({least:.2g} at {best:g}): another model or checkpoint, or top-p."
        raise UserError(
            f"--model: its log-probabilities at temperature {temperature:g} differ from log_probs of the file by "
            f"{off[temperature]:.2g} nats on average. {fits if least < FAR else none}"
        )
