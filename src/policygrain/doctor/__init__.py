"""`policygrain doctor`: whether this machine, or a cluster, has what a study needs, before the first job says so.

Each check yields findings; a finding that is not in order says what to change.
"""

from .cluster import cluster
from .finding import examine
from .machine import this_machine

__all__ = ["cluster", "examine", "this_machine"]
