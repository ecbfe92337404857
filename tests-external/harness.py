"""Starts thalweg and reads its output files.

Assertion messages contain the command, its exit code and its output.
"""

import json
import os
import shlex
import signal
import socket
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BINARY = Path(os.environ.get("THALWEG_BINARY") or ROOT / "target/debug/thalweg")
MPIRUN = shlex.split(os.environ.get("THALWEG_MPIRUN", ""))
# The binary built with the transport over MPI, and its library path.
MPI_BINARY = os.environ.get("THALWEG_MPI_BINARY")
MPI_LIBRARIES = os.environ.get("THALWEG_MPI_LIBRARIES")

# Variables of a launcher around the tests, which must not reach the job.
LAUNCHER_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
LAUNCHER_PREFIXES = ("OMPI_", "PMI_", "PMIX_", "SLURM_", "TORCHELASTIC_", "PET_", "THALWEG_")

LAYERS = ["dense 32 relu", "dense 10"]
DIGITS_JOB = f"""\
[data]
source = "builtin:digits"

[model]
layers = {json.dumps(LAYERS)}

[train]
epochs = 10
global_batch = 64
seed = 7
"""


def environment(**variables):
    """The environment without variables of launchers, and with the given ones."""
    ours = {
        name: value
        for name, value in os.environ.items()
        if name not in LAUNCHER_NAMES and not name.startswith(LAUNCHER_PREFIXES)
    }
    return {**ours, **{name: str(value) for name, value in variables.items()}}


@dataclass
class Exited:
    """A process that has exited."""

    command: str
    code: int
    stdout: str
    stderr: str
    seconds: float

    @property
    def output(self):
        return self.stdout + self.stderr

    def __str__(self):
        return (
            f"\n$ {self.command}\nexit code {self.code} after {self.seconds:.1f} s"
            f"\n--- stdout\n{self.stdout}\n--- stderr\n{self.stderr}"
        )


class Running:
    """A process in its own session; its output goes to files, so that it never blocks on a pipe."""

    def __init__(self, arguments, folder, name, prefix=(), binary=BINARY, **variables):
        self.arguments = [str(word) for word in (*prefix, binary, *arguments)]
        shown = [f"{variable}={value}" for variable, value in variables.items()]
        self.command = shlex.join(["env", *shown, *self.arguments] if shown else self.arguments)
        self.files = [folder / f"{name}.stdout", folder / f"{name}.stderr"]
        self.begin = time.monotonic()
        with open(self.files[0], "wb") as stdout, open(self.files[1], "wb") as stderr:
            self.process = subprocess.Popen(
                self.arguments,
                env=environment(**variables),
                stdin=subprocess.DEVNULL,
                stdout=stdout,
                stderr=stderr,
                start_new_session=True,
            )

    def so_far(self):
        """The output so far, as if it had exited now."""
        stdout, stderr = (path.read_text(errors="replace") for path in self.files)
        code = self.process.returncode if self.process.returncode is not None else -1
        return Exited(self.command, code, stdout, stderr, time.monotonic() - self.begin)

    def wait(self, seconds=120):
        """Waits for the exit; fails the test on a timeout."""
        try:
            self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            shown = self.so_far()
            self.kill()
            raise AssertionError(f"still running after {seconds} s{shown}") from None
        return self.so_far()

    def kill(self):
        """Kills all processes of its session."""
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and os.getsid(int(entry.name)) == self.process.pid:
                    os.kill(int(entry.name), signal.SIGKILL)
            except (ProcessLookupError, PermissionError):
                pass
        self.process.wait()


@dataclass
class Jobs:
    """Starts processes and kills them after the test."""

    folder: Path
    started: list = field(default_factory=list)

    def start(self, *arguments, prefix=(), binary=BINARY, **variables):
        running = Running(arguments, self.folder, f"process-{len(self.started)}", prefix, binary, **variables)
        self.started.append(running)
        return running

    def run(self, *arguments, seconds=120, **how):
        return self.start(*arguments, **how).wait(seconds)

    def job(self, text=DIGITS_JOB, name="job.toml"):
        path = self.folder / name
        path.write_text(text)
        return path

    def close(self):
        for running in self.started:
            running.kill()


def succeed(*ended):
    """Asserts that all exited with code 0."""
    for one in ended:
        assert one.code == 0, str(one)


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_until(holds, running, seconds=60):
    """Waits until a condition holds while the process runs."""
    deadline = time.monotonic() + seconds
    while not holds():
        ended = running.process.poll() is not None
        assert not ended and time.monotonic() < deadline, f"the condition did not hold in time{running.so_far()}"
        time.sleep(0.02)


def wait_for_event(out, running, *marks, seconds=180):
    """Waits until the event log of the run contains one of these texts."""
    events = out / "events.jsonl"
    log = lambda: events.read_text(errors="replace") if events.exists() else ""
    wait_until(lambda: any(mark in log() for mark in marks), running, seconds)


def wait_for_steps(out, running):
    """Waits for the first step of the run."""
    wait_for_event(out, running, '"event":"step"', '"event":"epoch"')


def report(out):
    return json.loads((out / "report.json").read_text())


def parameters(out):
    """The tensors of the model by name: shape and bytes."""
    from safetensors.numpy import load_file

    tensors = load_file(out / "model.safetensors")
    return {name: (tensor.shape, tensor.tobytes()) for name, tensor in tensors.items()}


def assert_same_model(left, right):
    """Asserts bitwise equal parameters."""
    ours, theirs = parameters(left), parameters(right)
    assert ours and ours.keys() == theirs.keys(), f"{sorted(ours)} and {sorted(theirs)}"
    different = [name for name in ours if ours[name] != theirs[name]]
    assert not different, f"{left} and {right} differ in {different}"
