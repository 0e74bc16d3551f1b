"""The engine of a run: in the trainer's process, or rollout servers."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from .. import digests
from ..model.precision import compute_name
from ..rollout.fleet import Fleet, served_engine
from ..rollout.open import open_engine, resolve_engine
from ..rollout.server import ServerSettings
from .ranks import is_rank_0, on_rank_0, ranks

if TYPE_CHECKING:
    from ..results.layout import RunFolder
    from ..rollout.engine import Engine
    from ..study.schema import Model, Rollouts, Training
    from .policy import Policy


@contextmanager
def rollout_engine(
    policy: Policy, start: str, spec: Model, settings: Training, rollouts: Rollouts, run: RunFolder
) -> Iterator[Engine]:
    """The engine that samples for ``policy``, whose training begins at the model ``start``."""
    if rollouts.where == "colocated":
        yield open_engine(
            settings.engine,
            start,
            policy.model,
            policy.tokenizer,
            revision=spec.revision,
            kv_gib=settings.kv_gib,
            colocated=True,
        )
        return
    served = ServerSettings(
        start=str(Path(start).resolve()) if Path(start).is_dir() else start,
        revision=spec.revision,
        model=digests.of_model(Path(start)),
        engine=resolve_engine(settings.engine),
        dtype=compute_name(policy.model),
        kv_gib=settings.kv_gib,
        idle_seconds=60 * rollouts.wait_minutes,
    )
    fleet = Fleet(run.servers, rollouts.servers, rollouts.submit, ranks()[1]) if is_rank_0() else None
    attempt = on_rank_0(lambda: uuid.uuid4().hex[:8])
    with served_engine(run.servers, served, fleet, attempt=attempt, chunk=rollouts.chunk) as engine:
        yield engine
