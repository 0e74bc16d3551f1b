"""Episodes of turns with tool output, stopping and rewards of turns, whose true gradient is known.

In a turn the policy reads an observation (a fair coin, the tool's output), writes a content token and then, except in
the last turn, decides whether to take another turn. A row of tokens is (observation, content, another turn) for each
turn; observations, and all tokens after the episode's end, are outside the mask. Logits are [turns, observation, 2]: of
content 1 and of another turn. A turn has a reward that depends on observation and content. The episode has a reward
that depends on the turn in which it ends and on all contents.

A group contains every episode in proportion to its probability under the behaviour policy, so means over the group are
expectations, and the updates by the losses of training are expected updates. For this, probabilities have to be
multiples of 1/``draws``.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from policygrain.objective import Method, method
from policygrain.objective.batch import TokenBatch, turn_numbers

from ..turn_advantages import TurnRewards, advantages_of_turns
from .chains import every_response

RATIOS: dict[str, dict[str, object]] = {
    "none": {"name": "none"},
    "token": {"name": "token"},
    "turn, geometric mean": {"name": "block", "layout": "turns", "weights": "uniform"},
    "turn, product": {"name": "block", "layout": "turns", "weights": "joint", "edges": "normalised"},
    "response, geometric mean": {"name": "sequence"},
    "response, product": {"name": "product"},
}
ADVANTAGES: dict[str, dict[str, object]] = {
    "of the response": {"name": "dr_grpo"},
    "return from the turn on": {"name": "turn_return"},
    "rewards minus their turns' means": {"name": "turn_return", "baseline": "reward"},
    "gigpo": {"name": "gigpo"},
}


@dataclass(frozen=True)
class Problem:
    """Rewards of turns [turns, observation, content], and of the end [turn, contents as a binary number]."""

    of_turns: Tensor
    of_end: Tensor


@dataclass(frozen=True)
class Group:
    """All episodes of a behaviour policy. ``tokens`` and ``mask``: [episodes, 3 · turns]."""

    tokens: Tensor
    mask: Tensor
    rewards: TurnRewards
    behaviour: Tensor  # logits

    @property
    def returns(self) -> Tensor:
        """The return of each episode. [episodes]."""
        return self.rewards.total[0]


def problem(turns: int, generator: torch.Generator) -> Problem:
    """A problem with random rewards, uniform between 0 and 1."""
    shapes = (turns, 2, 2), (turns, 2**turns)
    return Problem(*(torch.rand(shape, generator=generator, dtype=torch.float64) for shape in shapes))


def group(task: Problem, chances: Tensor, draws: int) -> Group:
    """All episodes, in proportion to their probability: ``chances`` / ``draws``, integers [turns, observation, 2]."""
    turns = len(chances)
    sizes = [2, draws, draws] * turns
    sizes[-1] = 1  # the last turn has no other after it
    values = torch.cartesian_prod(*(torch.arange(size) for size in sizes)).view(-1, turns, 3)
    seen = values[..., 0]
    at = torch.arange(turns)
    wrote, goes_on = (values[..., i + 1] < chances[at, seen, i] for i in (0, 1))
    goes_on[:, -1] = False
    reached = F.pad(goes_on[:, :-1].long().cumprod(1), (1, 0), value=1)
    tokens = torch.stack([seen, wrote.long(), goes_on.long()], 2).flatten(1)
    mask = torch.stack([0 * reached, reached, reached], 2)
    mask[:, -1, 2] = 0
    content = wrote.long() * reached
    number = (content * 2 ** at.flip(0)).sum(1)
    last = reached.sum(1) - 1
    rewards = task.of_turns[at, seen, wrote.long()] * reached
    rewards = rewards + F.one_hot(last, turns) * task.of_end[last, number].unsqueeze(1)
    states = seen + 2 * at
    of_group = TurnRewards(rewards.unsqueeze(0), reached.unsqueeze(0), states.unsqueeze(0))
    return Group(tokens, mask.flatten(1), of_group, torch.logit(chances.double() / draws))


def log_probs(logits: Tensor, episodes: Group) -> Tensor:
    """Log-probability of each token that the policy writes, and 0 for observations. [episodes, 3 · turns]."""
    seen, wrote, goes_on = episodes.tokens.unflatten(1, (-1, 3)).unbind(2)
    logit = logits[torch.arange(len(logits)), seen]
    chosen = torch.stack([wrote, goes_on], 2)
    return F.pad(F.logsigmoid(torch.where(chosen == 1, logit, -logit)), (1, 0)).flatten(1)


def exact_gradient(logits: Tensor, episodes: Group, values: Tensor | None = None) -> Tensor:
    """∇ of the expected return, or of another value of each episode, by the logits."""
    logits = logits.detach().requires_grad_()
    log_ratio = (log_probs(logits, episodes) - log_probs(episodes.behaviour, episodes)) * episodes.mask
    weights = log_ratio.sum(1).exp()
    (gradient,) = torch.autograd.grad((weights * (episodes.returns if values is None else values)).mean(), logits)
    return gradient


def expected_update(chosen: Method, logits: Tensor, episodes: Group) -> Tensor:
    """−∇ of the loss by the logits, per episode, for a method that aggregates by a mean over tokens."""
    logits = logits.detach().requires_grad_()
    of_turns = advantages_of_turns(chosen, episodes.rewards)[0]
    batch = TokenBatch(
        log_probs(logits, episodes),
        log_probs(episodes.behaviour, episodes),
        of_turns.gather(1, turn_numbers(episodes.mask)),
        episodes.mask,
    )
    (gradient,) = torch.autograd.grad(chosen.loss(batch).loss, logits)
    return -gradient * batch.whole.n_tokens / len(episodes.tokens)


def estimator(ratio: str, advantage: str) -> Method:
    """The method with this ratio and this advantage, without a clip and with a mean over tokens."""
    return method("reinforce", ratio=RATIOS[ratio], advantage=ADVANTAGES[advantage])


def agreement(problems: int, shift: float) -> dict[tuple[str, str], float]:
    """Mean cosine of the expected update with the true gradient, by ratio and advantage, over random problems.

    Episodes have up to three turns. All probabilities of the behaviour policy are 0.5; the logits of the present policy
    are normal with standard deviation ``shift`` (0: on-policy).
    """
    generator, turns = torch.Generator().manual_seed(0), 3
    total = {(ratio, advantage): 0.0 for ratio in RATIOS for advantage in ADVANTAGES}
    for _ in range(problems):
        episodes = group(problem(turns, generator), torch.ones(turns, 2, 2, dtype=torch.long), 2)
        logits = shift * torch.randn(turns, 2, 2, generator=generator, dtype=torch.float64)
        exact = exact_gradient(logits, episodes).flatten()
        for names in total:
            update = expected_update(estimator(*names), logits, episodes).flatten()
            total[names] += float(torch.cosine_similarity(update, exact, dim=0)) / problems
    return total


def signal_to_noise(turns: int, decisions: int, generator: torch.Generator) -> tuple[dict[str, float], float]:
    """Signal-to-noise ratio of one episode's estimate, by advantage, and the linear share of the return's variance.

    Each turn is a fair coin with its own logit, and the return is a random function of the first ``decisions`` turns.
    The advantage is that of the response in all turns (`response`) or only in those turns (`decisions`), or that of an
    exact critic (`critic`).
    """
    tokens = every_response(turns)[0]
    number = (tokens[:, :decisions] @ 2.0 ** torch.arange(decisions, dtype=torch.float64)).long()
    returns = torch.rand(2**decisions, generator=generator, dtype=torch.float64)[number]
    advantage = (returns - returns.mean()).unsqueeze(1)
    # E[R | tokens up to k]: rows are in the order of binary numbers, so those with a prefix follow each other.
    values = [returns.view(2**k, -1).mean(1).repeat_interleave(2 ** (turns - k)) for k in range(turns + 1)]
    matters = (torch.arange(turns) < decisions).double()
    advantages = {
        "response": advantage.expand(-1, turns),
        "decisions": advantage * matters,
        "critic": torch.stack(values, 1).diff(dim=1),
    }
    scores = tokens - 0.5
    ratios = {}
    for name, by_turn in advantages.items():
        estimates = by_turn * scores
        signal = estimates.mean(0)
        ratios[name] = float(signal.norm() / (estimates - signal).square().sum(1).mean().sqrt())
    linear = 4 * (advantage * scores).mean(0).square().sum() / advantage.square().mean()
    return ratios, float(linear)
