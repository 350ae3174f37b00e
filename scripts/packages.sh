#!/bin/sh
# Packages every crate that is to be published, and builds each package by itself, as a registry
# would get it: sh scripts/packages.sh
#
# The crates use each other, floor by floor, and none of them is in a registry yet. So `cargo
# publish --dry-run` takes all of them together: it puts each package into a registry of its own on
# this machine before it builds the ones above it. It is done in a copy of what is committed, with a
# version that no registry has, for other crates of the same names would be taken instead of these.
#
# What cannot be seen before they are published for the first time is whether docs.rs builds their
# pages. And some names belong to others: see docs/versions.md.
set -eu

root=$(cd "$(dirname "$0")/.." && pwd)
: "${CARGO_TARGET_DIR:=$root/target}"
export CARGO_TARGET_DIR
# From the ground up: a crate uses those before it.
crates="env zones vt-tree kvdb kvdb-lua kvdb-server kvfs kvfs-fuse kvfs-cli"

packages=
for crate in $crates; do
    manifest=$root/crates/$crate/Cargo.toml
    for field in description license readme repository keywords categories; do
        grep -q "^$field" "$manifest" || {
            echo "$manifest has no $field, which a registry wants" >&2
            exit 1
        }
    done
    packages="$packages --package $crate"
done

copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
git -C "$root" archive HEAD | tar -x -C "$copy"
cd "$copy"
sed -i -e 's/^version = "\(.*\)"$/version = "\1-package"/' \
    -e 's/\(path = "crates.*version = "\)\(.*\)"/\1=\2-package"/' Cargo.toml
# shellcheck disable=SC2086
cargo publish --dry-run --quiet --allow-dirty $packages
echo "packaged and built: $crates"
