"""The names of the registered sets: of programs, and of those in the folder of real sets."""

from policygrain.data.sets import SETS

CODE = ("humaneval", "humaneval_plus", "mbpp_plus")
RECORDED = tuple(name for name in SETS if name not in CODE)
