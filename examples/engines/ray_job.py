"""Trains a job as tasks of Ray: python ray_job.py JOB OUT RANKS

Rank 0 takes any free port and writes its address to a file that all ranks can read. If rank 0 is lost, all ranks start
again with --resume; the job survives the loss of others."""

import os
import subprocess
import sys

import ray


@ray.remote(num_cpus=1, max_retries=0, max_calls=1)  # A cancelled worker could take another task before it exits.
def rank(number, world, job, out, token, more):
    address = ray.util.get_node_ip_address() if number == 0 else ""
    variables = {"RANK": number, "WORLD_SIZE": world, "MASTER_ADDR": address, "MASTER_PORT": 0, "THALWEG_TOKEN": token}
    command = [os.environ.get("THALWEG", "thalweg"), "train", job, "--out", out, "--resume", "--address-file", f"{out}.address"]
    return subprocess.call([*command, *more], env={**os.environ, **{name: str(value) for name, value in variables.items()}})


def train(job, out, ranks, more, attempts=2):
    for attempt in range(attempts):
        token = os.urandom(16).hex()
        tasks = [rank.remote(number, ranks, job, out, token, more) for number in range(ranks)]
        try:
            code = ray.get(tasks[0])
        except ray.exceptions.RayError as error:
            code = str(error).splitlines()[0]
        for task in tasks[1:]:
            ray.cancel(task, force=True)
        print(f"attempt {attempt + 1}: rank 0 ended with {code}", flush=True)
        if code == 0:
            return 0
    return 1


if __name__ == "__main__":
    job, out, ranks, *more = sys.argv[1:]
    ray.init(log_to_driver=False)
    sys.exit(train(job, out, int(ranks), more))
