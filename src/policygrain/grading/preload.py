"""Imported by the process that worker processes are forked from (see workers.py): they inherit what is here."""

import gc
import os
import signal

os.environ["OPENBLAS_NUM_THREADS"] = "1"  # its threads take memory, which is limited
import numpy  # noqa: F401 # tests of published sets of coding problems import it
import pebble  # noqa: F401

from . import code  # noqa: F401

# A scheduler sends these signals to every process of a job; the trainer still grades the answers of its last step.
for number in (signal.SIGTERM, signal.SIGUSR1):
    signal.signal(number, signal.SIG_IGN)
null = os.open(os.devnull, os.O_RDWR)
for standard in range(3):  # neither answers nor tests write to the terminal
    os.dup2(null, standard)
gc.freeze()  # a worker's garbage collector then leaves the shared pages alone, so they are not copied
gc.set_threshold(20_000, 20, 20)  # the default thresholds cost a fifth of the time
