"""Trains a job as the tasks of a Spark barrier stage: spark-submit spark_job.py JOB OUT RANKS

The rows after the stage go through a shuffle, so that whatever Spark repeats runs with --resume. Rank 0 decides: if it
exits with 0, the job survived the loss of others; if not, Spark runs the stage again.
"""

import os
import socket
import subprocess
import sys

from pyspark import BarrierTaskContext
from pyspark.sql import SparkSession


def train(job, out, token, more):
    def rank(_):
        context = BarrierTaskContext.get()
        number, hosts = context.partitionId(), [task.address.split(":")[0] for task in context.getTaskInfos()]
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = context.allGather(str(probe.getsockname()[1]))[0]
        variables = {"RANK": number, "WORLD_SIZE": len(hosts), "MASTER_ADDR": hosts[0], "MASTER_PORT": port, "THALWEG_TOKEN": token}
        command = [os.environ.get("THALWEG", "thalweg"), "train", job, "--out", out, "--resume", *more]
        code = subprocess.call(command, env={**os.environ, **{name: str(value) for name, value in variables.items()}})
        if number == 0 and code != 0:
            raise RuntimeError(f"rank 0 ended with {code}")
        yield number, code

    return rank


if __name__ == "__main__":
    job, out, ranks, *more = sys.argv[1:]
    session = SparkSession.builder.appName("thalweg").getOrCreate()
    stage = session.sparkContext.parallelize(range(int(ranks)), int(ranks)).barrier()
    ended = stage.mapPartitions(train(job, out, os.urandom(16).hex(), more)).repartition(1).collect()
    print("ranks and how they ended:", sorted(ended))
