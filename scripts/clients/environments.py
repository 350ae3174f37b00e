"""Where a row's packages are installed, and how its program is run, for each toolchain."""

import hashlib
import os
import pathlib
import re
import shutil
import subprocess
import sys

import results
import servers

PROGRAMS = pathlib.Path(__file__).resolve().parent


class Environment:
    def __init__(self, directory, version="", missing=None, variables=None):
        self.directory, self.version, self.missing = directory, version, missing
        self.variables = variables or {}


def prepare(row, work):
    """The row's environment, installed unless an earlier run has done it with the same packages."""
    kind = row.kind
    absent = [program for program in kind.programs if not shutil.which(program)]
    if absent and not getattr(kind, "debian", ()):
        return Environment(None, row.version, f"no {kind.toolchain} here")
    # Rows of the same packages share one.
    name = f"{kind.toolchain} {row.packages[0] if row.packages else row.name}".lower()
    directory = work / re.sub(r"[^a-z0-9.]+", "-", name)
    wanted = hashlib.sha256(repr((kind.toolchain, row.packages)).encode()).hexdigest()
    mark = directory / "installed"
    try:
        if not mark.exists() or mark.read_text() != wanted:
            print(f"{row.name}: installing {' '.join(row.packages)}", flush=True)
            shutil.rmtree(directory, ignore_errors=True)
            directory.mkdir(parents=True)
            kind.install(row, directory)
            mark.write_text(wanted)
        return kind.environment(row, directory)
    except Missing as error:
        return Environment(None, row.version, str(error))


class Missing(Exception):
    pass


def sh(*command, cwd=None, environ=None):
    done = subprocess.run(
        [str(word) for word in command],
        cwd=cwd,
        env=os.environ | (environ or {}),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        errors="replace",
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip()).splitlines()[-1:]
        print(done.stdout, done.stderr, file=sys.stderr)
        raise Missing(f"`{' '.join(map(str, command[:2]))}` failed: {''.join(last)[:200]}")
    return done.stdout


class Kind:
    """A toolchain: what it needs, how it installs, and how it runs a program of this folder."""

    programs = ()
    # Exit codes that are no failure of the run: of a suite that counts its own.
    fine = ()
    # Suites expect a server without one.
    password = servers.PASSWORD

    def parse(self, environment, said, log):
        return results.lines(said)

    def environment(self, row, directory):
        return Environment(directory, row.version)


class Python(Kind):
    toolchain, programs = "Python", ("python3",)

    def install(self, row, directory):
        sh(sys.executable, "-m", "venv", directory / "venv")
        sh(directory / "venv/bin/python", "-m", "pip", "install", "--quiet", *row.packages)

    def environment(self, row, directory):
        said = sh(directory / "venv/bin/python", "-m", "pip", "list", "--format", "freeze")
        client = re.search(r"^redis==(\S+)", said, re.M)
        with_client = client and not row.packages[0].startswith("redis==")
        version = row.version + (f" (redis-py {client.group(1)})" if with_client else "")
        return Environment(directory, version, variables={"PYTHONPATH": str(PROGRAMS)})

    def command(self, row, environment, server):
        return [environment.directory / "venv/bin/python", PROGRAMS / row.program], (
            environment.directory
        )


class PythonSuite(Python):
    """The tests that a package has in its sources, by pytest."""

    # Tests have failed.
    fine = (1,)
    password = ""

    def install(self, row, directory):
        name, _, version = row.packages[0].partition("==")
        super().install(row, directory)
        words = ("--quiet", "--no-deps", "--no-binary", name, "--dest", directory)
        sh(directory / "venv/bin/python", "-m", "pip", "download", *words, row.packages[0])
        shutil.unpack_archive(directory / f"{name}-{version}.tar.gz", directory)
        (directory / f"{name}-{version}").rename(directory / "sources")
        # The tests are to use what is installed.
        shutil.rmtree(directory / "sources" / name)

    def command(self, row, environment, server):
        report = environment.directory / "report.xml"
        report.unlink(missing_ok=True)
        words = ["-q", "-p", "no:cacheprovider", f"--junitxml={report}", "--timeout", "60"]
        words += ["--redis-url", f"{server.url()}/0", "-m", row.marks, *row.program.split()]
        return [environment.directory / "venv/bin/python", "-m", "pytest", *words], (
            environment.directory / "sources"
        )

    def parse(self, environment, said, log):
        report = environment.directory / "report.xml"
        return results.of_junit(report.read_text()) if report.exists() else {}


class Node(Kind):
    toolchain, programs = "Node.js", ("node", "npm")

    def install(self, row, directory):
        (directory / "package.json").write_text('{"private": true, "type": "module"}\n')
        sh("npm", "install", "--silent", "--no-audit", "--no-fund", *row.packages, cwd=directory)

    def command(self, row, environment, server):
        # Packages are found from where the program is.
        for name in ("checks.mjs", row.program):
            shutil.copy(PROGRAMS / name, environment.directory)
        return ["node", row.program], environment.directory


class Go(Kind):
    toolchain, programs = "Go", ("go",)

    def install(self, row, directory):
        sh("go", "mod", "init", "clients", cwd=directory)
        sh("go", "get", *row.packages, cwd=directory)

    def environment(self, row, directory):
        source = directory / "main.go"
        shutil.copy(PROGRAMS / row.program, source)
        (directory / "checks").mkdir(exist_ok=True)
        shutil.copy(PROGRAMS / "checks.go", directory / "checks/checks.go")
        sh("go", "build", "-mod=mod", "-o", "program", ".", cwd=directory)
        return Environment(directory, row.version)

    def command(self, row, environment, server):
        return [environment.directory / "program"], environment.directory


class Java(Kind):
    toolchain, programs = "JDK with Maven", ("java", "mvn")

    def install(self, row, directory):
        wanted = "".join(
            "<dependency><groupId>{}</groupId><artifactId>{}</artifactId>"
            "<version>{}</version></dependency>".format(*package.split(":"))
            for package in row.packages
        )
        (directory / "pom.xml").write_text(
            '<project xmlns="http://maven.apache.org/POM/4.0.0"><modelVersion>4.0.0'
            "</modelVersion><groupId>clients</groupId><artifactId>clients</artifactId>"
            f"<version>1</version><dependencies>{wanted}</dependencies></project>\n"
        )
        sh(
            "mvn",
            "-B",
            "-q",
            "dependency:copy-dependencies",
            "-DoutputDirectory=lib",
            cwd=directory,
        )

    def command(self, row, environment, server):
        return ["java", "-cp", "lib/*", PROGRAMS / row.program], environment.directory


class Debian(Kind):
    """An interpreter whose packages are those of Debian; the page has their versions."""

    def __init__(self, toolchain, interpreter, *debian):
        self.toolchain, self.programs, self.debian = toolchain, (interpreter,), debian

    def install(self, row, directory):
        packages = (*self.debian, *row.packages)
        if all(self.version(package) for package in packages):
            return
        can = os.geteuid() == 0 and shutil.which("apt-get")
        if can:
            quiet = {"DEBIAN_FRONTEND": "noninteractive"}
            sh("apt-get", "update", "-qq")
            words = ("install", "-y", "-qq", "--no-install-recommends")
            sh("apt-get", *words, *packages, environ=quiet)
        else:
            raise Missing(f"no {self.toolchain} here (Debian: {' '.join(packages)})")

    def version(self, package):
        if not shutil.which("dpkg-query"):
            return None
        words = ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Version}", package]
        said = subprocess.run(words, capture_output=True, text=True).stdout
        status, _, version = said.partition(" ")
        # Without the epoch, and without what Debian has added.
        return re.sub(r"^\d+:|[+-].*", "", version) if status == "installed" else None

    def environment(self, row, directory):
        main, *others = row.packages
        version = self.version(main)
        if version is None:
            raise Missing(f"no {self.toolchain} here (Debian: {' '.join(row.packages)})")
        clients = [
            f"{row.clients[name]} {self.version(name)}" for name in others if name in row.clients
        ]
        version += f" ({', '.join(clients)})" if clients else ""
        return Environment(directory, version)

    def command(self, row, environment, server):
        return [self.programs[0], PROGRAMS / row.program], environment.directory


class Absent(Kind):
    """A toolchain for which this folder has no program."""

    def __init__(self, toolchain, program):
        self.toolchain, self.programs = toolchain, (program,)

    def install(self, row, directory):
        raise Missing(f"there is no program for {self.toolchain} yet")
