"""Ranks started by external launchers train the same model as `--workers 2`."""

import harness
import pytest

pytest.importorskip("safetensors.numpy")


@pytest.fixture
def reference(jobs):
    """The job file and the run folder of `--workers 2`."""
    job, out = jobs.job(), jobs.folder / "reference"
    harness.succeed(jobs.run("train", job, "--workers", 2, "--out", out))
    return job, out


def assert_run(out, reference, *ranks):
    """Asserts that every rank succeeded, rank 0 wrote the outputs and the model is the same."""
    harness.succeed(*ranks)
    for name in ("report.json", "model.safetensors", "events.jsonl"):
        assert (out / name).exists(), f"no {name}{''.join(map(str, ranks))}"
    report = harness.report(out)
    assert [rank["rank"] for rank in report["ranks"]] == [0, 1]
    harness.assert_same_model(out, reference)


def run_ranks(jobs, job, out, variables):
    """Starts rank 1 first, so that it waits for rank 0."""
    running = [jobs.start("train", job, "--out", out, **variables(rank)) for rank in (1, 0)]
    return [process.wait() for process in running]


def test_torchrun_style_variables(jobs, reference):
    job, expected = reference
    out, port = jobs.folder / "torchrun", harness.free_port()

    def variables(rank):
        return {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2,
                "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}

    assert_run(out, expected, *run_ranks(jobs, job, out, variables))


def test_the_minimal_variables(jobs, reference):
    job, expected = reference
    out, port = jobs.folder / "shells", harness.free_port()

    def variables(rank):
        return {"RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "localhost", "MASTER_PORT": port}

    assert_run(out, expected, *run_ranks(jobs, job, out, variables))


def test_srun_variables(jobs, reference):
    job, expected = reference
    out, job_id = jobs.folder / "srun", harness.free_port()

    def variables(rank):
        return {"SLURM_PROCID": rank, "SLURM_NTASKS": 2, "SLURM_LOCALID": rank,
                "SLURM_JOB_NODELIST": "localhost", "SLURM_JOB_ID": job_id}

    assert_run(out, expected, *run_ranks(jobs, job, out, variables))


@pytest.mark.skipif(not harness.MPIRUN, reason="no mpirun that can start two processes")
def test_mpirun(jobs, reference):
    job, expected = reference
    out = jobs.folder / "mpirun"
    ended = jobs.run("train", job, "--out", out, prefix=(*harness.MPIRUN, "-n", 2))
    assert_run(out, expected, ended)
