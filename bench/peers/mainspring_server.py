"""Starts `mainspring serve` with default settings, in a state directory of its own."""

import re
import subprocess
from pathlib import Path

from processes import Process, StartError


class MainspringServer:
    def __init__(self, binary, folder, store=None):
        self.binary = binary
        self.store = store
        self.folder = Path(folder)
        self.state = self.folder / "state"
        self.process = None

    def start(self):
        log = self.folder / "mainspring.log"
        log.unlink(missing_ok=True)
        # An empty configuration file: neither the user's nor one of the current folder counts.
        config = self.folder / "mainspring.toml"
        config.touch()
        command = [self.binary, "serve", "--listen", "127.0.0.1:0", "--state-dir", self.state, "--config", config]
        env = {"MAINSPRING_STORE": self.store} if self.store else None
        self.process = Process(command, log, cwd=self.folder, env=env)
        try:
            found = self.process.wait_until(lambda: re.search(r"serving http://127\.0\.0\.1:(\d+)", log.read_text()))
            self.port = int(found[1])
            self.headers = {"Authorization": f"Bearer {(self.state / 'token').read_text().strip()}"}
        except (StartError, OSError):
            self.process.stop()
            raise

    def stop(self):
        if self.process:
            self.process.stop()
            self.process = None

    def version(self):
        return subprocess.run([self.binary, "--version"], capture_output=True, text=True, check=True).stdout.split()[1]

    def settings(self):
        """Returns the durability and the number of concurrent runs that the program itself reports."""
        shown = subprocess.run(
            [self.binary, "config", "show", "--state-dir", self.state, "--config", self.folder / "mainspring.toml"],
            capture_output=True, text=True, check=True,
        ).stdout
        value = lambda name: re.search(rf'^{name}\s*=?\s*"?(\w+)', shown, re.MULTILINE)[1]
        return {"durability": value("durability"), "max_runs": value("max_in_process_runs")}
