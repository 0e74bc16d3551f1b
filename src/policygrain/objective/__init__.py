"""The objective: pure functions on `TokenBatch`. Imports no other subpackage."""
