"""Keys, figures and commands that left the package, for the error that says where they went."""

from __future__ import annotations

LAB = "is part of the lab: `pip install ./lab` (lab/README.md)"
TAG = "has left; the tag v0.1.0 of the repository has it"

KEYS = {
    "estimators": LAB,
    "rounds": LAB,
    "sanity_checks": TAG,
    "training.call_reward": TAG,
    "training.sampler_bits": TAG,
    "training.sampling_seed": TAG,
    "training.segment_ends": TAG,
    "training.shuffle_rewards": TAG,
    "training.ahead": "is now called 'off_policy_steps'",
    "evaluation.runs_per_engine": "has left: one job evaluates the models of an arm",
}
FIGURES = {
    **dict.fromkeys(("cases", "cases_map", "estimators", "rounds", "ranges", "phase"), LAB),
    **dict.fromkeys(("regimes", "verdicts"), TAG),
    **dict.fromkeys(("block_size", "future_weight"), "is now the figure 'sweep', of the study's key 'sweeps'"),
}
COMMANDS = {
    "anatomy": LAB,
    "calibrate": LAB,
    "cases": LAB,
    "estimators": LAB,
    "rounds": LAB,
    "ranges": LAB,
    "claims": "is now `policygrain report`; for logs of runs, `policygrain claim`",
    "freeze": TAG,
    "thaw": TAG,
    "inspect": TAG,
    "show": TAG,
    "export": TAG,
    "fetch-model": "is now `make model-smollm2`",
    "schema": "is workflow/schemas/study.schema.json, which `make schema` writes",
}
