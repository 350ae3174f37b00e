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

import redis_suites

PASSWORD = "open-sesame"


class Server:
    def __init__(self, port, password):
        self.port, self.password = port, password

    def variables(self):
        """What a program is told of the server, by its environment."""
        return {
            "SERVER_HOST": "127.0.0.1",
            "SERVER_PORT": str(self.port),
            "SERVER_PASSWORD": self.password,
            "SERVER_URL": self.url(),
        }

    def url(self):
        words = f":{self.password}@" if self.password else ""
        return f"redis://{words}127.0.0.1:{self.port}"


def redis_version():
    if not shutil.which("redis-server"):
        sys.exit("redis-server is missing (Debian: redis-server)")
    said = subprocess.run(["redis-server", "--version"], capture_output=True, text=True).stdout
    return re.search(r"v=(\S+)", said).group(1)


def start(name, kvfs, password):
    return redis(password) if name == "Redis" else mounted(kvfs, password)


@contextlib.contextmanager
def redis(password):
    with tempfile.TemporaryDirectory() as directory:
        with socket.create_server(("127.0.0.1", 0)) as probe:
            port = probe.getsockname()[1]
        command = ["redis-server", "--bind", "127.0.0.1", "--port", str(port)]
        command += ["--requirepass", password, "--save", "", "--dir", directory]
        # The suites use DEBUG; KVFS has what it has of it without being told.
        command += ["--enable-debug-command", "yes"]
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        try:
            wait_for(port)
            yield Server(port, password)
        finally:
            process.kill()
            process.wait()


@contextlib.contextmanager
def mounted(kvfs, password):
    """A new store, mounted, that answers on a free port. It does so to a password alone: clients
    without one come by a relay to its Unix socket."""
    if not os.access(kvfs, os.X_OK):
        sys.exit(f"{kvfs} is not built")
    with tempfile.TemporaryDirectory() as directory:
        directory = pathlib.Path(directory)
        file = directory / "password"
        file.touch(mode=0o600)
        file.write_text((password or PASSWORD) + "\n")
        store, mount = directory / "clients.kvfs", directory / "mount"
        mount.mkdir()
        run(kvfs, "create", store, "--size", "4G")
        said = run(kvfs, "mount", "-o", f"listen=127.0.0.1:0,password_file={file}", store, mount)
        try:
            port = int(re.search(r"keys at \S*:(\d+)", said).group(1))
            wait_for(port)
            if not password:
                port = redis_suites.Relay(f"{store}.sock", answers=False).port
            yield Server(port, password)
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
