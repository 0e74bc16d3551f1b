"""Messages between the pool, the forkserver and its workers."""

from __future__ import annotations

import struct


class UnreadableGold(Exception):
    """The gold answer cannot be read: an error of the dataset."""


REQUEST = struct.Struct("!ci")  # FORK or END; for END the process id
REPLY = struct.Struct("!i")  # FORK: the process id of the new worker; END: its wait status (as of os.waitpid)
FORK, END = b"f", b"e"
UNREADABLE_GOLD = "unreadable_gold"  # reported by a worker in place of an outcome
RETIRED = "retired"  # sent by a worker that ends itself, perhaps with tasks left
