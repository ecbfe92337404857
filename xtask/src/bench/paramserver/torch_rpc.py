"""usage: torch_rpc.py WORKERS SIZES OPS [SECONDS per case]: a parameter server over torch.distributed.rpc.

SIZES are bytes, OPS of push, pull, update, both separated by commas. Workers are ranks 0 to WORKERS - 1, the server is the last
rank; every process has one thread. push ends when the server has added the gradient, pull when the worker has summed the
parameters; an update pushes, applies SGD and returns the parameters, each worker at its own speed.
"""
import json
import os
import socket
import sys
import threading
import time

import torch
import torch.distributed.rpc as rpc
import torch.multiprocessing as mp

WARM_UP, LEAST, MOST = 2, 6, 3000
RATE = 0.5
held, lock = {}, threading.Lock()


def prepare(length):
    held["sum"], held["parameters"] = torch.zeros(length), torch.zeros(length)


def push(gradient):
    held["sum"] += gradient


def clear():
    total = held["sum"].sum(dtype=torch.float64).item()
    held["sum"].zero_()
    return total


def fill(value):
    held["parameters"].fill_(value)


def pull():
    return held["parameters"]


def update(gradient):
    with lock:
        held["parameters"].sub_(gradient, alpha=RATE)
        return held["parameters"].clone()


def call(function, *arguments):
    return rpc.rpc_sync("server", function, args=arguments)


def time_pushes(gradient, seconds):
    times, start = [], time.perf_counter()
    expected = gradient.sum(dtype=torch.float64).item()
    for index in range(MOST):
        begin = time.perf_counter()
        call(push, gradient)
        times.append(time.perf_counter() - begin)
        if call(clear) != expected:
            raise SystemExit("the sum is not that of the gradient")
        if index >= LEAST and time.perf_counter() - start > seconds:
            break
    return times[WARM_UP:]


def time_pulls(length, seconds):
    times, start = [], time.perf_counter()
    for index in range(MOST):
        value = float(index % 8)
        call(fill, value)
        begin = time.perf_counter()
        total = call(pull).sum(dtype=torch.float32).item()
        times.append(time.perf_counter() - begin)
        if total != value * length:
            raise SystemExit("the parameters are not those of the server")
        if index >= LEAST and time.perf_counter() - start > seconds:
            break
    return times[WARM_UP:]


def measure(op, workers, size, seconds):
    """Times of one worker; the others wait."""
    gradient = torch.ones(size // 4)
    times = sorted(time_pushes(gradient, seconds) if op == "push" else time_pulls(size // 4, seconds))
    median = times[len(times) // 2]
    print(json.dumps({"peer": "torch-rpc", "op": op, "bytes": size, "servers": 1, "workers": 1,
                      "gbps": size / median / 1e9, "us": median * 1e6, "us_min": times[0] * 1e6}), flush=True)


def count_updates(rank, workers, size, seconds, counts, barrier):
    gradient = torch.ones(size // 4)
    call(update, gradient * 0)
    barrier.wait()
    count, start = 0, time.perf_counter()
    while time.perf_counter() - start < seconds:
        parameters = call(update, gradient)
        count += 1
        least, most = torch.aminmax(parameters)
        if not most <= -RATE * count:
            raise SystemExit("an update is missing")
    counts[rank] = count
    counts[workers + rank] = time.perf_counter() - start
    barrier.wait()
    if rank == 0:
        total, longest = sum(counts[:workers]), max(counts[workers:])
        if call(pull)[0].item() != -RATE * total:
            raise SystemExit("updates are missing")
        rate = total / longest
        print(json.dumps({"peer": "torch-rpc", "op": "update", "bytes": size, "servers": 1, "workers": workers,
                          "gbps": 2 * size * rate / 1e9, "updates_per_s": rate}), flush=True)
    barrier.wait()


def run(rank, workers, sizes, ops, seconds, port, counts, barrier):
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    options = rpc.TensorPipeRpcBackendOptions(num_worker_threads=max(4, workers), rpc_timeout=120)
    name = "server" if rank == workers else f"worker{rank}"
    rpc.init_rpc(name, rank=rank, world_size=workers + 1, rpc_backend_options=options)
    for size in sizes if rank < workers else []:
        if rank == 0:
            call(prepare, size // 4)
            for op in ops:
                if op != "update":
                    measure(op, workers, size, seconds)
            call(fill, 0.0)
        barrier.wait()
        if "update" in ops:
            count_updates(rank, workers, size, seconds, counts, barrier)
    rpc.shutdown()


if __name__ == "__main__":
    workers = int(sys.argv[1])
    sizes = [int(size) for size in sys.argv[2].split(",")]
    ops = sys.argv[3].split(",")
    seconds = float(sys.argv[4]) if len(sys.argv) > 4 else 1.0
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    context = mp.get_context("spawn")
    counts, barrier = context.Array("d", 2 * workers, lock=False), context.Barrier(workers)
    mp.spawn(run, args=(workers, sizes, ops, seconds, port, counts, barrier), nprocs=workers + 1)
