# KVFS. `make demo` shows the main job; `make test` is everything quick.

CARGO ?= cargo
KVFS   = target/release/kvfs

.PHONY: help setup build demo test over-io-uring lint test-long schedules ace every-io rest \
	bounded many remote remote-histories bench-remote measurements mutants redis-fuzz \
	foreign-text soak \
	crash-live crash-kept crash-transactions crash-remote bench-buckets bench-split wire \
	wire-kills some-wire-kills pages full real-world posix syscalls hostile fuzz readme \
	bench-files bench-kv bench-transactions bench-branches bench-defrag bench-papers \
	redis-suites clients bench-redis bench-ranks bench-aged lint-bench lint-fuzz python \
	lint-python install install-files deb boot packages clean

help:
	@sed -n 's/^## //p' Makefile

## make setup        install what is missing (Debian packages, by apt-get when root)
setup:
	@sh scripts/setup.sh

## make build        build the release binary target/release/kvfs
build: setup
	$(CARGO) build --release --package kvfs-cli

## make demo         create a store, mount it, fill it, kill it, mount it again, and prove that
##                   nothing durable is lost
demo: build
	@sh scripts/demo.sh $(KVFS)

## make test         everything quick: formatting, lints, floors and rooms, unit, behaviour and
##                   property tests, a share of the simulations
test: setup lint
	$(CARGO) test --workspace --quiet
	@$(MAKE) --no-print-directory over-io-uring some-wire-kills

# Some suites of the mount once more with requests over io_uring, where this machine can: as root,
# on Linux 6.14 or later.
over-io-uring:
	@if [ -w /sys/module/fuse/parameters/enable_uring ] && [ -c /dev/fuse ]; then \
		echo "over io_uring: $(OVER_IO_URING)"; \
		KVFS_TRANSPORT=uring $(CARGO) test --quiet --workspace --test it -- \
			$(addsuffix ::,$(OVER_IO_URING)); \
	else echo "SKIPPED: requests over io_uring take root and Linux 6.14"; fi
OVER_IO_URING = held_back views survives killed handles

# Ten kills of a server and of mounts that it has, with the program that the tests have built.
some-wire-kills:
	@if [ -c /dev/fuse ] && [ "$$(id -u)" = 0 ]; then \
		python3 scripts/crash_wire.py --kvfs target/debug/kvfs --kills 10 --seed-base 1; \
	else echo "SKIPPED: kills of mounts take root and FUSE"; fi

lint:
	$(CARGO) fmt --all --check
	$(CARGO) clippy --workspace --all-targets --quiet -- -D warnings
	python3 scripts/mutants.py --check

## make test-long    the slow suites: many simulation seeds, transactions, bit flips, live kills,
##                   real programs, the POSIX suite
test-long: build
	KVFS_SEEDS=1000 KVFS_FLIPS=10000 KVFS_TRANSACTIONS=100000 \
		$(CARGO) test --release --workspace --quiet
	$(MAKE) schedules wire ace every-io crash-live crash-transactions wire-kills full \
		real-world posix hostile readme

# The simulations at size, each to be continued with KVFS_SEED_BASE (ACE: KVFS_ACE_FROM): see
# docs/reliability.md.
SIMULATION = $(CARGO) test --profile simulation --quiet

## make schedules    programs of several threads under the schedules of many seeds
##                   (KVFS_SEEDS=20000)
schedules:
	KVFS_SEEDS=$${KVFS_SEEDS:-20000} $(SIMULATION) -p kvdb --test it schedule:: -- --nocapture
	KVFS_SEEDS=$${KVFS_SEEDS:-20000} $(SIMULATION) -p kvfs --test it schedule:: -- --nocapture
	KVFS_SEEDS=$${KVFS_SEEDS:-20000} \
		$(SIMULATION) -p kvdb-server --lib schedule_tests -- --nocapture

## make wire         clients, the wire and a server that is killed, under many schedules
##                   (KVFS_SEEDS=20000)
wire:
	KVFS_SEEDS=$${KVFS_SEEDS:-20000} \
		$(SIMULATION) -p kvdb-wire --test it simulation:: -- --nocapture

## make ace          file workloads of one and two calls, cut in every operation of the device
##                   (KVFS_ACE=5000)
ace:
	KVFS_ACE=$${KVFS_ACE:-5000} $(SIMULATION) -p kvfs --test it power_cut::ace -- --nocapture

## make every-io     every operation of the device fails once (KVFS_SEEDS=6)
every-io:
	KVFS_SEEDS=$${KVFS_SEEDS:-6} KVFS_IO_STEP=1 \
		$(SIMULATION) -p kvfs --test it power_cut::every_io -- --nocapture

## make rest         every job of the background, run to rest on stores of many shapes: what it
##                   writes is bounded (KVFS_SEEDS=100)
rest:
	KVFS_SEEDS=$${KVFS_SEEDS:-100} \
		$(CARGO) test --release -p kvdb --test it rest:: -- --nocapture

## make bounded      every operation on data a hundred times the memory and more: the heap stays
##                   small (KVFS_BOUNDED=1 times that)
bounded:
	KVFS_ONLY= KVFS_BOUNDED=$${KVFS_BOUNDED:-1} \
		$(CARGO) test --release -p kvdb --test bounded -- --nocapture
	KVFS_ONLY= $(CARGO) test --release -p kvfs --test bounded -- --nocapture

## make many         what dictionaries, snapshots and branches cost beside 1,000, 10,000 and 100,000
##                   of them (KVFS_MANY=100000)
many:
	KVFS_MANY=$${KVFS_MANY:-100000} \
		$(CARGO) test --release -p kvdb --test many table -- --ignored --nocapture

## make measurements what tests only measure, and those that take minutes: synced puts after an
##                   opening, commits that can be undone, waits for an upgrade or a keeper, kills
##                   every five seconds, a loop that renames 50,000 files as it lists them
measurements:
	$(CARGO) test --release -p kvdb --test it -- \
		closed:: undo:: --ignored --nocapture --test-threads 1
	$(CARGO) test --release -p kvfs-cli --test it -- \
		upgrade:: keeper:: posix:: --ignored --nocapture --test-threads 1

## make redis-fuzz   a million random commands on a store and on redis-server: replies and keys are
##                   the same (KVFS_COMMANDS=1000000, KVFS_SEED=n)
redis-fuzz: setup
	KVFS_COMMANDS=$${KVFS_COMMANDS:-1000000} KVFS_SEED=$${KVFS_SEED:-1} \
		$(CARGO) test --release -p kvdb-server --test it beside_redis:: -- --nocapture

## make foreign-text every command, on names that act on terminals, on deep trees, and told to write
##                   onto a store
foreign-text:
	$(CARGO) test --release -p kvfs-cli --test it -- foreign_text:: destinations:: --nocapture
	$(CARGO) test --release -p kvfs-cli --test deep_trees -- --nocapture

## make mutants      plant each bug of proof/mutants and see its tests fail; what has a result is
##                   not run again (ONLY=name)
mutants:
	python3 scripts/mutants.py --only "$(ONLY)"

## make soak         everything at once on a mount for an hour: nothing grows, slows down or is lost
##                   (MINUTES=60)
soak: build
	python3 scripts/soak.py --kvfs $(KVFS) --minutes $${MINUTES:-60}

## make crash-live   SIGKILL of the daemon at random moments under load (KILLS=200, SEED_BASE=n,
##                   OPTIONS=transport=uring)
crash-live: build
	python3 scripts/crash_live.py --kvfs $(KVFS) --kills $${KILLS:-200} \
		$(if $(SEED_BASE),--seed-base $(SEED_BASE)) $(if $(OPTIONS),--options $(OPTIONS))

## make crash-kept   SIGKILL of daemons that a keeper begins anew, under random writes, git, SQLite,
##                   a compiler and system calls, none of which may see an error (KILLS=200, SEED=1)
crash-kept:
	KVFS_KILLS=$${KILLS:-200} KVFS_SEED=$(SEED) \
		$(CARGO) test --release -p kvfs-cli --test it begun_anew::each_byte -- --nocapture
	$(CARGO) test --release -p kvfs-cli --test it keeper::for_long -- --ignored --nocapture
	$(MAKE) syscalls MODE=restart CALLS=100000 SEED=$(SEED)

## make crash-transactions  SIGKILL at random moments of transactions over a file and its key
##                   (KILLS=200, SEED_BASE=n, OPTIONS=...)
crash-transactions: build
	python3 scripts/crash_transactions.py --kvfs $(KVFS) --kills $${KILLS:-200} \
		$(if $(SEED_BASE),--seed-base $(SEED_BASE)) $(if $(OPTIONS),--options $(OPTIONS))

## make crash-remote  SIGKILL and loss of machines that write a store on a server of S3, and others
##                   that take it from them (ROUNDS=200, SEED_BASE=n, KVFS_S3_SERVER=minio)
crash-remote: build
	scripts/remote_servers.sh scripts/crash_remote.py --kvfs $(KVFS) --rounds $${ROUNDS:-200} \
		$(if $(SEED_BASE),--seed-base $(SEED_BASE))

## make bench-buckets  KVFS, rclone mount and s3fs over one bucket, each answer 30 ms late
##                   (FILES=500 ROUNDS=3)
bench-buckets: build
	scripts/remote_servers.sh scripts/bench_buckets.py $(KVFS) $${FILES:-500} $${ROUNDS:-3}

## make bench-split  KVFS over a wire, next to ext4 on NBD and to a local mount: bytes, requests and
##                   times at 0.05, 0.2 and 2 ms (root, nbdkit, libnbd-bin, rsync; STAGES_OF_SPLIT,
##                   SPLIT_NAMES=20000,200000 SPLIT_FILES=2000 SPLIT_ROUNDS=3 SPLIT_STORE=500000)
bench-split: build
	python3 scripts/bench_split.py $(KVFS) $(STAGES_OF_SPLIT)

## make wire-kills   SIGKILL of a server and of mounts of its transactions, at random moments
##                   (KVFS_KILLS=2000, SEED_BASE=n)
wire-kills: build
	python3 scripts/crash_wire.py --kvfs $(KVFS) --kills $${KVFS_KILLS:-2000} \
		$(if $(SEED_BASE),--seed-base $(SEED_BASE))

## make pages        use the page of kvfs web in a headless Chromium (Debian: chromium), and take
##                   its pictures for docs/images
pages: build
	python3 scripts/web_screenshots.py --kvfs $(KVFS) --images docs/images --need-browser

## make full         a full store and a full host disk, on a real mount
full: build
	bash scripts/full_disk.sh $(KVFS)

## make real-world   a kernel tree, git, rsync, SQLite and a build inside the mount, compared with
##                   ext4
real-world: build
	bash scripts/real_world.sh $(KVFS)

## make posix        pjdfstest on the mount and on ext4 (OPTIONS=transport=uring)
posix: build
	bash scripts/posix.sh $(KVFS)

## make hostile      stores, streams, archives and requests out of generators that know the formats
##                   (HOSTILE=20000 of each)
HOSTILE ?= 20000
hostile:
	KVFS_HOSTILE=$(HOSTILE) $(CARGO) test --release -p kvfs --test hostile
	KVFS_HOSTILE=$(HOSTILE) $(CARGO) test --release -p kvfs-cli --bins hostile_archives
	KVFS_HOSTILE=$$(($(HOSTILE) * 100)) \
		$(CARGO) test --release -p kvdb-server --test it parsers::
	KVFS_HOSTILE=$$(($(HOSTILE) / 100)) \
		$(CARGO) test --release -p kvfs-cli --test it hostile_images::

## make fuzz         every reader of bytes under libFuzzer, a hundredth of RUNS where a case is a
##                   whole store (RUNS=1000000 TARGETS=...)
RUNS ?= 1000000
fuzz:
	@sh scripts/fuzz.sh $(RUNS) $(TARGETS)

## make readme       the terminal sessions of README.md and docs/agents.md, run as they are printed
readme: build
	python3 scripts/readme.py $(KVFS)

## make bench-remote counts the requests to a store in object storage, and those that are waited
##                   for one after the other, through toxiproxy (FILES=100000)
bench-remote: build
	scripts/remote_servers.sh python3 scripts/bench_remote.py $(KVFS) $${FILES:-100000}

## make remote       stores in buckets of real servers of S3: failure cases on versitygw and MinIO,
##                   and s3s-fs, which keeps no conditions and must be refused; the last lines say
##                   what could not be installed (SERVERS="versitygw minio s3s-fs", KVFS_ROUNDS=20)
SERVERS ?= versitygw minio s3s-fs
remote:
	$(CARGO) build --workspace --tests --quiet
	CARGO="$(CARGO)" KVFS=target/debug/kvfs scripts/remote.sh $(SERVERS)

## make remote-histories  machines that write, publish, sync, crash, fork, read, follow and collect
##                   in a place that loses and damages requests; the parts by the time that they
##                   take (HISTORIES=100000, SEED_BASE=n); seeds that fail are said
remote-histories:
	@failed=0; for part in collect_machine::=70 machines_that_take_turns=12 no_sync_is_lost=12 \
		publications_under_faults=4 each_state_is_shown_whole=2; do \
		KVFS_SEEDS=$$(($${HISTORIES:-100000} * $${part#*=} / 100)) \
		KVFS_SEED_BASE=$${SEED_BASE:-0} \
		$(SIMULATION) -p kvdb --test it $${part%=*} -- --nocapture || failed=1; \
	done; exit $$failed

## make syscalls     the same random system calls on a mount and on ext4, each result compared
##                   (CALLS=1000000 SEED=1 MODE=plain|commit|abort|kill|remount|upgrade|restart)
CALLS ?= 1000000
SEED ?= 1
MODE ?= plain
syscalls: build
	$(CARGO) run --release --quiet --package kvfs-syscalls -- \
		--kvfs $(KVFS) --calls $(CALLS) --seed $(SEED) --mode $(MODE) $(SYSCALLS)

## make bench-files  KVFS compared with ext4, btrfs, xfs, bindfs, JuiceFS, AgentFS and a file system
##                   in memory: operations and real programs (docs/bench/files.md; ROUNDS=7,
##                   CASES=regular expression, FILES_OPTIONS)
ROUNDS ?= 7
bench-files: build
	$(CARGO) build --release --quiet --package measure --bin memory_mount
	rm -f docs/bench/files.jsonl
	python3 scripts/bench_files.py --kvfs $(KVFS) --memory target/release/memory_mount \
		--rounds $(ROUNDS) --cases "$(CASES)" $(FILES_OPTIONS) \
		--record docs/bench/files.jsonl --out docs/bench/files.md

## make bench-kv     kvdb compared with RocksDB, LevelDB, fjall and redb: tables and pictures in
##                   docs/bench/kv.md (ROUNDS=1, STAGES=...)
bench-kv: setup
	@bash scripts/bench_kv.sh $(STAGES)

## make bench-transactions  builds, files with keys, snapshots, clones and differences, compared
##                   with the same work without them (docs/bench/transactions.md)
STAGES_OF_TRANSACTIONS ?= build build ends four four four serial serial serial together latency \
	library many
bench-transactions: build
	$(CARGO) build --release --package measure --bin kvfs_views
	rm -f docs/bench/transactions.jsonl
	for stage in $(STAGES_OF_TRANSACTIONS); do \
		python3 scripts/bench_transactions.py $$stage || exit 1; \
	done
	python3 scripts/bench_transactions.py report

## make bench-branches  branches of a tree, beside git worktrees, copies by reference and subvolumes
##                   of btrfs, and with 1,000 clones (docs/bench/transactions.md)
bench-branches: build
	$(CARGO) build --release --package measure --bin kvfs_views
	rm -f docs/bench/branches.jsonl
	python3 scripts/bench_branches.py trees many report

## make bench-defrag  the paper's §4.4 at size: what defragmentation reclaims, what it does to scans
##                   and to a client (MIB=2048)
bench-defrag:
	@bash scripts/defrag.sh $(THRESHOLDS)

## make bench-papers  the papers' tables on a modelled disk, compared with ext4, btrfs and xfs
##                   (docs/bench/papers.md; SLOWDISK=directory of slowdisk.c, see bench/papers;
##                   ROUNDS=7, PROFILE=hdd, PAPERS_OPTIONS)
PROFILE ?= hdd
bench-papers: build
	$(CARGO) build --release --quiet --package measure --bin kvdb_shape
	python3 bench/papers/papers.py --kvfs $(KVFS) --rounds $(ROUNDS) --profile $(PROFILE) \
		$(PAPERS_OPTIONS) --record docs/bench/papers.jsonl --out docs/bench/papers.md

## make bench-aged  seeks a file of trees as people age them, by two builds in turn on a modelled
##                   disk (BEFORE=another build of kvfs; SLOWDISK, PROFILE, AGED_OPTIONS)
bench-aged: build
	python3 bench/papers/aged.py --before $(BEFORE) --after $(KVFS) --rounds $(ROUNDS) \
		--profile $(PROFILE) $(AGED_OPTIONS)

## make redis-suites  Redis' own tests against redis-server and KVFS (docs/bench/redis-suites.md;
##                   REDIS=checkout of Redis 7.0)
redis-suites: build
	$(CARGO) build --release --quiet --package kvdb-server --example serve
	python3 scripts/redis_suites.py $(REDIS)

## make clients      programs and libraries for Redis, from their registries, on redis-server and
##                   KVFS (docs/clients.md; ONLY=celery,rq runs these, and keeps the others' lines)
clients: build
	python3 scripts/clients.py --kvfs $(KVFS) --only "$(ONLY)"

## make bench-redis  redis-benchmark on redis-server and KVFS, over Unix sockets, in turn
##                   (docs/bench/redis.md; ROUNDS=7)
bench-redis: build
	python3 scripts/bench_redis.py --kvfs $(KVFS) --rounds $(ROUNDS) --out docs/bench/redis.md

## make bench-ranks  ranks in large collections, beside redis-server (docs/bench/redis-ranks.md)
bench-ranks: build
	python3 scripts/bench_ranks.py --kvfs $(KVFS)

lint-bench:
	cd bench/kvbench && $(CARGO) fmt --check && \
		$(CARGO) clippy --all-targets --quiet -- -D warnings

# Whether the fuzz targets compile; needs no nightly toolchain.
lint-fuzz:
	cd fuzz && RUSTFLAGS="--cfg fuzzing" $(CARGO) check --bins --quiet

lint-python:
	cd bindings/python && $(CARGO) fmt --check && \
		$(CARGO) clippy --all-targets --quiet -- -D warnings

## make python       build the Python package's wheel, install it in a virtual environment
##                   (target/python), and run its tests
python: build
	@sh scripts/python.sh $(KVFS)

## make install      install kvfs, its helpers for mount(8) and umount(8), man pages, completions
##                   and a systemd unit (PREFIX=/usr/local)
PREFIX ?= /usr/local
SBIN ?= /sbin
UNITS ?= $(PREFIX)/lib/systemd/system
SHARE = $(DESTDIR)$(PREFIX)/share
install: build install-files

# Of a program that is built: KVFS=target/debug/kvfs.
install-files:
	install -D -m 755 $(KVFS) $(DESTDIR)$(PREFIX)/bin/kvfs
	install -d $(DESTDIR)$(SBIN)
	ln -sf $(PREFIX)/bin/kvfs $(DESTDIR)$(SBIN)/mount.fuse.kvfs
	ln -sf $(PREFIX)/bin/kvfs $(DESTDIR)$(SBIN)/mount.kvfs
	ln -sf $(PREFIX)/bin/kvfs $(DESTDIR)$(SBIN)/umount.fuse.kvfs
	$(KVFS) man $(SHARE)/man/man1 >/dev/null
	install -d $(SHARE)/bash-completion/completions $(SHARE)/zsh/site-functions \
		$(SHARE)/fish/vendor_completions.d
	$(KVFS) completions bash >$(SHARE)/bash-completion/completions/kvfs
	$(KVFS) completions zsh >$(SHARE)/zsh/site-functions/_kvfs
	$(KVFS) completions fish >$(SHARE)/fish/vendor_completions.d/kvfs.fish
	install -D -m 644 packaging/grafana.json $(SHARE)/kvfs/grafana.json
	install -d $(DESTDIR)$(UNITS)
	sed 's,@BIN@,$(PREFIX)/bin,' packaging/kvfs@.service.in >$(DESTDIR)$(UNITS)/kvfs@.service

## make deb          a Debian package of the release build, in target/
deb: build
	sh scripts/deb.sh $(KVFS) target

## make boot         install that package in a clean Debian system, boot that with systemd in a
##                   container twice, with stores of the unit and of /etc/fstab, and remove it
##                   (root; mmdebstrap, systemd-container; BASE=FILE keeps the bare system)
boot: deb
	bash scripts/boot.sh target/kvfs_*.deb

## make packages     package the crates as for a registry, and build each package by itself
packages:
	sh scripts/packages.sh

clean:
	$(CARGO) clean
