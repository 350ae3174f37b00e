#!/bin/sh
# The main job, end to end, on real input: create a store, mount it, unpack a source tree of
# thousands of files, set keys, look at the statistics, kill the daemon, mount again, and prove that
# everything that was fsynced is there and that the store is clean.
set -eu
KVFS=$(realpath "$1")
WORK=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-demo.XXXXXX")
STORE=$WORK/my.kvfs
MNT=$WORK/mnt
mkdir "$MNT"

cleanup() {
    "$KVFS" umount "$MNT" >/dev/null 2>&1 || umount -l "$MNT" >/dev/null 2>&1 || true
    rm -rf "$WORK"
}
trap cleanup EXIT INT TERM

say() { printf '\n\033[1m== %s\033[0m\n' "$*"; }
run() { printf '$ %s\n' "$*"; "$@"; }
die() { printf 'demo: %s\n' "$*" >&2; exit 1; }

if [ ! -e /dev/fuse ]; then
    die "there is no /dev/fuse: load the fuse module (modprobe fuse) and try again"
fi

# Real input: the Rust library sources or the registry's crates when present, else the system's
# headers and documentation.
pick_tree() {
    for d in "$(rustc --print sysroot 2>/dev/null)/lib/rustlib/src" \
        "${CARGO_HOME:-$HOME/.cargo}/registry/src" /usr/include /usr/share/doc /usr/share; do
        [ -d "$d" ] || continue
        if [ "$(find "$d" -type f 2>/dev/null | head -n 5000 | wc -l)" -ge 5000 ]; then
            echo "$d"
            return
        fi
    done
    die "no tree of 5,000 files found to unpack"
}
TREE=$(pick_tree)

say "A store in one file, mounted as a file system"
run "$KVFS" create "$STORE"
run "$KVFS" mount "$STORE" "$MNT"

say "Unpack a tree of $(find "$TREE" -type f | wc -l) files ($TREE)"
tar -C "$TREE" -cf "$WORK/tree.tar" .
mkdir "$MNT/tree"
time tar -C "$MNT/tree" -xf "$WORK/tree.tar"
(cd "$TREE" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$WORK/want.md5"
sync -f "$MNT"

say "Keys in the same store: the command line and any Redis client"
run "$KVFS" kv put "$MNT" project:name KVFS
run "$KVFS" kv get "$MNT" project:name; echo
SOCKET=$STORE.sock
if command -v redis-cli >/dev/null 2>&1 && [ -S "$SOCKET" ]; then
    run redis-cli -s "$SOCKET" MSET a 1 b 2 c 3
    run redis-cli -s "$SOCKET" INCRBY a 41
    run redis-cli -s "$SOCKET" RANGE a c LIMIT 10
    run redis-cli -s "$SOCKET" SAVE
fi

say "What the store says of itself"
run "$KVFS" stat "$MNT"

say "Durable writes, then SIGKILL of the daemon"
i=0
while [ $i -lt 100 ]; do
    printf 'durable %s\n' $i >"$MNT/durable-$i"
    sync "$MNT/durable-$i"
    i=$((i + 1))
done
sync -d "$MNT/tree" 2>/dev/null || true
# `sync -f` cannot reach a FUSE daemon; the flush interval (1 s) has made the tree durable unless it
# is busy: ask for it by fsync.
find "$MNT/tree" -type f -print0 | xargs -0 sync
PID=$("$KVFS" stat "$MNT" --json |
    python3 -c 'import json,sys; print(json.load(sys.stdin)["daemon"]["pid"])')
run kill -9 "$PID"
while kill -0 "$PID" 2>/dev/null; do :; done
umount -l "$MNT" 2>/dev/null || true

say "Check, and mount again"
run "$KVFS" check "$STORE"
run "$KVFS" mount "$STORE" "$MNT"
i=0
while [ $i -lt 100 ]; do
    [ "$(cat "$MNT/durable-$i")" = "durable $i" ] || die "durable-$i is lost"
    i=$((i + 1))
done
echo "all 100 fsynced files are there"
(cd "$MNT/tree" && md5sum --quiet -c "$WORK/want.md5") || die "the tree differs"
echo "all $(wc -l <"$WORK/want.md5") files of the tree have their contents"
[ "$("$KVFS" kv get "$MNT" project:name)" = KVFS ] || die "the key is lost"
echo "the key is there"
run "$KVFS" umount "$MNT"
run "$KVFS" check "$STORE"
say "Done: files and keys in one store, and it survived the kill"
