"""A rollout batch that rollout servers sample while the trainer updates the policy."""

from __future__ import annotations

import threading

from ..clock import Clock
from ..methods import Method
from ..model.snapshot import Snapshot
from .policy import Policy
from .ranks import is_rank_0, on_rank_0, without_others
from .rollout_batch import RolloutBatch, prepared
from .rollouts import Collector, Rollouts


class PendingBatch:
    """The next batch, begun with the policy's current weights; it is the one that `collect_batch` would return now.

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

    def finish(self, method: Method, clock: Clock) -> RolloutBatch:
        """Wait for the responses; advantages and log-probabilities under the policy that sampled them.

        EngineError if they could not be sampled.
        """

        def outcome() -> tuple[Rollouts | None, Exception | None, int]:
            self._thread.join()
            return self._rollouts, self._error, self._collector.stream.position

        with clock("generate"):
            rollouts, error, self._collector.stream.position = on_rank_0(outcome)
        if error is not None:
            raise error
        assert rollouts is not None
        with self._sampled_by.loaded():
            return prepared(rollouts, self._policy, method, self._collector.settings, clock)
