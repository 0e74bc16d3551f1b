"""`policygrain doctor`: on this machine, and on made-up clusters with one fault each."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.doctor.profile import RULES, ResourceRequest

STUDY = "base: {root}/studies/smoke.yaml\nname: doctor\nevaluation: {{engine: transformers}}\n"
# What sinfo prints for `%P|%a|%l|%m|%c|%G`.
SINFO = """\
cpu*|up|1-00:00:00|64000|16|(null)
gpu|up|4:00:00|128000+|32|gpu:a100:4(S:0-1),nvme:1
old|down|1:00|1|1|(null)
"""
# What `scontrol show config` prints.
CONFIG = """\
AccountingStorageType   = accounting_storage/none
MinJobAge               = 300 sec
PreemptMode             = REQUEUE
"""
# srun runs its command here, without its options.
SRUN = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nSLURMD_NODENAME=n1 exec "$@"\n'

RunDoctor = Callable[..., tuple[int, str]]


@pytest.fixture
def doctor(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> RunDoctor:
    """`policygrain doctor --slurm` with a made-up SLURM, a profile and a study: (exit code, everything printed)."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)
    monkeypatch.delenv("SLURM_CONF", raising=False)

    def run(
        profile: str = "{}", study: str = "", srun: str = SRUN, sinfo: str = SINFO, config: str = CONFIG
    ) -> tuple[int, str]:
        commands = {name: "#!/bin/sh\nexit 1\n" for name in ("sbatch", "squeue", "scancel")}
        commands |= {"srun": srun, "sinfo": f"#!/bin/sh\ncat <<'EOF'\n{sinfo}EOF\n"}
        commands["scontrol"] = f"#!/bin/sh\ncat <<'EOF'\n{config}EOF\n"
        for name, text in commands.items():
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        Path("profile.yaml").write_text(profile)
        Path("study.yaml").write_text(STUDY.format(root=root) + study)
        code = main(["doctor", "--slurm", "--config", "study.yaml", "--profile", "profile.yaml"])
        printed = capsys.readouterr()
        return code, printed.out + printed.err

    return run


def test_a_cluster_in_order(doctor: RunDoctor, root: Path) -> None:
    code, said = doctor((root / "slurm" / "config.yaml").read_text())
    assert code == 0, said
    assert "partitions: cpu, gpu" in said and "sees folder and environment" in said and "wrong" not in said
    assert not list(Path("results").iterdir()), "the test job's files are removed"


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        ("set-resources: {train: {slurm_partition: gpuu}}", ["train: there is no partition 'gpuu'", "mean 'gpu'?"]),
        (
            "set-resources: {train: {gpu: 1}}",
            ["asks for 1 GPU(s) per node, 'cpu' has 0", "one that has them: gpu."],
        ),
        ("set-resources: {train: {slurm_partition: gpu, gpu: 8}}", ["'gpu' has 4", "Ask for fewer."]),
        (
            "set-resources: {train: {slurm_partition: gpu, gpu: 1, gpu_model: h100}}",
            ["no GPU of model 'h100'", "one of: a100."],
        ),
        ("default-resources: {mem_mb: 99000}", ["asks for 99000 MB of memory, 'cpu' gives 64000", "at most 64000"]),
        ("set-resources: {train: {slurm_partition: gpu, runtime: 600}}", ["asks for 600 minutes, 'gpu' gives 240"]),
        ("default-resources: {mem: 90GB, runtime: 2d}", ["asks for 90000 MB", "asks for 2880 minutes"]),
        ("default-resources: {mem: a lot}", ["profile.yaml", "a lot"]),
        ("set-resources: {evaluate: {cpus_per_task: 32}}", ["asks for 32 CPUs, 'cpu' gives 16"]),
        ("set-resources: {train: {slurm_partition: 'gpu,gpuu'}}", ["no partition 'gpuu'"]),
        ("set-resources: {trian: {mem_mb: 1}}", ["'trian' is no rule that runs as a job", "mean 'train'?"]),
        ("- a list", ["profile.yaml", "It is a mapping"]),
        ("a: [", ["profile.yaml"]),
    ],
)
def test_requests_that_the_cluster_cannot_satisfy(doctor: RunDoctor, profile: str, expected: list[str]) -> None:
    code, said = doctor(profile)
    assert code == 2
    assert all(text in said for text in expected), said


def test_expressions_in_a_profile_are_not_checked(doctor: RunDoctor) -> None:
    arm = "if wildcards.arm == 'grpo' else"
    code, said = doctor(f"set-resources: {{train: {{slurm_partition: \"'low' {arm} 'gpu'\", gpu: \"1 {arm} 0\"}}}}")
    assert code == 0 and "train: slurm_partition, gpu: evaluated for each job" in said, said


def test_no_default_partition_is_needed_if_every_rule_names_one(doctor: RunDoctor) -> None:
    rules = ", ".join(f"{rule}: {{slurm_partition: gpu}}" for rule in RULES)
    code, said = doctor(f"set-resources: {{{rules}}}", sinfo=SINFO.replace("cpu*", "cpu"))
    assert code == 0, said


@pytest.mark.parametrize(
    ("changes", "code", "expected"),
    [
        (("300", "60"), 2, "forgotten after 60 s (MinJobAge), before Snakemake asks"),
        (("300", "60"), 2, "have MinJobAge raised to 180"),
        (("300", "180"), 0, "sinfo answers"),
        (("REQUEUE", "CANCEL"), 0, "preempted jobs are cancelled here"),
    ],
)
def test_slurm_settings_under_which_snakemake_loses_jobs(
    doctor: RunDoctor, changes: tuple[str, str], code: int, expected: str
) -> None:
    found, said = doctor("slurm-init-seconds-before-status-checks: 60", config=CONFIG.replace(*changes))
    assert found == code and expected in said, said


def test_a_slurm_configuration_named_only_by_the_environment(
    doctor: RunDoctor, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SLURM_CONF", "/somewhere/slurm.conf")
    assert doctor()[0] == 0
    # `sinfo` prints what follows its first line.
    code, said = doctor(sinfo=f"EOF\n[ -n \"$SLURM_CONF\" ] || exit 1\ncat <<'EOF'\n{SINFO}")
    assert code == 2 and "without SLURM_CONF, sinfo" in said, said


def test_no_default_partition(doctor: RunDoctor) -> None:
    code, said = doctor(sinfo=SINFO.replace("cpu*", "cpu"))
    assert code == 2 and "none is named and the cluster has no default one" in said


@pytest.mark.parametrize(
    ("srun", "expected"),
    [
        # The node has another file system.
        (SRUN.replace("exec", "cd /; P=$(mktemp -d); exec").replace('"$@"', '"$1" "$2" "$3" $P 0 0'), "does not see"),
        ("#!/bin/sh\necho 'srun: error: Invalid account' >&2; exit 1\n", "Invalid account"),
        ("#!/bin/sh\necho 'srun: error: Unable to allocate resources: immediate' >&2; exit 1\n", "no job started"),
        (SRUN.replace("exec", "exec env PYTHONHOME=/nowhere"), "the account, the partition, and whether nodes"),
        (SRUN.replace('"$@"', '"$@" && echo the site says goodbye'), "sees folder and environment"),
        ("#!/bin/sh\necho welcome\n", "srun printed something else"),
    ],
)
def test_failing_test_jobs(doctor: RunDoctor, srun: str, expected: str) -> None:
    code, said = doctor(srun=srun)
    assert expected in said and "Traceback" not in said
    assert code == (0 if "started" in expected or "sees" in expected.split(maxsplit=1)[0] else 2), said


def test_a_start_model_that_nodes_do_not_see(doctor: RunDoctor, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    (start / "config.json").write_text("{}")
    study = f"model: {{start: {start}}}\n"
    assert doctor(study=study)[0] == 0
    away = SRUN.replace("SLURMD", f"mv {start} {start}.away; SLURMD").replace(
        'exec "$@"', f'"$@"; mv {start}.away {start}'
    )
    code, said = doctor(study=study, srun=away)
    assert code == 2 and f"does not see {start}" in said, said


def test_a_gpu_that_is_granted_but_not_seen(doctor: RunDoctor) -> None:
    profile = "set-resources: {train: {slurm_partition: gpu, gpu: 1}}"
    code, said = doctor(profile)
    assert code == 2 and "was given no GPU" in said
    import torch

    if not torch.cuda.is_available():
        code, said = doctor(profile, srun=SRUN.replace("SLURMD", "CUDA_VISIBLE_DEVICES=0 SLURMD"))
        assert code == 2 and "torch sees 0 GPUs" in said and "FLAVOUR=gpu" in said


def test_requirements_of_a_study(doctor: RunDoctor) -> None:
    code, said = doctor(study="tracking: {uri: 'http://127.0.0.1:9'}\n")
    assert code == 2 and "http://127.0.0.1:9 does not answer" in said
    code, said = doctor(study="model: {start: some/model}\n")
    assert code == 0 and "hf download some/model" in said
    code, said = doctor(study="stepz: 3\n")
    assert code == 2 and "stepz: unknown key" in said
    code, said = doctor(study="data: {train: [none.jsonl]}\n")
    assert code == 2 and "data.train[0]" in said and "none.jsonl: no such dataset file" in said


def test_without_slurm_a_login_node_is_suggested(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    assert main(["doctor", "--slurm"]) == 2
    said = capsys.readouterr()
    assert "not found: sinfo" in said.out and "login node" in said.out and "1 thing is wrong" in said.err


def test_this_machine(root: Path, tmp_path: Path) -> None:
    command = [sys.executable, "-m", "policygrain.cli", "doctor", "--config", str(root / "studies" / "smoke.yaml")]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    for what in ("cores", "memory", "disk", "torch", "study", "vllm", "data", "model", "mlflow"):
        assert f"  {what} " in done.stdout, what


@pytest.mark.parametrize(
    ("resources", "gpus", "place"),
    [
        ({}, 0, ()),
        ({"gpu": 2, "slurm_partition": "g"}, 2, ("--partition=g", "--gpus=2")),
        ({"gpu_model": "a100"}, 1, ("--gpus=a100:1",)),
        ({"gres": "gpu:a100:2"}, 2, ("--gres=gpu:a100:2",)),
        ({"gres": "gpu"}, 1, ("--gres=gpu",)),
        ({"gres": "gpu:2080ti:8,nvme:1"}, 8, ("--gres=gpu:2080ti:8,nvme:1",)),
        ({"slurm_extra": "--reservation='my own'"}, 0, ("--reservation=my own",)),
        ({"gpu": "2 if wildcards.arm == 'grpo' else 1"}, 0, ()),
        ({"gpu": 8, "nodes": 2, "tasks": 2}, 4, ("--gpus=4",)),
        ({"gres": "nvme:1", "slurm_account": 7}, 0, ("--account=7", "--gres=nvme:1")),
    ],
)
def test_gpus_and_placement_of_a_request(resources: dict[str, object], gpus: int, place: tuple[str, ...]) -> None:
    request = ResourceRequest("train", resources)
    assert (request.gpus, request.place) == (gpus, place)
