"""Exact cases: tabular policies whose true gradient is known, on which theory predicts the sign of a comparison."""
