"""A rollout batch that rollout servers sample while the trainer updates the policy."""

from __future__ import annotations

import threading

from ..clock import Clock
from ..methods import Method
from ..model.snapshot import Snapshot
from ..rollout.engine import EngineError
from .policy import Policy
from .ranks import is_rank_0, on_rank_0, without_others
from .rollout_batch import RolloutBatch, prepared
from .rollouts import Collector, Rollouts

WAIT = 60.0  # seconds, much less than the time limit of collective operations


class PendingBatch:
    """The next batch, begun with the policy's current weights; it is the one that `collect_batch` would return now
    (with several ranks up to rounding, since the requests are divided among servers in other chunks).

    Rank 0 samples and grades it in a thread, since servers do the work; the other ranks have it when it is finished.
    """

    def __init__(self, collector: Collector, policy: Policy, clock: Clock) -> None:
        self._collector, self._policy = collector, policy
        self._rollouts: Rollouts | None = None
        self._error: Exception | None = None
        with clock("synchronise"):
            collector.engine.load_weights(policy.model)
            # Its log-probabilities are those of the policy that samples it, which the updates change meanwhile.
            self._sampled_by = Snapshot(policy.modules)
        # A daemon: a trainer that fails does not wait for servers.
        self._thread = threading.Thread(target=self._collect, daemon=True)
        if is_rank_0():
            self._thread.start()

    def _collect(self) -> None:
        try:
            with without_others():
                self._rollouts = self._collector.collect(Clock())
        except Exception as error:  # raised again where the batch is awaited
            self._error = error

    def _has_ended(self) -> bool:
        self._thread.join(WAIT)
        return not self._thread.is_alive()

    def finish(self, method: Method, clock: Clock) -> RolloutBatch:
        """Wait for the responses; advantages and log-probabilities under the policy that sampled them.

        EngineError if they could not be sampled.
        """

        def outcome() -> tuple[Rollouts | None, str, int]:
            if self._error is not None and not isinstance(self._error, EngineError):
                raise self._error
            return self._rollouts, str(self._error or ""), self._collector.stream.position

        with clock("generate"):
            # The other ranks hear of rank 0 regularly: a collective operation without an answer is an error.
            while not on_rank_0(self._has_ended):
                pass
            rollouts, error, self._collector.stream.position = on_rank_0(outcome)
        if rollouts is None:
            raise EngineError(error)
        with self._sampled_by.loaded():
            return prepared(rollouts, self._policy, method, self._collector.settings, clock)
