"""A killed rank under the mpirun of Open MPI and the mpiexec of MPICH: the others end as documented."""

import os
import shutil
import signal
from pathlib import Path

import harness
import pytest

OPEN_MPI = shutil.which("mpirun.openmpi")
MPICH = shutil.which("mpiexec.hydra")
ROOT = ("--allow-run-as-root", "--oversubscribe")


def start(jobs, out, launcher):
    settings = ("--set", "train.epochs=60", "--set", "engine.pace=4ms", "--set", "fault.step_deadline=5s")
    return jobs.start("train", jobs.job(), "--out", out, *settings, prefix=launcher, MASTER_PORT=harness.free_port())


def rank_process(running, number, variable):
    for entry in Path("/proc").iterdir():
        try:
            if (entry / "comm").read_text() == "thalweg\n" and \
                    {f"{variable}={number}".encode(), f"MASTER_PORT={port(running)}".encode()} <= set((entry / "environ").read_bytes().split(b"\0")):
                return int(entry.name)
        except OSError:
            continue
    raise AssertionError(f"no process of rank {number}{running.so_far()}")


def port(running):
    return running.command.split("MASTER_PORT=")[1].split()[0]


@pytest.mark.skipif(OPEN_MPI is None, reason="no mpirun of Open MPI (Debian: openmpi-bin)")
@pytest.mark.parametrize("flags", [(), ("--enable-recovery",)])
def test_open_mpi(jobs, flags):
    out = jobs.folder / "run"
    running = start(jobs, out, (OPEN_MPI, *ROOT, *flags, "-n", 3))
    harness.wait_for_steps(out, running)
    os.kill(rank_process(running, 1, "OMPI_COMM_WORLD_RANK"), signal.SIGKILL)
    ended = running.wait(120)
    if flags:
        assert harness.report(out)["outcome"] == "completed", str(ended)
        assert [world["workers"] for world in harness.report(out)["world"]] == [3, 2]
    else:
        assert ended.code != 0, str(ended)
        assert not (out / "model.safetensors").exists()


@pytest.mark.skipif(MPICH is None, reason="no mpiexec of MPICH (Debian: mpich)")
def test_mpich(jobs):
    out = jobs.folder / "run"
    running = start(jobs, out, (MPICH, "-n", 3))
    harness.wait_for_steps(out, running)
    os.kill(rank_process(running, 1, "PMI_RANK"), signal.SIGKILL)
    ended = running.wait(120)
    assert ended.code != 0, str(ended)
    assert not (out / "model.safetensors").exists()


@pytest.mark.skipif(MPICH is None, reason="no mpiexec of MPICH (Debian: mpich)")
def test_mpich_gives_the_same_model_as_workers(jobs):
    pytest.importorskip("safetensors.numpy")
    job, out, expected = jobs.job(), jobs.folder / "run", jobs.folder / "reference"
    harness.succeed(jobs.run("train", job, "--workers", 2, "--out", expected))
    harness.succeed(jobs.run("train", job, "--out", out, prefix=(MPICH, "-n", 2), MASTER_PORT=harness.free_port()))
    harness.assert_same_model(out, expected)
