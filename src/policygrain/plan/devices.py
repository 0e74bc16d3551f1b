"""The speed of devices and the expected lengths of texts, from `constants.yaml` and a file that overrides it."""

from __future__ import annotations

from importlib import resources
from pathlib import Path
from typing import Any, Literal, get_args

import yaml
from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, PositiveFloat, ValidationError

from ..errors import UserError, did_you_mean
from .loads import Load

# `decode` is vLLM's, `decode_transformers` that of the other engine.
Phase = Literal["start", "load", "decode", "decode_transformers", "score", "update", "judge"]


class _Entry(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Speed(_Entry):
    """The speed of a device in one phase. A missing rate or bandwidth takes no time."""

    call: NonNegativeFloat = Field(0.0, description="seconds")
    rate: PositiveFloat | None = Field(None, description="FLOP/s")
    bandwidth: PositiveFloat | None = Field(None, description="bytes/s")

    def seconds(self, load: Load) -> float:
        """Seconds that ``load`` takes: arithmetic and memory access overlap on a device, so an upper estimate."""
        arithmetic = load.flops / self.rate if self.rate else 0.0
        reading = load.bytes / self.bandwidth if self.bandwidth else 0.0
        return load.calls * self.call + arithmetic + reading


class Device(_Entry):
    """A GPU, or one core of a CPU: its memory in bytes, its speed in each phase, and the source of these numbers."""

    title: str
    measured: bool
    memory: PositiveFloat
    source: str = Field(min_length=1)
    phases: dict[Phase, Speed]


class Expected(_Entry):
    """Expected lengths of prompts and responses in tokens, and prompts drawn for each that dynamic sampling keeps."""

    prompt_tokens: PositiveFloat
    response_tokens: PositiveFloat
    draws: float = Field(ge=1)
    source: str = Field(min_length=1)


class Constants(_Entry):
    """All inputs of an estimate besides the study."""

    devices: dict[str, Device]
    workloads: dict[str, Expected]
    shapes: dict[str, dict[str, Any]] = {}

    def device(self, name: str) -> Device:
        """The device called ``name``. UserError with similar names if there is none."""
        if name not in self.devices:
            raise UserError(f"no device is called {name!r} in the constants.{did_you_mean(name, self.devices)}")
        return self.devices[name]


def read_constants(over: Path | None = None) -> Constants:
    """The package's constants, with entries replaced or added by the file ``over``. UserError if it is invalid."""
    data = yaml.safe_load(resources.files(__package__).joinpath("constants.yaml").read_text(encoding="utf-8"))
    name = over or "constants.yaml"
    try:
        changes = yaml.safe_load(over.read_text(encoding="utf-8")) if over else None
        for section, entries in (changes or {}).items():
            data[section] = {**data.get(section, {}), **entries}
        constants = Constants.model_validate(data)
    except ValidationError as error:
        lines = "\n".join(f"  {'.'.join(map(str, e['loc']))}: {e['msg']}" for e in error.errors())
        raise UserError(f"{name}: the constants cannot be read.\n{lines}") from error
    except (OSError, ValueError, RecursionError, yaml.YAMLError, AttributeError, TypeError) as error:
        raise UserError(f"{name}: not readable as a file of constants: {error}") from error
    for device, entry in constants.devices.items():
        if missing := [phase for phase in get_args(Phase) if phase not in entry.phases]:
            raise UserError(f"{name}: devices.{device}.phases: {', '.join(missing)} is missing.")
    return constants
