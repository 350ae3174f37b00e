#!/bin/bash
# The Debian package on a machine of its own: a Debian system is made in a directory, the package
# installed there by apt with what it depends on, and the system booted with systemd in a container,
# twice. One store is mounted by the unit kvfs@work, another by a line of /etc/fstab, and both by
# the next boot have what the one before has written. Then the package is removed again.
#
# Needs root, a mirror of Debian, and mmdebstrap and systemd-nspawn (Debian: mmdebstrap,
# systemd-container). BASE: an archive of the bare system, made where it is not there.
set -euo pipefail
PACKAGE=$(realpath "${1:?usage: boot.sh PACKAGE.deb}")
for program in mmdebstrap systemd-nspawn; do
    if ! command -v "$program" >/dev/null; then
        echo "$program is missing (Debian: mmdebstrap, systemd-container)" >&2
        exit 1
    fi
done
if [ "$(id -u)" != 0 ]; then
    echo "boot.sh needs root: it makes device nodes and boots a container" >&2
    exit 1
fi
WORK=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-boot.XXXXXX")
ROOT=$WORK/root
cleanup() { rm -rf "$WORK"; }
trap cleanup EXIT

BASE=${BASE:-$WORK/base.tar}
if [ ! -e "$BASE" ]; then
    mmdebstrap --quiet --variant=minbase --include=systemd,systemd-sysv,dbus bookworm "$BASE"
fi
mkdir "$ROOT"
tar -C "$ROOT" -xf "$BASE"
cp "$PACKAGE" "$ROOT/root/kvfs.deb"
if [ -e /etc/resolv.conf ]; then cp -L /etc/resolv.conf "$ROOT/etc/resolv.conf"; fi
within() { chroot "$ROOT" "$@"; }
within apt-get update -qq
within apt-get install -y -qq /root/kvfs.deb >/dev/null
within kvfs --version
for page in kvfs kvfs-mount; do test -e "$ROOT/usr/share/man/man1/$page.1.gz"; done

mkdir -p "$ROOT/etc/kvfs" "$ROOT/mnt/work" "$ROOT/mnt/tab" "$ROOT/var/log/journal"
within kvfs create --size 1G /srv/work.kvfs
within kvfs create --size 1G /srv/tab.kvfs
printf 'store = /srv/work.kvfs\ndirectory = /mnt/work\nallow_other\n' >"$ROOT/etc/kvfs/work.conf"
echo '/srv/tab.kvfs /mnt/tab fuse.kvfs defaults,nofail 0 0' >>"$ROOT/etc/fstab"
# What is looked at while the system runs, as the last step of the boot.
cat >"$ROOT/root/look.sh" <<'S'
exec >>/root/seen 2>&1
for directory in /mnt/work /mnt/tab; do
    findmnt --noheadings --output FSTYPE,SOURCE $directory
    echo a boot >>$directory/boots
    sync $directory/boots
    echo "$directory: $(wc -l <$directory/boots) boots"
done
kvfs kv put /mnt/work key "$(wc -l </mnt/work/boots)"
systemctl is-active kvfs@work mnt-tab.mount
systemctl --no-block poweroff
S
cat >"$ROOT/etc/systemd/system/look.service" <<'S'
[Unit]
After=kvfs@work.service remote-fs.target local-fs.target
[Service]
Type=oneshot
ExecStart=/bin/sh /root/look.sh
[Install]
WantedBy=multi-user.target
S
within systemctl --quiet enable kvfs@work look

boot() {
    timeout 120 systemd-nspawn --quiet --boot --directory "$ROOT" --register=no --keep-unit \
        --bind=/dev/fuse --property=DeviceAllow=/dev/fuse >"$WORK/console" 2>&1 || true
}
boot
boot
cat "$ROOT/root/seen"
cat >"$WORK/expected" <<'S'
fuse.kvfs /srv/work.kvfs
/mnt/work: 1 boots
fuse.kvfs /srv/tab.kvfs
/mnt/tab: 1 boots
active
active
fuse.kvfs /srv/work.kvfs
/mnt/work: 2 boots
fuse.kvfs /srv/tab.kvfs
/mnt/tab: 2 boots
active
active
S
if ! diff "$WORK/expected" "$ROOT/root/seen"; then
    tail -40 "$WORK/console"
    exit 1
fi
# Both were closed when the system went down, and have what was written last.
for store in work tab; do
    within kvfs check "/srv/$store.kvfs" | tee "$WORK/check"
    grep -q "clean;.*0 commits in the journal" "$WORK/check"
done
test "$(within kvfs kv get /srv/work.kvfs key)" = 2

within apt-get purge -y -qq kvfs >/dev/null
left=$(within find / -xdev -name '*kvfs*' -not -path '/root/*' -not -path '/srv/*' \
    -not -path '/etc/kvfs*' -not -path '/etc/systemd/system/multi-user.target.wants/*' \
    -not -path '/proc/*' -not -path '/var/log/*' -print)
if [ -n "$left" ]; then
    printf 'the package has left behind:\n%s\n' "$left" >&2
    exit 1
fi
echo "installed, booted twice, removed"
