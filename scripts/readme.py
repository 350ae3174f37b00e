#!/usr/bin/env python3
"""Runs the terminal sessions of README.md and docs/agents.md as they are printed, and compares what
they say.

A block ```console is a session: lines that begin with `$ ` are commands for bash, the lines behind
one are what it prints. Every command must succeed. A command that ends with `&` runs until the
sessions of its document have ended. Numbers and units may differ from what is printed, `…` stands
for anything, and blanks for any blanks. What the sessions take for granted (a project under ~/src,
a directory /mnt/work) is made in a mount name space of its own. Needs root and /dev/fuse.

    python3 scripts/readme.py target/release/kvfs [docs/agents.md …]
"""

import os
import pty
import re
import select
import shutil
import subprocess
import sys
import tempfile
import threading

ROOT = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
# Before the second session: what the first one built is not there, and the store is mounted.
BETWEEN = (
    "kvfs mount my.kvfs /mnt/work >/dev/null && rm -rf /mnt/work/project/out && "
    "kvfs kv put /mnt/work build none"
)
DOCUMENTS = ["README.md", "docs/agents.md"]
MAKEFILE = """all:
\tmkdir -p out && cat $$(find src -name '*.rs') | wc -l > out/lines
"""


def sessions(text):
    """Lists of (command, lines that it prints)."""
    for block in re.findall(r"^```console\n(.*?)^```$", text, re.M | re.S):
        session = []
        for line in block.splitlines():
            if line.startswith("$ "):
                session.append((line[2:], []))
            else:
                session[-1][1].append(line)
        yield session


def pattern(lines):
    """What the lines allow."""
    words = " ".join(lines).split()
    out = []
    for word in words:
        # Names are as they are; other numbers may be others.
        if not word.startswith("/"):
            word = re.sub(r"\d+(?:\\\.\d+)?", lambda _: r"[\d.]+", re.escape(word))
        word = word.replace("…", ".*")
        out.append(r"(?:B|KiB|MiB|GiB)" + word[len(unit) :] if (unit := units(word)) else word)
    return r"\s*" + r"\s+".join(out) + r"\s*"


def units(word):
    found = re.match(r"(KiB|MiB|GiB|B)\b", word)
    return found.group(1) if found else ""


def run(command, env, directory):
    """Runs it; where it asks, the answer is the one that is printed behind the question."""
    if "--ask" not in command:
        done = subprocess.run(
            ["bash", "-c", command], env=env, cwd=directory, stdout=subprocess.PIPE, timeout=300
        )
        return done.returncode, done.stdout.decode()
    pid, terminal = pty.fork()
    if pid == 0:
        os.chdir(directory)
        os.execvpe("bash", ["bash", "-c", command], env)
    out, answered = b"", False
    while True:
        if not select.select([terminal], [], [], 300)[0]:
            raise SystemExit(f"no answer to: {command}")
        try:
            piece = os.read(terminal, 65536)
        except OSError:
            piece = b""
        if not piece:
            break
        out += piece
        if not answered and b"Commit?" in out:
            answered = True
            os.write(terminal, b"n\n")
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]), out.decode()


def start(command, count, env, directory):
    """Starts a command that ends with `&`, and waits until it has printed this number of lines.
    Returns its process and these lines."""
    process = subprocess.Popen(
        ["bash", "-c", "exec " + command.removesuffix("&")],
        env=env,
        cwd=directory,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    # A process that prints too little is ended, which also ends the wait for its lines.
    limit = threading.Timer(300, process.kill)
    limit.start()
    said = "".join(process.stdout.readline() for _ in range(count))
    limit.cancel()
    return process, said


def main():
    kvfs = os.path.abspath(sys.argv[1])
    if os.environ.get("KVFS_README_INSIDE") != "1":
        if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
            raise SystemExit("readme: needs root and /dev/fuse")
        os.environ["KVFS_README_INSIDE"] = "1"
        os.execvp(
            "unshare",
            [
                "unshare",
                "--mount",
                "--propagation",
                "private",
                sys.executable,
                os.path.abspath(__file__),
                kvfs,
                *sys.argv[2:],
            ],
        )
    wrong = sum(document(kvfs, name) for name in sys.argv[2:] or DOCUMENTS)
    print(f"readme: {'as printed' if wrong == 0 else f'{wrong} commands are not as printed'}")
    sys.exit(1 if wrong else 0)


def document(kvfs, name):
    """Runs the sessions of one, in a directory of its own;
    how many commands said something else."""
    directory = tempfile.mkdtemp(prefix="kvfs-readme.")
    env = dict(
        os.environ,
        HOME=directory,
        FAKETTY="1",
        COLUMNS="120",
        NO_COLOR="1",
        GIT_CONFIG_GLOBAL="/dev/null",
    )
    env.pop("MAKEFLAGS", None)
    os.mkdir(f"{directory}/bin")
    os.symlink(kvfs, f"{directory}/bin/kvfs")
    env["PATH"] = f"{directory}/bin:" + env["PATH"]
    subprocess.run("mount -t tmpfs tmpfs /mnt && mkdir /mnt/work", shell=True, check=True)
    project = f"{directory}/src/project"
    os.makedirs(f"{project}/src/layout")
    open(f"{project}/Makefile", "w").write(MAKEFILE)
    for file, size in [
        ("lib.rs", 30),
        ("fs.rs", 300),
        ("layout/mod.rs", 300),
        ("layout/node.rs", 350),
    ]:
        open(f"{project}/src/{file}", "w").write(
            "// a line of a source file, such as it is\n" * size
        )
    git = (
        "git -c init.defaultBranch=main init -q && git add -A && "
        "git -c user.name=n -c user.email=e commit -qm 1"
    )
    subprocess.run(["bash", "-c", git], cwd=project, env=env, check=True)
    wrong, started = 0, []
    try:
        for number, session in enumerate(sessions(open(f"{ROOT}/{name}").read())):
            if number == 1 and name == "README.md":
                subprocess.run(["bash", "-ec", BETWEEN], cwd=directory, env=env, check=True)
            for command, lines in session:
                if command.startswith("kill "):
                    # What was written longer ago than the flush interval is on disk; a reader is
                    # not as fast as this program.
                    subprocess.run(
                        ["redis-cli", "-s", "my.kvfs.sock", "SAVE"],
                        cwd=directory,
                        env=env,
                        check=True,
                        capture_output=True,
                    )
                print(f"$ {command}", flush=True)
                if command.endswith("&"):
                    process, said = start(command, len(lines), env, directory)
                    started.append(process)
                    code = process.poll() or 0
                else:
                    code, said = run(command, env, directory)
                print(said, end="" if said.endswith("\n") or not said else "\n", flush=True)
                # The answer was no: the program's own code stays.
                lines = [line.replace("/home/me/", directory + "/") for line in lines]
                if code != 0 or lines and not re.fullmatch(pattern(lines), said, re.S):
                    wrong += 1
                    print(
                        f"readme: WRONG, exit code {code}, {name} prints:\n" + "\n".join(lines),
                        flush=True,
                    )
    finally:
        subprocess.run(["kvfs", "umount", "/mnt/work"], env=env, capture_output=True)
        for process in started:
            process.terminate()
            if process.wait(timeout=300) != 0:
                wrong += 1
                print(f"readme: WRONG, {process.args[-1]} ended with {process.returncode}")
        subprocess.run(["umount", "/mnt"], env=env, check=True)
        shutil.rmtree(directory)
    return wrong


if __name__ == "__main__":
    main()
