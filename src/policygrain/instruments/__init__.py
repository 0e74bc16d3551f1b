"""Instruments: measurements without whole training runs, on policies of a study or on policies with exact gradients."""
