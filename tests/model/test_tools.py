"""Tools while engines sample: their tokens are forced, and are not the policy's."""

from __future__ import annotations

from functools import partial
from types import SimpleNamespace

import torch
from hypothesis import given
from hypothesis import strategies as st

from policygrain.data.families import generate
from policygrain.data.prompts import PromptRenderer
from policygrain.data.tools import Tool, calculator
from policygrain.model import tiny
from policygrain.model.engine import Request, Response
from policygrain.model.logprobs import score_tokens
from policygrain.model.sequences import pack
from policygrain.model.torch_engine import ToolCalls, TorchEngine
from policygrain.model.vllm_engine import VllmEngine
from policygrain.study.schema import Prompt, TinyModel

TOKENIZER = tiny.character_tokenizer()
TOOL = Tool(calculator, TOKENIZER)
SPEC = TinyModel(hidden=32, intermediate=32, layers=2, heads=1, context=128)
# Well-formed and malformed calls among other characters, as ids.
SAMPLED = st.lists(st.sampled_from(["b12*3=", "c7-9=", "=", "7", ";", "\\boxed{"]), min_size=1, max_size=8).map(
    lambda parts: TOKENIZER("".join(parts), add_special_tokens=False)["input_ids"]
)


def mask_of(ids: list[int]) -> list[bool]:
    """Which tokens of a response are the policy's, from its text alone."""
    mask: list[bool] = []
    while len(mask) < len(ids):
        mask.append(True)
        mask += [False] * len(TOOL.output(ids[: len(mask)]))
    return mask[: len(ids)]


@given(st.lists(SAMPLED, min_size=1, max_size=4))
def test_forced_tokens_are_the_tools_output_whatever_was_sampled(sampled: list[list[int]]) -> None:
    """Every second request has the tool; responses end at lengths of their own."""
    tools = [TOOL if i % 2 == 0 else None for i in range(len(sampled))]
    calls = ToolCalls([Request([1], 0, 99, tool=tool) for tool in tools])
    responses: list[list[int]] = [[] for _ in sampled]
    for step in range(max(map(len, sampled))):
        going = torch.tensor([step < len(ids) for ids in sampled])
        chosen = torch.tensor([ids[step] if step < len(ids) else 0 for ids in sampled])
        log_probs = torch.full((len(sampled),), -1.0)
        calls.write(torch.arange(len(sampled)), going, chosen, log_probs)
        for row in going.nonzero().flatten().tolist():
            responses[row].append(int(chosen[row]))
            is_policy = tools[row] is None or calls.masks[row][-1]
            assert log_probs[row] == (-1.0 if is_policy else 0.0)
            assert not is_policy or chosen[row] == sampled[row][step], "the policy's own tokens are as sampled"
    for row, (response, tool) in enumerate(zip(responses, tools, strict=True)):
        if tool is None:
            assert response == sampled[row]
            continue
        mask = calls.masks[row]
        assert mask == mask_of(response)
        for start in (i for i, mine in enumerate(mask) if not mine and mask[i - 1]):
            output = tool.output(response[:start])
            assert output[: len(response) - start] == response[start : start + len(output)]


def test_responses_with_tools_do_not_depend_on_their_batch_and_are_scored_as_sampled() -> None:
    """By a model with random weights, which writes `=` often; a third of the requests has no tool."""
    model = tiny.build(SPEC, TOKENIZER, seed=1)
    renderer = PromptRenderer(TOKENIZER, Prompt(template="{problem}\n"))
    problems = generate("calculation", "test", 10, seed=2) + generate("clock", "test", 5, seed=2)
    requests = [
        Request(renderer.ids(p.problem), 100 * i + j, 20 + 10 * j, tool=renderer.tool(p.source))
        for i, p in enumerate(problems)
        for j in range(3)
    ]
    engines = [TorchEngine(model, TOKENIZER.eos_token_id, TOKENIZER.pad_token_id, size) for size in (256, 4)]
    together, apart = (engine.generate(requests) for engine in engines)
    assert [(r.ids, r.mask) for r in together] == [(r.ids, r.mask) for r in apart]
    for request, response in zip(requests, together, strict=True):
        assert len(response.ids) <= request.max_tokens
        if request.tool is None:
            assert response.mask is None and response.length == len(response.ids)
        else:
            assert response.mask == mask_of(response.ids) and response.length == sum(response.mask)
    assert sum(len(r.ids) - r.length for r in together) > 20, "there are calls"
    ids, masks = [r.ids for r in together], [r.mask for r in together]
    sequences = pack([r.prompt_ids for r in requests], ids, 0, masks)
    with torch.no_grad():
        trainer = score_tokens(model, sequences, 1.0).log_probs
    engine = torch.zeros_like(trainer)
    for row, response in enumerate(together):
        engine[row, : len(response.ids)] = torch.tensor(response.log_probs)
    assert (trainer - engine).abs().max() < 1e-4, "0 by both on the tool's tokens"


@given(st.lists(SAMPLED, min_size=1, max_size=4), st.integers(1, 60))
def test_vllm_goes_on_behind_the_output_of_each_call(sampled: list[list[int]], room: int) -> None:
    """Every second request has the tool. The policy writes ``sampled`` and an end, whatever the tool writes."""
    ends, end = TOOL.ends, TOKENIZER.eos_token_id
    requests = [Request([i], i, room, tool=TOOL if i % 2 == 0 else None) for i in range(len(sampled))]
    written, seeds = [0] * len(sampled), [set[int]() for _ in sampled]

    def sample(_: object, asked: list[Request]) -> list[Response]:
        parts = []
        for request in asked:
            row, tool = request.prompt_ids[0], request.tool
            assert request.seed not in seeds[row] and len(request.prompt_ids) - 1 + request.max_tokens == room
            seeds[row].add(request.seed)
            left = [*sampled[row], end][written[row] :]
            calls = [k for k, token in enumerate(left) if tool is not None and token in ends]
            part = left[: min([k + 1 for k in calls] + [request.max_tokens])]
            written[row] += len(part)
            parts.append(Response(part, part[-1] == end, [-1.0] * len(part)))
        return parts

    responses = VllmEngine.generate(SimpleNamespace(_longest=999, _sample=partial(sample, None)), requests)  # type: ignore[arg-type]
    for row, (request, response) in enumerate(zip(requests, responses, strict=True)):
        mask = [True] * len(response.ids) if response.mask is None else response.mask
        assert (response.mask is None) == (request.tool is None) and len(response.ids) <= room
        assert response.log_probs == [-1.0 * mine for mine in mask]
        policy = [token for token, mine in zip(response.ids, mask, strict=True) if mine]
        assert policy == [*sampled[row], end][: len(policy)] and response.finished == (policy[-1] == end)
        assert response.finished or len(response.ids) == room
        assert request.tool is None or mask == mask_of(response.ids)
