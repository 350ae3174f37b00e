#!/bin/sh
# Runs the fuzz targets in turn: `fuzz.sh RUNS [target ...]`. What each has found interesting stays
# in target/fuzz/corpus, so that the next run goes on from there; an input that fails is kept in
# target/fuzz/found and ends the run.
set -eu
runs=$1
shift
cargo=${CARGO:-cargo}
"$cargo" +nightly fuzz --version >/dev/null 2>&1 || {
    echo "needs a nightly toolchain and cargo-fuzz:" \
        "rustup toolchain install nightly; cargo install cargo-fuzz" >&2
    exit 1
}
# Without the address sanitizer, which makes everything several times slower: readers are safe code.
# SANITIZER=address runs with it.
build="--sanitizer ${SANITIZER:-none} --target-dir target/fuzz"
"$cargo" +nightly fuzz build $build
[ $# -gt 0 ] || set -- $("$cargo" +nightly fuzz list)
mkdir -p target/fuzz/found
for target; do
    case $target in
    # Each case makes and reads a whole store.
    image | tuples | archive) count=$((runs / 100)) ;;
    stream) count=$((runs / 10)) ;;
    *) count=$runs ;;
    esac
    mkdir -p "target/fuzz/corpus/$target"
    "$cargo" +nightly fuzz run $build "$target" "target/fuzz/corpus/$target" -- \
        -runs="$count" -rss_limit_mb=1024 -timeout=20 \
        -artifact_prefix="target/fuzz/found/$target-" >"target/fuzz/$target.log" 2>&1 || {
        tail -n 40 "target/fuzz/$target.log" >&2
        exit 1
    }
    echo "$target: $(grep '^Done' "target/fuzz/$target.log")"
done
