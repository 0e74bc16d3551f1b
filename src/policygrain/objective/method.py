"""Methods as data: their parts, presets, and changes to them. Importing this module does not import torch."""

from __future__ import annotations

import functools
import math
import operator
import reprlib
from collections.abc import Iterable, Mapping
from dataclasses import Field, asdict, dataclass, fields, replace
from importlib import resources
from types import NoneType, UnionType
from typing import TYPE_CHECKING, Any, Literal, TypeVar, get_args, get_origin, get_type_hints

import yaml

from ..errors import UserError, did_you_mean, explained
from ..merging import merge
from .clip import Clip, NoClip, Vespo
from .part import Custom, Need, Part, setting
from .ratio import GroupExpectation, Ratio, TokenRatio
from .terms import Advantage, Aggregation, Grpo, Penalty, TokenMean

if TYPE_CHECKING:
    from .batch import StepTotals, TokenBatch
    from .loss import LossOutput

T = TypeVar("T")
Anchor = Literal["old", "rollout", "loglinear"]  # the policy in the denominator of the ratio
Grain = Literal["token", "sequence", "geometric"]  # of a correction
TYPES = {bool: "true or false", int: "an integer", float: "a finite number", str: "text"}
BOUNDS = {"ge": (operator.ge, ">="), "gt": (operator.gt, ">"), "le": (operator.le, "<="), "lt": (operator.lt, "<")}
FILES = ("presets.yaml", "comparison_presets.yaml")
TEXTS = ("base", "label", "summary", "source")  # keys of a method that change no result
# Key of a method → name → class, of the parts that it accepts besides custom functions.
CHOICES: dict[str, dict[str, type[Part]]] = {
    "advantage": Advantage.choices,
    "ratio": Ratio.choices,
    "clip": Clip.choices,
    "aggregation": Aggregation.choices,
    "penalties": Penalty.choices,
}


@dataclass(frozen=True, kw_only=True)
class Sampler:
    """Selection, filtering and weights of samples before the loss (DAPO, arXiv 2503.14476, sections 3.2 and 3.4)."""

    dynamic: bool = setting(
        False, "dynamic sampling: drop groups with equal rewards and sample new prompts until the batch is full"
    )
    oversample: float = setting(
        2.0,
        "prompts sampled per missing prompt; one large round of sampling is cheaper than several small ones",
        ge=1,
        le=100,
    )
    max_batches: int = setting(4, "dynamic sampling stops after this many batches of prompts", ge=1, le=1000)
    overlong_buffer: float = setting(
        0.0,
        "size of the overlong buffer as a share of max_tokens; responses that end in it lose up to 1 of reward; 0: off",
        ge=0,
        le=1,
    )
    mask_truncated: bool = setting(False, "exclude responses without an end-of-sequence token from the loss")
    correction_cap: float | None = setting(
        None, "cap C of the importance weights between engine and trainer; null: no correction", gt=0
    )
    correction_floor: float = setting(0.0, "smallest weight of that correction", ge=0)
    correction_grain: Grain = setting(
        "token",
        "ratios that are the weights: token, of each token; sequence, their product over the response; "
        "geometric, their geometric mean over the response",
    )
    correction_outside: Literal["truncate", "mask"] = setting(
        "truncate", "truncate: weights are bounded by floor and cap; mask: weights outside of these are 0"
    )
    rejection_high: float | None = setting(
        None,
        "tokens whose ratio π_old/μ is above this have weight 0, in addition to any correction; null: no rejection",
        gt=0,
    )
    rejection_low: float = setting(0.0, "tokens whose ratio π_old/μ is below this have weight 0", ge=0)
    rejection_grain: Grain = setting("token", "tokens that are measured and rejected together, as in correction_grain")

    @property
    def corrects(self) -> bool:
        """Whether tokens are weighted or rejected by the engine's log-probabilities."""
        return self.correction_cap is not None or self.rejection_high is not None

    def __post_init__(self) -> None:
        for low, high in (("correction_floor", "correction_cap"), ("rejection_low", "rejection_high")):
            if getattr(self, high) is not None and getattr(self, low) > getattr(self, high):
                raise ValueError(f"{low}: must not be above {high}")
        if self.rejection_low and self.rejection_high is None:
            raise ValueError("rejection_low: needs rejection_high")


@dataclass(frozen=True, kw_only=True)
class MtpHeads:
    """Multi-token prediction heads, where the ratio has `future: mtp_heads` (our reading of MPO's published form)."""

    warmup_batches: int = setting(8, "batches that the heads are trained on before the first step", ge=0, le=100_000)
    learning_rate: float = setting(3e-3, "learning rate of AdamW for the heads, during and after warm-up", ge=0, le=1)
    loss_weight: float = setting(1.0, "weight of the heads' cross-entropy in the loss; 0: the objective alone", ge=0)


@dataclass(frozen=True, kw_only=True)
class Method:
    """A ratio, a clip, an aggregation, penalties, an advantage and a sampler. The first computation imports torch."""

    name: str
    base: str | None = setting(None, "preset or method of this study that this one changes; null: the defaults")
    label: str = setting("", "its name in figures and tables, such as `TEPO, full KL`; default: from its key")
    summary: str = setting("", "one line for lists")
    source: str = setting("", "paper or other origin")
    advantage: Advantage | Custom = setting(Grpo(), "advantage over the group")
    ratio: Ratio | Custom = setting(TokenRatio(), "importance ratio (its grain), with its parameters")
    clip: Clip | Custom = setting(
        NoClip(), "null: no clip; {low, high, dual}: PPO's clip; or a name, with its parameters"
    )
    aggregation: Aggregation | Custom = setting(TokenMean(), "how token losses are averaged")
    penalties: tuple[Penalty | Custom, ...] = setting(
        (), "names with their parameters; the list replaces that of the base"
    )
    sampler: Sampler = setting(Sampler(), "dynamic sampling, overlong and truncated responses")
    mtp_heads: MtpHeads = setting(MtpHeads(), "prediction heads, for a block ratio with future: mtp_heads")
    anchor: Anchor = setting(
        "old",
        "policy in the denominator of the ratio. old: the policy that sampled, in the trainer's arithmetic; "
        "rollout: the engine that sampled, so that the ratio also corrects for the engine (verl's bypass mode); "
        "loglinear: a policy between the engine and the current policy by the age of the rollouts (A-3PO), whose ratio "
        "to the engine is the weight of the correction",
    )

    def __post_init__(self) -> None:
        if self.anchor == "rollout" and self.sampler.correction_cap is not None:
            raise ValueError("anchor: rollout corrects for the engine, and sampler.correction_cap would do so twice")
        if isinstance(self.clip, Vespo) and self.sampler.correction_cap and self.sampler.correction_grain == "sequence":
            raise ValueError("sampler.correction_grain: must not be sequence, as clip vespo weights whole responses")
        if self.anchor != "old" and isinstance(self.ratio, GroupExpectation):
            raise ValueError("anchor: must be old with ratio group_expectation, which reads totals of the old policy")

    def parts(self) -> dict[str, Part]:
        penalties = {f"penalties[{i}]": part for i, part in enumerate(self.penalties)}
        slots = {"advantage": self.advantage, "ratio": self.ratio, "clip": self.clip, "aggregation": self.aggregation}
        return {**slots, **penalties}

    def data(self) -> dict[str, Any]:
        """The method as in YAML, with all defaults, as records of runs contain it."""
        parts = {key: part.data() for key, part in self.parts().items() if key in CHOICES}
        data = asdict(self) | parts | {"penalties": [part.data() for part in self.penalties]}
        unused = {"name"} if self.n_mtp_heads else {"name", "mtp_heads"}
        return {key: value for key, value in data.items() if key not in unused}

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that the trainer must provide. Imports custom functions."""
        of_anchor: frozenset[Need] = frozenset({"staleness"} if self.anchor == "loglinear" else ())
        return of_anchor.union(*(part.needs for part in self.parts().values()))

    @property
    def n_mtp_heads(self) -> int:
        """Number of tokens after the next one that heads predict."""
        return getattr(self.ratio, "n_mtp_heads", 0)

    def step_of(self, batch: TokenBatch) -> StepTotals:
        """``batch`` as the step of its micro-batches: its totals, and its tensors if the method reads them."""
        return replace(batch.whole, tensors=batch if "step_log_probs" in self.needs else None)

    def loss(self, batch: TokenBatch) -> LossOutput:
        from .loss import policy_loss

        return policy_loss(self, batch)

    @property
    def custom_functions(self) -> list[str]:
        """The names of the custom functions among the parts; they need not be importable."""
        return [part.name for part in self.parts().values() if isinstance(part, Custom)]

    def check(self) -> None:
        """Import custom functions, if there are any, and run the method on a small example. UserError names the key."""
        if self.custom_functions:
            from .loss import check

            check(self)


# ---- presets, and methods from data ----------------------------------------------------------------------------------


@functools.cache
def _presets(*files: str) -> dict[str, dict[str, Any]]:
    texts = (resources.files(__package__).joinpath(file).read_text("utf-8") for file in files or FILES)
    return {name: _with_clip_name(preset) for text in texts for name, preset in yaml.safe_load(text).items()}


def method_names() -> list[str]:
    return list(_presets(FILES[0]))


def comparison_names() -> list[str]:
    """The presets that differ in the ratio and its clip alone, to compare ratios with."""
    return list(_presets(FILES[1]))


def method(name: str, **changes: Any) -> Method:
    """The preset called ``name``, with ``changes``.

    UserError names the wrong key. Custom functions are not imported here, but by ``Method.check``.

    >>> method("tepo").ratio.name
    'sequence'
    >>> method("mpo", ratio={"size": 3}).ratio.size
    3
    """
    return build(name, merge(_data(name, {}), changes)) if changes else _preset(name)


@functools.cache
def _preset(name: str) -> Method:
    return build(name, _data(name, {}))


def resolved_methods(given: Mapping[str, Any]) -> dict[str, Method]:
    """Methods as under `methods` in a study file: new ones with ``base: NAME``, or changes to a preset of that name.

    A method does not inherit the label, summary and source of its base; a changed preset keeps them.
    """
    return {name: build(name, _data(name, given)) for name in given}


def _data(name: str, own: Mapping[str, Any], above: tuple[str, ...] = ()) -> dict[str, Any]:
    """The data of a method, merged with those of its base; ``above``: the methods of which it is a base."""
    asked = f"methods.{above[-1]}.base: " if above else ""
    if name not in own:
        if name not in _presets():
            raise UserError(f"{asked}no method is called {name!r}.{did_you_mean(name, [*_presets(), *own])}")
        return _presets()[name]
    if name in above:
        raise UserError(f"{asked}the bases form a cycle ({' → '.join((*above, name))}).")
    where, changes = f"methods.{name}", own[name]
    if not isinstance(changes, Mapping):
        raise UserError(f"{where}: expected a mapping with a base and changes of it (got {reprlib.repr(changes)}).")
    _check_known(changes, Method, where)
    base = changes.get("base", name if name in _presets() else None)
    if not isinstance(base, str | None):
        raise UserError(f"{where}.base: expected the name of a method (got {reprlib.repr(base)}).")
    if base == name:  # the preset of this name, whose own base stays
        below = _data(name, {}, (*above, name))
        return _with_clip_name(merge(below, {**changes, "base": below.get("base")}))
    below = {} if base is None else _data(base, own, (*above, name))
    return _with_clip_name(merge({key: value for key, value in below.items() if key not in TEXTS}, changes))


def _with_clip_name(data: dict[str, Any]) -> dict[str, Any]:
    """A mapping without a name is PPO's clip, null is no clip."""
    clip = data.get("clip", "")
    named = {"name": "none"} if clip is None else {"name": "ppo", **clip} if isinstance(clip, Mapping) else clip
    return {**data, "clip": named} if "clip" in data else data


def build(name: str, data: Mapping[str, Any]) -> Method:
    """The method in ``data``, as ``Method.data`` gives it. UserError names the wrong key."""
    if not isinstance(name, str):
        raise UserError(f"methods.{name}: a name must be text; quote it (got {name!r}).")
    return _made(Method, _with_clip_name({**data}), f"methods.{name}", name=name)


def _made(kind: type[T], values: Any, where: str, **more: str) -> T:
    if not isinstance(values, Mapping):
        raise UserError(f"{where}: expected a mapping (got {reprlib.repr(values)}).")
    _check_known(values, kind, where)
    hints = get_type_hints(kind)
    given = (one for one in fields(kind) if one.name in values)  # type: ignore[arg-type]
    made = {one.name: _value(one, hints[one.name], values[one.name], f"{where}.{one.name}") for one in given}
    try:
        return kind(**made, **more)
    except ValueError as error:
        raise UserError(explained(error, where)) from error


def _value(one: Field[Any], hint: Any, value: Any, where: str) -> Any:
    """The value of a key, of its type and within its bounds; an integer becomes a float where that is the type."""
    if one.name == "penalties":
        if not isinstance(value, list | tuple | None):
            raise UserError(f"{where}: expected a list (got {reprlib.repr(value)}).")
        return tuple(_part(one.name, item, f"{where}[{i}]") for i, item in enumerate(value or ()))
    if one.name in CHOICES:
        return _part(one.name, value, where)
    if hint in (Sampler, MtpHeads):
        return _made(hint, {} if value is None else value, where)
    kind, *others = get_args(hint) if get_origin(hint) in (Literal, UnionType) else (hint,)
    if get_origin(hint) is Literal and value not in (kind, *others):
        raise UserError(f"{where}: {value!r} is not a valid value.{did_you_mean(str(value), (kind, *others))}")
    if kind not in TYPES or (value is None and NoneType in others):
        return value
    if kind is float and type(value) is int and abs(value) <= 2**53:
        value = float(value)
    is_other = not isinstance(value, kind) or (isinstance(value, bool) and kind is not bool)
    if is_other or (kind is float and not math.isfinite(value)):
        raise UserError(f"{where}: must be {TYPES[kind]} (got {reprlib.repr(value)}).")
    for bound in BOUNDS.keys() & one.metadata.keys():
        is_within, sign = BOUNDS[bound]
        if not is_within(value, one.metadata[bound]):
            raise UserError(f"{where}: must be {sign} {one.metadata[bound]:g} (got {reprlib.repr(value)}).")
    return value


def _part(key: str, value: Any, where: str) -> Part:
    given = {"name": value} if isinstance(value, str) else value
    if not isinstance(given, Mapping) or not isinstance(name := given.get("name"), str):
        got = reprlib.repr(value)
        raise UserError(f"{where}: expected a name, or a mapping with 'name' and parameters (got {got}).")
    if ":" in name:
        parameters = {key: value for key, value in given.items() if key != "name"}
        return _made(Custom, {"name": name, "parameters": parameters}, where)
    if name not in CHOICES[key]:
        hint, kind = did_you_mean(name, CHOICES[key]), key.replace("penalties", "penalty")
        raise UserError(f"{where}: no {kind} is called {name!r}.{hint} Your own: 'package.module:function'.")
    return _made(CHOICES[key][name], given, where)


def _check_known(values: Iterable[str], kind: Any, where: str) -> None:
    known = {field.name for field in fields(kind)}
    for key in values:
        if key not in known or (key == "name" and kind is Method):  # whose name is the key above it
            others = known - {"name"}
            hint = did_you_mean(str(key), others) if others else " It has no parameters."
            raise UserError(f"{where}.{key}: unknown key.{hint}")
