"""Parts: a name and parameters in YAML ↔ a pure function of the objective (or of the user's) with those bound."""

from __future__ import annotations

import functools
import importlib
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, get_args, get_origin, get_type_hints

from ..errors import UserError, did_you_mean
from ..objective import advantage, aggregate, clip, penalty, ratio

# Which functions a name may mean, per slot of a method. Anything else is an importable name, "package.module:function".
SLOTS: dict[str, dict[str, Callable[..., Any]]] = {
    "advantage": {f.__name__: f for f in (advantage.grpo, advantage.dr_grpo, advantage.rloo)},
    "ratio": {f.__name__: f for f in (ratio.token, ratio.sequence, ratio.prefix, ratio.block, ratio.none)},
    "clip": {f.__name__: f for f in (clip.ppo, clip.none, clip.clip_cov)},
    "aggregation": {
        f.__name__: f for f in (aggregate.token_mean, aggregate.seq_mean_token_mean, aggregate.seq_mean_token_sum_norm)
    },
    "penalty": {f.__name__: f for f in (penalty.kl, penalty.entropy_bonus, penalty.kl_cov)},
}


@dataclass(frozen=True)
class Part:
    """One slot's choice: ``name`` and the keyword parameters of its function."""

    slot: str
    name: str
    params: Mapping[str, Any] = field(default_factory=dict)

    @classmethod
    def parse(cls, slot: str, value: Any, where: str) -> Part:
        """From YAML: a name alone, or a mapping with ``name`` and parameters. ``where`` names the key in errors."""
        if isinstance(value, str):
            value = {"name": value}
        if not isinstance(value, Mapping) or "name" not in value:
            raise UserError(f"{where}: expected a name, or a mapping with 'name' and parameters, got {value!r}.")
        part = cls(slot, str(value["name"]), {k: v for k, v in value.items() if k != "name"})
        part._check(where)
        return part

    @property
    def function(self) -> Callable[..., Any]:
        """The pure function, with the parameters bound."""
        return functools.partial(self._resolve(f"{self.slot}.name"), **self.params)

    @property
    def settings(self) -> dict[str, Any]:
        """Every parameter, defaults included."""
        return {**{k: p.default for k, p in self._keywords(self._resolve(self.slot)).items()}, **self.params}

    def data(self) -> Any:
        """Back to YAML."""
        return {"name": self.name, **self.params} if self.params else self.name

    def _resolve(self, where: str) -> Callable[..., Any]:
        known = SLOTS[self.slot]
        if self.name in known:
            return known[self.name]
        module, _, attribute = self.name.partition(":")
        if not attribute:
            hint = did_you_mean(self.name, known)
            raise UserError(
                f"{where}: no {self.slot} is called {self.name!r}.{hint} Your own: 'package.module:function'."
            )
        try:
            return getattr(importlib.import_module(module), attribute)
        except (ImportError, AttributeError) as error:
            raise UserError(f"{where}: {self.name!r} cannot be imported: {error}.") from error

    @staticmethod
    def _keywords(function: Callable[..., Any]) -> dict[str, inspect.Parameter]:
        return {name: p for name, p in inspect.signature(function).parameters.items() if p.kind is p.KEYWORD_ONLY}

    def _check(self, where: str) -> None:
        function = self._resolve(where)
        keywords = self._keywords(function)
        hints = get_type_hints(function)
        for key, value in self.params.items():
            if key not in keywords:
                hint = did_you_mean(key, keywords) if keywords else " It takes no parameters."
                raise UserError(f"{where}.{key}: {self.slot} {self.name!r} has no parameter {key!r}.{hint}")
            if not _fits(value, hints.get(key, Any)):
                raise UserError(f"{where}.{key}: {value!r} is not {_wording(hints[key])}.")


def _fits(value: Any, hint: Any) -> bool:
    """Whether a YAML value is what a parameter's annotation says."""
    if hint is Any or (get_origin(hint) is None and not isinstance(hint, type) and not get_args(hint)):
        return True
    if hint is float:
        return isinstance(value, int | float) and not isinstance(value, bool)
    if isinstance(hint, type):
        return isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    options = get_args(hint)
    if str(get_origin(hint)) == "typing.Literal":
        return value in options
    return any((value is None) if option is type(None) else _fits(value, option) for option in options)


def _wording(hint: Any) -> str:
    if str(get_origin(hint)) == "typing.Literal":
        return "one of " + ", ".join(map(str, get_args(hint)))
    return f"of type {getattr(hint, '__name__', hint)}"
