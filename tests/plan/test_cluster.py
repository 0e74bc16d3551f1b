"""`policygrain doctor --slurm` on made-up clusters with one fault each; test_slurm.py asks a real SLURM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.plan.cluster import PROCESSES, SIZE, Request

STUDY = "base: {root}/studies/smoke.yaml\nname: doctor\nevaluation: {{engine: transformers}}\n"
# What sinfo prints for `%P|%a|%l`.
SINFO = """\
cpu*|up|1-00:00:00
gpu|up|4:00:00
old|down|1:00
"""
# sbatch refuses every job and says why, at its last line.
REFUSES = "#!/bin/sh\necho 'allocation failure: Requested node configuration is not available' >&2; exit 1\n"
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
        profile: str = "{}",
        study: str = "",
        srun: str = SRUN,
        sinfo: str = SINFO,
        config: str = CONFIG,
        sbatch: str = "",
    ) -> tuple[int, str]:
        commands = {name: "#!/bin/sh\nexit 1\n" for name in ("squeue", "scancel")}
        commands |= {"sbatch": sbatch or "#!/bin/sh\n", "srun": srun, "sinfo": f"#!/bin/sh\ncat <<'EOF'\n{sinfo}EOF\n"}
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
        (
            "set-resources: {train: {slurm_partition: gpu, runtime: 600}}",
            ["asks for 600 minutes, partition gpu gives 240"],
        ),
        ("default-resources: {runtime: 2d}", ["asks for 2880 minutes, partition (the default) gives 1440"]),
        ("set-resources: {train: {slurm_partition: 'gpu,old'}}", ["train: partition 'old' is not up"]),
        ("default-resources: {mem: a lot}", ["profile.yaml", "a lot"]),
        ("default-resources: {gpu: many}", ["profile.yaml", "many"]),
        ("set-resources: {trian: {mem_mb: 1}}", ["'trian' is no rule that runs as a job", "mean 'train'?"]),
        ("- a list", ["profile.yaml", "It is a mapping"]),
        ("a: [", ["profile.yaml"]),
    ],
)
def test_requests_that_slurm_accepts_and_no_job_survives(doctor: RunDoctor, profile: str, expected: list[str]) -> None:
    code, said = doctor(profile)
    assert code == 2
    assert all(text in said for text in expected), said


def test_what_slurm_refuses_is_named_with_the_rule_and_its_options(doctor: RunDoctor) -> None:
    code, said = doctor(
        "set-resources: {train: {slurm_partition: gpu, gpu: 8, mem: 90GB, runtime: 2h}}", sbatch=REFUSES
    )
    assert code == 2
    options = "--partition=gpu --mem=90000 --time=120 --gpus=8"
    assert f"train: SLURM refuses {options}: allocation failure: Requested node configuration is not available" in said
    assert "default-resources: SLURM refuses a job without options" in said
    assert "sinfo -o" in said and "  job  " not in said, "what cannot start is not tried"


def test_expressions_in_a_profile_are_not_checked(doctor: RunDoctor) -> None:
    arm = "if wildcards.arm == 'grpo' else"
    code, said = doctor(f"set-resources: {{train: {{slurm_partition: \"'low' {arm} 'gpu'\", gpu: \"1 {arm} 0\"}}}}")
    assert code == 0 and "train: slurm_partition, gpu: evaluated for each job" in said, said


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
    code, said = doctor(sinfo="EOF\n[ -n \"$SLURM_CONF\" ] || exit 1\ncat <<'EOF'\n" + SINFO)
    assert code == 2 and "Jobs do not have SLURM_CONF" in said, said


@pytest.mark.parametrize(
    ("srun", "expected"),
    [
        # The node has another file system.
        (SRUN.replace("exec", "cd /; P=$(mktemp -d); exec").replace('"$@"', '"$1" "$2" "$3" $P/x 0 0'), "does not see"),
        ("#!/bin/sh\necho 'srun: error: Invalid account' >&2; exit 1\n", "Invalid account"),
        ("#!/bin/sh\necho 'srun: error: Unable to allocate resources: immediate' >&2; exit 1\n", "no job started"),
        (SRUN.replace("exec", "exec env PYTHONHOME=/nowhere"), "Check account and partition, and that nodes see"),
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
    assert code == 2 and "was given no GPU" in said, said
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


@pytest.mark.parametrize(
    ("resources", "gpus", "words"),
    [
        ({}, 0, ()),
        ({"gpu": 0}, 0, ()),
        ({"gpu": 2, "slurm_partition": "g"}, 2, ("--partition=g", "--gpus=2")),
        ({"gpu_model": "a100"}, 1, ("--gpus=a100:1",)),
        ({"gres": "gpu:a100:2"}, 2, ("--gres=gpu:a100:2",)),
        ({"gres": "gpu"}, 1, ("--gres=gpu",)),
        ({"gres": "gpu:2080ti:8(S:0-1),nvme:1"}, 8, ("--gres=gpu:2080ti:8(S:0-1),nvme:1",)),
        ({"slurm_extra": "--reservation='my own'"}, 0, ("--reservation=my own",)),
        ({"gpu": "2 if wildcards.arm == 'grpo' else 1"}, 0, ()),
        ({"gpu": 8, "nodes": 2, "tasks": 2}, 4, ("--gpus=4",)),
        ({"gpu": 8, "gpu_model": "a100", "nodes": 2, "mem": "1GB", "runtime": "1h"}, 4, ("--gpus=a100:4",)),
        ({"gres": "nvme:1", "slurm_account": 7}, 0, ("--account=7", "--gres=nvme:1")),
    ],
)
def test_gpus_of_a_node_and_options_of_a_test_job(
    resources: dict[str, object], gpus: int, words: tuple[str, ...]
) -> None:
    request = Request("train", resources)
    assert request.gpus == gpus
    assert sorted(request.words((*PROCESSES, *SIZE))) == sorted(words)
