"""Killed processes under Spark, Ray and Dask: training recovers or is retried once, and no process is left."""

import importlib.util
import os
import signal
import sys
import time
from pathlib import Path

import harness
import pytest

EXAMPLES = harness.ROOT / "examples/engines"
MARK = "THALWEG_TEST_MARK"
RANKS = 2
JOB = harness.DIGITS_JOB.replace("epochs = 10", "epochs = 60") + "\n[fault]\ncheckpoint_every = 20\njoin_deadline = '60s'\n"

ENGINES = {
    "spark": ("pyspark", [Path(sys.prefix) / "bin/spark-submit", "--master", f"local[{RANKS},4]"], "spark_job.py"),
    "ray": ("ray", [sys.executable], "ray_job.py"),
    "dask": ("distributed", [sys.executable], "dask_job.py"),
}


def processes(mark):
    """The running processes with the marker variable: pid, name, parent, rank."""
    found = []
    for entry in Path("/proc").iterdir():
        try:
            if not entry.name.isdigit() or f"{MARK}={mark}".encode() not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            variables = dict(v.split(b"=", 1) for v in (entry / "environ").read_bytes().split(b"\0") if b"=" in v)
            status = dict(line.split(":\t", 1) for line in (entry / "status").read_text().splitlines() if ":\t" in line)
        except OSError:
            continue  # It has exited meanwhile.
        if not status["State"].startswith("Z"):
            rank = int(variables[b"RANK"]) if status["Name"] == "thalweg" and b"RANK" in variables else None
            found.append((int(entry.name), status["Name"], int(status["PPid"]), rank))
    return found


def await_rank(mark, number, running):
    """Waits for the process of that rank; returns its pid and its parent."""
    found = lambda: [one for one in processes(mark) if one[3] == number]
    harness.wait_until(lambda: found(), running, 180)
    process, _, parent, _ = found()[0]
    return process, parent


@pytest.fixture(params=ENGINES)
def engine(request, jobs):
    """Starts the job under that engine and kills its remaining processes after the test."""
    package, prefix, script = ENGINES[request.param]
    if importlib.util.find_spec(package) is None:
        pytest.skip(f"no Python package {package}")
    mark = f"{os.getpid()}-{time.monotonic_ns()}"
    out = jobs.folder / "run"
    paced = ("--set", "engine.pace=4ms", "--set", "fault.step_deadline=5s")
    running = jobs.start(jobs.job(JOB), out, RANKS, *paced, prefix=prefix, binary=EXAMPLES / script,
                         THALWEG=harness.BINARY, RAY_TMPDIR=f"/tmp/thw{os.getpid()}", PYSPARK_PYTHON=sys.executable, **{MARK: mark})
    yield request.param, running, out, mark
    for process, *_ in processes(mark):
        try:
            os.kill(process, signal.SIGKILL)
        except ProcessLookupError:
            pass


def assert_done(running, out, mark, attempts):
    ended = running.wait(400)
    assert ended.code == 0, str(ended)
    report = harness.report(out)
    assert report["outcome"] == "completed", f"{report['outcome']}{ended}"
    assert all(epoch["missed"] == epoch["repeated"] == 0 for epoch in report["audit"]), report["audit"]
    begun = (out / "events.jsonl").read_text().count('"event":"listening"')
    assert begun in attempts, f"{begun} attempts{ended}"
    assert_no_orphans(mark, ended)


def assert_no_orphans(mark, ended):
    end = time.monotonic() + 60
    while left := [one for one in processes(mark) if one[1] == "thalweg"]:
        assert time.monotonic() < end, f"processes are left: {left}{ended}"
        time.sleep(0.1)


@pytest.mark.parametrize("victim", ["rank 1", "rank 0", "parent of rank 1", "parent of rank 0"])
def test_a_killed_process_is_recovered_or_retried_once(engine, victim):
    name, running, out, mark = engine
    await_rank(mark, 0, running)
    harness.wait_for_steps(out, running)
    process, parent = await_rank(mark, int(victim[-1]), running)
    os.kill(parent if victim.startswith("parent") else process, signal.SIGKILL)
    # The adapters use the exit code of rank 0; Spark retries a stage that has lost any task.
    recovered = victim == "rank 1" or (victim == "parent of rank 1" and name != "spark")
    assert_done(running, out, mark, attempts=[1] if recovered else [2])


def test_a_killed_driver_leaves_no_rank(engine):
    _, running, out, mark = engine
    harness.wait_for_steps(out, running)
    running.process.kill()
    running.process.wait()
    assert_no_orphans(mark, running.so_far())
