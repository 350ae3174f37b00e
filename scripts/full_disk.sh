#!/bin/bash
# A full store and a full host disk, on a real mount: writing until ENOSPC, once against the store's
# own limit (create --size), once against a host that something else has filled. Every file that was
# written without an error has its md5, also after a remount, and after the daemon was killed, both
# when full; removing works when full; what was removed can be written again, round after round; at
# the end the host has its blocks back and `kvfs check` finds nothing. Needs root and 3 GB of disk;
# with HOSTFS=tmpfs, of memory.
set -euo pipefail
KVFS=$(realpath "${1:?usage: full_disk.sh KVFS-BINARY [limit|host]…}"); shift
STEPS=${*:-limit host}
WORK=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-full.XXXXXX")
IMG=$WORK/host.img DISK=$WORK/disk MNT=$WORK/mnt
STORE=$DISK/full.kvfs OTHER=$DISK/other
mkdir "$DISK" "$MNT"
cleanup() {
    set +e
    "$KVFS" umount "$MNT" >/dev/null 2>&1 || umount -l "$MNT" 2>/dev/null
    umount "$DISK" 2>/dev/null
    rm -rf "$WORK"
}
trap cleanup EXIT

say() { printf '\n== %s\n' "$*"; }
die() { printf 'full_disk: %s\n' "$*" >&2; exit 1; }
# Nothing may hang, whatever is full.
bounded() {
    timeout -k 5 "${LIMIT:-120}" "$@" || {
        local e=$?
        [ $e -lt 124 ] || die "no answer in time: $*"
        return $e
    }
}
MIB=1048576

head -c $((8 * MIB)) /dev/urandom >"$WORK/noise"
# content NAME BYTES: what a file of that name holds.
content() { { echo "$1"; cat "$WORK/noise" "$WORK/noise"; } 2>/dev/null | head -c "$2" || true; }

# Files written without an error: "md5  name" by line.
LIST=$WORK/list
: >"$LIST"
put() { # NAME BYTES
    local one=$WORK/one.$BASHPID why=$WORK/why.$BASHPID
    mkdir -p "$(dirname "$MNT/$1")" 2>/dev/null || return 1
    content "$1" "$2" >"$one"
    if bounded cp "$one" "$MNT/$1" 2>"$why"; then
        echo "$(md5sum <"$one" | cut -c1-32)  ./$1" >>"$LIST"
    else
        grep -q "No space left" "$why" || die "cp $1: $(cat "$why")"
        bounded rm -f "$MNT/$1" || die "a half written file cannot be removed"
        return 1
    fi
}
# fill PREFIX BYTES [MOST]: files of that size until one fails, or so many are there.
fill() {
    local n=0
    while [ $n -lt "${3:-20000}" ] && put "$1/$((n / 500))/$n" "$2"; do n=$((n + 1)); done
    [ $n -lt 20000 ] || die "it never gets full"
    echo "$n files of $2 bytes ($1)"
}
# crowd PREFIX BYTES: eight at once fill what is left.
crowd() {
    local pids=() p
    for p in 1 2 3 4 5 6 7 8; do fill "$1/$p" "$2" >"$WORK/crowd.$p" & pids+=($!); done
    for p in "${pids[@]}"; do wait "$p" || die "one of eight writers failed"; done
    cat "$WORK"/crowd.?
}
verify() {
    (cd "$MNT" && LIMIT=600 bounded md5sum --quiet -c "$LIST") >"$WORK/bad" 2>&1 ||
        die "$1: $(head -5 "$WORK/bad")"
    echo "$(wc -l <"$LIST") files right $1"
}
# forget REGEX: removes the files whose names match.
forget() {
    grep -E "  \./($1)" "$LIST" | cut -c35- >"$WORK/names" || true
    (cd "$MNT" && LIMIT=300 bounded xargs -r -d '\n' rm <"$WORK/names") ||
        die "removing in a full store failed"
    grep -vE "  \./($1)" "$LIST" >"$WORK/left" || true
    mv "$WORK/left" "$LIST"
}
used() { du -B1 "$STORE" | cut -f1; }
held() {
    awk '{print substr($0, 37)}' "$LIST" | (cd "$MNT" && xargs -r -d '\n' stat -c %s) |
        awk '{s += $1} END {print s + 0}'
}
sync_all() { LIMIT=120 bounded sync -f "$MNT/." || true; }
daemon() { bounded "$KVFS" stat "$MNT" --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -1; }

# shrinks BYTES: waits until the store takes no more than that on the host.
shrinks() {
    for _ in $(seq 120); do
        [ "$(used)" -gt "$1" ] || {
            echo "the store takes $(($(used) / MIB)) MiB on the host"
            return
        }
        sleep 0.5
    done
    die "the host does not get its blocks back: the store still takes $(($(used) / MIB)) MiB," \
        "at most $(($1 / MIB)) were expected"
}

# cycle ROUND: fills the store, looks at it from all sides, and empties a part of it.
cycle() {
    say "$1, round $2: filling"
    fill "small$2" 1500 800
    if [ "$2" = 2 ]; then fill "middle$2" 300000; fi
    if [ "$2" = 3 ]; then crowd "crowd$2" $((MIB + 1)); fi
    fill "large$2" $((5 * MIB)); fill "small$2/rest" 70000
    local full; full=$(held); echo "$((full / MIB)) MiB held"
    [ "$2" = 1 ] && FIRST=$full
    [ $((full * 100)) -gt $((FIRST * 80)) ] || die "only $full bytes fit, $FIRST did the first time"
    verify "when full"
    # What must work when full, or say ENOSPC, and answer in time.
    local some; some=$(sed -n '1s/^.\{36\}//p' "$LIST")
    bounded dd if="$WORK/noise" of="$MNT/sync" bs=64k count=4 conv=fsync status=none \
        2>/dev/null || true
    bounded rm -f "$MNT/sync"
    bounded dd if="$WORK/noise" of="$MNT/$some" bs=64k count=1 conv=notrunc,fsync status=none \
        2>/dev/null || true
    awk -v name="./$some" '$2 != name' "$LIST" >"$WORK/left"; mv "$WORK/left" "$LIST"
    bounded truncate -s 100 "$MNT/$some" || die "truncating in a full store failed"
    bounded mv "$MNT/$some" "$MNT/moved" 2>/dev/null || true
    bounded rm -f "$MNT/$some" "$MNT/moved" || die "removing in a full store failed"
    verify "after failing writes"
}

again() { # HOW: full, and opened again
    if [ "$1" = killed ]; then
        sync_all
        local pid; pid=$(daemon); [ -n "$pid" ] || die "no process serves the mount"
        kill -9 "$pid"
        umount -l "$MNT" 2>/dev/null || true
    else
        LIMIT=300 bounded "$KVFS" umount "$MNT" || die "umount when full failed"
        LIMIT=300 bounded "$KVFS" check "$STORE" >"$WORK/check" || die "check: $(cat "$WORK/check")"
    fi
    LIMIT=300 bounded "$KVFS" mount "$STORE" "$MNT" || die "a full store does not mount again"
    verify "after it was $1 when full"
}

finish() { # BYTES that the empty store may take
    say "emptying"
    (cd "$MNT" && LIMIT=600 bounded find . -mindepth 1 -delete) || die "removing everything failed"
    : >"$LIST"
    [ -z "$(ls -A "$MNT")" ] || die "something is left"
    shrinks "$1"
    LIMIT=300 bounded "$KVFS" umount "$MNT"
    LIMIT=300 bounded "$KVFS" check "$STORE" >"$WORK/check" || die "check: $(cat "$WORK/check")"
    echo "check is clean"
    rm "$STORE"
}

host() { # BYTES
    if [ "${HOSTFS:-ext4}" = tmpfs ]; then
        mount -t tmpfs -o size="$1" tmpfs "$DISK"
        return
    fi
    truncate -s "$1" "$IMG"
    mkfs.ext4 -q -F -m 0 "$IMG"
    mount -o loop "$IMG" "$DISK"
}

limit() {
    host $((1536 * MIB))
    bounded "$KVFS" create --size 768M "$STORE"
    bounded "$KVFS" mount "$STORE" "$MNT"
    cycle "limit" 1
    again remounted
    say "half of it goes, the rest stays"
    forget 'large1/[0-9]*/[0-9]*[02468]$|small1/[0-9]*/[0-9]*[13579]$'
    cycle "limit" 2
    again killed
    forget 'large1|small1|middle2/[0-9]*/[0-9]*[13579]$|small2'
    cycle "limit" 3
    [ "$(used)" -le $((769 * MIB)) ] || die "the store takes more than its limit"
    finish $((200 * MIB))
    umount "$DISK"; rm -f "$IMG"
}

host_full() {
    host $((1280 * MIB))
    bounded "$KVFS" create "$STORE"
    bounded "$KVFS" mount "$STORE" "$MNT"
    fill_other() { # leaves so many MiB of the host
        rm -f "$OTHER"
        local free; free=$(df -B1 --output=avail "$DISK" | tail -1)
        fallocate -l $((free - $1 * MIB)) "$OTHER"
    }
    put "before/file" $((20 * MIB)) || die "an empty disk is full"
    say "something else fills the host's disk"
    fill_other 500
    cycle "host" 1
    again remounted
    forget 'large1/[0-9]*/[0-9]*[02468]$|small1'
    # What the removed files gave back to the host, it may keep; what the store keeps must do.
    cycle "host" 2
    again killed
    say "the other file takes all that is left, and what is given back"
    forget 'large1'
    shrinks $(($(used) - 100 * MIB))
    fill_other 2
    fill "tight" 70000
    verify "on a host without a free block"
    bounded rm -rf "$MNT/tight" || die "removing on a full host failed"
    grep -vF '  ./tight/' "$LIST" >"$WORK/left"; mv "$WORK/left" "$LIST"
    say "the other file goes: writing works again, without a remount"
    rm "$OTHER"
    for n in 1 2 3 4 5 6 7 8; do
        put "after/$n" $((12 * MIB)) || die "there is space again, but writing fails"
    done
    verify "after the host had space again"
    finish $((200 * MIB))
    umount "$DISK"; rm -f "$IMG"
}

for step in $STEPS; do
    case $step in limit) limit ;; host) host_full ;; *) die "no step $step" ;; esac
done
say "a full store loses nothing, and gives everything back"
