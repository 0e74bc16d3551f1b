"""`policygrain doctor`: checks, before the first job, whether a machine or cluster has what a study needs.

Each check yields findings; a finding of a problem says what to change.
"""

from .cluster import check_cluster
from .finding import print_findings
from .machine import check_machine

__all__ = ["check_cluster", "check_machine", "print_findings"]
