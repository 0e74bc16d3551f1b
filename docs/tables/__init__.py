"""Generated blocks of the documentation, by where their numbers come from; see `docs/generate.py`."""
