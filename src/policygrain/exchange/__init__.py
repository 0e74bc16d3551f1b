"""Logs of other trainers, as runs that claims can be tested on."""
