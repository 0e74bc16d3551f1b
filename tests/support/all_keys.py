"""A study with every optional section, and another valid value for each of its keys."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

from pydantic.fields import FieldInfo

from policygrain.study import Study, parse_study

# Every optional section is there. Values are no defaults where another value is allowed, so that both kinds are met.
REFERENCE: dict[str, Any] = {
    "name": "reference",
    "title": "All sections",
    "seeds": [3, 5],
    "seeds_per_process": 2,
    "model": {
        "start": "tiny",
        "lora": {"rank": 4},
        "tiny": {"hidden": 64, "heads": 2},
        "warm_start": {"steps": 5, "mixed_steps": 5},
    },
    "prompt": {"template": "Q: {problem}\n", "chat": True},
    "data": {"train": ["count", "own.jsonl"], "train_size": 200, "validation_size": 10},
    "training": {"steps": 4, "prompts_per_step": 4, "group": 4, "updates_per_batch": 2},
    "methods": {"mine": {"base": "grpo", "clip": {"low": 0.1}, "summary": "one", "source": "two"}},
    "experiments": {
        "headline": {"methods": ["grpo", "mine"]},
        "stress": {"methods": ["grpo"], "vary": {"updates_per_batch": [1, 8]}, "seeds": [3], "evaluate": False},
    },
    "evaluation": {
        "sampling": {"n": 2, "temperature": 1.0, "max_tokens": 12},
        "benchmarks": [
            {"name": "count", "source": "count", "size": 15, "sampling": {"n": 4, "temperature": 0.5}},
            {"name": "set", "source": "own_test.jsonl"},
        ],
    },
    "tracking": {"uri": "sqlite:///x.db"},
}
SOURCES = {"own.jsonl": "a" * 16, "own_test.jsonl": "b" * 16}

# Another valid value where the type alone does not lead to one, or would not keep the study valid.
OTHER: dict[str, Any] = {
    "model.start": "some/model",
    "model.lora.targets": ["q_proj"],
    "model.tiny.hidden": 128,
    "model.tiny.heads": 1,
    "prompt.template": "Problem: {problem}\n",
    "data.train": ["count", "largest"],
    "training.betas": [0.8, 0.9],
    "prompt.chat_template_kwargs": {"enable_thinking": False},
    "evaluation.stop": ["Problem:"],
    "training.trl": {"ddp_timeout": 60},
    "training.verl": {"trainer": {"nnodes": 2}},
    "model.tiny.vocabulary": 300,
    "tuned_on": ["ranges.yaml"],
    "training.segment_ends": ["\n", "."],
    "experiments.NAME.methods": ["grpo", "mine", "dapo"],
    "experiments.NAME.seeds": [3],
    "experiments.NAME.reference": "grpo",
    "experiments.NAME.compare": [["grpo", "mine"]],
    "experiments.NAME.vary": {"group": [4, 2]},
    "evaluation.benchmarks[].name": "renamed",
    "evaluation.benchmarks[].source": "largest",
    "figures": ["clip_ratio"],
}


# The same for the keys of a method, whose base is `grpo` with a lower clip.
OTHER_OF_METHOD: dict[str, Any] = {
    "base": "dapo",
    "label": "Mine",
    "summary": "another",
    "source": "another",
    "advantage": "rloo",
    "ratio": "sequence",
    "clip": {"low": 0.3},
    "aggregation": {"name": "seq_mean_token_sum_norm"},
    "penalties": [{"name": "kl", "coefficient": 0.1}],
    "sampler": {"dynamic": True},
    "mtp_heads": {"warmup_batches": 3},
    "off_policy_bound": 0.1,
    "anchor": "rollout",
}


def reference(data: dict[str, Any] = REFERENCE) -> Study:
    return parse_study(data, Path("study.yaml"))


def places(data: Any, parts: list[str]) -> list[tuple[Any, str]]:
    """(mapping, its key) of a key of the schema in a study's data; ``[]`` is a list's first item."""
    name, marker = parts[0].removesuffix("[]"), parts[0].endswith("[]")
    if len(parts) == 1:
        return [(data, name)]
    inside = data.setdefault(name, {})
    if marker:
        return places(inside[0], parts[1:])
    if parts[1] == "NAME":
        wanted = {"methods": "mine", "experiments": "headline"}[name]
        return places(inside[wanted], parts[2:])
    return places(inside, parts[1:])


def other_value(key: str, info: FieldInfo, now: Any) -> Any:
    """A valid value of a key that is not ``now``, by its type."""
    if key in OTHER:
        return OTHER[key]
    kinds = get_args(info.annotation) if get_origin(info.annotation) not in (Literal, list, dict, tuple) else ()
    kind = next((k for k in kinds if k is not type(None)), info.annotation)
    if get_origin(kind) is Literal:
        return next(value for value in get_args(kind) if value != now)
    if get_origin(kind) is list:
        return [*now, max(now) + 1]
    origin = get_args(kind)[0] if get_args(kind) else kind
    if origin is bool:
        return not now
    if origin is int:
        return (now or 0) + 1
    if origin is float:
        return now / 2 if now else 0.25
    if origin in (str, Path):
        return f"{now or ''}other"
    raise AssertionError(f"{key}: give the test another value of {info.annotation}")


def value_at(study: Study, parts: list[str]) -> Any:
    found: Any = study
    for part in parts:
        if part == "NAME":
            found = found["mine" if "mine" in found else "headline"]
        else:
            found = getattr(found, part.removesuffix("[]"))
            found = found[0] if part.endswith("[]") else found
    return found


def with_values(**values: Any) -> Study:
    """The reference study with other values of these keys of the schema."""
    data = copy.deepcopy(REFERENCE)
    for key, value in values.items():
        ((inside, name),) = places(data, key.split("."))
        inside[name] = value
    return reference(data)
