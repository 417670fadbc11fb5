"""Processes of peers: starting, stopping, processor time of a process tree, and counting synced writes."""

import os
import re
import shutil
import signal
import socket
import subprocess
import time

TICKS = os.sysconf("SC_CLK_TCK")
STOP_SECONDS = 20
SYNC_CALLS = "fsync,fdatasync,sync_file_range,msync,syncfs,sync"


class StartError(Exception):
    """A peer that does not start; the message says why."""


class Process:
    """A program in a process group of its own, with its output in a log."""

    def __init__(self, command, log, *, env=None, cwd=None, user=None):
        self.log = log
        # The environment of a caller may hold settings of the peers.
        kept = {name: value for name, value in os.environ.items() if not re.match("MAINSPRING_|OMI_|RESTATE_|DBOS_|PG", name)}
        options = {}
        if user:
            options = {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}
            kept["HOME"] = cwd
        with open(log, "ab") as out:
            self.process = subprocess.Popen(
                [str(part) for part in command], stdin=subprocess.DEVNULL, stdout=out, stderr=out, cwd=cwd,
                env={**kept, **(env or {})}, start_new_session=True, **options,
            )

    @property
    def pid(self):
        return self.process.pid

    def wait_until(self, ready, seconds=60):
        """Waits until `ready()` gives a value that is not false, and returns it."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            if self.process.poll() is not None:
                raise StartError(f"{self.process.args[0]} ended with {self.process.returncode}: {self.tail()}")
            if value := ready():
                return value
            time.sleep(0.05)
        raise StartError(f"{self.process.args[0]} was not ready after {seconds} s: {self.tail()}")

    def tail(self):
        with open(self.log, errors="replace") as log:
            return " / ".join(log.read().strip().splitlines()[-4:])[-600:]

    def stop(self, ask=signal.SIGTERM):
        """Asks the program to end, and kills its group if it does not."""
        if self.process.poll() is None:
            self.process.send_signal(ask)
            try:
                self.process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                pass
        try:
            os.killpg(self.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        self.process.wait()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def listens(port):
    with socket.socket() as probe:
        probe.settimeout(1)
        return probe.connect_ex(("127.0.0.1", port)) == 0


def tree(roots):
    """Returns the ids of the processes and of all their descendants."""
    children = {}
    for name in os.listdir("/proc"):
        if name.isdigit() and (fields := stat(name)):
            children.setdefault(int(fields[1]), []).append(int(name))
    found, queue = {}, list(roots)
    while queue:
        pid = queue.pop()
        if pid not in found:
            found[pid] = True
            queue += children.get(pid, [])
    return list(found)


def stat(pid):
    """Returns the fields of /proc/PID/stat after the name, from the state on, or nothing if there is no such process."""
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()
    except OSError:
        return None


def cpu_seconds(roots):
    """Returns the processor time of the processes and their descendants, including children that have ended."""
    total = 0
    for pid in tree(roots):
        if fields := stat(pid):
            total += sum(map(int, fields[11:15]))
    return total / TICKS


class SyncCount:
    """Counts the calls that sync a file, in the processes and their descendants, with strace. None if it cannot."""

    def __init__(self, roots, folder):
        self.count = None
        self.pids = tree(roots)
        self.output = os.path.join(folder, f"strace-{self.pids[0]}")
        self.strace = None

    def __enter__(self):
        if not shutil.which("strace"):
            return self
        command = ["strace", "-f", "-e", f"trace={SYNC_CALLS}", "-o", self.output]
        for pid in self.pids:
            command += ["-p", str(pid)]
        self.strace = subprocess.Popen(command, stdin=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
        # A line for each process: attached, or why not.
        tried = attached = 0
        while tried < len(self.pids) and (line := self.strace.stderr.readline()):
            tried += "attach" in line
            attached += "attached" in line
        if not attached:
            self.strace.wait()
            self.strace = None
        return self

    def __exit__(self, *_):
        if self.strace is None:
            return
        self.strace.send_signal(signal.SIGINT)
        self.strace.communicate()
        with open(self.output) as lines:
            self.count = sum(1 for line in lines if re.match(r"\d+ +(fsync|fdatasync|sync_file_range|msync|syncfs|sync)\(", line))
        os.remove(self.output)
