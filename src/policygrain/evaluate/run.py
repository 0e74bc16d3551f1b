"""Judging final models on a study's benchmarks, all of them in one engine."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path

from ..clock import Clock
from ..errors import UserError
from ..files import atomic_json, atomic_text, read_json
from ..grading import open_grader
from ..model.loading import context_length, load_model, load_tokenizer
from ..progress import Progress
from ..provenance import hardware, model_digest, versions
from ..rollout.engine import Engine
from ..rollout.open import open_engine
from ..study.schema import Study
from ..tasks.problem import read_problems
from ..tasks.prompts import PromptRenderer
from ..tasks.registry import sampling_of
from ..tasks.sources import contaminated
from .grading import judge
from .protocol import comparable, key_of, protocol, sampled_under
from .sampling import ask, complete, forget, sample


def evaluate(
    study: Study, models: Mapping[str, Path], data: Path, out: Path, part: tuple[int, int] | None = None
) -> None:
    """Judge ``models`` (name → folder) and write one record per model and benchmark to ``out`` (JSON Lines).

    `evaluation/` in a run's folder (of a start model: NAME beside ``out``) keeps every sampled text with its verdict,
    and the records. A model whose weights and protocol are those of its records is left alone, and a response that was
    drawn is not drawn again.

    ``part`` (i of n) draws that share of each model's responses and judges nothing; the call without it does that, once
    all parts are there.
    """
    problems = {b.name: read_problems(data / "benchmarks" / f"{b.name}.jsonl") for b in study.evaluation.benchmarks}
    longest = max(sampling_of(study, b).max_tokens for b in study.evaluation.benchmarks)
    seen = {name: contaminated(data, name) for name in problems}
    host = EngineHost(study)
    clock, started = Clock(), time.perf_counter()
    lines = []
    with open_grader(study.grader) as grader:
        for name, folder in Progress(models.items(), "models judged", len(models)):
            if folder.name == "model" and not (folder / "config.json").exists():
                raise UserError(f"{folder}: no model here; train it first ({name}).")
            with clock("load"):
                tokenizer = load_tokenizer(str(folder))
                renderer = PromptRenderer(tokenizer, study.prompt, context_length(str(folder)) - longest)
                said = protocol(study, renderer, data, model_digest(folder), grader.name)
            # Beside a run's own model; a start model may be anywhere, and not ours to write to.
            store = folder.parent / "evaluation" if folder.name == "model" else out.parent / name
            kept = read_json(store / "records.json") if (store / "records.json").exists() else {}
            if kept.get("key") != key_of(said):
                asked, drawn = ask(study, problems, renderer), sampled_under(said)
                before = dict(clock.seconds)
                with clock("engine"):
                    sample(asked, partial(host.engine, folder), store, drawn, part or (0, 1))
                if part is not None:
                    continue
                with clock("judge"):
                    responses = complete(asked, store, drawn)
                    texts = tokenizer.batch_decode([r.ids for r in responses], skip_special_tokens=True)
                    records = judge(asked, responses, texts, grader, store, seen)
                own = {phase: seconds - before.get(phase, 0.0) for phase, seconds in clock.seconds.items()}
                facts = {"seconds": own, "hardware": hardware(), "versions": versions()}
                kept = {"key": key_of(said), "protocol": said, "facts": facts, "records": records}
                atomic_json(store / "records.json", kept)
                forget(store)
            shared = {"model": name, "protocol_key": comparable(kept["protocol"]), "key": kept["key"]}
            lines += [json.dumps({**shared, **record}, ensure_ascii=False) for record in kept["records"]]
    if part is None:
        atomic_text(out, "".join(line + "\n" for line in lines))
    spent = {**clock.seconds, "total": time.perf_counter() - started}
    print(", ".join(f"{phase} {seconds:.1f} s" for phase, seconds in spent.items()), file=sys.stderr)


class EngineHost:
    """The engine, with one model's weights after the other's.

    They are read when something is to be drawn, not to find that nothing is.
    """

    def __init__(self, study: Study) -> None:
        self.study = study
        self._serves: tuple[Path, Engine] | None = None

    def engine(self, folder: Path) -> Engine:
        """The engine with the weights in ``folder``."""
        if self._serves is None or self._serves[0] != folder:
            self._serves = None  # an engine that cannot be taken over makes room before the next one starts
            self._serves = folder, open_engine(self.study.evaluation.engine, str(folder), *load_model(str(folder)))
        return self._serves[1]
