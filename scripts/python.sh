#!/bin/sh
# Builds the Python package's wheel, installs it in a virtual environment below target/, and runs
# its tests with it.
#     sh scripts/python.sh target/release/kvfs
# PROFILE=dev builds in less time. What needs a mount is skipped without the command `kvfs` or
# /dev/fuse, and says so; so is what needs a package that pip does not have here.
set -eu
cd "$(dirname "$0")/.."
kvfs=${1:-}
[ -z "$kvfs" ] || KVFS=$(realpath "$kvfs")
export KVFS
venv=$PWD/target/python
: "${PYTHON:=python3}"
: "${PROFILE:=release}"

if ! "$PYTHON" -c 'import sys; sys.exit(sys.version_info < (3, 10))'; then
    echo "python.sh: Python 3.10 or later is needed" >&2
    exit 1
fi
[ -x "$venv/bin/python" ] || "$PYTHON" -m venv "$venv" || {
    echo "python.sh: Python's venv is needed (Debian: apt-get install python3-venv)" >&2
    exit 1
}
"$venv/bin/pip" install -q 'maturin>=1.9,<2' 'pytest>=8' 'fsspec>=2024.2' mypy
for package in pandas pyarrow zarr dask; do
    "$venv/bin/pip" install -q "$package" || echo "SKIPPED: pip has no $package for this Python"
done

rm -rf target/wheels
PYO3_PYTHON=$venv/bin/python "$venv/bin/maturin" build --profile "$PROFILE" --quiet \
    --manifest-path bindings/python/Cargo.toml --out target/wheels
"$venv/bin/pip" install -q --force-reinstall --no-deps target/wheels/*.whl
(cd bindings/python && "$venv/bin/mypy" --cache-dir "$venv/mypy")
# Not from the directory of the sources: the tests import what was installed.
"$venv/bin/python" -m pytest -q -p no:cacheprovider bindings/python/tests
