"""Beside PolicyGrain: exact cases, measured gradients, diagnoses of rollouts, conformance of running trainers."""
