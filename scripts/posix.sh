#!/bin/bash
# pjdfstest (the POSIX file system suite) on a mount and, for comparison, on ext4 on a loop device.
# Prints both sums and every case that passes on ext4 and not on the mount; ends with an error when
# there is one. OPTIONS: more options of the mount. Needs root.
set -euo pipefail
KVFS=$(realpath "${1:?usage: posix.sh KVFS-BINARY [test patterns…]}"); shift
VERSION=0.2.2
TOOLS=${PJDFSTEST_ROOT:-${XDG_CACHE_HOME:-$HOME/.cache}/kvfs-tools}
PJD=$TOOLS/bin/pjdfstest
WORK=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-posix.XXXXXX")
STORE=$WORK/posix.kvfs MNT=$WORK/mnt EXT4=$WORK/ext4
mkdir "$MNT" "$EXT4"
SECOND=$(mktemp -d /dev/shm/kvfs-posix.XXXXXX) # another file system, for EXDEV
cleanup() {
    "$KVFS" umount "$MNT" >/dev/null 2>&1 || umount -l "$MNT" 2>/dev/null || true
    umount "$EXT4" 2>/dev/null || true
    rm -rf "$WORK" "$SECOND"
}
trap cleanup EXIT

[ -x "$PJD" ] || cargo install --quiet pjdfstest --version $VERSION --root "$TOOLS"
# The suite switches to a user `tests`.
id tests >/dev/null 2>&1 || useradd --no-create-home --shell /usr/sbin/nologin tests
# naptime must be longer than a tick of the kernel's coarse clock.
cat >"$WORK/pjdfstest.toml" <<'T'
[features]
posix_fallocate = {}
rename_ctime = {}
utimensat = {}
utime_now = {}
stat_st_birthtime = {}

[settings]
naptime = 0.02
allow_remount = false

[dummy_auth]
entries = [["nobody", "nogroup"], ["tests", "tests"]]
T
# Only features that this version knows.
"$PJD" -l >"$WORK/known" 2>/dev/null || true
awk -v known="$(cat "$WORK/known")" '/ = \{\}$/ { if (index(known, $1) == 0) next } { print }' \
    "$WORK/pjdfstest.toml" >"$WORK/t" && mv "$WORK/t" "$WORK/pjdfstest.toml"

truncate -s 1G "$WORK/ext4.img"
mkfs.ext4 -q -F "$WORK/ext4.img"
mount -o loop "$WORK/ext4.img" "$EXT4"
"$KVFS" create "$STORE"
"$KVFS" mount "$STORE" "$MNT" -o "allow_other,default_permissions,suid,dev${OPTIONS:+,$OPTIONS}"
chmod 755 "$WORK" "$MNT" "$EXT4"

suite() { # directory, output
    (cd "$1" && "$PJD" -c "$WORK/pjdfstest.toml" -p "$1" -s "$SECOND" -- "${@:3}") \
        >"$2" 2>&1 || true
}
suite "$EXT4" "$WORK/ext4.out" "$@"
suite "$MNT" "$WORK/kvfs.out" "$@"
# A line of a case is: name, tab(s), result.
verdicts() {
    sed 's/\x1b\[[0-9;]*m//g' "$1" |
        awk '$NF ~ /^(ok|FAILED|skipped|success|failed)$/ {
            v = $NF; $NF = ""; sub(/[ \t]+$/, ""); print $0 "\t" v
        }' | LC_ALL=C sort
}
verdicts "$WORK/ext4.out" >"$WORK/ext4.v"
verdicts "$WORK/kvfs.out" >"$WORK/kvfs.v"
for fs in ext4 kvfs; do
    printf '%-5s' $fs
    awk -F'\t' '{ n[$2]++ } END { for (v in n) printf " %d %s", n[v], v; print "" }' "$WORK/$fs.v"
    tail -n 3 "$WORK/$fs.out"
done
worse=$(join -t "$(printf '\t')" "$WORK/ext4.v" "$WORK/kvfs.v" | awk -F'\t' '$2 != $3 { print }')
# The C library knows the largest number of links by the kind of file system, and of FUSE it knows
# none: that case is left out.
worse=$(grep -v '^link::link_count_max[[:space:]].*skipped$' <<<"$worse" || true)
"$KVFS" umount "$MNT"
"$KVFS" check "$STORE"
if [ -n "$worse" ]; then
    printf 'case, ext4, kvfs:\n%s\n' "$worse"
    cp "$WORK/kvfs.out" "${TMPDIR:-/tmp}/kvfs-posix.out"
    exit 1
fi
[ -s "$WORK/kvfs.v" ] || {
    tail -n 20 "$WORK/kvfs.out"
    echo "posix: the suite ran no case" >&2
    exit 1
}
echo "every case has the same result on both"
