#!/bin/sh
# Installs what the build, the demo and the tests need and is missing. Only root installs; anybody
# else is told what to install.
set -eu
missing=""
need() { # program, Debian package
    command -v "$1" >/dev/null 2>&1 || missing="$missing $2"
}
need cc gcc
need make make
need git git
need python3 python3
need redis-cli redis-tools
need fusermount3 fuse3
if [ -n "$missing" ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing:$missing"
        apt-get update -qq
        # shellcheck disable=SC2086
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            $missing >/dev/null
    else
        echo "missing packages:$missing; install them and try again" \
            "(Debian: sudo apt-get install$missing)" >&2
        exit 1
    fi
fi
if ! command -v cargo >/dev/null 2>&1; then
    echo "Rust is missing: install a stable toolchain of 1.90 or later with rustfmt and clippy" \
        "(https://rustup.rs) and try again" >&2
    exit 1
fi
