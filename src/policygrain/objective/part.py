"""Base class of the parts of a method: a name, parameters, a formula, and its declared inputs."""

from __future__ import annotations

import abc
import pkgutil
import re
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields
from typing import Any, ClassVar, Literal, TypeVar

from typing_extensions import dataclass_transform  # typing has it from Python 3.11 on; torch needs this package

from ..errors import UserError

# Inputs of a formula besides the log-probabilities, advantages and mask of its micro-batch.
Need = Literal["step_log_probs", "entropy_gradient", "reference", "mtp_heads", "groups", "staleness"]
# Inputs that custom functions can declare; the number of prediction heads is a parameter of the block ratio.
DECLARABLE = ("step_log_probs", "entropy_gradient", "reference", "groups")

Function = TypeVar("Function", bound=Callable[..., Any])


def setting(default: Any, description: str, **bounds: float) -> Any:
    """A field with its description and bounds (`ge`, `gt`, `le`, `lt`)."""
    return field(default=default, metadata={"description": description, **bounds})


def needs(*names: Need) -> Callable[[Function], Function]:
    """Declare the inputs that a function needs; the trainer provides only inputs that a method's functions declare.

    ``step_log_probs``: ``batch.step_tensors``; ``entropy_gradient``: ``batch.entropy`` carries gradient; ``reference``:
    ``batch.ref_log_probs``; ``groups``: ``batch.groups`` and ``batch.responses`` (docs/methods/README.md).

    >>> @needs("reference")
    ... def far_from_start(batch):
    ...     return (batch.log_probs - batch.ref_log_probs).abs()
    """
    for name in names:
        if name not in DECLARABLE:
            raise ValueError(f"@needs({name!r}): a function can need {', '.join(DECLARABLE)}.")

    def declare(function: Function) -> Function:
        function.__dict__["needs"] = getattr(function, "needs", frozenset()) | frozenset(names)
        return function

    return declare


@dataclass_transform(frozen_default=True, kw_only_default=True)
@dataclass(frozen=True, kw_only=True)
class Part(abc.ABC):
    """A part of a method: its name, its parameters, and their formula as ``__call__``.

    All subclasses are frozen dataclasses. Direct ones stand for the keys of a method. A subclass of these with a
    ``name`` is a choice for that key: its fields are the parameters in study files, the first paragraph of its
    docstring is its documentation.
    """

    name: str = ""
    choices: ClassVar[dict[str, type[Part]]]  # the parts that a method's key accepts: name → class

    def __init_subclass__(cls, name: str = "") -> None:
        if Part in cls.__bases__:
            cls.choices = {}
        if name:
            cls.name, cls.__annotations__["name"] = name, Literal[name]
            cls.choices[name] = cls
        dataclass(frozen=True, kw_only=True)(cls)

    @abc.abstractmethod
    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """The formula: a pure function of its arguments and the parameters."""

    @property
    def settings(self) -> dict[str, Any]:
        return {parameter.name: getattr(self, parameter.name) for parameter in fields(self) if parameter.name != "name"}

    @property
    def changed(self) -> dict[str, Any]:
        """The parameters that differ from their defaults; all those of a custom function."""
        defaults = {parameter.name: parameter.default for parameter in fields(self)}
        return {key: value for key, value in self.settings.items() if value != defaults.get(key, MISSING)}

    @property
    def label(self) -> str:
        return ", ".join([self.name, *(f"{key} {value}" for key, value in self.changed.items())])

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that the trainer must provide, as declared by the formula with ``@needs``."""
        return getattr(self.__call__, "needs", frozenset())

    def data(self) -> dict[str, Any]:
        return {"name": self.name, **self.settings}


class Custom(Part):
    """A custom function, "package.module:function"; all other keys are its keyword parameters."""

    parameters: Mapping[str, Any] = field(default_factory=dict, hash=False)

    def __post_init__(self) -> None:
        if not re.fullmatch(r"[\w.]+:\w+", self.name):
            raise ValueError(f"{self.name!r} does not have the form 'package.module:function'")

    @property
    def function(self) -> Callable[..., Any]:
        """The imported function. UserError if the import fails."""
        try:
            return pkgutil.resolve_name(self.name)
        except Exception as error:  # the user's module may raise anything
            hint = " Is its folder on PYTHONPATH?" if isinstance(error, ModuleNotFoundError) else ""
            raise UserError(f"{self.name!r} cannot be imported: {error}.{hint}") from error

    def __call__(self, *arguments: Any) -> Any:
        return self.function(*arguments, **self.parameters)

    @property
    def settings(self) -> dict[str, Any]:
        """All parameters in the method; the function's defaults are not included."""
        return dict(self.parameters)

    @property
    def needs(self) -> frozenset[Need]:
        """Inputs that the function declares with ``@needs``. Imports it; UserError if that fails."""
        return getattr(self.function, "needs", frozenset())
