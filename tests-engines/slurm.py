"""A Slurm cluster on one machine: each node has its own network namespace, host name and hosts file."""

import os
import shutil
import subprocess
import time
from pathlib import Path

import network

PROGRAMS = ("munged", "slurmctld", "slurmd", "srun", "scancel", "sinfo", "unshare")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"

CONFIGURATION = """\
ClusterName=thalweg
SlurmctldHost=n1({address})
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
CredType=cred/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
UnkillableStepTimeout=60
SlurmctldPort=16817
SlurmdPort=16818
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
{nodes}
PartitionName=all Nodes=ALL Default=YES State=UP
"""


def missing():
    """Why this machine cannot run Slurm; None if it can."""
    absent = [program for program in PROGRAMS if shutil.which(program, path=PATH) is None]
    if absent:
        return f"no {', '.join(absent)} (Debian: slurmctld, slurmd, slurm-client, munge)"
    return network.missing()


class Cluster:
    """Nodes n1, n2, ...; each resolves its own name to 127.0.1.1, as on Debian."""

    def __init__(self, folder, nodes=2):
        self.folder, self.network, self.daemons = Path(folder), network.Network(nodes), []
        self.names = [f"n{number + 1}" for number in range(nodes)]

    def __enter__(self):
        try:
            self._start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def _start(self):
        self.network.__enter__()
        (self.folder / "state").mkdir()
        for number, host in enumerate(self.network.hosts):
            lines = ["127.0.0.1 localhost"]
            for other, name in enumerate(self.names):
                lines.append(f"{'127.0.1.1' if other == number else self.network.address(other)} {name}")
            own = Path("/etc/netns") / host
            own.mkdir(parents=True)
            (own / "hosts").write_text("\n".join(lines) + "\n")
            (self.folder / f"spool-{self.names[number]}").mkdir()
        nodes = "\n".join(
            f"NodeName={name} NodeAddr={self.network.address(number)} CPUs=8 State=UNKNOWN"
            for number, name in enumerate(self.names)
        )
        text = CONFIGURATION.format(folder=self.folder, address=self.network.address(0), nodes=nodes)
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
        key = self.folder / "munge.key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o600)
        self._daemon(0, "munged", "--foreground", "--force", f"--socket={self.folder}/munge.socket", f"--key-file={key}",
                     f"--pid-file={self.folder}/munged.pid", f"--seed-file={self.folder}/munged.seed",
                     f"--log-file={self.folder}/munged.log")
        self._await(lambda: (self.folder / "munge.socket").exists(), "munged")
        self._daemon(0, "slurmctld", "-D")
        for number, name in enumerate(self.names):
            self._daemon(number, "slurmd", "-D", "-N", name)
        self._await(self._is_idle, "slurmctld and slurmd")

    def _is_idle(self):
        listed = subprocess.run([*self.on(0), "sinfo", "-h", "-o", "%T %D"], env=self.environment(), capture_output=True, text=True)
        return listed.stdout.split() == ["idle", str(len(self.names))]

    def _await(self, holds, what, seconds=120):
        end = time.monotonic() + seconds
        while not holds():
            logs = "".join(path.read_text(errors="replace")[-3000:] for path in self.folder.glob("*.log"))
            assert time.monotonic() < end, f"{what} did not start within {seconds} s\n{logs}"
            time.sleep(0.1)

    def _daemon(self, number, *words):
        with open(self.folder / f"{words[0]}-{number}.out", "wb") as out:
            self.daemons.append(subprocess.Popen([*self.on(number), *words], env=self.environment(), stdin=subprocess.DEVNULL,
                                                 stdout=out, stderr=out, start_new_session=True))

    def environment(self):
        return {**os.environ, "PATH": PATH, "SLURM_CONF": str(self.folder / "slurm.conf")}

    def on(self, number):
        """The prefix of a command that runs it on that node, under its host name."""
        name = self.names[number]
        return (*self.network.inside(number), "unshare", "--uts", "sh", "-c", f'hostname {name} && exec "$@"', "sh")

    def __exit__(self, *_):
        for daemon in reversed(self.daemons):
            daemon.terminate()
        for daemon in self.daemons:
            try:
                daemon.wait(20)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
        for number, host in enumerate(self.network.hosts):
            for process in self.network.processes(number):
                subprocess.run(["kill", "-9", str(process)], capture_output=True)
            shutil.rmtree(Path("/etc/netns") / host, ignore_errors=True)
        self.network.__exit__()
