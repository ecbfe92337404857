"""Training under torchrun: one node and several, restarts, and agents that occupy MASTER_PORT."""

import os
import shutil
import signal
import socket
import sys
from pathlib import Path

import harness
import pytest

TORCHRUN = shutil.which("torchrun", path=str(Path(sys.executable).parent)) or shutil.which("torchrun")
pytestmark = pytest.mark.skipif(TORCHRUN is None, reason="no torchrun (Python package torch)")


def start(jobs, job, out, *settings, torchrun=("--standalone", "--nproc-per-node", 2), **variables):
    prefix = (TORCHRUN, *torchrun, "--no-python")
    return jobs.start("train", job, "--out", out, "--resume", *settings, prefix=prefix, OMP_NUM_THREADS=1, **variables)


@pytest.fixture
def reference(jobs):
    """The job file and the run folder of `--workers 2`."""
    job, out = jobs.job(), jobs.folder / "reference"
    harness.succeed(jobs.run("train", job, "--workers", 2, "--out", out))
    return job, out


def assert_same(out, reference, *ended):
    harness.succeed(*ended)
    assert harness.report(out)["outcome"] == "completed"
    harness.assert_same_model(out, reference)


def listens(port):
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


def test_standalone_gives_the_same_model_as_two_workers(jobs, reference):
    job, expected = reference
    out = jobs.folder / "run"
    assert_same(out, expected, start(jobs, job, out).wait(180))


def test_two_runs_with_overlapping_ports_do_not_connect(jobs, reference):
    job, expected = reference
    port = harness.free_port()
    outs = [jobs.folder / f"run-{number}" for number in range(2)]
    # Static rendezvous: both runs have the id `none`, and the second agent's port is the first that rank 0 of the first run
    # tries. So the second agent has to listen before the first run starts.
    static = lambda number: ("--nproc-per-node", 2, "--master-addr", "127.0.0.1", "--master-port", port + number)
    running = {}
    for number in (1, 0):
        running[number] = start(jobs, job, outs[number], torchrun=static(number))
        harness.wait_until(lambda: listens(port + number), running[number], 120)
    for number, one in running.items():
        assert_same(outs[number], expected, one.wait(180))


@pytest.mark.parametrize("backend", ["static", "c10d"])
def test_two_nodes(jobs, reference, backend):
    job, expected = reference
    out, port = jobs.folder / "run", harness.free_port()
    if backend == "static":
        node = lambda rank: ("--nnodes", 2, "--node-rank", rank, "--master-addr", "127.0.0.1", "--master-port", port)
    else:
        node = lambda rank: ("--nnodes", 2, "--rdzv-backend", "c10d", "--rdzv-endpoint", f"localhost:{port}", "--rdzv-id", "x",
                             "--local-addr", "127.0.0.1")
    token = os.urandom(16).hex()
    running = [start(jobs, job, out, torchrun=node(rank), THALWEG_TOKEN=token) for rank in range(2)]
    assert_same(out, expected, *[one.wait(180) for one in running])


def test_the_port_of_the_job_is_used(jobs, reference):
    job, expected = reference
    out, port = jobs.folder / "run", harness.free_port()
    ended = start(jobs, job, out, "--set", f"engine.port={port}").wait(180)
    harness.succeed(ended)
    assert f'"address":"127.0.0.1:{port}"' in (out / "events.jsonl").read_text().replace("[::1]", "127.0.0.1"), str(ended)


@pytest.mark.parametrize("rank", [0, 1])
def test_a_killed_rank_restarts_the_group_which_continues(jobs, rank):
    out = jobs.folder / "run"
    settings = ("--set", "train.epochs=40", "--set", "engine.pace=4ms", "--set", "fault.checkpoint_every=20")
    running = start(jobs, jobs.job(), out, *settings,
                    torchrun=("--standalone", "--nproc-per-node", 2, "--max-restarts", 1, "--monitor-interval", 0.1))
    harness.wait_for_steps(out, running)
    os.kill(process_of(running, rank), signal.SIGKILL)
    ended = running.wait(180)
    assert ended.code == 0, str(ended)
    report = harness.report(out)
    assert report["outcome"] == "completed"
    assert all(epoch["missed"] == epoch["repeated"] == 0 for epoch in report["audit"])
    assert (out / "events.jsonl").read_text().count('"event":"listening"') == 2, str(ended)


def process_of(running, rank):
    """The process of that rank among the descendants of the launcher."""
    for entry in Path("/proc").iterdir():
        try:
            variables = (entry / "environ").read_bytes().split(b"\0")
            if f"RANK={rank}".encode() in variables and (entry / "comm").read_text() == "thalweg\n":
                ancestor = int(entry.name)
                while ancestor > 1:
                    if ancestor == running.process.pid:
                        return int(entry.name)
                    ancestor = int((Path("/proc") / str(ancestor) / "stat").read_text().rsplit(") ", 1)[1].split()[1])
        except OSError:
            continue
    raise AssertionError(f"no process of rank {rank}{running.so_far()}")
