"""The arithmetic by which the laptop regime was chosen."""

from __future__ import annotations

import pytest
import torch

from policygrain.train.calibration import largest_as_good, matched_bands


def test_the_largest_rate_within_a_standard_error_of_the_best_is_taken() -> None:
    # Means 0.40, 0.39, 0.30; the best one's standard deviation is 0.0462, its standard error 0.0231.
    rates = {1e-4: [0.36, 0.44, 0.36, 0.44], 2e-4: [0.39] * 4, 4e-4: [0.30] * 4}
    assert largest_as_good(rates) == 2e-4
    assert largest_as_good(rates | {2e-4: [0.37] * 4}) == 1e-4
    assert largest_as_good({1e-4: [0.5], 2e-4: [0.4]}) == 1e-4


def test_bands_clip_the_same_share_of_tokens() -> None:
    generator = torch.Generator().manual_seed(0)
    sign = torch.where(torch.rand(100_000, generator=generator) < 0.5, 1.0, -1.0)
    token = 0.15 * torch.randn(100_000, generator=generator)
    observed = {"token": torch.stack([token, sign]), "wide": torch.stack([4 * token + 0.1, sign])}
    result = matched_bands(observed, low=0.2, high=0.28)
    assert result["bands"]["token"] == pytest.approx({"low": 0.2, "high": 0.28}, abs=2e-3)
    wide, band = observed["wide"], result["bands"]["wide"]
    low = (wide[0] < torch.log(torch.tensor(1 - band["low"])))[sign < 0].float().mean()
    high = (wide[0] > torch.log(torch.tensor(1 + band["high"])))[sign > 0].float().mean()
    assert {"low": float(low), "high": float(high)} == pytest.approx(result["clip_fraction"], abs=1e-3)
