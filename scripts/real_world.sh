#!/bin/bash
# Real programs on a mount, compared with the host's file system: the kernel's source tree (md5 of
# every file, also after a remount with dropped caches, and the space back after rm -rf), git clone
# + fsck + gc, rsync -aH both ways, SQLite with a WAL journal, and a Rust project built inside the
# mount. Ends with `kvfs check`. Needs root, about 6 GB of disk, and some minutes.
set -euo pipefail
KVFS=$(realpath "${1:?usage: real_world.sh KVFS-BINARY [steps…]}"); shift
STEPS=${*:-kernel git rsync sqlite build}
REPO=$(cd "$(dirname "$0")/.." && pwd)
WORK=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-real.XXXXXX")
STORE=$WORK/real.kvfs MNT=$WORK/mnt HOST=$WORK/host
mkdir "$MNT" "$HOST"
cleanup() {
    "$KVFS" umount "$MNT" >/dev/null 2>&1 || umount -l "$MNT" 2>/dev/null || true
    rm -rf "$WORK"
}
trap cleanup EXIT

say() { printf '\n== %s\n' "$*"; }
die() { printf 'real_world: %s\n' "$*" >&2; exit 1; }
need() {
    command -v "$1" >/dev/null || {
        apt-get install -y -qq "$2" >/dev/null || die "$1 is missing: install $2"
    }
}
need rsync rsync; need sqlite3 sqlite3; need git git; need xz xz-utils
sums() { (cd "$1" && find . -type f -print0 | LC_ALL=C sort -z | xargs -0 md5sum) >"$2"; }
remount() {
    "$KVFS" umount "$MNT"
    sync
    echo 3 >/proc/sys/vm/drop_caches
    "$KVFS" mount "$STORE" "$MNT"
}
blocks() { stat -c %b "$STORE"; }

"$KVFS" create "$STORE"
"$KVFS" mount "$STORE" "$MNT"

kernel() {
    local tar=/usr/src/linux-source-6.1.tar.xz
    [ -e "$tar" ] || {
        say "installing linux-source-6.1"
        apt-get install -y -qq --no-install-recommends linux-source-6.1 >/dev/null
    }
    say "the kernel's source tree onto the host and into the mount"
    xz -dc "$tar" >"$WORK/linux.tar"
    local t0=$SECONDS; tar -C "$HOST" -xf "$WORK/linux.tar"; echo "host: $((SECONDS - t0)) s"
    t0=$SECONDS; tar -C "$MNT" -xf "$WORK/linux.tar"; echo "mount: $((SECONDS - t0)) s"
    rm "$WORK/linux.tar"
    local entries; entries=$(find "$MNT/linux-source-6.1" | wc -l); echo "$entries entries"
    [ "$entries" = "$(find "$HOST/linux-source-6.1" | wc -l)" ] ||
        die "the number of entries differs"
    sums "$HOST/linux-source-6.1" "$WORK/want"
    sums "$MNT/linux-source-6.1" "$WORK/got"; cmp "$WORK/want" "$WORK/got" || die "contents differ"
    echo "md5 of $(wc -l <"$WORK/want") files equal"
    remount
    sums "$MNT/linux-source-6.1" "$WORK/got"
    cmp "$WORK/want" "$WORK/got" || die "contents differ after the remount"
    echo "equal after umount, dropped caches and mount"
}

gitrepo() {
    say "git: clone, fsck, gc"
    local src=$HOST/repo
    if [ -d "$HOST/linux-source-6.1" ]; then
        cp -r "$HOST/linux-source-6.1/drivers/net" "$HOST/net-src"
        mkdir "$src" && cp -r "$HOST/net-src/." "$src" && rm -rf "$HOST/net-src"
        git -C "$src" init -q && git -C "$src" config gc.auto 0 && git -C "$src" add -A &&
            git -C "$src" -c user.name=t -c user.email=t@t commit -qm "a real tree"
    else
        git clone -q "$REPO" "$src"
    fi
    git clone -q --no-hardlinks "$src" "$MNT/clone"
    git -C "$MNT/clone" config gc.auto 0 # no gc behind our back while directories are removed
    git -C "$MNT/clone" fsck --full --no-dangling
    git -C "$MNT/clone" checkout -q -b work
    (cd "$MNT/clone" && find . -name '*.c' -o -name '*.rs' | grep -v '^./.git/' | awk 'NR <= 200' |
        while read -r f; do echo "// changed" >>"$f"; done)
    git -C "$MNT/clone" -c user.name=t -c user.email=t@t commit -qam "changes"
    git -C "$MNT/clone" gc -q
    git -C "$MNT/clone" fsck --full --no-dangling
    [ -z "$(git -C "$MNT/clone" status --porcelain)" ] || die "git status is not clean"
    echo "fsck clean before and after gc, $(git -C "$MNT/clone" ls-files | wc -l) files"
    rm -rf "$MNT/clone" "$src"
}

rsynctree() {
    say "rsync -aH both ways"
    local src=/usr/share
    [ -d "$HOST/linux-source-6.1/fs" ] && src=$HOST/linux-source-6.1/fs
    mkdir -p "$HOST/links"; ln -f "$src"/[A-Z]* "$HOST/links/" 2>/dev/null || true
    rsync -aH "$src/" "$MNT/there/"
    [ -z "$(rsync -aHni --delete "$src/" "$MNT/there/")" ] ||
        die "rsync to the mount is not done after one pass"
    rsync -aH "$MNT/there/" "$HOST/back/"
    [ -z "$(rsync -aHni --delete "$MNT/there/" "$HOST/back/")" ] ||
        die "rsync from the mount is not done after one pass"
    diff -r --no-dereference "$src" "$HOST/back" || die "what came back differs"
    echo "nothing left to do either way ($(find "$MNT/there" | wc -l) entries)"
    rm -rf "$MNT/there" "$HOST/back" "$HOST/links"
}

sqlite() {
    say "SQLite with a WAL journal"
    local db=$MNT/test.db
    sqlite3 "$db" 'pragma journal_mode=wal;
        create table t(id integer primary key, v text, b blob);' >/dev/null
    local i
    for i in $(seq 1 40); do
        sqlite3 "$db" "with recursive n(i) as (select 1 union all select i+1 from n where i<500)
            insert into t(v,b) select 'row '||i, randomblob(200) from n;
            update t set v=v||'!' where id%7=$((i % 7));
            delete from t where id%11=$((i % 11));"
    done
    local sum; sum=$(sqlite3 "$db" 'select count(*), sum(length(v)), sum(length(b)) from t')
    [ "$(sqlite3 "$db" 'pragma integrity_check')" = ok ] || die "integrity_check failed"
    remount
    [ "$(sqlite3 "$db" 'pragma integrity_check')" = ok ] ||
        die "integrity_check failed after the remount"
    [ "$(sqlite3 "$db" 'select count(*), sum(length(v)), sum(length(b)) from t')" = "$sum" ] ||
        die "rows differ after the remount"
    echo "integrity_check ok, before and after a remount: $sum"
    rm -f "$db"*
}

build() {
    say "a Rust project built and tested inside the mount"
    mkdir "$MNT/project"
    (cd "$REPO" && tar -cf - Cargo.toml Cargo.lock crates rustfmt.toml) |
        tar -C "$MNT/project" -xf -
    local t0=$SECONDS
    (cd "$MNT/project" &&
        CARGO_TARGET_DIR=$MNT/project/target cargo test --quiet -p zones -p vt-tree --lib 2>&1 |
        tail -4)
    echo "built and tested in $((SECONDS - t0)) s"
    rm -rf "$MNT/project"
}

for s in $STEPS; do
    case $s in
    kernel) kernel ;; git) gitrepo ;; rsync) rsynctree ;; sqlite) sqlite ;; build) build ;;
    *) die "no step $s" ;;
    esac
done

say "rm -rf leaves an empty tree and the space comes back"
echo "store: $(($(blocks) / 2048)) MiB on the host before"
rm -rf "${MNT:?}"/*
[ -z "$(ls -A "$MNT")" ] || die "the mount is not empty"
"$KVFS" umount "$MNT"
"$KVFS" mount "$STORE" "$MNT"
[ -z "$(ls -A "$MNT")" ] || die "the mount is not empty after a remount"
deadline=$((SECONDS + 120))
while [ "$(blocks)" -gt $((300 * 2048)) ] && [ $SECONDS -lt $deadline ]; do sleep 1; done
echo "store: $(($(blocks) / 2048)) MiB on the host after"
[ "$(blocks)" -le $((300 * 2048)) ] || die "the zones were not given back"
"$KVFS" umount "$MNT"
"$KVFS" check "$STORE"
say "all real-world steps passed: $STEPS"
