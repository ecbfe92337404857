"""Hosts on one machine: network namespaces on a bridge, created and removed by each test."""

import itertools
import os
import shutil
import subprocess
from pathlib import Path

_numbers = itertools.count()


def ip(*words):
    """Runs `ip`; the exception contains its standard error."""
    done = subprocess.run(["ip", *map(str, words)], capture_output=True, text=True)
    if done.returncode != 0:
        raise RuntimeError(f"ip {' '.join(map(str, words))}: {done.stderr.strip()}")
    return done.stdout


def missing():
    """Why this machine cannot have hosts; None if it can."""
    if shutil.which("ip") is None:
        return "no `ip` command (package iproute2)"
    try:
        with Network(1) as network:
            subprocess.run([*network.inside(0), "true"], check=True, capture_output=True)
    except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
        return f"no permission to make network namespaces ({error})"
    return None


class Network:
    """A number of hosts with an address each, on one bridge in a further namespace."""

    def __init__(self, hosts):
        mark = f"thw{os.getpid()}x{next(_numbers)}"
        self.switch = f"{mark}s"
        self.hosts = [f"{mark}h{number}" for number in range(hosts)]

    def __enter__(self):
        try:
            self._add(self.switch)
            ip("-n", self.switch, "link", "add", "hub", "type", "bridge")
            ip("-n", self.switch, "link", "set", "hub", "up")
            for number, host in enumerate(self.hosts):
                self._add(host)
                ip("link", "add", "eth", "netns", host, "type", "veth", "peer", "name", f"p{number}", "netns", self.switch)
                ip("-n", self.switch, "link", "set", f"p{number}", "master", "hub", "up")
                ip("-n", host, "addr", "add", f"{self.address(number)}/24", "dev", "eth")
                ip("-n", host, "link", "set", "eth", "up")
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_):
        for name in [*self.hosts, self.switch]:
            subprocess.run(["ip", "netns", "del", name], capture_output=True)

    @staticmethod
    def _add(name):
        ip("netns", "add", name)
        ip("-n", name, "link", "set", "lo", "up")

    @staticmethod
    def address(number):
        return f"10.77.9.{number + 1}"

    def inside(self, number):
        """The prefix of a command that runs it on that host."""
        return ("ip", "netns", "exec", self.hosts[number])

    def processes(self, number):
        """The processes on that host with their environment variables."""
        found = {}
        for process in map(int, ip("netns", "pids", self.hosts[number]).split()):
            try:
                variables = Path(f"/proc/{process}/environ").read_bytes().split(b"\0")
            except OSError:
                continue  # It has exited meanwhile.
            found[process] = dict(variable.decode(errors="replace").split("=", 1) for variable in variables if b"=" in variable)
        return found

    def disconnect(self, number):
        """Disconnects that host."""
        ip("-n", self.hosts[number], "link", "set", "eth", "down")

    def reconnect(self, number):
        """Connects that host again."""
        ip("-n", self.hosts[number], "link", "set", "eth", "up")

    def drop(self, sender, receiver):
        """Drops all packets from one host to another, in this direction only."""
        ip("-n", self.hosts[sender], "route", "add", "blackhole", f"{self.address(receiver)}/32")
