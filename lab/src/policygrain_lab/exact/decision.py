"""Cases of a decision of two tokens, where theory predicts which ratio is better, and their measurements.

Two tokens decide, x1 and then x2; all others are irrelevant. The reward is 1 with probability x2 where x1 = 1, and with
probability SAFE where x1 = 0, whatever x2 is. So the value of x1 = 1 depends on how x2 is chosen after it.

The policy is one of `chains` with tied logits: of x1, of x2 after x1 = 1, of x2 after x1 = 0, and of each irrelevant
token, [seeds, 3 + irrelevant tokens].

All losses are those of training (`Method.loss`), of many policies at once: their responses are the rows of one
`TokenBatch`. No ratio, clip or mean used here joins responses, so gradients by each policy's logits are its own.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from tqdm import tqdm

from policygrain.analysis.statistics import over_seeds
from policygrain.objective import Method, method
from policygrain.objective.batch import TokenBatch
from policygrain.objective.clip import NoClip, PpoClip
from policygrain.objective.part import Part
from policygrain.objective.ratio import Block, NoRatio, PrefixRatio, ProductRatio, SequenceRatio, TokenRatio
from policygrain.text import columns

from . import chains
from .records import CaseEstimator, CaseRecord, CasesRecord, Measured

Knob = Literal["first", "updates_per_batch", "drift", "mismatch"]
BATCH = 24  # responses of an update, and of the batch whose cosine is measured
UPDATES = 96
STEP = 0.1  # length of each update in logits, so that the scale of a ratio does not act as a learning rate
NO_CLIP, BAND = NoClip(), PpoClip(low=0.2, high=0.28)
SAFE = 0.3
X1, X2, X2_AFTER_0 = range(3)  # places of the decision's logits
DECISION = 3  # how many they are; the others are of irrelevant tokens
DIGITS = 6  # of recorded numbers
LARGEST_LOGIT = 12.0
DRAWS = 64  # of the random parts of a case, for expected updates
BATCHES = 400  # for the cosine of single batches
Curves = Mapping[tuple["Case", "Estimator"], Tensor]  # expected reward by update and seed, [UPDATES + 1, seeds]


@dataclass(frozen=True)
class Case:
    """A present policy, a behaviour policy that samples for it, and what theory predicts for ratios between them."""

    name: str
    title: str
    prediction: str
    order: str  # the prediction as a formula
    p_x2: float  # probability of x2 = 1 after x1 = 1 under the present policy, at which the expected update is measured
    old_p_x2: float  # the same under the behaviour policy; training starts here
    updates_per_batch: int = 1
    drift: float = 0.0  # sd of the difference of the behaviour policy's logits on irrelevant tokens
    mismatch: float = 0.0  # sd of the noise on each recorded log-probability
    first: int = 2  # place of x1, counted from 0; x2 follows it
    dose: Knob = "first"  # which of these is varied …
    doses: tuple[float, ...] = ()  # … over these values
    p_x1: float = 0.5
    irrelevant: int = 6

    @property
    def tokens(self) -> int:
        """Tokens of a response."""
        return 2 + self.irrelevant

    def at(self, dose: float) -> Case:
        """The same case with another value of what is varied."""
        return replace(self, **{self.dose: type(getattr(self, self.dose))(dose)})


@dataclass(frozen=True)
class Estimator:
    """A ratio with or without a clip; aggregation is the mean over tokens, the advantage reward minus mean."""

    name: str
    ratio: Part
    clip: Part = NO_CLIP

    @property
    def is_clipped(self) -> bool:
        """Whether it has a clip."""
        return not isinstance(self.clip, NoClip)

    @cached_property
    def method(self) -> Method:
        """The method that computes it."""
        return method("reinforce", advantage="dr_grpo", ratio=self.ratio.data(), clip=self.clip.data())


CASES = (
    Case(
        "on_policy",
        "On-policy",
        "All ratios are 1, so all estimators whose tokens have equal weight tie exactly, wherever the decision is.",
        "equal, where all tokens have equal weight",
        p_x2=0.15,
        old_p_x2=0.15,
        doses=(0, 2, 4, 6),
    ),
    Case(
        "coordination",
        "Coordination under staleness",
        "The value of x1 depends on x2, which the behaviour policy chose otherwise. Only ratios that contain both "
        "tokens push x1 the right way: joint block above token; the product also, with more variance.",
        "joint block > token",
        p_x2=0.6,
        old_p_x2=0.15,
        updates_per_batch=16,
        dose="updates_per_batch",
        doses=(1, 2, 4, 8, 16),
    ),
    Case(
        "irrelevant_drift",
        "Irrelevant tokens that drifted",
        "The decision has not moved, irrelevant tokens have. Their ratios are noise in a product over the response: "
        "token above product.",
        "token > product",
        p_x2=0.6,
        old_p_x2=0.6,
        drift=1.0,
        dose="drift",
        doses=(0.0, 0.25, 0.5, 1.0, 1.5),
    ),
    Case(
        "mismatch",
        "Train–inference mismatch",
        "Recorded log-probabilities have independent noise. A geometric mean averages it, a product adds it up: "
        "sequence above token above joint block above product.",
        "sequence > token > joint block > product",
        p_x2=0.6,
        old_p_x2=0.6,
        mismatch=0.5,
        dose="mismatch",
        doses=(0.01, 0.1, 0.25, 0.5, 1.0),
    ),
)


RATIOS: dict[str, Part] = {
    "none": NoRatio(),
    "token": TokenRatio(),
    "MPO block, K=5": Block(),
    "MPO block, K=5, normalised": Block(edges="normalised"),
    "joint block, K=2": Block(size=2, layout="tiled", weights="joint", edges="normalised"),
    "joint block, K=4": Block(size=4, layout="tiled", weights="joint", edges="normalised"),
    "sequence": SequenceRatio(),
    "prefix": PrefixRatio(),
    "prefix, own gradient": PrefixRatio(gradient="own"),
    "product": ProductRatio(),
    "product, cap 2": ProductRatio(cap=2.0),
}
BASELINE = "token"  # the ratio whose reward is subtracted from that of others


def estimators(clips: Sequence[Part] = (NO_CLIP, BAND)) -> list[Estimator]:
    """Every ratio with each of these clips."""
    return [Estimator(name, ratio, clip) for clip in clips for name, ratio in RATIOS.items()]


def start(x1: float, x2: float, irrelevant: int) -> Tensor:
    """Logits of one policy with these probabilities of x1 = 1 and of x2 = 1 after it; others are 0.5. [1, logits]."""
    return torch.tensor([[x1, x2, *[0.5] * (1 + irrelevant)]], dtype=torch.float64).logit()


def chain(logits: Tensor, first: int) -> Tensor:
    """The logits of the policy as one of `chains`; x1 and x2 are at ``first`` and ``first`` + 1. [seeds, tokens, 2]."""
    decision, irrelevant = logits[:, :DECISION], logits[:, DECISION:]
    after_0, after_1 = (
        torch.cat([irrelevant[:, :first], decision[:, [X1, x2]], irrelevant[:, first:]], 1) for x2 in (X2_AFTER_0, X2)
    )
    return torch.stack([after_0, after_1], -1)


def log_probs(logits: Tensor, tokens: Tensor, first: int) -> Tensor:
    """Log-probability of each token."""
    return chains.log_probs(chain(logits, first), tokens)


def reward_probability(tokens: Tensor, first: int) -> Tensor:
    """Probability of reward 1. [seeds, responses]."""
    return torch.where(tokens[..., first] == 1, tokens[..., first + 1], SAFE)


def expected_reward(logits: Tensor) -> Tensor:
    """J = p(x1) p(x2 | 1) + (1 − p(x1)) SAFE. [seeds]."""
    p1, p2 = logits[:, X1].sigmoid(), logits[:, X2].sigmoid()
    return p1 * p2 + (1 - p1) * SAFE


def exact_gradient(logits: Tensor) -> Tensor:
    """∇J by the logits, in closed form. [seeds, logits]."""
    p1, p2 = logits[:, X1].sigmoid(), logits[:, X2].sigmoid()
    gradient = torch.zeros_like(logits)
    gradient[:, X1] = p1 * (1 - p1) * (p2 - SAFE)
    gradient[:, X2] = p1 * p2 * (1 - p2)
    return gradient


def update(
    method: Method, logits: Tensor, tokens: Tensor, old_log_probs: Tensor, advantages: Tensor, first: int
) -> Tensor:
    """The estimate of ∇J for each policy: −∇ of the loss as a mean over responses, not over tokens. [seeds, logits]."""
    logits = logits.detach().requires_grad_()
    now = log_probs(logits, tokens, first)
    (gradient,) = torch.autograd.grad(now, logits, token_weights(method, now, old_log_probs, advantages))
    return gradient / tokens.shape[1]


def token_weights(method: Method, log_probs: Tensor, old_log_probs: Tensor, advantages: Tensor) -> Tensor:
    """The factor of each token's ∇log π in the estimate of ∇J from its response. [seeds, responses, tokens]."""
    now = log_probs.detach().requires_grad_()
    batch = TokenBatch(
        log_probs=now.flatten(0, 1),
        old_log_probs=old_log_probs.flatten(0, 1),
        advantages=advantages.flatten(),
        mask=torch.ones_like(now.flatten(0, 1), dtype=torch.bool),
    )
    (gradient,) = torch.autograd.grad(method.loss(batch).loss, now)
    return -gradient * now.numel()  # the loss is a mean over all tokens


def expected_update(method: Method, case: Case) -> Tensor:
    """The expected update, exact by enumeration of all responses and rewards. [logits].

    With drift or mismatch, it is the mean over ``DRAWS`` draws of these. The baseline of the advantage is the behaviour
    policy's expected reward, as in an infinite group.
    """
    generator = torch.Generator().manual_seed(0)
    draws = DRAWS if case.drift or case.mismatch else 1
    present = _present(case).expand(draws, -1)
    behaviour = drifted(_behaviour(case).expand(draws, -1), case, generator)
    responses = chains.every_response(case.tokens)
    tokens = responses.repeat(draws, 2, 1)  # with reward 1 and with reward 0
    old = log_probs(behaviour, tokens, case.first)
    wins = reward_probability(tokens, case.first)
    half = responses.shape[1]
    reward = (torch.arange(2 * half) < half).to(old.dtype)
    probability = old.sum(-1).exp() * torch.where(reward == 1, wins, 1 - wins)
    baseline = (probability * reward).sum(1, keepdim=True)
    # Surrogates are homogeneous in the advantage, so an advantage can contain its response's probability as a factor.
    # The loss is a mean over rows, so this is multiplied by their number.
    advantages = (reward - baseline) * probability * tokens.shape[1]
    return update(method, present, tokens, mismatched(old, case, generator), advantages, case.first).mean(0)


def batch_cosines(method: Method, case: Case) -> Tensor:
    """Cosine of the update from one batch of ``BATCH`` responses with the exact gradient. [batches].

    0 for a batch without a gradient, in which all rewards are equal.
    """
    generator = torch.Generator().manual_seed(1)
    present = _present(case).expand(BATCHES, -1)
    behaviour = drifted(_behaviour(case).expand(BATCHES, -1), case, generator)
    updates = batch_update(method, case, present, behaviour, generator)
    return torch.cosine_similarity(updates, exact_gradient(present), dim=-1)


def train(method: Method, case: Case, seeds: int) -> Tensor:
    """Expected reward after 0, 1, … ``UPDATES`` updates, for all seeds at once. [UPDATES + 1, seeds].

    The behaviour policy is renewed every ``updates_per_batch`` updates. Random numbers depend only on the seed and the
    update, so estimators can be compared in pairs.
    """
    generator = torch.Generator().manual_seed(2)
    logits = _behaviour(case).expand(seeds, -1)
    behaviour, rewards = logits, [expected_reward(logits)]
    for step in range(UPDATES):
        if step % case.updates_per_batch == 0:
            behaviour = logits
        sampling = drifted(behaviour, case, generator)
        direction = batch_update(method, case, logits, sampling, generator)
        length = direction.norm(dim=-1, keepdim=True)
        # A batch of equal rewards has no direction.
        logits = logits + STEP * torch.where(length > 0, direction / length.clamp(min=1e-300), 0.0)
        logits = logits.clamp(-LARGEST_LOGIT, LARGEST_LOGIT)
        rewards.append(expected_reward(logits))
    return torch.stack(rewards)


def batch_update(method: Method, case: Case, present: Tensor, behaviour: Tensor, generator: torch.Generator) -> Tensor:
    """Sample ``BATCH`` responses for each policy and estimate its gradient. [seeds, logits]."""
    shape = len(present), BATCH, case.tokens
    tokens = chains.sample(chain(behaviour, case.first), torch.rand(shape, generator=generator, dtype=torch.float64))
    wins = reward_probability(tokens, case.first)
    rewards = torch.rand(shape[:2], generator=generator, dtype=torch.float64).lt(wins).to(torch.float64)
    old = mismatched(log_probs(behaviour, tokens, case.first), case, generator)
    return update(method, present, tokens, old, method.advantage(rewards), case.first)


def drifted(logits: Tensor, case: Case, generator: torch.Generator) -> Tensor:
    """The policy with normal noise of sd ``drift`` on the logits of irrelevant tokens."""
    if not case.drift:
        return logits
    noise = torch.randn(logits.shape, generator=generator, dtype=logits.dtype) * case.drift
    noise[:, :DECISION] = 0
    return logits + noise


def mismatched(log_probs: Tensor, case: Case, generator: torch.Generator) -> Tensor:
    """The log-probabilities as an engine records them: with normal noise of sd ``mismatch``."""
    if not case.mismatch:
        return log_probs
    return log_probs + case.mismatch * torch.randn(log_probs.shape, generator=generator, dtype=log_probs.dtype)


def _present(case: Case) -> Tensor:
    return start(case.p_x1, case.p_x2, case.irrelevant)


def _behaviour(case: Case) -> Tensor:
    return start(case.p_x1, case.old_p_x2, case.irrelevant)


def interval(values: Tensor) -> Measured:
    """The mean over seeds with its interval, rounded; adding 0 turns −0 into 0."""
    mean, low, high = (round(value, DIGITS) + 0.0 for value in over_seeds(values.numpy()))
    return mean, low, high


def run_cases(seeds: int) -> CasesRecord:
    """Measure every estimator in every case; learning curves are of ``seeds`` seeds."""
    trainings = [(case, e) for case in CASES for e in estimators()]
    trainings += [(case.at(dose), e) for case in CASES for dose in case.doses for e in estimators([NO_CLIP])]
    curves = {(case, e): train(e.method, case, seeds) for case, e in tqdm(dict.fromkeys(trainings), "cases")}
    records = [_record(case, [_estimator(case, e, curves) for e in estimators()]) for case in CASES]
    return CasesRecord(seeds=seeds, batch=BATCH, step_length=STEP, baseline=BASELINE, cases=records)


def text(record: CasesRecord) -> str:
    """A table per case for the terminal."""
    header = ["ratio", "clip", "push on x1", "cosine", "bias", "cosine of a batch", f"reward − {record.baseline}"]
    parts = []
    for case in record.cases:
        rows = [
            [
                e.name,
                "–" if e.clip is None else f"{e.clip[0]:g}/{e.clip[1]:g}",
                f"{e.push:+.3f}",
                f"{e.cosine:+.2f}",
                f"{e.bias:.2f}",
                f"{e.batch_cosine[0]:+.2f}",
                f"{e.difference[0]:+.4f} [{e.difference[1]:+.4f}, {e.difference[2]:+.4f}]",
            ]
            for e in case.estimators
        ]
        title = f"{case.title}. {case.prediction}\nExact push on x1: {case.exact_push:+.3f}"
        parts.append("\n".join([title, *columns(rows, header, "llr")]))
    footer = (
        f"Batches of {record.batch} responses; reward: expected reward averaged over training, {record.seeds} seeds, "
        "paired, 95% intervals."
    )
    return "\n\n".join([*parts, footer])


def _estimator(case: Case, estimator: Estimator, curves: Curves) -> CaseEstimator:
    exact = exact_gradient(_present(case))[0]
    expected = expected_update(estimator.method, case)
    clip, doses = estimator.clip.settings, () if estimator.is_clipped else case.doses
    return CaseEstimator(
        name=estimator.name,
        ratio=estimator.ratio.data(),
        clip=(clip["low"], clip["high"]) if estimator.is_clipped else None,
        cosine=round(float(torch.cosine_similarity(expected, exact, dim=0)), DIGITS),
        push=round(float(expected[X1]), DIGITS),
        bias=round(float((expected - exact).norm() / exact.norm()), DIGITS),
        batch_cosine=interval(batch_cosines(estimator.method, case)),
        difference=_difference(case, estimator, curves),
        doses=[_difference(case.at(dose), estimator, curves) for dose in doses],
    )


def _difference(case: Case, estimator: Estimator, curves: Curves) -> Measured:
    """Expected reward, averaged over training, minus that of the baseline with the same clip."""
    baseline = replace(estimator, name=BASELINE, ratio=RATIOS[BASELINE])
    return interval((curves[case, estimator] - curves[case, baseline]).mean(0))


def _record(case: Case, estimators: list[CaseEstimator]) -> CaseRecord:
    described = ("name", "title", "prediction", "order")
    return CaseRecord(
        **{key: getattr(case, key) for key in described},
        settings={k: v for k, v in asdict(case).items() if k not in (*described, "dose", "doses")},
        exact_push=round(float(exact_gradient(_present(case))[0, X1]), DIGITS),
        dose=case.dose,
        doses=list(case.doses),
        estimators=estimators,
    )
