"""A step does not depend on padding, nor on its division into micro-batches or their widths."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from policygrain import Method, TokenBatch
from policygrain.model import tiny
from policygrain.model.logprobs import score_tokens
from policygrain.model.sequences import micro_batches, pack
from policygrain.objective.loss import merge_metrics
from policygrain.study.schema import TinyModel, Training
from policygrain.train.policy import Policy, build_heads, make_scaler
from policygrain.train.update import TrainingBatch, update

from ..support.batches import METHODS, WITH_GRADIENT, Result, assert_same, evaluate, few, fields

# The detached tokens of Clip-Cov are drawn at random in each micro-batch.
STEPS = {name: chosen for name, chosen in METHODS.items() if name != "clip_cov"}
every_method = pytest.mark.parametrize("name", METHODS)
fewer = settings(few, max_examples=10)


@every_method
@fewer
@given(data=fields(min_live=1, correction=True), choice=st.data())
def test_rows_and_columns_without_tokens_do_not_matter(name: str, data: dict, choice: st.DataObject) -> None:
    rows, width = data["mask"].shape
    more_rows, before, after = (choice.draw(st.integers(0, 3)) for _ in range(3))
    row = torch.tensor(choice.draw(st.permutations(range(rows + more_rows)))[:rows])

    def place(x: Tensor, filling: float) -> Tensor:
        shape = (rows + more_rows, *((before + width + after,) if x.ndim == 2 else ()))
        placed = torch.full(shape, filling, dtype=x.dtype)
        placed[(row, slice(before, before + width)) if x.ndim == 2 else row] = x
        return placed

    # What stands where there is no token is not even a number.
    larger = {
        key: place(x, torch.nan if x.is_floating_point() else -7 * (x.dtype != torch.bool))
        if isinstance(x, Tensor)
        else x
        for key, x in data.items()
    }
    one, other = evaluate(METHODS[name], data), evaluate(METHODS[name], larger)
    placed = {key: place(x, 0) for key, x in one._asdict().items() if key.endswith("gradient")}
    assert_same(one._replace(**placed), other)
    assert other.metrics == pytest.approx(one.metrics, abs=1e-10)


@every_method
@fewer
@given(data=fields(min_live=2, correction=True), choice=st.data())
def test_batches_may_have_widths_of_their_own(name: str, data: dict, choice: st.DataObject) -> None:
    """Each part of a step is cut to its longest response; its columns are those of no other part."""
    whole = evaluate(METHODS[name], data)
    inputs = {key: data[key].clone().requires_grad_() for key in WITH_GRADIENT}
    step = TokenBatch(**{**data, **inputs})
    order = choice.draw(st.permutations(range(len(data["mask"]))))
    cut = choice.draw(st.integers(1, len(order) - 1))
    parts = []
    for rows in (torch.tensor(order[:cut]), torch.tensor(order[cut:])):
        parts.append(METHODS[name].loss(step.rows(rows, width=max(1, int(step.lengths[rows].max())))))
    loss = parts[0].loss + parts[1].loss
    gradients = torch.autograd.grad(loss, [*inputs.values()], allow_unused=True, materialize_grads=True)
    assert_same(whole, Result(loss.detach(), *gradients, merge_metrics([p.metrics for p in parts])))


# ---- two processes --------------------------------------------------------------------------------------------------

LENGTHS = [5, 9, 3, 7, 1, 6]
SPEC = TinyModel(hidden=16, intermediate=16, layers=1, heads=1, context=32)
SETTINGS = Training(max_grad_norm=1e9)


def made_up_step() -> tuple[torch.nn.Module, TrainingBatch]:
    """A small model, six responses to prompts of unequal length, and all of the step that is constant."""
    tokenizer = tiny.character_tokenizer()
    model = tiny.build(SPEC, tokenizer, seed=0).double()
    generator = torch.Generator().manual_seed(0)

    def tokens(count: int) -> list[int]:
        return torch.randint(3, len(tokenizer), (count,), generator=generator).tolist()

    prompts, responses = [tokens(2 + n % 4) for n in LENGTHS], [tokens(n) for n in LENGTHS]
    sequences = pack(prompts, responses, tokenizer.pad_token_id, torch.device("cpu"))
    with torch.no_grad():
        now, entropy = (x.double() for x in score_tokens(model, sequences, 1.0)[:2])

    def near(x: Tensor, spread: float) -> Tensor:
        return x + spread * torch.randn(x.shape, generator=generator, dtype=torch.float64)

    mask = sequences.mask.clone()
    mask[3] = False  # a truncated response that is left out of the loss: ranks have unequal numbers of responses
    step = TokenBatch(
        log_probs=now,
        old_log_probs=near(now, 0.2),
        advantages=torch.randn(len(LENGTHS), generator=generator, dtype=torch.float64),
        mask=mask,
        entropy=entropy,
        old_entropy=near(entropy, 0.1),
        ref_log_probs=near(now, 0.2),
        rollout_log_probs=near(now, 0.2),
        rollout_weights=near(now, 0.2).exp().clamp(max=1.0),
        old_future_log_probs=near(3 * now, 0.2),
        max_length=12,
        staleness=torch.arange(len(LENGTHS)),
        groups=torch.arange(len(LENGTHS)) // 2,
        segments=torch.arange(mask.shape[1]).expand_as(mask) // 3,
    )
    return model, TrainingBatch(sequences, step)


def gradient_of(chosen: Method, budget: int) -> tuple[Tensor, dict[str, float]]:
    """The trainer's own `update` with a plain SGD of rate 1: the change of weights is the gradient."""
    model, batch = made_up_step()
    heads = build_heads(model, chosen, seed=0)
    parameters = [*model.parameters(), *(heads.parameters() if heads else ())]
    before = [p.detach().clone() for p in parameters]
    torch.manual_seed(0)
    settings = SETTINGS.model_copy(update={"micro_batch_tokens": budget})
    sgd = torch.optim.SGD(parameters, lr=1.0)
    metrics = update(Policy(model, None, None, heads, sgd, make_scaler(settings)), batch, chosen, settings)
    changes = [(x - p.detach()).flatten() for x, p in zip(before, parameters, strict=True)]
    return torch.cat(changes), metrics


@pytest.mark.parametrize("name", STEPS)
def test_a_step_does_not_depend_on_its_division_into_micro_batches(name: str) -> None:
    """About one response each, and all in one."""
    whole, metrics = gradient_of(STEPS[name], budget=10**6)
    gradient, merged = gradient_of(STEPS[name], budget=14)
    assert len(micro_batches(made_up_step()[1].sequences, 14)) > 2
    assert whole.norm() > 1e-3
    # The log-softmax is float32 inside the float64 model.
    torch.testing.assert_close(gradient, whole, rtol=1e-4, atol=1e-6 * whole.norm().item())
    assert merged == pytest.approx(metrics, rel=1e-4, abs=1e-6)
