"""Trains a job as tasks of Dask, one worker process each: python dask_job.py JOB OUT RANKS

Rank 0 takes any free port and writes its address to a file that all ranks can read. If rank 0 is lost, all ranks start
again with --resume; the job survives the loss of others."""

import os
import subprocess
import sys

import dask
from distributed import Client, LocalCluster, get_worker


def rank(number, world, job, out, token, more):
    address = get_worker().address.split("//")[1].rsplit(":", 1)[0] if number == 0 else ""
    variables = {"RANK": number, "WORLD_SIZE": world, "MASTER_ADDR": address, "MASTER_PORT": 0, "THALWEG_TOKEN": token}
    command = [os.environ.get("THALWEG", "thalweg"), "train", job, "--out", out, "--resume", "--address-file", f"{out}.address"]
    return subprocess.call([*command, *more], env={**os.environ, **{name: str(value) for name, value in variables.items()}})


def train(client, job, out, ranks, more, attempts=2):
    for attempt in range(attempts):
        token, submit = os.urandom(16).hex(), client.submit
        client.wait_for_workers(ranks)
        homes = sorted(client.scheduler_info(n_workers=-1)["workers"])
        tasks = [submit(rank, i, ranks, job, out, token, more, workers=[homes[i]], pure=False) for i in range(ranks)]
        error = tasks[0].exception()
        code = tasks[0].result() if error is None else type(error).__name__
        client.cancel(tasks)
        print(f"attempt {attempt + 1}: rank 0 ended with {code}", flush=True)
        if code == 0:
            return 0
    return 1


if __name__ == "__main__":
    job, out, ranks, *more = sys.argv[1:]
    dask.config.set({"distributed.scheduler.allowed-failures": 0})
    with LocalCluster(n_workers=int(ranks), threads_per_worker=1, dashboard_address=None) as cluster, Client(cluster) as client:
        sys.exit(train(client, job, out, int(ranks), more))
