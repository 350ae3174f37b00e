#!/bin/bash
# The key-value benchmark: runs stages of `kvbench`, collects JSON lines, and writes the tables and
# pictures of docs/bench/kv.md.
#
#   scripts/bench_kv.sh [stage…]      without a stage: inserts reads thresholds, about a quarter of
#                                     an hour on a quiet machine
#
#   inserts     the six loads of the paper's §4.1 with a journal
#   reads       cold, warm, missing and limited reads, scans and short ranges after random loads
#   thresholds  kvdb by stitching threshold (Figure 6)
#   no-journal  the six loads without a journal
#   more        overwrites, write–delete–write, range deletes, YCSB
#   growth      kvdb at 1, 2, 4, … GiB, from GROWTH_FROM (1) up to GROWTH_GIB (16) or to what the
#               free disk allows (long), with the values of GROWTH_VALUES (4096,64)
#   ranges      range deletes against RocksDB's, up to RANGE_DELETES (a million)
#               (docs/bench/range_deletes.md)
#
# ROUNDS: how often, engines interleaved (1). MIB, SMALL_MIB: data sets of 4 KiB and of 64 B values
# (1024, 256). DIR: scratch, on the file system to be measured. OUT: where the results go. KEEP=1:
# results are added to what is there. ENGINES: a list with commas; with rocksdb-new,
# rocksdb-new-universal or rocksdb-new-blob in it, RocksDB 11.8 is fetched from Maven Central, where
# its makers publish it.
set -euo pipefail
cd "$(dirname "$0")/.."

ROUNDS=${ROUNDS:-1} MIB=${MIB:-1024} SMALL_MIB=${SMALL_MIB:-256}
DIR=${DIR:-bench-scratch} OUT=${OUT:-docs/bench}
ENGINES=${ENGINES:-kvdb,rocksdb,rocksdb-universal,rocksdb-blob,leveldb,fjall,fjall-kv,redb,lmdb}
STAGES=("$@")
[ ${#STAGES[@]} -gt 0 ] || STAGES=(inserts reads thresholds)

# The peers that are C++ libraries are opened when they are asked for; without them the others still
# run.
missing=()
for package in libleveldb-dev librocksdb-dev liblmdb-dev; do
    dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q "install ok" ||
        missing+=("$package")
done
if [ ${#missing[@]} -gt 0 ]; then
    if [ "$(id -u)" = 0 ] && command -v apt-get >/dev/null 2>&1; then
        echo "installing: ${missing[*]}"
        apt-get update -qq
        DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends \
            "${missing[@]}" >/dev/null
    else
        echo "missing packages: ${missing[*]}; their engines will fail" \
            "(Debian: sudo apt-get install ${missing[*]})" >&2
    fi
fi

cargo build --release --quiet --manifest-path bench/kvbench/Cargo.toml
target=$(cargo metadata --format-version 1 --no-deps --manifest-path bench/kvbench/Cargo.toml |
    sed 's/.*"target_directory":"\([^"]*\)".*/\1/')
kvbench=$target/release/kvbench

# The newer RocksDB: the library inside its package for Java, whose C interface is that of any other
# build.
if [[ $ENGINES == *rocksdb-new* && -z ${KVBENCH_ROCKSDB_NEW:-} ]]; then
    version=11.8.1 directory=$target/rocksdb-new
    export KVBENCH_ROCKSDB_NEW=$directory/librocksdbjni-linux64.so
    if [ ! -e "$KVBENCH_ROCKSDB_NEW" ]; then
        mkdir -p "$directory"
        maven=https://repo1.maven.org/maven2/org/rocksdb/rocksdbjni
        curl -fsS -o "$directory/package" "$maven/$version/rocksdbjni-$version.jar"
        sum=628ed387887f4a431df480857954df2a28b4389bfe24858ccdec611cabf65dbf
        echo "$sum  $directory/package" | sha256sum --check --quiet
        python3 -m zipfile -e "$directory/package" "$directory/all"
        mv "$directory/all/librocksdbjni-linux64.so" "$directory/" &&
            rm -r "$directory/all" "$directory/package"
    fi
fi

mkdir -p "$OUT" "$DIR"
lines=$OUT/kv.jsonl commands=$OUT/kv.commands
# The stage `ranges` has files of its own.
[ -n "${KEEP:-}" ] || [ "${STAGES[*]}" = ranges ] || rm -f "$lines" "$commands"
# The commands behind what is kept stand in the page.
if [ -n "${KEEP:-}" ] && [ ! -e "$commands" ] && [ -e "$OUT/kv.md" ]; then
    grep '^kvbench run' "$OUT/kv.md" >"$commands" || true
fi

# A case that fails is told and left out; the others go on.
run() {
    echo "kvbench run $*" >>"$commands"
    "$kvbench" run --rounds "$ROUNDS" --dir "$DIR" --out "$lines" "$@" ||
        echo "some cases failed: kvbench run $*" >&2
}
large=(--values 4096 --mib "$MIB")
small=(--values 64 --mib "$SMALL_MIB")
reads=get-cold,get-warm,get-limited,missing-warm,scan-cold,scan-warm,scan-limited
reads+=,short-cold,short-limited
append_and_sequential=sequential,append

for stage in "${STAGES[@]}"; do
    echo "== $stage"
    begun=$SECONDS
    case $stage in
        inserts)
            for size in large small; do
                declare -n these=$size
                # The reads stage loads at random anyway.
                case " ${STAGES[*]} " in
                    *" reads "*)
                        run --engines "$ENGINES" --loads "$append_and_sequential" \
                            --reads scan-cold "${these[@]}"
                        ;;
                    *) run --engines "$ENGINES" --loads sequential,random,append "${these[@]}" ;;
                esac
            done
            ;;
        reads)
            run --engines "$ENGINES" --loads random --reads "$reads" --read-seconds 3 "${large[@]}"
            run --engines "$ENGINES" --loads random --reads "$reads" --read-seconds 3 "${small[@]}"
            ;;
        thresholds)
            run --engines kvdb --loads append,random --reads scan-cold \
                --stitch-at 0,16384,65536,262144,1048576,max "${large[@]}"
            ;;
        no-journal)
            run --engines "$ENGINES" --journal off "${large[@]}"
            run --engines "$ENGINES" --journal off "${small[@]}"
            ;;
        more)
            all=overwrite,write-delete-write,range-delete,ycsb-a,ycsb-b,ycsb-c,ycsb-d,ycsb-e,ycsb-f
            run --engines "$ENGINES" --loads "$all" "${large[@]}"
            run --engines "$ENGINES" --loads "$all" "${small[@]}"
            # The values of DeLSM's table 2: 4 KiB, above, and 512 B, which stay outside their
            # blocks if kvdb is told that they are large.
            run --engines "$ENGINES" --loads write-delete-write --reads scan-cold \
                --values 512 --mib "$MIB"
            run --engines kvdb --separate-at 512 --loads write-delete-write --reads scan-cold \
                --values 512 --mib "$MIB"
            ;;
        growth)
            for gib in 1 2 4 8 16 32 64; do
                [ "$gib" -ge "${GROWTH_FROM:-1}" ] || continue
                [ "$gib" -le "${GROWTH_GIB:-16}" ] || break
                # Random small values take up to 1.9 times what is alive, for a while; the file
                # system is left some room.
                free=$(df --output=avail -BG "$DIR" | tail -1 | tr -dc 0-9)
                if [ "$free" -lt $((2 * gib + 4)) ]; then
                    echo "growth ends before $gib GiB: $((2 * gib + 4)) GiB of disk are needed," \
                        "$free are free" >&2
                    break
                fi
                case ",${GROWTH_VALUES:-4096,64}," in
                    *,4096,*)
                        run --engines kvdb --loads random,append --values 4096 --mib $((gib * 1024))
                        ;;
                esac
                case ",${GROWTH_VALUES:-4096,64}," in
                    *,64,*) run --engines kvdb --loads random --values 64 --mib $((gib * 1024)) ;;
                esac
            done
            ;;
        ranges)
            rm -f "$OUT/range_deletes.jsonl"
            for engine in kvdb rocksdb; do
                "$kvbench" ranges --engines "$engine" \
                    ${RANGE_DELETES:+--deletes "$RANGE_DELETES"} \
                    --dir "$DIR" --out "$OUT/range_deletes.jsonl"
            done
            python3 scripts/range_deletes.py "$OUT/range_deletes.jsonl" >"$OUT/range_deletes.md"
            ;;
        *)
            echo "no stage is called $stage: see the top of $0" >&2
            exit 2
            ;;
    esac
    echo "== $stage took $((SECONDS - begun)) s"
done
rmdir "$DIR" 2>/dev/null || true

[ "${STAGES[*]}" != ranges ] || exit 0
"$kvbench" plot --out "$OUT" "$lines" >/dev/null
{
    echo "# kvdb compared with the engines that people use"
    echo
    cpu=$(sed -n '/^model name/ { s/^model name[^:]*: //p; q }' /proc/cpuinfo)
    echo "\`make bench-kv\` · $(nproc) cores ($cpu), Linux $(uname -r) · $ROUNDS rounds, engines" \
        "interleaved, each phase in a process of its own · 256 MiB of memory for each engine, 64" \
        "MiB of them a write buffer, no compression, a journal that is not synced unless it says" \
        "\"no journal\" · medians. \"Written\" counts the bytes that the process sent to storage" \
        "for each byte of keys and values; a ratio above 1 means that the engine is faster than" \
        "the best peer. redb and LMDB put a thousand puts in a transaction. An unsynced put is in" \
        "the kernel's hands at once with RocksDB, LevelDB and fjall; kvdb keeps it in its own" \
        "memory for up to a second, so a killed process loses that too." | fmt -w 100 -g 100
    echo
    echo "The lines behind the tables are in \`kv.jsonl\`; the commands were:"
    echo
    echo '```'
    sort -u "$commands"
    echo '```'
    echo
    "$kvbench" report "$lines"
    echo
    for picture in "$OUT"/kv-*.svg; do
        name=$(basename "$picture")
        echo "![$name]($name)"
    done
} >"$OUT/kv.md"
rm -f "$commands"
echo "$OUT/kv.md"
