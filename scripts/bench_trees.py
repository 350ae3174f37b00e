"""The trees that scripts/bench_files.py works on, made by a seed: one like sources, as a tar,
and packages as npm installs them."""

import io
import os
import random
import tarfile
from pathlib import Path

WORDS = ["let", "return", "struct", "0x7f", "the", "of", "\n", "{", "}"]


def make_tar(path, files, seed=1):
    """A tar of a tree like one of sources: 20 files a directory, 10.8 KB each on average,
    most of them smaller."""
    rng = random.Random(seed)
    text = " ".join(rng.choices(WORDS, k=1 << 20)).encode()
    with tarfile.open(path, "w") as tar:

        def add(name, kind, content=b""):
            entry = tarfile.TarInfo(name)
            entry.type, entry.size, entry.mtime = kind, len(content), 1_700_000_000
            entry.mode = 0o755 if kind == tarfile.DIRTYPE else 0o644
            tar.addfile(entry, io.BytesIO(content))

        add("tree", tarfile.DIRTYPE)
        for n in range(files):
            if n % 400 == 0:
                add(f"tree/part-{n // 400}", tarfile.DIRTYPE)
            if n % 20 == 0:
                add(f"tree/part-{n // 400}/module-{n // 20}", tarfile.DIRTYPE)
            size = min(int(rng.lognormvariate(8.44, 1.3)), len(text) // 2)
            start = rng.randrange(len(text) // 2)
            add(
                f"tree/part-{n // 400}/module-{n // 20}/file-{n}.c",
                tarfile.REGTYPE,
                text[start : start + size],
            )


def in_memory(path):
    """Reads a file, so that no system after the one that runs first gains from it."""
    with open(path, "rb") as f:
        while f.read(1 << 20):
            pass


class Packages:
    """An install as npm does it: each package is unpacked below a name of its own, gets its own by
    a rename, and its program is linked into .bin."""

    FILES = 20

    def __init__(self, count, seed=2):
        rng = random.Random(seed)
        text = " ".join(rng.choices(WORDS, k=1 << 16)).encode()
        self.packages = []
        for n in range(count):
            scope = f"@scope-{n % 7}/" if n % 5 == 0 else ""
            files = [
                ("package.json", text[:700]),
                ("LICENSE", text[:1100]),
                ("README.md", text[:3000]),
            ]
            for i in range(self.FILES - len(files)):
                start = rng.randrange(len(text) // 2)
                size = min(int(rng.lognormvariate(7.2, 1.2)), len(text) // 2)
                files.append(
                    (
                        f"{('lib', 'dist', 'dist/esm')[i % 3]}/file-{i}.js",
                        text[start : start + size],
                    )
                )
            self.packages.append((f"{scope}package-{n}", files))

    def install(self, directory):
        modules = directory / "node_modules"
        os.makedirs(modules / ".bin")
        lock = []
        for n, (name, files) in enumerate(self.packages):
            staging, target = f"{modules}/.package-{n:04x}-staging", f"{modules}/{name}"
            for below in ("", "/lib", "/dist", "/dist/esm"):
                os.mkdir(staging + below)
            for path, content in files:
                f = os.open(f"{staging}/{path}", os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
                os.write(f, content)
                os.close(f)
            os.chmod(f"{staging}/lib/file-0.js", 0o755)
            if "/" in name:
                os.makedirs(os.path.dirname(target), exist_ok=True)
            os.rename(staging, target)
            os.symlink(f"../{name}/lib/file-0.js", f"{modules}/.bin/package-{n}")
            lock.append(f'"node_modules/{name}": {{"version": "1.0.{n}"}}')
        # npm reads back what it has installed, and writes down what it was.
        for name, _ in self.packages:
            Path(f"{modules}/{name}/package.json").read_bytes()
        temporary = directory / ".package-lock.json.tmp"
        temporary.write_text(",\n".join(lock))
        temporary.rename(directory / "package-lock.json")


def make_workspace(directory, crates=6, functions=60):
    """A Cargo workspace that needs nothing but the standard library;
    each crate uses those before it."""
    names = [f"part{n}" for n in range(crates)]
    directory.mkdir()
    (directory / "Cargo.toml").write_text(f"[workspace]\nresolver = '2'\nmembers = {names}\n")
    for n, name in enumerate(names):
        (directory / name / "src").mkdir(parents=True)
        below = names[max(0, n - 2) : n]
        needs = "".join(f"{other} = {{ path = '../{other}' }}\n" for other in below)
        manifest = (
            f"[package]\nname = '{name}'\nversion = '0.1.0'\nedition = '2021'\n"
            f"[dependencies]\n{needs}"
        )
        (directory / name / "Cargo.toml").write_text(manifest)
        modules = [f"m{i}" for i in range(6)]
        for module in modules:
            body = [
                "use std::collections::BTreeMap;",
                "#[derive(Clone, Debug, Default, PartialEq)]",
                "pub struct Row { pub key: String, pub count: u64 }",
            ]
            for i in range(functions // len(modules)):
                body.append(
                    f"pub fn f{i}(rows: &[Row]) -> BTreeMap<String, u64> {{ "
                    "let mut all = BTreeMap::new(); for row in rows { "
                    f'*all.entry(format!("{{}}-{i}", row.key)).or_insert({i}) += row.count; '
                    "} all }"
                )
            (directory / name / "src" / f"{module}.rs").write_text("\n".join(body) + "\n")
        uses = "".join(
            f"pub fn of_{other}() -> usize {{ {other}::m0::f0(&[]).len() }}\n" for other in below
        )
        (directory / name / "src" / "lib.rs").write_text(
            "".join(f"pub mod {m};\n" for m in modules) + uses
        )
        calls = "".join(f"{other}::m1::f1(&[]);" for other in below)
        (directory / name / "src" / "main.rs").write_text(
            f'fn main() {{ {calls} println!("{{:?}}", {name}::m2::f2(&[])); }}\n'
        )
