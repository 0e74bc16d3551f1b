"""Rollouts: engines that sample responses to prompts; ``open.open_engine`` chooses one."""
