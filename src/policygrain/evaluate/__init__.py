"""Judging models: the protocol, its records, and the statistics over them."""
