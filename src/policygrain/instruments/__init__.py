"""Instruments: measurements on the policies of a study without whole training runs (estimators, rounds)."""
