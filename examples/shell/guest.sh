#!/bin/sh
# Runs a command in a guest that has a store's files at /mnt, in a transaction of its own. The guest
# is a root directory in a mount name space of its own. It has neither the file of the store nor the
# socket of its server. What the command has changed is committed to the store if it succeeds;
# otherwise the store never had it.
#
#     guest.sh my.kvfs /srv/guest make -C /mnt/project
set -eu
store=$1 root=$2
shift 2

directory=$(mktemp -d)
socket=$directory/socket
kvfs serve --write "$store" --listen "unix:$socket" >/dev/null &
server=$!
trap 'kill "$server"; wait "$server" || true; rm -rf "$directory"' EXIT
# The server is there when it has made its socket.
while [ ! -S "$socket" ]; do
    kill -0 "$server"
    sleep 0.1
done

kvfs run "kvfs+unix:$socket" -- unshare --mount sh -eu -c '
    mount --bind "$KVFS_MOUNT" "$0/mnt"
    exec chroot "$0" "$@"' "$root" "$@"
