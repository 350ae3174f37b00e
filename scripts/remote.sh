#!/bin/bash
# Tests stores in object storage on real servers of S3, one server after the other.
#
#     scripts/remote.sh [SERVER...]
#
# versitygw and minio keep conditional puts: they get the contract, races, the probe, lost answers,
# publications that are killed, and KVFS_ROUNDS (default 20) machines that are killed or lost while
# they write. s3s-fs keeps none: the probe has to refuse it each time. scripts/remote_servers.sh
# installs and starts them. The last lines say how each of them has ended; one that cannot be
# installed is skipped. The exit status is 0 if none has failed and one at least was tested.
set -uo pipefail
cd "$(dirname "$0")/.."
trap 'exit 130' INT
CARGO=${CARGO:-cargo}
KVFS=${KVFS:-target/debug/kvfs}
if [ $# = 0 ]; then set -- versitygw minio s3s-fs; fi

# on SERVER COMMAND... has the status of the command, or 77 if the server cannot be installed.
on() {
    KVFS_S3_SERVER=$1 scripts/remote_servers.sh "${@:2}"
}

keeps_conditions() {
    local tests=("$CARGO" test --quiet --workspace --test it --)
    on "$1" "${tests[@]}" --ignored servers:: &&
        on "$1" "${tests[@]}" --ignored --skip keeps_no remote:: doctor_address:: &&
        on "$1" python3 scripts/crash_remote.py --kvfs "$KVFS" --rounds "${KVFS_ROUNDS:-20}"
}

is_refused() {
    on "$1" "$CARGO" test --quiet --workspace --test it -- --ignored keeps_no servers::the_probe
}

results=()
passed=0
failed=0
for server; do
    echo "== $server =="
    if [ "$server" = s3s-fs ]; then is_refused "$server"; else keeps_conditions "$server"; fi
    status=$?
    case $status in
    0)
        results+=("$server: passed")
        passed=1
        ;;
    77) results+=("$server: SKIPPED, since it cannot be installed: see target/servers") ;;
    *)
        results+=("$server: FAILED with status $status")
        failed=1
        ;;
    esac
done
printf '%s\n' "${results[@]}"
[ $failed = 0 ] && [ $passed = 1 ]
