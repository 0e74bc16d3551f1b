"""Policies whose exact gradient is known: cases, a map of settings, episodes of turns."""
