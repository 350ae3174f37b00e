"""A toxiproxy before a server on this machine: it delays answers. Installed by go where it is
missing, in KVFS_S3_TOOLS (default target/servers)."""

import json
import os
import socket
import subprocess
import time
import urllib.request

TOXIPROXY = "github.com/Shopify/toxiproxy/v2/cmd/server@v2.5.0"


class Proxy:
    """A toxiproxy before the server, which delays answers."""

    def __init__(self, folder, upstream):
        tools = os.path.abspath(os.environ.get("KVFS_S3_TOOLS", "target/servers"))
        os.makedirs(tools, exist_ok=True)
        program = f"{tools}/server"
        if not os.path.exists(program):
            environ = {**os.environ, "GOBIN": tools}
            subprocess.run(["go", "install", TOXIPROXY], env=environ, check=True)
        self.port, self.api = free_port(), free_port()
        with open(f"{folder}/toxiproxy.log", "wb") as log:
            self.process = subprocess.Popen(
                [program, "-host", "127.0.0.1", "-port", str(self.api)], stdout=log, stderr=log
            )
        deadline = time.monotonic() + 10
        while True:
            try:
                socket.create_connection(("127.0.0.1", self.api)).close()
                break
            except OSError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.05)
        listen = f"127.0.0.1:{self.port}"
        self.ask("/proxies", {"name": "s3", "listen": listen, "upstream": upstream})

    def ask(self, path, body, method="POST"):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.api}{path}",
            data=json.dumps(body).encode(),
            method=method,
            headers={"Content-Type": "application/json", "User-Agent": "kvfs-bench"},
        )
        urllib.request.urlopen(request).read()

    def delay(self, before, now):
        if before:
            self.ask("/proxies/s3/toxics/slow", {}, "DELETE")
        if now:
            attributes = {"latency": now}
            toxic = {"name": "slow", "type": "latency", "stream": "downstream"}
            self.ask("/proxies/s3/toxics", {**toxic, "attributes": attributes})

    def stop(self):
        self.process.terminate()
        self.process.wait()


def free_port():
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return s.getsockname()[1]
