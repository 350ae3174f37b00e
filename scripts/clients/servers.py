"""The two servers of scripts/clients.py: a redis-server, and a mounted store of KVFS."""

import contextlib
import os
import pathlib
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time

PASSWORD = "open-sesame"


class Server:
    def __init__(self, name, port):
        self.name, self.port = name, port

    def variables(self):
        """What a program is told of the server, by its environment."""
        return {
            "SERVER_HOST": "127.0.0.1",
            "SERVER_PORT": str(self.port),
            "SERVER_PASSWORD": PASSWORD,
            "SERVER_URL": self.url(),
        }

    def url(self):
        return f"redis://:{PASSWORD}@127.0.0.1:{self.port}"


def redis_version():
    if not shutil.which("redis-server"):
        sys.exit("redis-server is missing (Debian: redis-server)")
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout
    return re.search(r"v=(\S+)", said).group(1)


def start(name, kvfs):
    return redis() if name == "Redis" else mounted(kvfs)


@contextlib.contextmanager
def redis():
    with tempfile.TemporaryDirectory() as directory:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port)]
        command += ["--requirepass", PASSWORD, "--save", "", "--dir", directory]
        # The suites use DEBUG; KVFS has what it has of it without being told.
        command += ["--enable-debug-command", "yes"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            yield Server("Redis", port)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def mounted(kvfs):
    """A new store, mounted, that answers on a free port."""
    if not os.access(kvfs, os.X_OK):
        sys.exit(f"{kvfs} is not built")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        password = directory / "password"
        password.touch(mode=0o600)
        password.write_text(PASSWORD + "\n")
        store, mount = directory / "clients.kvfs", directory / "mount"
        mount.mkdir()
        run(kvfs, "create", store, "--size", "4G")
        said = run(
            kvfs, "mount", "-o", f"listen=127.0.0.1:0,password_file={password}", store, mount
        )
        try:
            port = int(re.search(r"keys at \S*:(\d+)", said).group(1))
            wait_for(port)
            yield Server("KVFS", port)
        finally:
            run(kvfs, "umount", mount)


def run(*command):
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
    if done.returncode:
        sys.exit(f"{' '.join(map(str, command))}: {done.stderr.strip() or done.stdout.strip()}")
    return done.stdout + done.stderr


def wait_for(port):
    until = time.monotonic() + 30
    while True:
        try:
            socket.create_connection(("127.0.0.1", port), 1).close()
            return
        except OSError:
            if time.monotonic() > until:
                sys.exit(f"no server at port {port}")
            time.sleep(0.05)
