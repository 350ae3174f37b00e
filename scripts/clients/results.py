"""What a program or a suite says, as passed and failed checks."""

import os
import re
import signal
import subprocess
import xml.etree.ElementTree

ENDED = "the run to its end"


class Result:
    def __init__(self, checks):
        # {name: None if it has passed, else what was said}.
        self.checks = checks

    def passed(self):
        return [name for name, why in self.checks.items() if why is None]

    def summary(self):
        return f"{len(self.passed())} of {len(self.checks)}"

    def why(self, name):
        return self.checks.get(name, "it was not reached")

    def lacks(self, other):
        """The checks that `other` passes and this one does not."""
        return [name for name in other.passed() if self.why(name) is not None]

    def cell(self, other):
        """As a program that stops early has said less, it is counted against both."""
        everything = len(set(self.checks) | set(other.checks))
        passed = len(self.passed())
        return f"all {passed}" if passed == everything else f"{passed} of {everything}"


def of_row(row, environment, server, log):
    command, directory = row.kind.command(row, environment, server)
    said, broken = run(command, directory, environment.variables | server.variables(), row, log)
    checks = row.kind.parse(environment, said, log)
    if broken:
        checks[ENDED] = broken
    elif not checks:
        checks[ENDED] = "it said nothing"
    return Result(checks)


def run(command, directory, variables, row, log):
    """What a program wrote to its standard output, and why it has ended too early, if it has.
    Everything is in `log`."""
    with open(log, "w") as out, open(f"{log}.errors", "w") as errors:
        process = subprocess.Popen(
            [str(word) for word in command],
            cwd=directory,
            env=os.environ | variables,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=errors,
            start_new_session=True,
        )
        broken = None
        try:
            code = process.wait(row.seconds)
            if code and code not in row.kind.fine:
                broken = f"it ended with {code}"
        except subprocess.TimeoutExpired:
            broken = f"it took longer than {row.seconds} s"
        finally:
            # Workers that a program has started and not ended, too.
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                pass
            process.wait()
    said = log.read_text(errors="replace")
    if broken:
        last = [line for line in open(f"{log}.errors", errors="replace") if line.strip()]
        broken += f": {last[-1].strip()[:200]}" if last else ""
    return said, broken


def lines(said):
    """The checks of a program that says `ok NAME` and `not ok NAME: why`."""
    found = {}
    for line in said.splitlines():
        if match := re.match(r"(not ok|ok) (.*)", line):
            name, _, why = match.group(2).partition(": ")
            found[name] = None if match.group(1) == "ok" else why
    return found


def of_junit(text):
    """The tests of a report in the format of JUnit, without those that were skipped."""
    found = {}
    for case in xml.etree.ElementTree.fromstring(text).iter("testcase"):
        if case.find("skipped") is not None:
            continue
        wrong = [e for kind in ("failure", "error") for e in case.findall(kind)]
        words = [e.get("message") or e.text or "it failed" for e in wrong]
        file = case.get("classname").removeprefix("tests.")
        found[f"{file}.{case.get('name')}"] = words[0] if words else None
    return found
