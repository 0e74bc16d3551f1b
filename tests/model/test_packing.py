"""A packed forward pass equals a forward pass per response; micro-batches, segments, prediction heads."""

from functools import partial

import pytest
import torch
from torch import Tensor
from transformers import Qwen2Config, Qwen2ForCausalLM

from policygrain.model import tiny
from policygrain.model.logprobs import score_tokens
from policygrain.model.mtp_heads import MTPHeads
from policygrain.model.packing import recompute_contexts
from policygrain.model.sequences import micro_batches, pack, segment_ids

from ..support.engines import random_token_ids


def small_qwen(heads: int, key_heads: int) -> Qwen2ForCausalLM:
    torch.manual_seed(0)
    sizes = {"hidden_size": 32, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": heads}
    return Qwen2ForCausalLM(Qwen2Config(vocab_size=40, num_key_value_heads=key_heads, initializer_range=0.3, **sizes))


@pytest.mark.parametrize("heads", [(4, 4), (4, 2)], ids=["all heads", "grouped heads"])
def test_a_packed_pass_equals_one_pass_per_response(heads):
    """Log-probabilities, entropies and gradients of the packed pass against plain forward passes, one per response."""
    model = small_qwen(*heads)
    prompts, responses = random_token_ids(14, 20, 50)
    responses[3] = responses[3][:1]  # a single token is predicted but never an input
    sequences = pack(prompts, responses, 0)
    log_probs, entropy = score_tokens(model, sequences, temperature=0.7)[:2]
    (log_probs + 0.1 * entropy).sum().backward()
    gradient = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    model.zero_grad()
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        log_p = (model(torch.tensor([prompt + response])).logits[0, len(prompt) - 1 : -1] / 0.7).log_softmax(-1)
        chosen, h = log_p.gather(1, torch.tensor(response).unsqueeze(1)).squeeze(1), -(log_p.exp() * log_p).sum(1)
        assert torch.allclose(log_probs[row, : len(response)], chosen, atol=1e-4)
        assert torch.allclose(entropy[row, : len(response)], h, atol=1e-4)
        assert not log_probs[row, len(response) :].any()
        (chosen + 0.1 * h).sum().backward()
    plain = torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])
    assert (gradient - plain).norm() < 1e-5 * plain.norm()


def test_recomputed_activations_give_the_same_gradient():
    """Checkpointed layers are recomputed in the backward pass, after the packed forward pass has returned."""
    model = small_qwen(2, 1).train()
    prompts = [[5, 6, 7], [5, 6, 7], [8, 9]]
    sequences = pack(prompts, [[1, 2, 3, 4], [4, 3], [2, 1, 2]], 0)

    def gradient() -> Tensor:
        model.zero_grad()
        score_tokens(model, sequences, 0.7).log_probs.sum().backward()
        return torch.cat([p.grad.flatten() for p in model.parameters() if p.grad is not None])

    kept = gradient()
    model.gradient_checkpointing_enable({"use_reentrant": False, "context_fn": partial(recompute_contexts, model)})
    assert torch.equal(gradient(), kept)


@pytest.mark.parametrize("budget", [1, 150, 400, 1000])
def test_micro_batches_hold_every_row_once_within_the_budget_and_whole_groups_where_they_fit(budget):
    """Three rows have the same prompt; only groups that are larger than the budget are divided."""
    sequences = pack(*random_token_ids(60, 30, 60), 0)
    cut = micro_batches(sequences, budget)
    assert sorted(torch.cat(cut).tolist()) == list(range(60)) and len(cut) > 1
    parts = [sequences.rows(rows) for rows in cut]
    assert all(len(part.ids) == 1 or int(part.mask.sum() + part.prompt_mask.sum()) <= budget for part in parts)
    assert sum(int(part.mask.sum()) for part in parts) == int(sequences.mask.sum())
    for prompt in range(len(sequences.prompts)):
        rows = (sequences.prompt_of == prompt).nonzero().flatten().tolist()
        whole = int(sequences.mask[rows].sum() + sequences.prompt_mask[prompt].sum())
        assert whole > budget or sum(bool(set(rows) & set(part.tolist())) for part in cut) == 1


def test_a_token_with_an_end_in_it_is_the_last_of_its_segment():
    """Two lines and a rest; without an end a response is one segment."""
    tokenizer = tiny.character_tokenizer()
    texts = ["1+2\n3\n4", "12345"]
    rows = [tokenizer(text, add_special_tokens=False).input_ids for text in texts]
    sequences = pack([[5]] * 2, rows, tokenizer.pad_token_id)
    found = segment_ids(sequences, tokenizer, ["\n"])
    assert found[0].tolist() == [0, 0, 0, 0, 1, 1, 2]
    assert found[1, :5].tolist() == [0] * 5
    assert segment_ids(sequences, tokenizer, ["\n", "+"])[0].tolist() == [0, 0, 1, 1, 2, 2, 3]
    assert not segment_ids(sequences, tokenizer, ["no such text"]).any()


def test_prediction_heads_foresee_what_a_plain_pass_says():
    """Head n at the hidden state that predicts token t, scored on token t+n; the heads' loss trains the heads alone."""
    model, heads = small_qwen(4, 2), MTPHeads(32, count=3)
    for parameter in heads.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    prompts, responses = random_token_ids(6, 8, 9)
    sequences = pack(prompts, responses, 0)
    scores = score_tokens(model, sequences, 0.7, heads=heads)
    assert scores.future is not None and scores.future_loss is not None
    loss = 0.0
    for row, (prompt, response) in enumerate(zip(prompts, responses, strict=True)):
        states = model.model(torch.tensor([prompt + response])).last_hidden_state[0, len(prompt) - 1 : -1]
        for t, state in enumerate(states):
            logits = [model.lm_head(state + head(state)) for head in heads.heads]
            ahead = [(x, response[t + n]) for n, x in enumerate(logits, start=1) if t + n < len(response)]
            expected = sum(float((x / 0.7).log_softmax(-1)[token]) for x, token in ahead)
            assert float(scores.future[row, t]) == pytest.approx(expected, abs=1e-4)
            loss -= sum(float(x.log_softmax(-1)[token]) for x, token in ahead)
    assert float(scores.future_loss) == pytest.approx(loss, rel=1e-4)
    scores.future_loss.backward()
    assert all(p.grad is not None for p in heads.parameters())
    assert all(p.grad is None for p in model.parameters())
