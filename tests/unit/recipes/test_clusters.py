"""The scripts for clusters: what they start, and that a stopped job is queued again."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

CLUSTERS = Path(__file__).parents[3] / "recipes" / "clusters"
# As Slurm's own does, it kills its step on SIGTERM.
SRUN = """#!/usr/bin/env bash
echo "srun $*" >> "$LOG"
step & step=$!
trap 'kill -KILL "$step"' TERM
while kill -0 "$step" 2> /dev/null; do wait "$step"; done
wait "$step"
"""
STEP = """#!/usr/bin/env bash
trap 'echo stopping >> "$LOG"; sleep 0.5; echo saved >> "$LOG"; exit "$STOPPED"' TERM
echo $$ >> "$LOG.step"
for _ in $(seq "$TENTHS"); do sleep 0.1; done
exit "$CODE"
"""
SCANCEL = """#!/usr/bin/env bash
echo "scancel $*" >> "$LOG"
if [ "$1" = --signal=TERM ]; then kill -TERM "$(< "$LOG.step")"; fi
"""
SCONTROL = """#!/usr/bin/env bash
case "$1 $2" in
  "show hostnames") printf 'node1\\nnode2\\n' ;;
  "show job") echo "   PreemptEligibleTime=2026-11-19T12:00:00 PreemptTime=$PREEMPTED" ;;
  *) echo "scontrol $*" >> "$LOG" ;;
esac
"""
COMMANDS = {"srun": SRUN, "step": STEP, "scancel": SCANCEL, "scontrol": SCONTROL}
JOB = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_GPUS_ON_NODE": "8",
    "SLURM_CPUS_PER_TASK": "32",
}


@pytest.fixture
def log(tmp_path: Path) -> Path:
    for name, text in COMMANDS.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    return tmp_path / "log"


def job(
    log: Path, *, tenths: int = 0, code: int = 0, stopped: int = 1, preempted: str = "None"
) -> subprocess.Popen[bytes]:
    """Start the script with stand-ins for Slurm's commands; torchrun ends with 1 when stopped."""
    path = f"{log.parent}:{os.environ['PATH']}"
    numbers = {"TENTHS": str(tenths), "CODE": str(code), "STOPPED": str(stopped)}
    told = {"PATH": path, "LOG": str(log), "PREEMPTED": preempted, **numbers}
    words = ["bash", str(CLUSTERS / "slurm.sbatch"), "learned25", "run.steps=2"]
    return subprocess.Popen(words, env={**os.environ, **JOB, **told})


@pytest.mark.parametrize("code", [0, 3])
def test_slurm_starts_one_torchrun_a_machine_and_passes_its_exit_code(log: Path, code: int) -> None:
    assert job(log, code=code).wait(timeout=20) == code
    assert log.read_text() == (
        "srun --cpus-per-task=32 --kill-on-bad-exit=1 "
        "torchrun --nnodes 2 --nproc-per-node 8 --max-restarts 3 "
        "--rdzv-backend c10d --rdzv-endpoint node1:29400 --rdzv-id 7-0 "
        "-m bas_opd train learned25 run.steps=2\n"
    )


def test_slurm_signals_the_script_alone_by_what_does_not_mean_a_cancelled_job() -> None:
    assert "\n#SBATCH --signal=B:USR1@300\n" in (CLUSTERS / "slurm.sbatch").read_text()


def wait_for(line: str, log: Path) -> None:
    deadline = time.monotonic() + 20
    while not log.exists() or line not in log.read_text():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def step_of(log: Path) -> int:
    """The process of the step, once it listens to signals."""
    wait_for("\n", log.with_name("log.step"))
    return int(log.with_name("log.step").read_text())


STOPPED = ["scancel --signal=TERM 7", "stopping", "saved"]


@pytest.mark.parametrize("signals", [1, 3])
def test_before_the_time_limit_a_job_is_queued_again_after_its_checkpoint(
    signals: int, log: Path
) -> None:
    running = job(log, tenths=200)
    step_of(log)
    running.send_signal(signal.SIGUSR1)
    wait_for("stopping", log)
    for _ in range(signals - 1):
        running.send_signal(signal.SIGUSR1)
        time.sleep(0.1)
    assert running.wait(timeout=20) == 1
    assert log.read_text().splitlines()[1:] == [*STOPPED, "scontrol requeue 7"]


def test_a_run_that_finished_all_the_same_is_not_queued_again(log: Path) -> None:
    running = job(log, tenths=200, stopped=0)
    step_of(log)
    running.send_signal(signal.SIGUSR1)
    assert running.wait(timeout=20) == 0
    assert log.read_text().splitlines()[1:] == STOPPED


@pytest.mark.parametrize("stopping", [False, True])
def test_a_cancelled_job_writes_its_checkpoint_and_is_not_queued_again(
    stopping: bool, log: Path
) -> None:
    """Slurm sends SIGTERM to the processes and to the script, perhaps while they stop already."""
    running = job(log, tenths=200)
    step = step_of(log)
    if stopping:
        running.send_signal(signal.SIGUSR1)
        wait_for("stopping", log)
    else:
        os.kill(step, signal.SIGTERM)
    running.send_signal(signal.SIGTERM)
    assert running.wait(timeout=20) == 1
    assert log.read_text().splitlines()[1:] == (STOPPED if stopping else STOPPED[1:])


@pytest.mark.parametrize(
    ("preempted", "after"), [("2026-11-19T13:00:00", ["scontrol requeue 7"]), ("None", [])]
)
def test_a_job_whose_processes_alone_get_sigterm_is_queued_again_if_it_was_preempted(
    preempted: str, after: list[str], log: Path
) -> None:
    running = job(log, tenths=200, preempted=preempted)
    os.kill(step_of(log), signal.SIGTERM)
    assert running.wait(timeout=20) == 1
    assert log.read_text().splitlines()[1:] == [*STOPPED[1:], *after]


def test_kubernetes_starts_what_torchrun_takes() -> None:
    yaml = pytest.importorskip("yaml")
    service, work = yaml.safe_load_all((CLUSTERS / "kubernetes.yaml").read_text())
    spec = work["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    nodes = f"--nnodes={work['spec']['completions']}"
    assert work["spec"]["completions"] == work["spec"]["parallelism"]
    assert container["command"][:2] == ["torchrun", nodes]
    assert spec["subdomain"] == service["metadata"]["name"]
    first = f"{work['metadata']['name']}-0.{service['metadata']['name']}"
    assert f"--rdzv-endpoint={first}:29400" in container["command"]
    known = {each["name"]: each["value"] for each in container["env"]}
    assert int(known["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"]) < spec["terminationGracePeriodSeconds"]
