"""Training over MPI: `mpirun` starts the ranks of a binary built with the MPI transport."""

import json
import os
import signal
import time
from pathlib import Path

import harness
import pytest

pytestmark = pytest.mark.skipif(not harness.MPI_BINARY, reason="no binary with the transport over MPI")

TRANSPORT = ("--set", "strategy.exchange.transport=mpi")


def mpi(ranks):
    """Arguments that start the binary with MPI on that number of ranks."""
    arguments = {"prefix": (*harness.MPIRUN, "-n", ranks), "binary": harness.MPI_BINARY}
    arguments["MASTER_PORT"] = harness.free_port()
    return arguments | libraries()


def libraries():
    return {"LD_LIBRARY_PATH": harness.MPI_LIBRARIES} if harness.MPI_LIBRARIES else {}


def train(jobs, name, ranks, *settings):
    """The run folder of a job over MPI."""
    out = jobs.folder / name
    harness.succeed(jobs.run("train", jobs.job(), *TRANSPORT, *settings, "--out", out, **mpi(ranks)))
    return out


def by_workers(jobs, name, workers, *settings):
    """The same with `--workers`."""
    out = jobs.folder / name
    harness.succeed(jobs.run("train", jobs.job(), "--workers", workers, *settings, "--out", out))
    return out


def test_our_ring_over_mpi_gives_the_same_model(jobs):
    pytest.importorskip("safetensors.numpy")
    ring = ("--set", "strategy.exchange.algorithm=ring")
    out = train(jobs, "mpi", 3, *ring)
    harness.assert_same_model(out, by_workers(jobs, "workers", 3, *ring))
    report = harness.report(out)
    assert report["algorithm"] == "ring"
    assert [rank["transport"] for rank in report["ranks"]] == ["mpi"] * 3


def test_native_sums_of_two_ranks_have_the_same_bits(jobs):
    pytest.importorskip("safetensors.numpy")
    out = train(jobs, "mpi", 2)
    assert harness.report(out)["algorithm"] == "native"
    harness.assert_same_model(out, by_workers(jobs, "workers", 2))


def test_native_sums_of_more_ranks_are_equal_up_to_rounding(jobs):
    safetensors = pytest.importorskip("safetensors.numpy")
    numpy = pytest.importorskip("numpy")
    folders = (train(jobs, "mpi", 3), by_workers(jobs, "workers", 3))
    ours, theirs = (safetensors.load_file(out / "model.safetensors") for out in folders)
    assert ours.keys() == theirs.keys()
    for name, tensor in ours.items():
        numpy.testing.assert_allclose(tensor, theirs[name], rtol=1e-3, atol=1e-4, err_msg=name)


def test_the_benchmark_prints_a_line_for_each_size(jobs):
    sizes = ("--sizes", "4KiB,1MiB", "--seconds", 0.1, "--json")
    for algorithm, shown in (("auto", "native"), ("ring", "ring")):
        ended = jobs.run(
            "bench", "allreduce", "--transport", "mpi", "--algorithm", algorithm, *sizes, **mpi(2)
        )
        harness.succeed(ended)
        lines = [json.loads(line) for line in ended.stdout.splitlines()]
        assert [line["bytes"] for line in lines] == [4096, 1 << 20], str(ended)
        for line in lines:
            assert (line["transport"], line["algorithm"], line["n"]) == ("mpi", shown, 2)


def process_of(rank, running, seconds=30):
    """The process of this rank among those that mpirun started."""
    deadline = time.monotonic() + seconds
    mark = {f"OMPI_COMM_WORLD_RANK={rank}".encode(), f"PMI_RANK={rank}".encode()}
    while time.monotonic() < deadline:
        for entry in Path("/proc").iterdir():
            try:
                ours = os.getsid(int(entry.name)) == running.process.pid if entry.name.isdigit() else False
                if ours and mark & set((entry / "environ").read_bytes().split(b"\0")):
                    return int(entry.name)
            except (ProcessLookupError, PermissionError, FileNotFoundError):
                pass
        time.sleep(0.02)
    raise AssertionError(f"no process of rank {rank}{running.so_far()}")


def send_to_rank_1(jobs, out, sent):
    """The result of a job whose rank 1 of 3 receives a signal during training."""
    long = ("--set", "train.epochs=100000", "--set", "fault.step_deadline=5s")
    running = jobs.start("train", jobs.job(), *TRANSPORT, *long, "--out", out, **mpi(3))
    harness.wait_for_steps(out, running)
    os.kill(process_of(1, running), sent)
    ended = running.wait(60)
    assert ended.code != 0, str(ended)
    return ended


def test_a_stopped_rank_is_named(jobs):
    out = jobs.folder / "run"
    ended = send_to_rank_1(jobs, out, signal.SIGSTOP)
    assert "error: rank 1" in ended.stderr and "silent" in ended.stderr, str(ended)
    failures = harness.report(out)["failures"]
    assert [failure["rank"] for failure in failures] == [1], failures


def test_a_killed_rank_ends_the_job(jobs):
    """mpirun detects it, and may kill the other ranks (Open MPI 5: after 0.35 s) before they report the cause."""
    ended = send_to_rank_1(jobs, jobs.folder / "run", signal.SIGKILL)
    assert "rank 1" in ended.output, str(ended)


def test_workers_without_mpirun_are_refused(jobs):
    ended = jobs.run(
        "train", jobs.job(), *TRANSPORT, "--workers", 2, binary=harness.MPI_BINARY, **libraries()
    )
    assert ended.code == 2 and "mpirun -n" in ended.stderr, str(ended)
