"""Rollouts: engines that continue prompts. ``engine.open_engine`` picks one; the rest is theirs."""
