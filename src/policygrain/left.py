"""Commands that left the package, for the error that says where they went."""

from __future__ import annotations

LAB = "is part of the lab: `pip install ./lab` (lab/README.md)"
TAG = "has left; the tag v0.1.0 of the repository has it"

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
