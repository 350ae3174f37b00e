#!/bin/sh
# Builds a Debian package of a kvfs program: sh scripts/deb.sh target/release/kvfs DIRECTORY
set -eu

kvfs=$1
directory=$2
root=$(cd "$(dirname "$0")/.." && pwd)
version=$("$kvfs" --version | cut -d ' ' -f 2)
machine=$(dpkg --print-architecture)
stage=$(mktemp -d)
trap 'rm -rf "$stage"' EXIT
chmod 755 "$stage"

make -s -C "$root" install-files KVFS="$(realpath "$kvfs")" DESTDIR="$stage" \
    PREFIX=/usr SBIN=/usr/sbin UNITS=/usr/lib/systemd/system
find "$stage/usr/share/man" -name '*.1' -exec gzip -9n {} +
strip --strip-debug "$stage/usr/bin/kvfs" 2>/dev/null || true
doc=$stage/usr/share/doc/kvfs
mkdir -p "$doc"
cp "$root/README.md" "$root/docs/review.md" "$root/docs/agents.md" "$doc"
gzip -9nc "$root/CHANGELOG.md" >"$doc/changelog.gz"
printf '%s\n' 'Licensed under MIT or Apache-2.0, at your choice.' >"$doc/copyright"

# The library that it is linked with must be as new as the one it was built with.
libc=$(dpkg-query -W -f '${Version}' libc6 2>/dev/null | cut -d - -f 1 || true)
mkdir "$stage/DEBIAN"
cat >"$stage/DEBIAN/control" <<CONTROL
Package: kvfs
Version: $version
Architecture: $machine
Maintainer: The KVFS authors <kvfs@example.org>
Installed-Size: $(du -sk "$stage/usr" | cut -f 1)
Depends: libc6 (>= ${libc:-2.31})
Recommends: fuse3
Section: admin
Priority: optional
Homepage: https://example.org/kvfs
Description: file system and ordered key-value store in one
 One file holds a store that is at once a POSIX file system, mounted by FUSE,
 and an ordered, transactional key-value database, with transactions over both.
CONTROL
mkdir -p "$directory"
dpkg-deb --root-owner-group -Zxz -z1 --build "$stage" \
    "$directory/kvfs_${version}_$machine.deb" >/dev/null
echo "$directory/kvfs_${version}_$machine.deb"
