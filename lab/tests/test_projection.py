"""Gradients projected on random directions: against autograd's, and where they must be those of coefficients."""

from typing import Any

import pytest
import torch

from policygrain.errors import UserError
from policygrain.model.loading import load_model
from policygrain_lab.rollouts.anatomy import cosines_of, measure
from policygrain_lab.rollouts.coefficients import Work
from policygrain_lab.rollouts.page import page, sentences
from policygrain_lab.rollouts.projection import Texts, along, gradient_cosines
from support import read
from tests.support.engines import save_tiny

DIRECTIONS = 64


@pytest.fixture(scope="module")
def start(tmp_path_factory):
    # Embeddings are large, so that the temperature matters.
    return save_tiny(tmp_path_factory.mktemp("start"), scale=20, intermediate=16)


@pytest.fixture(scope="module")
def rollouts(start):
    """Two groups of four responses; even rows have the prompt in their token ids, under the mask."""
    model, _ = load_model(start)
    generator, rows = torch.Generator().manual_seed(0), list[dict[str, Any]]()
    for i in range(8):
        prompt, ids = (torch.randint(5, 40, (n,), generator=generator) for n in (3, 4 + i % 3))
        with torch.no_grad():
            scores = model(torch.cat([prompt, ids]).unsqueeze(0)).logits[0, 2:-1].log_softmax(-1)
        new = scores.gather(1, ids.unsqueeze(1)).squeeze(1)
        old = new - 0.2 * torch.randn(len(ids), generator=generator)
        rows.append({"prompt_ids": prompt.tolist(), "completion_ids": ids.tolist(), "log_probs": new.tolist(),
                     "old_log_probs": old.clamp(max=0).tolist(), "reward": i % 3, "group": i // 4})  # fmt: skip
    return read(rows)


def test_projections_are_those_of_the_gradients_of_autograd(start, rollouts):
    """Σ c v·∇log π = v·∇(Σ c log π) for any c, so projections are linear in c; cosines are as uncertain as is said."""
    model, _ = load_model(start)
    model.set_attn_implementation("eager")
    texts = Texts.of(rollouts, list(range(8)))
    parameters = dict(model.named_parameters())
    direction = {
        name: torch.randn(p.shape, generator=torch.Generator().manual_seed(1)) for name, p in parameters.items()
    }
    tangents = along(model, direction, texts, 1.0)
    c = torch.randn(len(tangents), generator=torch.Generator().manual_seed(2))
    weighted = (c * texts.score(texts.logits(model, parameters), 1.0)).sum()
    gradients = torch.autograd.grad(weighted, list(parameters.values()))
    expected = sum(float((g * direction[name]).sum()) for name, g in zip(parameters, gradients, strict=True))
    assert float((c * tangents).sum()) == pytest.approx(expected, rel=1e-4)

    work = Work(rollouts)
    found = gradient_cosines(work, start, None, 8, DIRECTIONS, 1.0, 0)
    _, _, values, _, _ = next(work.chunks())
    rows = rollouts.lengths.argsort(stable=True)
    flat = []
    for coefficients in values:
        by_row = dict(zip(rows.tolist(), coefficients, strict=True))
        c = torch.cat([by_row[i][: rollouts.lengths[i]] for i in range(8)]).float()
        loss = (c * texts.score(texts.logits(model, parameters), 1.0)).sum()
        flat.append(torch.cat([g.flatten() for g in torch.autograd.grad(loss, list(parameters.values()))]))
    x = torch.stack(flat).double()
    exact = cosines_of(x @ x.T)
    off = (found["cosines"] - exact).abs() / (DIRECTIONS**-0.5 * (1 - exact.square()) + 1e-4)
    assert off[~exact.isnan()].max() < 5

    place = {name: i for i, name in enumerate(work.methods)}
    assert found["cosines"][place["gspo"], place["gspo_token"]] == pytest.approx(1, abs=1e-9), "the same coefficients"
    measured = measure(work)
    torch.testing.assert_close(found["coefficient_cosines"], measured.cosines, equal_nan=True)
    shown = type(measured)(**vars(measured) | {"gradient": found})
    assert "With the gradients of the model, on 8 responses," in " ".join(sentences(shown))
    assert page(shown, "x").count("<svg") == 2


def test_the_step_must_be_one_of_the_file(start, rollouts):
    with pytest.raises(UserError, match="--step 5: the rollouts are of steps 0"):
        gradient_cosines(Work(rollouts), start, 5, 8, 2, 1.0, 0)


def test_a_model_that_has_other_log_probabilities_is_refused(start, rollouts):
    with pytest.raises(UserError, match=r"at temperature 2 differ .* They fit temperature 1: --temperature 1\."):
        gradient_cosines(Work(rollouts), start, None, 8, 2, 2.0, 0)
    rollouts.tokens["log_probs"].mul_(3)
    try:
        with pytest.raises(UserError, match="another model or checkpoint, or top-p"):
            gradient_cosines(Work(rollouts), start, None, 8, 2, 1.0, 0)
    finally:
        rollouts.tokens["log_probs"].div_(3)
