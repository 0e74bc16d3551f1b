"""A clip range that never clips is said once, with what was observed."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from policygrain import TokenBatch, method
from policygrain.integrations import idle_clip
from policygrain.integrations.idle_clip import IdleClip

pytestmark = pytest.mark.filterwarnings("ignore:tepo:UserWarning")


def batch(log_ratio: list[float], advantage: float = 1.0) -> TokenBatch:
    """One response; the ratio of a masked token does not count."""
    old = torch.full((1, len(log_ratio) + 1), -2.0, dtype=torch.float64)
    new = old + torch.tensor([[*log_ratio, 9.0]], dtype=torch.float64)
    return TokenBatch(new, old, torch.tensor([advantage]), torch.tensor([[1.0] * len(log_ratio) + [0.0]]))


def said(found: Any, batches: list[TokenBatch]) -> list[str]:
    messages: list[str] = []
    watch = IdleClip(found, messages.append)
    for one in batches:
        watch.see(found.loss(one).metrics)
    return messages


def test_it_names_range_and_largest_ratio_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A mean log-ratio of 0.05: the ratio is 1.051; another of -0.1, whose ratio is below 1."""
    monkeypatch.setattr(idle_clip, "BATCHES", 4)
    (message,) = said(method("tepo"), [batch([0.0, 0.1]), batch([-0.1])] * 9)
    assert "tepo: the clip range 0.2 / 0.28" in message and "largest ratio was 1 + 0.051" in message
    assert "policygrain calibrate --rollouts" in message and 'method("tepo", clip=' in message


def test_it_is_silent_where_a_token_was_clipped_or_all_ratios_are_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(idle_clip, "BATCHES", 4)
    idle = [batch([0.1])] * 9
    assert said(method("tepo"), idle)
    assert not said(method("tepo"), [batch([0.3]), *idle]), "1.35 is clipped"
    assert said(method("tepo"), [batch([0.3], advantage=-1.0), *idle]), "not with a negative advantage"
    assert not said(method("tepo"), [batch([0.0])] * 9), "on-policy"
    assert not said(method("tepo", clip={"low": 0.05, "high": 0.05}), idle)
    assert not said(method("reinforce"), idle) and not said(method("cispo"), idle)
