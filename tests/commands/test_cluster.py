"""`policygrain check --slurm` on made-up clusters with one fault each; test_slurm.py asks a real SLURM."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from policygrain.cli import main
from policygrain.commands.cluster import PROCESSES, Request, launch, read_profile

STUDY = "base: {root}/studies/smoke.yaml\nname: check\nevaluation: {{engine: transformers}}\n"
# What sinfo prints for `%P|%a|%l`.
SINFO = """\
cpu*|up|1-00:00:00
gpu|up|4:00:00
old|down|1:00
"""
# sbatch refuses every job and says why, at its last line.
REFUSES = "#!/bin/sh\necho 'allocation failure: Requested node configuration is not available' >&2; exit 1\n"
# srun runs its command here, without its options.
SRUN = '#!/bin/sh\nwhile [ "${1#--}" != "$1" ]; do shift; done\nSLURM_JOB_ID=7 exec "$@"\n'

Check = Callable[..., tuple[int, str]]


@pytest.fixture
def check(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Check:
    """`policygrain check --slurm` with a made-up SLURM, a profile and a study: (exit code, everything printed)."""
    bin_folder = tmp_path / "bin"
    bin_folder.mkdir()
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", f"{bin_folder}:/usr/bin:/bin")
    monkeypatch.delenv("MLFLOW_TRACKING_URI", raising=False)

    def run(profile: str = "{}", study: str = "", srun: str = SRUN, sbatch: str = "#!/bin/sh\n") -> tuple[int, str]:
        for name, text in {"sbatch": sbatch, "srun": srun, "sinfo": f"#!/bin/sh\ncat <<'EOF'\n{SINFO}EOF\n"}.items():
            (bin_folder / name).write_text(text)
            (bin_folder / name).chmod(0o755)
        Path("profile.yaml").write_text(profile)
        Path("study.yaml").write_text(STUDY.format(root=root) + study)
        code = main(["check", "study.yaml", "--slurm", "--profile", "profile.yaml"])
        printed = capfd.readouterr()
        return code, printed.out + printed.err

    return run


def test_a_cluster_in_order(check: Check, root: Path) -> None:
    code, said = check((root / "slurm" / "config.yaml").read_text())
    assert code == 0, said
    assert said.count("On a node:") == 1 and said.count("; digest ") == 2, said


@pytest.mark.parametrize(
    ("profile", "expected"),
    [
        (
            "set-resources: {train: {slurm_partition: gpu, runtime: 600}}",
            ["requests 600 minutes, but partition gpu allows 240"],
        ),
        ("default-resources: {runtime: 2d}", ["requests 2880 minutes, but partition (the default) allows 1440"]),
        ("set-resources: {train: {slurm_partition: 'gpu,old'}}", ["train: partition 'old' is not up"]),
        ("default-resources: {mem: a lot}", ["profile.yaml", "a lot"]),
        ("default-resources: {gpu: many}", ["profile.yaml", "many"]),
        ("set-resources: {trian: {mem_mb: 1}}", ["'trian' is not a rule that runs as a job", "mean 'train'?"]),
        ("default-resources: {gpu: 2, nodes: two}", ["profile.yaml", "two"]),
        ("default-resources: {mpi: srun, nodes: 1-2}", ["default-resources: nodes must be a number"]),
        ("- a list", ["profile.yaml"]),
        ("a: [", ["profile.yaml"]),
    ],
)
def test_requests_that_slurm_accepts_and_no_job_survives(check: Check, profile: str, expected: list[str]) -> None:
    code, said = check(profile, srun="#!/bin/sh\n")
    assert code == 2
    assert all(text in said for text in expected), said


def test_what_slurm_refuses_is_named_with_the_rule_and_its_options(check: Check) -> None:
    code, said = check("set-resources: {train: {slurm_partition: gpu, gpu: 8, mem: 90GB, runtime: 2h}}", sbatch=REFUSES)
    assert code == 2
    options = "--partition=gpu --mem=90000 --time=120 --gpus=8"
    assert f"train: SLURM refuses {options}: allocation failure: Requested node configuration is not available" in said
    assert "default-resources: SLURM refuses a job without options" in said and "2 problems" in said
    assert "sinfo -o" in said and "On a node" not in said, "what cannot start is not tried"


def test_expressions_in_a_profile_are_not_checked(check: Check) -> None:
    arm = "if wildcards.arm == 'grpo' else"
    profile = f"set-resources: {{train: {{slurm_partition: \"'low' {arm} 'gpu'\", gpu: \"1 {arm} 0\"}}}}"
    code, said = check(profile, srun="#!/bin/sh\n")
    assert code == 0 and "train: slurm_partition, gpu: evaluated for each job" in said, said


@pytest.mark.parametrize(
    ("srun", "expected"),
    [
        # The node has another file system.
        (SRUN.replace("SLURM_JOB_ID", "cd /; SLURM_JOB_ID"), "study.yaml: no such study file"),
        ("#!/bin/sh\necho 'srun: error: Invalid account' >&2; exit 1\n", "Invalid account"),
        (SRUN.replace("exec", "exec env PYTHONHOME=/nowhere"), "check that nodes see this folder, its environment"),
        (SRUN.replace("exec", "CUDA_VISIBLE_DEVICES=0,1,2 exec"), "lists 3 GPUs, but torch sees"),
    ],
)
def test_a_node_that_fails(check: Check, srun: str, expected: str) -> None:
    code, said = check(srun=srun)
    assert expected in said and "1 problem on this cluster" in said, said
    assert code == 2


def test_a_node_has_to_have_the_model_without_a_network(check: Check, tmp_path: Path) -> None:
    start = tmp_path / "start"
    start.mkdir()
    for name in ("config.json", "tokenizer_config.json"):
        (start / name).write_text("{}")
    study = f"model: {{start: {start}}}\n"
    away = f'#!/bin/sh\n[ "$HF_HUB_OFFLINE" = 1 ] || exit 0\nmv {start} {start}.away\n' + SRUN.removeprefix(
        "#!/bin/sh\n"
    )
    code, said = check(study=study, srun=away)
    assert code == 2 and f"'{start}' is neither a folder nor a model in this machine's cache" in said, said


def test_the_server_of_mlflow_is_asked_on_the_login_node(check: Check) -> None:
    code, said = check(study="tracking: {uri: 'http://127.0.0.1:9'}\n")
    assert code == 2 and "http://127.0.0.1:9 does not answer" in said


def test_without_slurm_a_login_node_is_suggested(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("PATH", str(tmp_path))
    profile = str(root / "slurm" / "config.yaml")
    assert main(["check", str(root / "studies" / "smoke.yaml"), "--slurm", "--profile", profile]) == 2
    assert "there is no sinfo here. Run this on a login node" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("resources", "words"),
    [
        ({}, ()),
        ({"gpu": 0}, ()),
        ({"gpu": 2, "slurm_partition": "g"}, ("--partition=g", "--gpus=2")),
        ({"gpu_model": "a100"}, ("--gpus=a100:1",)),
        ({"gres": "gpu:a100:2"}, ("--gres=gpu:a100:2",)),
        ({"slurm_extra": "--reservation='my own'"}, ("--reservation=my own",)),
        ({"gpu": "2 if wildcards.arm == 'grpo' else 1"}, ()),
        ({"gpu": 8, "nodes": 2, "tasks": 2}, ("--gpus=4",)),
        ({"gpu": 8, "nodes": "2-4"}, ("--gpus=4",)),
        ({"gpu": 8, "gpu_model": "a100", "nodes": 2, "mem": "1GB", "runtime": "1h"}, ("--gpus=a100:4", "--mem=1000")),
        ({"mem_mb_per_cpu": 4000, "mem_mb": 8000}, ("--mem-per-cpu=4000",)),
        ({"mem_mb_per_cpu": 4000, "mem": "1GB"}, ("--mem-per-cpu=4000",)),
        ({"gres": "nvme:1", "slurm_account": 7}, ("--account=7", "--gres=nvme:1")),
    ],
)
def test_options_of_a_check_on_one_node(resources: dict[str, object], words: tuple[str, ...]) -> None:
    assert sorted(Request("train", resources).words(PROCESSES)) == sorted(words)


def test_settings_of_the_executor_are_asked_for(tmp_path: Path) -> None:
    (tmp_path / "p.yaml").write_text("slurm-qos: long\nslurm-reservation: mine\nset-resources: {train: {qos: short}}\n")
    requests = read_profile(tmp_path / "p.yaml")
    assert [sorted(one.words()) for one in requests] == [["--qos=long", "--reservation=mine"]] * 2


def test_processes_without_a_number_are_one_per_node() -> None:
    assert "--nodes=2 --ntasks=2 " in launch({"mpi": "srun", "nodes": 2})
