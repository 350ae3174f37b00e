#!/bin/sh
# Upgrades what is installed in a store, and says so in a key. The tests run on the new version
# before anybody else sees it; if they fail, or the power does, the old version is still there,
# whole.
#
#     upgrade.sh /mnt new-version.tar
set -eu
mount=$1
archive=$(realpath "$2")

kvfs run --label "upgrade to $archive" "$mount" -- sh -eu -c '
    cd "$KVFS_MOUNT"
    rm -rf app
    mkdir app
    tar -xf "$1" -C app
    app/self-test
    kvfs kv put . app:version "$(cat app/VERSION)"
' upgrade "$archive"
