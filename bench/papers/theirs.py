"""The tables and figures of the papers that can be run here: what they say, what of ours stands
beside it, and what differs."""

from typing import Callable, NamedTuple

from results import OURS, figure, seconds, traffic


class Row(NamedTuple):
    what: str
    theirs: str
    # Takes the results of a profile; gives a value for each round.
    ours: Callable
    differs: str
    # Values are parts, shown as percent more or less.
    percent: bool = False


def best(case):
    """How many times as fast as the best of ext4, btrfs and xfs."""
    return lambda r: r.ratios(case)


def over(case, peer="ext4", value=seconds):
    """How many times as fast as one peer."""
    return lambda r: r.quotients((case, peer), (case, OURS), value)


def faster(case, than):
    """How many times as fast as another case of ours."""
    return lambda r: r.quotients((than, OURS), (case, OURS))


def more_traffic(*cases):
    """How much more is read and written than by ext4."""
    return lambda r: [
        q - 1 for case in cases for q in r.quotients((case, OURS), (case, "ext4"), traffic)
    ]


def over_max(case, threshold, name="ops_per_s"):
    """How many times as much as without stitching."""
    return lambda r: r.quotients((case, threshold), (case, "max"), figure(name))


def a_byte(x):
    return x["seconds"] / x["bytes"]


def a_file(x):
    rate = figure("files_per_s")(x)
    return rate and 1 / rate


def unlink_growth(r):
    sizes = [case for case in r.cases if case.startswith("unlink of ") and case.endswith("MiB")]
    return r.quotients((sizes[-1], OURS), (sizes[0], OURS)) if len(sizes) > 1 else []


def written(case):
    return lambda r: r.values(case, "adaptive", figure("write_amp"))


APPEND, JOURNALLED = "append, 8192 B", "append, 4096 B"
NAMES = [f"{what} of names" for what in ("create", "rename", "unlink")]

PAPERS = (
    (
        "VT-tree, KVDB and KVFS (FAST '13)",
        (
            Row(
                "Figure 5, §4.1: appends at threshold 0 over the highest",
                "2.5 (SSD), 3.4 (disk)",
                over_max(APPEND, "0"),
                "tuples of 8 KiB, one a block, 4 KiB there; 1.6 GiB, there 10 GB; memtables of 8 "
                "MiB and no journal in both",
            ),
            Row(
                "the same, threshold of 7 blocks",
                "2.4 (disk)",
                over_max(APPEND, "57344"),
                "as above",
            ),
            Row(
                "the same, threshold of 15 blocks",
                "1.6 (disk)",
                over_max(APPEND, "122880"),
                "as above",
            ),
            Row(
                "threshold 0 as a store has it",
                "–",
                over_max(JOURNALLED, "0"),
                "with a journal, and two tuples a block",
            ),
            Row(
                "Figure 6, §4.1: scan of these at threshold 0 over the highest",
                "0.09 (disk)",
                over_max(APPEND, "0", "scan_mb_s"),
                "32 MiB are scanned",
            ),
            Row(
                "Table 2: sequential read over ext4",
                "0.98",
                over("sequential read, 16 KiB each"),
                "an SSD there; a file of 512 MiB, 30 GB there",
            ),
            Row(
                "Table 2: sequential write over ext4",
                "0.89",
                over("sequential write, 4 KiB each"),
                "as above; until it is durable",
            ),
            Row("Table 2: random read over ext4", "0.92", over("random 4 KiB reads"), "as above"),
            Row(
                "Table 2: random write over ext4",
                "2.07",
                over("random 4 KiB writes + fsync"),
                "as above; one fsync at the end",
            ),
            Row(
                "Table 3: file server over ext4",
                "1.22",
                over("fileserver, files of 32 KiB"),
                "restated in Python; 8,000 files, 400,000 there; a number of loops, ten minutes "
                "there",
            ),
            Row(
                "Table 3: web server over ext4",
                "0.93",
                over("webserver"),
                "restated; 20 processes, 100 threads there; each appends after ten reads, there "
                "one thread does",
            ),
            Row(
                "Figure 8: unpack, build, find, read over ext4",
                "0.92",
                over("build"),
                "zstd, not Linux; until it is durable; see the table of builds",
            ),
            Row(
                "Figure 8: this in a transaction (si) over the plain mount",
                "1.00",
                faster("build in a transaction, si", "build"),
                "as above",
            ),
            Row(
                "Figure 8: this in a transaction (ser) over the plain mount",
                "0.91",
                faster("build in a transaction, ser", "build"),
                "as above",
            ),
            Row(
                "Table 4: four at once over ext4",
                "0.88",
                over("four builds at once"),
                "as above; memory holds all, there it does not",
            ),
            Row(
                "Table 4: four at once in transactions over the plain mount",
                "1.05",
                faster("four builds at once, in transactions", "four builds at once"),
                "as above",
            ),
        ),
    ),
    (
        "BetrFS 0.2 (FAST '16)",
        (
            Row(
                "Figure 4: rename of a small file, then fsync",
                "0.27 (66 ms; the median of others 18)",
                best("rename + fsync, files of 4 KiB"),
                "ratio to the best of others",
            ),
            Row(
                "Figure 4: rename of a file of 1 MiB, then fsync",
                "about 1",
                best("rename + fsync, files of 1 MiB"),
                "as above",
            ),
            Row(
                "Figure 5: sequential write",
                "about 0.9 (96 MiB/s)",
                best("sequential write"),
                "1 GiB, 10 GiB there",
            ),
            Row(
                "Figure 5: sequential read", "somewhat below 1", best("sequential read"), "as above"
            ),
            Row(
                "Table 1: find",
                "10.0 (0.35 s, ext4 3.51)",
                best("find, fresh"),
                "a generated tree of 6,000 files, there Linux 3.11.10",
            ),
            Row(
                "Table 1: grep -r", "2.2 (5.78 s, btrfs 12.77)", best("grep -r, fresh"), "as above"
            ),
            Row("Table 1: mv", "0.62 (0.13 s, xfs 0.08)", best("mv, fresh"), "as above"),
            Row("Table 1: rm -rf", "1.8 (2.37 s, ext4 4.17)", best("rm -rf, fresh"), "as above"),
            Row(
                "Table 2: overwrites of 4 bytes, then fsync",
                "326 (0.32 s, btrfs 104.18)",
                best("4-byte overwrites + fsync"),
                "1,000 in 2 GiB, there 10,000 in 10 GiB",
            ),
            Row(
                "Figure 7: unlink of a file four times as large, seconds over seconds",
                "flat",
                unlink_growth,
                "256 MiB and 1 GiB",
            ),
            Row(
                "Figure 8: TokuBench, files a second until all are made",
                "3 and more",
                lambda r: r.ratios("TokuBench + sync", a_file),
                "100,000 files by four processes on two cores, there 3 million on four; memory "
                "holds all",
            ),
            Row("the same until it is durable", "–", best("TokuBench + sync"), "as above"),
            Row(
                "Figure 9 (a): rsync",
                "well above 1",
                best("rsync"),
                "the tree of Table 1; until it is durable",
            ),
            Row(
                "Figure 9 (a): rsync --inplace", "well above 1", best("rsync --inplace"), "as above"
            ),
            Row(
                "Figure 9: git clone",
                "about 1",
                best("git clone"),
                "a repository of 6,000 files and 200 commits",
            ),
            Row(
                "Figure 9: git diff",
                "above 1",
                best("git diff"),
                "between its first and its last commit",
            ),
            Row(
                "Figure 9: mail",
                "above 1, zfs faster",
                best("mail"),
                "Dovecot there; here what a maildir server calls",
            ),
            Row(
                "Figure 9: tar",
                "–",
                best("tar of the tree"),
                "the tree is packed, into the same file system",
            ),
            Row(
                "Figure 10: rate of a read in order after random overwrites over that before",
                "0.98 (85, 87 MiB/s)",
                lambda r: r.quotients(
                    ("sequential read", OURS), ("read in order what was overwritten", OURS), a_byte
                ),
                "5,000 pages of 2 GiB, there 10,000 of 10 GiB",
            ),
        ),
    ),
    (
        "KEVIN (OSDI '21)",
        (
            Row(
                "Figure 9 (a): creat over ext4",
                "up to 43.8",
                over("create of names"),
                "20,000, not 8 million; one process, 16 there; an SSD there",
            ),
            Row("Figure 9 (a): mkdir over ext4", "up to 43.8", over("mkdir"), "as above"),
            Row(
                "Figure 9 (a): unlink over ext4", "up to 43.8", over("unlink of names"), "as above"
            ),
            Row("Figure 9 (a): rmdir over ext4", "up to 43.8", over("rmdir"), "as above"),
            Row(
                "Figure 9 (a): readdir over ext4",
                "below 1",
                over("readdir, fresh"),
                "2,000 directories of five files, 800,000 there",
            ),
            Row(
                "the same, the second time",
                "1.6 times the first (120, 75 kops/s)",
                faster("readdir again, fresh", "readdir, fresh"),
                "over the first time; nothing is rewritten here by a listing",
            ),
            Row(
                "Figure 9 (b): bytes to and from the device, over ext4",
                "-74%",
                more_traffic(*NAMES),
                "create, rename and unlink of names",
                percent=True,
            ),
            Row(
                "Figure 11: creat-4K over ext4",
                "above 1",
                over("create of 4 KiB files"),
                "4,000 files, there 8 million",
            ),
            Row("Figure 11: cp over ext4", "about 1", over("cp of 4 KiB files"), "as above"),
            Row(
                "Figure 11: unlink-4K over ext4",
                "above 1",
                over("unlink of 4 KiB files"),
                "as above",
            ),
            Row(
                "Figure 12: random write over ext4",
                "a little below 1",
                over("random 4 KiB writes + fsync"),
                "512 MiB and one process, there 32 GB and 16",
            ),
            Row(
                "Figure 12: random read over ext4",
                "above 1",
                over("random 4 KiB reads"),
                "as above",
            ),
            Row(
                "Figure 12: random read after random write over ext4",
                "above 1",
                over("random 4 KiB reads after random writes"),
                "as above",
            ),
            Row(
                "Figure 13: varmail over ext4",
                "1.37",
                over("varmail"),
                "restated in Python; 1,000 files, 3.2 million there; a number of loops",
            ),
            Row(
                "Figure 13: OLTP over ext4",
                "above 1.26 (F2FS)",
                over("oltp"),
                "as above; 8 files of 2 MiB",
            ),
            Row(
                "Figure 13: file server over ext4",
                "0.77",
                over("fileserver, files of 128 KiB"),
                "as above; 2,000 files, 800,000 there",
            ),
            Row(
                "Figure 13: web server over ext4",
                "0.90",
                over("webserver"),
                "as above; 1,000 files, 1.6 million there",
            ),
            Row(
                "Figure 13: web proxy over ext4",
                "above 1",
                over("webproxy"),
                "as above; 2,000 files, 2 million there",
            ),
            Row("Figure 14: clone over ext4", "above 1", over("git clone"), "see BetrFS, Figure 9"),
            Row("Figure 14: rsync over ext4", "above 1", over("rsync"), "see BetrFS, Figure 9"),
            Row("Figure 14: a build over ext4", "about 1", over("build"), "see VT-tree, Figure 8"),
            Row(
                "Figure 15 (a): creat over ext4, aged",
                "above 1",
                over("create of names, aged"),
                "beside a tree aged at random; the device is not filled",
            ),
            Row(
                "Figure 15 (a): unlink over ext4, aged",
                "above 1",
                over("unlink of names, aged"),
                "as above",
            ),
            Row(
                "Figure 16 (b): readdir over ext4, aged",
                "above 1 from the second aging on",
                over("readdir, aged at random"),
                "directories aged by removals and renames, not by Geriatrix",
            ),
        ),
    ),
    (
        "DeLSM",
        (
            *(
                Row(
                    f"Table 2: bytes written for each of write, delete, write of {size} B",
                    said,
                    written(f"wdw, {size} B"),
                    "by the store, its journal included; an eighth of theirs and less",
                )
                for size, said in ((512, "3.0 (LevelDB 12.1)"), (4096, "2.5 (LevelDB 16.5)"))
            ),
        ),
    ),
)

# What has no case here, with the reason.
NOT_RUN = (
    (
        "VT-tree Figures 1 to 4, Table 1; BetrFS Figures 1 and 2; KEVIN Figures 2 to 8, Tables 1 "
        "and 2; DeLSM Figures 1 to 4, Table 1",
        "they show structures",
    ),
    (
        "VT-tree §4.1 sequential insertion and point queries, Figure 7 (KVDB and LevelDB)",
        "in [kv.md](kv.md), beside LevelDB, RocksDB and others on the machine's disk, with curves "
        "over time",
    ),
    ("VT-tree §4.4, defragmentation", "in [defrag.md](defrag.md), on the machine's disk"),
    (
        "VT-tree Tables 2 to 4, FUSE on ext4",
        "in [files.md](files.md), bindfs on the machine's disk",
    ),
    (
        "BetrFS Figure 3, zone sizes",
        "by counts of seeks in [051](../decisions/051-zones-of-the-name-space.md); a rename costs "
        "one tuple at any size",
    ),
    ("BetrFS Figure 6 and the rows of BetrFS 0.1; the rows of zfs", "neither runs on this kernel"),
    ("KEVIN Figure 1", "it compares six SSDs under ext4"),
    ("KEVIN Figure 9 and others, F2FS", "this kernel has none"),
    ("KEVIN Figure 10", "what happens inside of its SSD"),
    ("KEVIN Figure 12 (b), traffic by purpose", "the model knows bytes, not what they are for"),
    ("KEVIN Figure 14, TPC-C", "needs MySQL and 14 GB"),
    (
        "KEVIN Figures 15 (b), (c) and 16 (a)",
        "need a device that is overwritten six times; here a disk is filled once, to a third",
    ),
    ("KEVIN Figure 17", "needs TokuDB in the kernel"),
    (
        "DeLSM Figures 5 and 6",
        "loads of db_bench: in [kv.md](kv.md) with other sizes; WiscKey, LDS, BoLT and PebblesDB "
        "are not built here",
    ),
)
