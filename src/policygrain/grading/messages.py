"""What the pool and its forkserver say to each other."""

from __future__ import annotations

import struct

REQUEST = struct.Struct("!ci")  # what to do, with which process
REPLY = struct.Struct("!i")  # a new process, or how an old one ended (as in os.waitpid)
FORK, END = b"f", b"e"
UNPARSABLE_GOLD = "unparsable gold"  # beside the outcomes
RETIRED, OUT_OF_MEMORY = 0, 1 << 8  # how a worker ends by itself, as in os.waitpid
