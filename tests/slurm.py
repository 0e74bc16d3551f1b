"""A SLURM cluster of the tests' own: real daemons in a temporary folder, nodes and GPUs that are made up.

Everything is the distribution's SLURM: authentication, controller, a daemon per node. Nodes share the machine and are
told apart by their ports; a GPU is a character device that nothing answers behind, which SLURM counts, grants and
withholds like a real one. Nothing outside the folder is written, and no daemon outlives the tests.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import signal
import socket
import stat
import subprocess
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

NODES = ("node1", "node2")
GPUS_PER_NODE = 1
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo")
SEARCHED = f"{os.environ.get('PATH', '')}:/usr/sbin:/sbin"
INSTALL = "apt-get install -y --no-install-recommends slurmctld slurmd slurm-client munge"

CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
SlurmctldPort={controller_port}
AuthType=auth/munge
# Credentials that outlive a requeued job keep it from starting again for two minutes.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool/%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd.%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
JobRequeue=1
DefMemPerCPU=500
{gpu_type}
{nodes}
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP
"""


@dataclass
class Cluster:
    """A running cluster; `environment` is what a user's commands need to find it."""

    folder: Path
    has_gpus: bool = False
    environment: dict[str, str] = field(default_factory=dict)
    daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)

    def ask(self, *command: str, timeout: float = 30) -> str:
        """What a SLURM command prints."""
        done = subprocess.run(
            command, env=self.environment, capture_output=True, text=True, timeout=timeout, check=False
        )
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
            time.sleep(0.2)


def missing() -> str | None:
    """Why no cluster can be started here, and what to do about it; None where one can."""
    absent = [name for name in PROGRAMS if shutil.which(name, path=SEARCHED) is None]
    if absent:
        return f"no SLURM here ({', '.join(absent)}): {INSTALL}"
    if os.geteuid() != 0:
        return "SLURM's daemons need root here, since they start jobs: run the tests as root, as CI does"
    return None


def start() -> Cluster:
    """Start munged, slurmctld and a slurmd per node; `stop` it whatever happens."""
    # A short path: the name of a socket has 107 characters.
    cluster = Cluster(Path(tempfile.mkdtemp(prefix="slurm-", dir="/tmp")))
    try:
        _configure(cluster)
        munge = ["--key-file", f"{cluster.folder}/munge.key", "--socket", f"{cluster.folder}/munge.socket"]
        munge += [f"--{name}={cluster.folder}/munged.{name.split('-')[0]}" for name in ("pid-file", "seed-file")]
        _daemon(cluster, "munged", "--foreground", *munge)
        cluster.wait((cluster.folder / "munge.socket").exists, 10, "munged answers")
        _daemon(cluster, "slurmctld", "-D")
        for node in NODES:
            _daemon(cluster, "slurmd", "-D", "-N", node)
        cluster.wait(lambda: _idle(cluster) == len(NODES), 30, "all nodes are idle")
    except BaseException:
        stop(cluster)
        raise
    return cluster


def stop(cluster: Cluster) -> None:
    """End the jobs, then the daemons, then remove the folder."""
    try:
        cluster.ask("scancel", "--full", "--user=root")
        cluster.wait(lambda: not cluster.jobs(), 20, "jobs end")
    except (AssertionError, OSError, subprocess.SubprocessError) as error:
        print(f"SLURM's jobs could not be ended: {error}")
    for daemon in reversed(cluster.daemons):
        daemon.terminate()
    for daemon in cluster.daemons:
        try:
            daemon.wait(10)
        except subprocess.TimeoutExpired:
            daemon.kill()
            daemon.wait()
    for process in _left_behind(cluster.folder):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    shutil.rmtree(cluster.folder, ignore_errors=True)


def _left_behind(folder: Path) -> list[int]:
    """Processes of jobs that outlived their cluster: what was started there has its folder in the environment."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        with contextlib.suppress(OSError):
            if int(path.parent.name) != os.getpid() and os.fsencode(f"{folder}/") in path.read_bytes():
                found.append(int(path.parent.name))
    return found


def _idle(cluster: Cluster) -> int:
    """Nodes that wait for jobs."""
    command = ["sinfo", "--noheader", "--Node", "--partition=cpu", "--format=%T"]
    done = subprocess.run(command, env=cluster.environment, capture_output=True, text=True, timeout=30, check=False)
    return done.stdout.split().count("idle")


def _configure(cluster: Cluster) -> None:
    """Configuration, key, devices and an environment that leads to them."""
    folder = cluster.folder
    folder.chmod(0o755)
    for name in ("state", "log", "bin", "devices", *(f"spool/{node}" for node in NODES)):
        (folder / name).mkdir(parents=True)
    key = folder / "munge.key"
    key.write_bytes(os.urandom(1024))
    key.chmod(0o400)
    try:
        for node in NODES:
            for i in range(GPUS_PER_NODE):
                # SLURM wants a device, not a file. This is /dev/null under another name.
                os.mknod(folder / "devices" / f"{node}-gpu{i}", 0o666 | stat.S_IFCHR, os.makedev(1, 3))
        cluster.has_gpus = True
    except OSError:
        cluster.has_gpus = False
    host = socket.gethostname().split(".")[0]
    controller_port, *ports = _free_ports(1 + len(NODES))
    gres = f" Gres=gpu:fake:{GPUS_PER_NODE}" if cluster.has_gpus else ""
    nodes = "\n".join(
        f"NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=8 RealMemory=64000{gres}"
        for node, port in zip(NODES, ports, strict=True)
    )
    configuration = CONFIGURATION.format(
        host=host,
        user="root",
        controller_port=controller_port,
        folder=folder,
        gpu_type="GresTypes=gpu" if cluster.has_gpus else "",
        nodes=nodes,
    )
    (folder / "slurm.conf").write_text(configuration)
    if cluster.has_gpus:
        devices = [
            f"NodeName={n} Name=gpu Type=fake File={folder}/devices/{n}-gpu[0-{GPUS_PER_NODE - 1}]" for n in NODES
        ]
        (folder / "gres.conf").write_text("\n".join(devices) + "\n")
    # Snakemake's executor takes SLURM_* out of the environment before it calls srun inside a job, SLURM_CONF with it. A
    # cluster with its configuration in /etc/slurm does not mind.
    srun = folder / "bin" / "srun"
    srun.write_text(f'#!/bin/sh\nSLURM_CONF={folder}/slurm.conf exec {shutil.which("srun", path=SEARCHED)} "$@"\n')
    srun.chmod(0o755)
    cluster.environment = {
        **{key: value for key, value in os.environ.items() if not key.startswith(("SLURM_", "SBATCH_", "SRUN_"))},
        "PATH": f"{folder}/bin:{SEARCHED}",
        "SLURM_CONF": f"{folder}/slurm.conf",
    }


def _free_ports(count: int) -> list[int]:
    """Ports that nobody listens on just now."""
    sockets = [socket.socket() for _ in range(count)]
    try:
        for each in sockets:
            each.bind(("127.0.0.1", 0))
        return [each.getsockname()[1] for each in sockets]
    finally:
        for each in sockets:
            each.close()


def _daemon(cluster: Cluster, program: str, *arguments: str) -> None:
    """Start a daemon that ends with the tests, even if they are killed."""
    libc = ctypes.CDLL(None)

    def die_with_parent() -> None:
        libc.prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG

    with (cluster.folder / "log" / f"{program}.out").open("ab") as out:
        path = shutil.which(program, path=SEARCHED) or program
        cluster.daemons.append(
            subprocess.Popen(
                [path, *arguments],
                env=cluster.environment,
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C on the tests is not for them: `stop` ends them in order
                preexec_fn=die_with_parent,  # noqa: PLW1509 - a single system call
            )
        )
