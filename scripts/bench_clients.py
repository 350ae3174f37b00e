"""The cases of scripts/bench_files.py with several client processes at once (scripts/clients.c),
and with a busy machine."""

from pathlib import Path

from bench_measure import Case
from file_systems import sh

CLIENTS = (1, 2, 16)


class Clients:
    def __init__(self, operations, work, files):
        self.operations, self.files, self.program = operations, files, work / "clients"
        sh("cc", "-O2", "-o", self.program, Path(__file__).with_name("clients.c"))

    def run(self, fs, what, clients):
        directory = fs.dir / f"clients-{clients}"
        directory.mkdir(exist_ok=True)
        seconds = float(sh(self.program, what, directory, clients, self.files))
        return {"seconds": seconds, "ops": self.files // clients * clients}

    def prepare(self, fs, what, clients):
        there = (fs.dir / f"clients-{clients}" / "client-0" / "file-000000").exists()
        if what == "create" and there:
            self.run(fs, "unlink", clients)
        elif what != "create" and not there:
            self.run(fs, "create", clients)
        if what == "stat":
            self.run(fs, "stat", clients)
        return lambda: self.run(fs, what, clients)

    def case(self, what, clients):
        def prepare(fs):
            return self.prepare(fs, what, clients)

        return Case(f"{what}, {clients} client{'s' if clients > 1 else ''}", prepare)

    def cases(self):
        at_once = [
            self.case(what, clients) for clients in CLIENTS for what in ("create", "stat", "unlink")
        ]
        return at_once + [self.operations.case("create, busy machine", "create", busy=True)]
