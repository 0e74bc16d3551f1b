"""The speed of devices and the expected lengths of texts, from `constants.yaml` and a file that overrides it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, ValidationError

from ..errors import UserError, did_you_mean
from .loads import Speed

# `decode` is vLLM's, `decode_transformers` that of the other engine.
Phase = Literal["start", "load", "decode", "decode_transformers", "score", "update", "judge"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class _Speed(_Entry):
    call: NonNegativeFloat = 0.0
    rate: PositiveFloat | None = None
    bandwidth: PositiveFloat | None = None


class Device(_Entry):
    """A GPU, or one core of a CPU: its memory, its speed in each phase, and the source of these numbers."""

    title: str
    measured: bool
    memory: PositiveFloat = Field(description="bytes")
    source: str = Field(min_length=1)
    phases: dict[Phase, _Speed]

    def speed(self, phase: Phase) -> Speed:
        """The device's speed in ``phase``."""
        return Speed(**self.phases[phase].model_dump())


class Workload(_Entry):
    """Expected lengths of prompts and responses, in tokens."""

    prompt_tokens: PositiveFloat
    response_tokens: PositiveFloat
    draws: float = Field(ge=1, description="prompts sampled for each that is trained on, with dynamic sampling")
    source: str = Field(min_length=1)


class Constants(_Entry):
    """All inputs of an estimate besides the study."""

    devices: dict[str, Device]
    workloads: dict[str, Workload]
    shapes: dict[str, dict[str, Any]] = {}

    def device(self, name: str) -> Device:
        """The device called ``name``. UserError with similar names if there is none."""
        if name not in self.devices:
            raise UserError(f"no device is called {name!r} in the constants.{did_you_mean(name, self.devices)}")
        return self.devices[name]

    def workload(self, model: str) -> Workload:
        """The expected lengths for ``model``, else the default ones."""
        return self.workloads.get(model, self.workloads["default"])


def read_constants(over: Path | None = None) -> Constants:
    """The package's constants, with entries replaced or added by the file ``over``. UserError if it is invalid."""
    data = yaml.safe_load(resources.files(__package__).joinpath("constants.yaml").read_text(encoding="utf-8"))
    if over is not None:
        try:
            for section, entries in (yaml.safe_load(over.read_text(encoding="utf-8")) or {}).items():
                data[section] = {**data.get(section, {}), **entries}
        except (OSError, ValueError, RecursionError, yaml.YAMLError, AttributeError, TypeError) as error:
            raise UserError(f"{over}: not readable as a file of constants: {error}") from error
    try:
        constants = Constants.model_validate(data)
    except ValidationError as error:
        lines = "\n".join(f"  {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(f"{over or 'constants.yaml'}: the constants cannot be read.\n{lines}") from error
    for name, device in constants.devices.items():
        if missing := [phase for phase in get_args(Phase) if phase not in device.phases]:
            raise UserError(f"{over or 'constants.yaml'}: devices.{name}.phases: {', '.join(missing)} is missing.")
    return constants
