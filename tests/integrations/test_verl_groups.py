"""Prompts in verl: its real worker, division into micro-batches and `ppo_loss`, with ranks as threads."""

import contextvars
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from policygrain import Method, method

pytest.importorskip("verl", reason="verl is not installed here; `make test-peers` has an environment with it")

from verl.trainer.ppo.core_algos import POLICY_LOSS_REGISTRY
from verl.utils import tensordict_utils
from verl.workers import engine_workers
from verl.workers.engine.utils import prepare_micro_batches
from verl.workers.utils.losses import ppo_loss

from policygrain.integrations import verl_groups
from policygrain.integrations.options import UnsupportedOption
from policygrain.integrations.verl import PREFIX, policy_loss

from ..support.batches import SIXTEEN, loss_and_gradient, random_fields
from .test_verl import config_of, data_of

GROUPS = torch.tensor([7, 7, 7, 7, 2, 2, 2, 2, 5, 5, 5, 5, 0, 0, 0, 0])
METHODS = {
    "gepo": method("gepo"),
    "prompt_mean": method("tepo", aggregation="prompt_mean", penalties=[{"name": "kl", "reference": "old"}]),
}


class Engine:
    """The calls of verl's training engine, for log-probabilities that are parameters; no step is taken."""

    lr_scheduler_step = staticmethod(lambda: 0.0)
    train_mode = staticmethod(lambda **_: nullcontext())
    is_mp_src_rank_with_outputs = staticmethod(lambda: False)
    get_data_parallel_rank = staticmethod(lambda: 0)
    get_data_parallel_group = staticmethod(lambda: None)

    def __init__(self, fields: dict[str, Any], ranks: int, totals: list[dict[str, int]]) -> None:
        self.fields = fields | {"log_probs": fields["log_probs"].clone().requires_grad_()}
        self.ranks, self.totals = ranks, iter(totals)

    def get_data_parallel_size(self) -> int:
        return self.ranks

    def train_batch(self, data: Any, loss_function: Callable[..., Any]) -> None:
        tensordict_utils.assign_non_tensor(data, dp_size=self.ranks, **next(self.totals))
        for micro_batch in prepare_micro_batches(data)[0]:
            rows = micro_batch["row"]
            output, _ = data_of({k: v[rows] if isinstance(v, torch.Tensor) else v for k, v in self.fields.items()})
            loss, _ = loss_function(model_output=output, data=micro_batch, dp_group=None)
            (loss / self.ranks).backward()  # ranks are averaged


def gradient_in_verl(
    name: str,
    fields: dict[str, Any],
    rows_of: list[list[list[int]]],
    micro: int,
    monkeypatch: pytest.MonkeyPatch,
    without: tuple[str, ...] = (),
) -> torch.Tensor:
    """The sum of the gradients of all mini-batches. ``rows_of``: rank → mini-batch → rows; ``micro``: micro-batches."""
    barrier, values, rank_of = Barrier(len(rows_of)), [None] * len(rows_of), contextvars.ContextVar[int]("rank")

    def all_ranks(value: Any, group: Any) -> list[Any]:
        barrier.wait()
        values[rank_of.get()] = value
        barrier.wait()
        return list(values)

    monkeypatch.setattr(verl_groups, "all_ranks", all_ranks)
    lengths = fields["mask"].sum(1)
    steps = [[row for rows in rows_of for row in rows[k]] for k in range(len(rows_of[0]))]
    totals = [{"batch_num_tokens": int(lengths[rows].sum()), "global_batch_size": len(rows)} for rows in steps]

    def of_rank(rank: int) -> torch.Tensor:
        rank_of.set(rank)
        rows = torch.tensor([row for rows in rows_of[rank] for row in rows])
        _, data = data_of({k: v[rows] if isinstance(v, torch.Tensor) else v for k, v in fields.items()})
        data["row"] = rows
        size = len(rows_of[rank][0])
        given = {"uid": [f"prompt {g}" for g in fields["groups"][rows].tolist()], "use_dynamic_bsz": False}
        given |= {"mini_batch_size": size * len(rows_of), "micro_batch_size_per_gpu": size // micro}
        tensordict_utils.assign_non_tensor(data, **{k: v for k, v in given.items() if k not in without})
        worker = object.__new__(engine_workers.ActorRolloutRefWorker.actor_worker_cls)
        worker.engine = Engine(fields, len(rows_of), totals)
        settings = {"use_dynamic_bsz": False, "use_fused_kernels": False, "forward_only": False}
        worker.engine_config = SimpleNamespace(**settings, max_token_len_per_gpu=0, micro_batch_size_per_gpu=1)
        worker.model_config = {}
        worker.profiler = SimpleNamespace(rank=rank, check_enable=lambda: False, step=lambda: None)
        config = config_of(PREFIX + name)
        worker.set_loss_fn(lambda **arguments: ppo_loss(config, **arguments))
        worker.train_mini_batch(data)
        return worker.engine.fields["log_probs"].grad

    with ThreadPoolExecutor(len(rows_of)) as threads:
        return sum(threads.map(of_rank, range(len(rows_of))))  # type: ignore[return-value]


@pytest.fixture
def fields():
    made = random_fields(SIXTEEN, 3, 0.3)
    kept = ("log_probs", "old_log_probs", "advantages", "mask", "entropy", "old_entropy")
    return {key: made[key] for key in kept} | {"groups": GROUPS}


@pytest.fixture(autouse=True)
def registered(monkeypatch):
    for name, one in METHODS.items():
        monkeypatch.setitem(POLICY_LOSS_REGISTRY, PREFIX + name, functools.partial(policy_loss, one))


def expected(objective: Method, fields: dict[str, Any]) -> torch.Tensor:
    return loss_and_gradient(objective, {key: x for key, x in fields.items() if "entropy" not in key})[1]


WHOLE = list(range(16))
SPLIT = [0, 4, 8, 12, 1, 5, 9, 13, 2, 6, 10, 14, 3, 7, 11, 15]  # no two neighbours of one prompt


@pytest.mark.parametrize("micro", [1, 2, 4])
@pytest.mark.parametrize("rows_of", [[[WHOLE]], [[WHOLE[:8]], [WHOLE[8:]]], [[SPLIT[:8]], [SPLIT[8:]]]], ids=str)
@pytest.mark.parametrize("name", METHODS)
def test_the_gradient_of_a_step_is_the_methods_however_it_is_divided(name, rows_of, micro, fields, monkeypatch):
    found = gradient_in_verl(name, fields, rows_of, micro, monkeypatch)
    torch.testing.assert_close(found, expected(METHODS[name], fields), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("ranks", [1, 2])
@pytest.mark.parametrize("name", METHODS)
def test_whole_groups_in_a_mini_batch_are_its_prompts(name, ranks, fields, monkeypatch):
    """A response without tokens is in no group's size, and its prompt counts."""
    fields["mask"][5] = fields["mask"][2] = False
    steps = (
        [[[*range(8)], [*range(8, 16)]]]
        if ranks == 1
        else [[[0, 1, 4, 5], [*range(8, 12)]], [[2, 3, 6, 7], WHOLE[12:]]]
    )
    found = gradient_in_verl(name, fields, steps, 2, monkeypatch)
    for rows in (torch.arange(8), torch.arange(8, 16)):
        part = {key: value[rows] for key, value in fields.items()}
        # verl's number of responses has those without tokens.
        if METHODS[name].aggregation.name == "seq_mean_token_mean":
            found[rows] *= 8 / float((part["mask"].sum(1) > 0).sum())
        torch.testing.assert_close(found[rows], expected(METHODS[name], part), rtol=1e-12, atol=1e-14)


@pytest.mark.parametrize("name", ["gepo", "prompt_mean"])
def test_groups_that_are_split_over_mini_batches_are_whole_in_each(name, fields, monkeypatch):
    """The mean of the mini-batches' gradients is that of the batch: a statistic of a part would not be."""
    found = gradient_in_verl(name, fields, [[SPLIT[:4], SPLIT[4:8], SPLIT[8:12], SPLIT[12:]]], 2, monkeypatch) / 4
    torch.testing.assert_close(found, expected(METHODS[name], fields), rtol=1e-6, atol=1e-9)


def test_without_the_worker_or_without_uid_it_is_refused(fields, monkeypatch):
    advantages = fields["advantages"].unsqueeze(1).expand_as(fields["log_probs"])
    for one in METHODS.values():
        with pytest.raises(UnsupportedOption, match=r"external_lib=policygrain\.integrations\.verl_groups"):
            policy_loss(one, fields["old_log_probs"], fields["log_probs"], advantages, fields["mask"])
    with pytest.raises(UnsupportedOption, match="verl's batch has no `uid`"):
        gradient_in_verl("gepo", fields, [[WHOLE]], 1, monkeypatch, without=("uid",))
