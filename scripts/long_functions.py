#!/usr/bin/env python3
"""Lists the functions of the sources that have more than 60 lines, from `fn` to the closing brace.

    python3 scripts/long_functions.py [--most 60] [FOLDER ...]

Without folders it reads `src` of every crate. A function that consists of one `match` with short
arms is marked as flat: a table does not become plainer when it is cut. The last line counts the
long functions, those of them that are not flat, and all functions.
"""

import argparse
import pathlib
import re
import sys

# A function is flat if one `match` has this share of its lines, and no arm has more lines.
SHARE = 0.75
ARM = 14

TOKEN = re.compile(
    r"//[^\n]*"
    r"|/\*.*?\*/"
    r'|\b[bc]?r(?P<hashes>#*)".*?"(?P=hashes)'
    r'|[bc]?"(?:\\.|[^"\\])*"'
    r"|b?'(?:\\[^\n]{1,10}?|[^\\\n'])'",
    re.DOTALL,
)


def without_texts(source: str) -> str:
    """Blanks comments, strings and characters, and leaves the lines as they are."""
    return TOKEN.sub(lambda found: re.sub(r"[^\n]", " ", found[0]), source)


def end_of(code: str, opening: int) -> int:
    """Returns the place of the brace that closes the one at `opening`."""
    depth = 0
    for place in range(opening, len(code)):
        depth += {"{": 1, "}": -1}.get(code[place], 0)
        if depth == 0:
            return place
    return len(code) - 1


def body_of(code: str, name_ends: int) -> int | None:
    """Returns the place of the brace that opens a body, or nothing for a declaration."""
    depth = 0
    for place in range(name_ends, len(code)):
        depth += {"(": 1, "[": 1, ")": -1, "]": -1}.get(code[place], 0)
        if depth == 0 and code[place] in ";{":
            return place if code[place] == "{" else None
    return None


def is_flat(code: str, begin: int, end: int) -> bool:
    """Returns whether the function consists of one `match` with short arms."""
    lines = code.count("\n", begin, end) + 1
    for found in re.finditer(r"\bmatch\b[^{;]*\{", code[begin:end]):
        opening = begin + found.end() - 1
        closing = end_of(code, opening)
        if code.count("\n", opening, closing) < SHARE * lines:
            continue
        depth, arm, longest = 0, 0, 0
        for line in code[opening:closing].split("\n"):
            depth += sum({"{": 1, "(": 1, "}": -1, ")": -1}.get(c, 0) for c in line)
            arm += 1
            longest = max(longest, arm)
            arm = 0 if depth <= 1 else arm
        return longest <= ARM
    return False


def functions(source: str):
    """Yields name, first line, number of lines, and whether it is flat, of each function."""
    code = without_texts(source)
    for found in re.finditer(r"\bfn\s+(\w+)", code):
        opening = body_of(code, found.end())
        if opening is None:
            continue
        begin, end = found.start(), end_of(code, opening)
        lines = code.count("\n", begin, end) + 1
        yield found[1], code.count("\n", 0, begin) + 1, lines, is_flat(code, begin, end)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--most", type=int, default=60, help="lines that a function may have")
    parser.add_argument("folders", nargs="*", type=pathlib.Path)
    given = parser.parse_args()
    crates = pathlib.Path(__file__).resolve().parent.parent / "crates"
    folders = given.folders or sorted(crates.glob("*/src"))
    count, long, flat = 0, 0, 0
    for folder in folders:
        for path in sorted(folder.rglob("*.rs")):
            for name, line, lines, is_match in functions(path.read_text()):
                count += 1
                if lines > given.most:
                    long, flat = long + 1, flat + is_match
                    print(f"{lines:4} {path}:{line} {name}{' (flat)' if is_match else ''}")
    print(f"{long} of {count} functions have more than {given.most} lines, {long - flat} not flat")
    return 0


if __name__ == "__main__":
    sys.exit(main())
