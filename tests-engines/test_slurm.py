"""Training under Slurm with two nodes on this machine, which resolve their own names to 127.0.1.1."""

import os
import signal
import time
from pathlib import Path

import harness
import pytest
import slurm

MISSING = slurm.missing()
pytestmark = pytest.mark.skipif(MISSING is not None, reason=f"no Slurm of two nodes: {MISSING}")

TOKEN = "a secret of this test only"
TIMEOUT = 60


@pytest.fixture(scope="module")
def cluster(tmp_path_factory):
    with slurm.Cluster(tmp_path_factory.mktemp("slurm")) as cluster:
        yield cluster


def start(cluster, jobs, *words, launcher=("srun", "-N2", "-n3"), **variables):
    """Starts a command on the first node."""
    variables = {"THALWEG_TOKEN": TOKEN, "SLURM_CONF": cluster.folder / "slurm.conf", "PATH": slurm.PATH, **variables}
    variables = {name: value for name, value in variables.items() if value is not None}
    return jobs.start(*words, prefix=(*cluster.on(0), *launcher), **variables)


@pytest.fixture
def job_and_out(jobs):
    """The job file and the run folder."""
    return jobs.job(), jobs.folder / "run"


def test_two_nodes_connect_though_the_first_resolves_itself_to_127_0_1_1(cluster, jobs, job_and_out):
    job, out = job_and_out
    harness.succeed(start(cluster, jobs, "train", job, "--out", out).wait(120))
    report = harness.report(out)
    assert report["outcome"] == "completed"
    assert [rank["host"] for rank in report["ranks"]] == ["n1", "n1", "n2"]


def test_a_loopback_address_is_refused_by_all_ranks(cluster, jobs, job_and_out):
    job, out = job_and_out
    ended = start(cluster, jobs, "train", job, "--out", out, MASTER_ADDR="127.0.1.1").wait(TIMEOUT)
    assert ended.code == 2 and ended.stderr.count("MASTER_ADDR=127.0.1.1 is a loopback address") == 3, str(ended)


def test_without_a_token_the_job_ends_at_once(cluster, jobs, job_and_out):
    job, out = job_and_out
    ended = start(cluster, jobs, "train", job, "--out", out, THALWEG_TOKEN=None).wait(TIMEOUT)
    assert ended.code != 0 and "THALWEG_TOKEN" in ended.stderr, str(ended)


def test_two_steps_of_one_job_do_not_collide(cluster, jobs, job_and_out):
    job, _ = job_and_out
    script = jobs.folder / "steps.sh"
    outs = [jobs.folder / f"step-{number}" for number in range(2)]
    steps = [f'srun --overlap -N2 -n2 "$1" train "$2" --out {out} --seed {number} &' for number, out in enumerate(outs)]
    waits = 'code=0; for step in $(jobs -p); do wait "$step" || code=1; done; exit $code'
    script.write_text("\n".join(["#!/bin/bash", *steps, waits]))
    script.chmod(0o755)
    ended = start(cluster, jobs, job, launcher=("salloc", "-Q", "-N2", "-n4", script)).wait(180)
    harness.succeed(ended)
    addresses = {port(out) for out in outs}
    assert len(addresses) == 2, f"{addresses}{ended}"


def port(out):
    events = (out / "events.jsonl").read_text()
    return events.split('"event":"listening","address":"')[1].split('"')[0].rsplit(":", 1)[1]


def test_the_others_end_early_if_rank_0_cannot_begin(cluster, jobs, job_and_out):
    job, out = job_and_out
    harness.succeed(jobs.run("train", job, "--out", out))
    ended = start(cluster, jobs, "train", job, "--out", out).wait(TIMEOUT)
    assert ended.code == 2 and ended.stderr.count("rank 0 cannot begin: ") == 2, str(ended)


def rank_process(cluster, number):
    """The process of that rank."""
    for node in range(2):
        for process, variables in cluster.network.processes(node).items():
            comm = Path(f"/proc/{process}/comm")
            if variables.get("SLURM_PROCID") == str(number) and comm.exists() and comm.read_text() == "thalweg\n":
                return process
    raise AssertionError(f"no process of rank {number}")


@pytest.mark.parametrize("flag", [(), ("-K",)])
def test_the_others_continue_unless_srun_kills_them(cluster, jobs, job_and_out, flag):
    job, out = job_and_out
    settings = ("--set", "train.epochs=60", "--set", "engine.pace=2ms", "--set", "fault.step_deadline=5s")
    running = start(cluster, jobs, "train", job, "--out", out, *settings, launcher=("srun", "-N2", "-n3", *flag))
    harness.wait_for_steps(out, running)
    os.kill(rank_process(cluster, 2), signal.SIGKILL)
    ended = running.wait(120)
    # srun reports the lost task by its exit code either way.
    assert ended.code != 0, str(ended)
    end = time.monotonic() + TIMEOUT
    while any("SLURM_PROCID" in variables for node in range(2) for variables in cluster.network.processes(node).values()):
        assert time.monotonic() < end, f"a task is left{ended}"
        time.sleep(0.1)
    if not flag:
        report = harness.report(out)
        assert report["outcome"] == "completed" and [world["workers"] for world in report["world"]] == [3, 2]
