"""Several hosts: the same model as on one, nobody without the token, and a cut cable is noticed and named."""

import time

import harness
import network
import pytest

pytest.importorskip("safetensors.numpy")

WHY_NOT = network.missing()
pytestmark = pytest.mark.skipif(WHY_NOT is not None, reason=str(WHY_NOT))

TOKEN = "correct horse battery staple"
PORT = 29500
STEP_DEADLINE = 2


@pytest.fixture
def hosts(request):
    """As many hosts as the test asks for; they go last, after the processes on them."""
    with network.Network(request.param) as hosts:
        yield hosts


def start_ranks(hosts, jobs, job, out, *settings, tokens=None):
    """One process per rank, one rank per host; each host may have a token of its own, or none."""
    world = len(hosts.hosts)
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
    out = jobs.folder / "reference"
    harness.succeed(jobs.run("train", job, "--workers", workers, "--out", out))
    return out


@pytest.mark.parametrize("hosts", [2, 3], indirect=True)
def test_hosts_train_the_same_model_as_one(hosts, jobs):
    job, out = jobs.job(), jobs.folder / "run"
    ended = [rank.wait() for rank in start_ranks(hosts, jobs, job, out)]
    harness.succeed(*ended)
    harness.assert_same_model(out, reference(jobs, job, len(ended)))
    assert [rank["host"] for rank in harness.report(out)["ranks"]] == [f"host{rank}" for rank in range(len(ended))]


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_launcher_on_each_host(hosts, jobs):
    job, out = jobs.job(), jobs.folder / "run"
    master = f"{hosts.address(0)}:{PORT}"
    running = [
        jobs.start(
            "train", job, "--workers", 4, "--nnodes", 2, "--node-rank", node, "--master", master, "--out", out,
            prefix=hosts.inside(node), THALWEG_TOKEN=TOKEN, THALWEG_HOST=f"host{node}",
        )
        for node in (1, 0)
    ]
    harness.succeed(*[launcher.wait() for launcher in running])
    harness.assert_same_model(out, reference(jobs, job, 4))


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_without_a_token_only_loopback_is_served(hosts, jobs):
    out = jobs.folder / "run"
    ranks = start_ranks(hosts, jobs, jobs.job(), out, "fault.join_deadline=20s", tokens=[None, None])
    for ended in [rank.wait(60) for rank in ranks]:
        assert ended.code in (2, 4), str(ended)
        assert "THALWEG_TOKEN" in ended.stderr, str(ended)
    assert not (out / "model.safetensors").exists()


@pytest.mark.parametrize("hosts", [2], indirect=True)
def test_a_wrong_token_is_refused(hosts, jobs):
    out = jobs.folder / "run"
    ranks = start_ranks(hosts, jobs, jobs.job(), out, "fault.join_deadline=5s", tokens=[TOKEN, "another one"])
    master, stranger = [rank.wait(60) for rank in ranks]
    assert stranger.code == 4 and "token" in stranger.stderr.lower(), str(stranger)
    assert master.code == 4, str(master)


@pytest.mark.parametrize("hosts", [3], indirect=True)
def test_a_cut_cable_ends_the_job_and_names_the_silent_rank(hosts, jobs):
    out = jobs.folder / "run"
    settings = ("train.epochs=1000000", f"fault.step_deadline={STEP_DEADLINE}s")
    ranks = start_ranks(hosts, jobs, jobs.job(), out, *settings)
    harness.wait_for_steps(out, ranks[0])
    hosts.cut(2)
    begin = time.monotonic()
    ended = [rank.wait(10 * STEP_DEADLINE) for rank in ranks]
    assert time.monotonic() - begin < 10 * STEP_DEADLINE
    for survivor in ended[:2]:
        assert survivor.code == 3, str(survivor)
        assert "rank 2" in survivor.stderr, str(survivor)
    assert ended[2].code != 0, str(ended[2])
    assert harness.report(out)["outcome"] == "failed"
