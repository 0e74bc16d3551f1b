"""Warns once of a clip range that clips no token, such as a token ratio's range with a sequence ratio."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from ..objective import Method
from ..objective.clip import PpoClip

BATCHES = 50  # micro-batches with a ratio above 1
MOST_BATCHES = 1000  # micro-batches that are examined at most
ALIKE = 1e-6  # ratios this close to 1 are 1 except for rounding


class IdleClip:
    """Examines the micro-batches of a run until its clip range clips a token, or has clipped none in `BATCHES`."""

    def __init__(self, objective: Method, say: Callable[[str], None]) -> None:
        """``say`` is called with the message."""
        self.objective, self.say = objective, say
        self.batches, self.seen, self.largest = 0, 0, 0.0
        self.watching = isinstance(objective.clip, PpoClip) and objective.ratio.name != "none"

    def see(self, metrics: Mapping[str, float]) -> None:
        """Metrics of the loss of a micro-batch of training."""
        if not self.watching:
            return
        clipped = metrics["clip_fraction_low"] + metrics["clip_fraction_high"] > 0
        largest = metrics["ratio_max"]
        self.seen += 1
        self.batches += largest > 1 + ALIKE
        self.largest = max(self.largest, largest)
        self.watching = not clipped and self.batches < BATCHES and self.seen < MOST_BATCHES
        if not clipped and self.batches == BATCHES:
            clip = self.objective.clip.settings
            self.say(
                f"{self.objective.name}: the clip range {clip['low']:g} / {clip['high']:g} has clipped no token in "
                f"{BATCHES} micro-batches with ratios other than 1; the largest ratio was 1 + {self.largest - 1:.2g}. "
                "It has had no effect so far. `policygrain calibrate --rollouts` measures which ranges have an effect; "
                f'method("{self.objective.name}", clip={{"low": ..., "high": ...}}) sets the range.'
            )
