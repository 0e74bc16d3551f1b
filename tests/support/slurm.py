"""A SLURM cluster of the tests' own: real daemons in a temporary folder, and nodes that are made up.

Everything is the distribution's SLURM: authentication, controller, a daemon per node. Nodes share the machine and are
told apart by their ports. Nothing outside the folder is written, and nothing outlives the tests (leftovers.py).
"""

import contextlib
import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from .leftovers import swept

NODES = ("node1", "node2")
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"
CONFIGURATION = Path(__file__).with_name("slurm.conf")


@dataclass
class Cluster:
    """A running cluster; `environment` is what a user's commands need to find it."""

    folder: Path
    environment: dict[str, str] = field(default_factory=dict)

    def ask(self, *command: str, timeout: float = 120) -> str:
        """What a SLURM command prints."""
        options: Any = {"env": self.environment, "capture_output": True, "text": True, "timeout": timeout}
        done = subprocess.run(command, check=False, **options)
        assert done.returncode == 0, f"{' '.join(command)}: {done.stderr}"
        return done.stdout.strip()

    def jobs(self, *states: str) -> list[tuple[str, str, str]]:
        """(id, state, comment) of jobs that wait or run, or of those in ``states``; the comment names the rule."""
        chosen = ["--states", ",".join(states)] if states else []
        lines = self.ask("squeue", "--noheader", *chosen, "--format=%i|%T|%k").splitlines()
        return [(job, state, comment) for job, state, comment in (line.split("|", 2) for line in lines)]

    def wait(self, condition: Callable[[], object], seconds: float, what: str) -> None:
        """Until ``condition`` holds; fails with the controller's last words."""
        end = time.monotonic() + seconds
        while not condition():
            if time.monotonic() > end:
                log = (self.folder / "log" / "slurmctld.log").read_text().splitlines()[-15:]
                raise AssertionError(f"not within {seconds:.0f} s: {what}\n" + "\n".join(log))
            time.sleep(0.5)


def missing() -> str | None:
    """Why no cluster can be started here, and what to do about it; None where one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    if absent:
        return f"no SLURM here ({', '.join(absent)}): {INSTALL}"
    if os.geteuid() != 0:
        return "SLURM's daemons need root here, since they start jobs: run the tests as root, as CI does"
    return None


@contextlib.contextmanager
def running() -> Iterator[Cluster]:
    """munged, slurmctld and a slurmd per node."""
    # A short path: the name of a socket has 107 characters.
    folder = Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp"))
    with swept(folder) as mark:
        cluster = Cluster(folder, environment=mark)
        _configure(cluster)
        munge = ["--key-file", f"{folder}/munge.key", "--socket", f"{folder}/munge.socket"]
        munge += [f"--{name}={folder}/munged.{name.split('-')[0]}" for name in ("pid-file", "seed-file")]
        _daemon(cluster, "munged", "munged", "--foreground", *munge)
        cluster.wait((folder / "munge.socket").exists, 10, "munged answers")
        _daemon(cluster, "slurmctld", "slurmctld", "-D")
        for node in NODES:
            _daemon(cluster, node, "slurmd", "-D", "-N", node)
        cluster.wait(lambda: _idle(cluster) == {*NODES}, 60, "all nodes are idle")
        yield cluster


def _idle(cluster: Cluster) -> set[str]:
    """Nodes that wait for jobs; none while the controller does not answer."""
    with contextlib.suppress(AssertionError):
        return set(cluster.ask("sinfo", "--noheader", "--Node", "--states=idle", "--format=%N").split())
    return set()


def _configure(cluster: Cluster) -> None:
    """Configuration, key and an environment that leads to them."""
    folder = cluster.folder
    folder.chmod(0o755)
    for name in ("state", "log", "bin", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    host = socket.gethostname().split(".")[0]
    controller_port, *ports = _free_ports(1 + len(NODES))
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=64000"
        for node, port in zip(NODES, ports, strict=True)
    )
    configuration = CONFIGURATION.read_text().format(
        host=host, controller_port=controller_port, folder=folder, nodes=nodes
    )
    (folder / "slurm.conf").write_text(configuration)
    # A cluster has its configuration in /etc/slurm, where programs find it with no word of it in the environment.
    for program in PROGRAMS:
        wrapper = folder / "bin" / program
        wrapper.write_text(
            f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which(program, path=SEARCHED)} "$@"\n'
        )
        wrapper.chmod(0o755)
    cluster.environment |= {
        **{key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SRUN_"))},
        "PATH": f"{folder}/bin:{SEARCHED}",
    }


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    with contextlib.ExitStack() as stack:
        sockets = [stack.enter_context(socket.socket()) for _ in range(count)]
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]


def _daemon(cluster: Cluster, name: str, program: str, *arguments: str) -> None:
    with (cluster.folder / "log" / f"{name}.out").open("ab") as out:
        subprocess.Popen(
            [program, *arguments],
            env=cluster.environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=out,
            start_new_session=True,  # Ctrl-C on the tests is not for them
        )
