"""Answers that a grader must survive."""

# Takes all the time that it is given.
ENDLESS = "\\sum_{k=1}^{10^{9}} \\sin(\\cos(k))"
