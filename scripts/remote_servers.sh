#!/bin/bash
# Runs a command beside a server of S3 on this machine, and stops the server whatever happens.
#
#     scripts/remote_servers.sh COMMAND [ARGUMENT...]
#
# The server listens on a free port of the loopback interface, has its objects in a temporary
# directory, and has one empty bucket. The command finds it by KVFS_S3_ENDPOINT and KVFS_S3_BUCKET,
# and its keys by AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and AWS_REGION. The exit status is that
# of the command; 77 if the server cannot be installed. KVFS_S3_ACCESS_LOG is a file in which
# versitygw writes a line for each request.
#
# KVFS_S3_SERVER chooses the server:
#     versitygw  (default) keeps conditional puts; installed by go
#     minio      keeps them; installed by go, which takes some minutes
#     s3s-fs     does not keep them: the probe has to refuse it; installed by cargo
# KVFS_S3_TOOLS is where servers are installed (default target/servers).
set -euo pipefail
: "${1:?usage: remote_servers.sh COMMAND [ARGUMENT...]}"
cd "$(dirname "$0")/.."
SERVER=${KVFS_S3_SERVER:-versitygw}
TOOLS=${KVFS_S3_TOOLS:-target/servers}
mkdir -p "$TOOLS"
TOOLS=$(realpath "$TOOLS")

# Installs the server unless it is there.
install() {
    local program=$1
    shift
    if [ -x "$TOOLS/$program" ]; then return; fi
    echo "installing $program by: $*" >&2
    if ! command -v "$1" >/dev/null; then
        echo "SKIPPED: $program cannot be installed: $1 is missing" >&2
        exit 77
    fi
    if ! "$@" >"$TOOLS/$program.log" 2>&1; then
        tail -n 5 "$TOOLS/$program.log" >&2
        echo "SKIPPED: $program cannot be installed; see $TOOLS/$program.log" >&2
        exit 77
    fi
}
export GOBIN=$TOOLS
case $SERVER in
versitygw) install versitygw go install github.com/versity/versitygw/cmd/versitygw@v1.8.0 ;;
minio) install minio go install github.com/minio/minio@v0.0.0-20260212201848-7aac2a2c5b7c ;;
s3s-fs)
    install s3s-fs sh -c "env -u CARGO_TARGET_DIR cargo install s3s-fs --version 0.14.1 \
        --features binary --root '$TOOLS/cargo' && ln -sf cargo/bin/s3s-fs '$TOOLS/s3s-fs'"
    ;;
*)
    echo "KVFS_S3_SERVER is versitygw, minio or s3s-fs, not $SERVER" >&2
    exit 2
    ;;
esac

WORK=$(mktemp -d "${TMPDIR:-/tmp}/kvfs-s3.XXXXXX")
PID=
COMMAND=
cleanup() {
    for process in $COMMAND $PID; do
        kill "$process" 2>/dev/null || true
        wait "$process" 2>/dev/null || true
    done
    rm -rf "$WORK"
}
trap cleanup EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

PORT=$(python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])')
KEY=kvfs$RANDOM$RANDOM
SECRET=secret$RANDOM$RANDOM$RANDOM
# Each of these servers takes a directory for a bucket.
mkdir -p "$WORK/data/bucket"
case $SERVER in
versitygw)
    set_up=(env ROOT_ACCESS_KEY="$KEY" ROOT_SECRET_KEY="$SECRET" "$TOOLS/versitygw" --quiet
        --access-log "$WORK/access.log" --port "127.0.0.1:$PORT" posix "$WORK/data")
    ;;
minio)
    set_up=(env MINIO_ROOT_USER="$KEY" MINIO_ROOT_PASSWORD="$SECRET" "$TOOLS/minio" server
        --quiet --address "127.0.0.1:$PORT" "$WORK/data")
    ;;
s3s-fs)
    set_up=("$TOOLS/s3s-fs" --host 127.0.0.1 --port "$PORT" --access-key "$KEY"
        --secret-key "$SECRET" "$WORK/data")
    ;;
esac
# Where the kernel can, it ends the server also when this script is killed.
if command -v setpriv >/dev/null; then set_up=(setpriv --pdeathsig KILL "${set_up[@]}"); fi
"${set_up[@]}" >"$WORK/log" 2>&1 &
PID=$!
for _ in $(seq 100); do
    if (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then break; fi
    if ! kill -0 "$PID" 2>/dev/null; then break; fi
    sleep 0.1
done
if ! (exec 3<>"/dev/tcp/127.0.0.1/$PORT") 2>/dev/null; then
    tail -n 20 "$WORK/log" >&2
    echo "$SERVER does not listen on 127.0.0.1:$PORT" >&2
    exit 1
fi

export KVFS_S3_SERVER=$SERVER KVFS_S3_ENDPOINT=http://127.0.0.1:$PORT KVFS_S3_BUCKET=bucket
export KVFS_S3_DATA=$WORK/data KVFS_S3_ACCESS_LOG=$WORK/access.log
export AWS_ACCESS_KEY_ID=$KEY AWS_SECRET_ACCESS_KEY=$SECRET AWS_REGION=us-east-1
unset AWS_SESSION_TOKEN AWS_PROFILE AWS_ENDPOINT_URL AWS_ENDPOINT_URL_S3
# A shell heeds signals while it waits, but not while a command runs in its foreground.
"$@" <&0 &
COMMAND=$!
status=0
wait "$COMMAND" || status=$?
COMMAND=
exit "$status"
