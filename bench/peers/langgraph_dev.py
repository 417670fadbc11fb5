"""`langgraph dev`: a run on a thread, streamed."""

import json
import shutil
import subprocess
import uuid
from pathlib import Path

from http11 import encode
from processes import Process, free_port, listens

HERE = Path(__file__).parent


class LangGraphDev:
    title = "langgraph dev, in memory"
    first_text = (b"event: updates",)

    def __init__(self, python):
        self.python = Path(python)
        self.process = None

    def start(self, folder):
        folder = Path(folder)
        shutil.copy(HERE / "langgraph_dev_graph.py", folder / "graph.py")
        (folder / "langgraph.json").write_text(json.dumps({"dependencies": ["."], "graphs": {"agent": "./graph.py:graph"}}))
        self.port = free_port()
        program = self.python.parent / "langgraph"
        address = ["--host", "127.0.0.1", "--port", self.port]
        command = [program, "dev", "--no-browser", "--no-reload", *address, "--server-log-level", "WARNING"]
        quiet = {"LANGGRAPH_CLI_NO_ANALYTICS": "1", "LANGSMITH_TRACING": "false", "PYTHONDONTWRITEBYTECODE": "1"}
        self.process = Process(command, folder / "server.log", env=quiet, cwd=folder)
        self.process.wait_until(lambda: listens(self.port))

    def stop(self):
        if self.process:
            self.process.stop()
            self.process = None

    def roots(self):
        return [self.process.pid]

    def facts(self):
        code = "from importlib.metadata import version as v; print(v('langgraph-api'), v('langgraph-runtime-inmem'))"
        api, runtime = subprocess.run([self.python, "-c", code], capture_output=True, text=True, check=True).stdout.split()
        return {
            "version": f"langgraph-api {api}, runtime-inmem {runtime}",
            "durability": "none: in memory, written to files every 10 s without fsync",
            "batched": "nothing is synced",
            "run": "`POST /threads/…/runs/stream`; an idle queue is polled every 0.5 s",
        }

    def session(self):
        return str(uuid.uuid4())

    def request(self, session, prompt):
        body = {
            "assistant_id": "agent", "input": {"messages": [{"role": "user", "content": prompt}]},
            "stream_mode": ["updates"], "if_not_exists": "create",
        }
        return encode("POST", f"/threads/{session}/runs/stream", f"127.0.0.1:{self.port}", None, body)
