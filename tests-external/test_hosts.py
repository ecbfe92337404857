"""Several hosts: the same model as on one, no admission without the token, and disconnected hosts are detected and named."""

import os
import re
import signal
import time

import harness
import network
import pytest

pytest.importorskip("safetensors.numpy")

UNAVAILABLE = network.missing()
pytestmark = pytest.mark.skipif(UNAVAILABLE is not None, reason=str(UNAVAILABLE))

TOKEN = "correct horse battery staple"
PORT = 29500
STEP_DEADLINE = 2


@pytest.fixture
def hosts(request):
    """The number of hosts of the test's parameter; removed after the processes on them."""
    with network.Network(request.param) as hosts:
        yield hosts


def start_ranks(hosts, jobs, job, out, *settings, tokens=None, world=None):
    """One process per rank, one rank per host; each host may have its own token or None."""
    world = world or len(hosts.hosts)
    running = []
    for rank in range(world):
        token = TOKEN if tokens is None else tokens[rank]
        variables = {"RANK": rank, "WORLD_SIZE": world, "LOCAL_RANK": 0, "THALWEG_HOST": f"host{rank}",
                     "MASTER_ADDR": hosts.address(0), "MASTER_PORT": PORT}
        if token is not None:
            variables["THALWEG_TOKEN"] = token
        sets = [word for setting in settings for word in ("--set", setting)]
        running.append(jobs.start("train", job, "--out", out, *sets, prefix=hosts.inside(rank), **variables))
    return running


def reference(jobs, job, workers):
    """A run on one host over tcp, since shared memory sums in another order."""
    out = jobs.folder / "reference"
    transport = "strategy.exchange.transport=tcp"
    harness.succeed(jobs.run("train", job, "--workers", workers, "--set", transport, "--out", out))
    return out


@pytest.mark.parametrize("hosts", [2, 3], indirect=True)
def test_several_hosts_train_the_same_model_as_one(hosts, jobs):
    job, out = jobs.job(), jobs.folder / "run"
    ended = [rank.wait() for rank in start_ranks(hosts, jobs, job, out)]
    harness.succeed(*ended)
    harness.assert_same_model(out, reference(jobs, job, len(ended)))
    assert [rank["host"] for rank in harness.report(out)["ranks"]] == [f"host{rank}" for rank in range(len(ended))]


def start_launchers(hosts, jobs, job, out, *settings):
    """Four ranks, two on each of two hosts."""
    master = f"{hosts.address(0)}:{PORT}"
    sets = [word for setting in settings for word in ("--set", setting)]
    return [
        jobs.start(
            "train", job, "--workers", 4, "--nnodes", 2, "--node-rank", node, "--master", master, "--out", out, *sets,
            prefix=hosts.inside(node), THALWEG_TOKEN=TOKEN, THALWEG_HOST=f"host{node}",
        )
        for node in (0, 1)
    ]


def start_endless(hosts, jobs, out, *more):
    """The same with a practically endless job; returns after its first step."""
    settings = ("train.epochs=1000000", f"fault.step_deadline={STEP_DEADLINE}s", "fault.elastic=false", *more)
    launchers = start_launchers(hosts, jobs, jobs.job(), out, *settings)
    harness.wait_for_steps(out, launchers[0])
    return launchers


def process_of(hosts, host, rank):
    """The process of a rank on that host; its launcher if the rank is None."""
    processes = hosts.processes(host).items()
    return next(process for process, variables in processes if variables.get("RANK") == rank)


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_launcher_on_each_host(hosts, jobs):
    job, out = jobs.job(), jobs.folder / "run"
    harness.succeed(*[launcher.wait() for launcher in start_launchers(hosts, jobs, job, out)])
    harness.assert_same_model(out, reference(jobs, job, 4))


@pytest.mark.parametrize("hosts", [2], indirect=True)
@pytest.mark.parametrize("how, cause", [
    ("kill", r"rank 3 on host1 \(pid \d+\) vanished: its connection closed without a goodbye"),
    ("stop", r"rank 3 on host1 \(pid \d+\) has been silent for \d+\.\d s"),
    ("cut", r"rank [23] on host1 \(pid \d+\) has been silent for \d+\.\d s"),
])
def test_a_rank_lost_on_the_other_host_is_named(hosts, jobs, how, cause):
    out = jobs.folder / "run"
    launchers = start_endless(hosts, jobs, out)
    if how == "cut":
        hosts.disconnect(1)
    else:
        os.kill(process_of(hosts, 1, "3"), signal.SIGKILL if how == "kill" else signal.SIGSTOP)
    first, second = [launcher.wait(20 * STEP_DEADLINE) for launcher in launchers]
    assert (first.code, second.code) == (3, 3), f"{first}{second}"
    waited = r"ranks 0, 1(, [23])? waited for it in all-(reduce|gather) of [a-z ]+"
    assert re.search(f"^error: {cause}.* at step \\d+; {waited}$", first.stderr, re.MULTILINE), str(first)
    assert harness.report(out)["failures"][0]["rank"] in ((2, 3) if how == "cut" else (3,))
    assert "stopped on request" not in first.stderr + second.stderr, f"{first}{second}"


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_launcher_killed_on_the_other_host_ends_only_its_own_workers(hosts, jobs):
    out = jobs.folder / "run"
    launchers = start_endless(hosts, jobs, out, "fault.elastic=true")
    os.kill(process_of(hosts, 1, None), signal.SIGKILL)
    harness.wait_for_event(out, launchers[0], '"left":[2,3]', '"left":[3,2]', '"left":[3]')
    launchers[1].process.wait(60)
    harness.wait_until(lambda: not hosts.processes(1), launchers[0])
    os.kill(process_of(hosts, 0, None), signal.SIGINT)
    first = launchers[0].wait(20 * STEP_DEADLINE)
    assert first.code == 130, str(first)
    report = harness.report(out)
    assert report["world"][-1]["workers"] == 2 and not report["failures"], report


@pytest.mark.parametrize("hosts", [2], indirect=True)
@pytest.mark.parametrize("sent", [signal.SIGINT, signal.SIGKILL])
def test_a_stop_on_the_other_host_names_its_ranks(hosts, jobs, sent):
    out = jobs.folder / "run"
    launchers = start_endless(hosts, jobs, out)
    os.kill(process_of(hosts, 1, None), sent)
    first = launchers[0].wait(20 * STEP_DEADLINE)
    assert first.code == 130, str(first)
    assert re.search(r"stopping after this step: ranks? (2|3|2, 3) on host1 received a signal", first.stderr), str(first)
    report = harness.report(out)
    assert report["outcome"] == "interrupted" and set(report["stopped_by"]) <= {2, 3} and report["stopped_by"]
    assert '"event":"stopping"' in (out / "events.jsonl").read_text()
    assert list((out / "checkpoints").iterdir())


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_without_a_token_only_loopback_is_accepted(hosts, jobs):
    out = jobs.folder / "run"
    ranks = start_ranks(hosts, jobs, jobs.job(), out, "fault.join_deadline=20s", tokens=[None, None])
    for ended in [rank.wait(60) for rank in ranks]:
        assert ended.code in (2, 4), str(ended)
        assert "THALWEG_TOKEN" in ended.stderr, str(ended)
    assert not (out / "model.safetensors").exists()


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_wrong_token_is_refused(hosts, jobs):
    out = jobs.folder / "run"
    ranks = start_ranks(hosts, jobs, jobs.job(), out, "fault.join_deadline=5s", tokens=[TOKEN, "another one of that length"])
    master, refused = [rank.wait(60) for rank in ranks]
    assert refused.code == 4 and "token" in refused.stderr.lower(), str(refused)
    assert master.code == 4, str(master)


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_disconnected_host_ends_the_job_and_is_named(hosts, jobs):
    out = jobs.folder / "run"
    settings = ("train.epochs=1000000", f"fault.step_deadline={STEP_DEADLINE}s", "fault.elastic=false")
    ranks = start_ranks(hosts, jobs, jobs.job(), out, *settings)
    harness.wait_for_steps(out, ranks[0])
    hosts.disconnect(2)
    begin = time.monotonic()
    ended = [rank.wait(10 * STEP_DEADLINE) for rank in ranks]
    assert time.monotonic() - begin < 10 * STEP_DEADLINE
    for survivor in ended[:2]:
        assert survivor.code == 3, str(survivor)
        assert "rank 2" in survivor.stderr, str(survivor)
    assert ended[2].code != 0, str(ended[2])
    assert harness.report(out)["outcome"] == "failed"


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_training_continues_without_a_disconnected_host(hosts, jobs):
    out = jobs.folder / "run"
    settings = ("train.epochs=300", f"fault.step_deadline={STEP_DEADLINE}s", "engine.pace=2ms")
    ranks = start_ranks(hosts, jobs, jobs.job(), out, *settings)
    harness.wait_for_steps(out, ranks[0])
    hosts.disconnect(2)
    first, second, lost = [rank.wait(120) for rank in ranks]
    assert (first.code, second.code) == (0, 0), f"{first}{second}"
    assert lost.code != 0, str(lost)
    report = harness.report(out)
    assert report["outcome"] == "completed"
    assert [world["workers"] for world in report["world"]] == [3, 2]
    assert [failure["rank"] for failure in report["failures"]] == [2]
    assert all(epoch["missed"] == epoch["repeated"] == 0 for epoch in report["audit"])


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_joiner_that_cannot_reach_a_member_is_refused_without_a_wait(hosts, jobs):
    out = jobs.folder / "run"
    ranks = start_ranks(hosts, jobs, jobs.job(), out, "train.epochs=1000000", world=2)
    harness.wait_for_steps(out, ranks[0])
    # Replies of host 1 are dropped: the joiner reaches rank 0, but gets no answer from the data port of rank 1.
    hosts.drop(1, 2)
    joiner = jobs.run("join", f"{hosts.address(0)}:{PORT}", prefix=hosts.inside(2), THALWEG_TOKEN=TOKEN,
                      THALWEG_HOST="host2", seconds=100)
    assert joiner.code == 4 and "cannot reach rank 1 on host1" in joiner.stderr, str(joiner)
    os.kill(ranks[0].process.pid, signal.SIGINT)
    first, _ = [rank.wait() for rank in ranks]
    assert first.code == 130 and "rank 2 on host2 was not admitted" in first.output, str(first)
    report = harness.report(out)
    assert [world["workers"] for world in report["world"]] == [2]
    assert report["failures"] == []


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_host_that_receives_nothing_reports_it_while_the_others_continue(hosts, jobs):
    out = jobs.folder / "run"
    settings = ("train.epochs=600", "fault.step_deadline=8s", "engine.pace=2ms")
    ranks = start_ranks(hosts, jobs, jobs.job(), out, *settings)
    harness.wait_for_steps(out, ranks[0])
    for sender in (0, 1):
        hosts.drop(sender, 2)
    first, second, lost = [rank.wait(180) for rank in ranks]
    harness.succeed(first, second)
    assert lost.code == 3, str(lost)
    assert "no heartbeat from rank 0 on host0, the coordinator, for 3 s" in lost.stderr, str(lost)
    assert [failure["rank"] for failure in harness.report(out)["failures"]] == [2]


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_host_that_reconnects_is_told_that_the_others_continued(hosts, jobs):
    out = jobs.folder / "run"
    settings = ("train.epochs=1000000", f"fault.step_deadline={STEP_DEADLINE}s", "engine.pace=2ms")
    first, second = start_launchers(hosts, jobs, jobs.job(), out, *settings)
    harness.wait_for_steps(out, first)
    hosts.disconnect(1)
    harness.wait_for_event(out, first, '"regrouped"')
    hosts.reconnect(1)
    lost = second.wait(60)
    assert lost.code in (3, 4), str(lost)
    assert "the others went on without rank" in lost.stderr and "thalweg join" in lost.stderr, str(lost)
    os.kill(first.process.pid, signal.SIGINT)
    assert first.wait().code == 130
