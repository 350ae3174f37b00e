//! Hostile archives with valid checksums: headers, names, links, sizes, extension records and
//! sparse maps of any kind. An import must terminate and leave a sound file system.
//! `KVFS_HOSTILE=100000 cargo test -p kvfs-cli hostile` runs many.

use std::io::{BufRead, BufReader, Read};
use std::sync::Arc;

use kvdb::Kvdb;
use kvfs::{Fs, FsOptions, ROOT};

use super::*;
use crate::support::terminal::output::Exit;

/// Imports a stream directly into a file system, so that nothing is rolled back after a failure;
/// items are encoded and decoded as for the socket.
fn importer(fs: &Fs, stream: impl BufRead) -> Outcome {
    let output = Output::new(true);
    let mut importer = Importer::new(fs.clone(), b"/", kvfs::Caller::default())?;
    let mut give = |item: Item| {
        let mut bytes = Vec::new();
        item.encode(&mut bytes);
        let again = Item::decode(&mut bytes.into())?.expect("it is there");
        assert_eq!(again, item);
        importer.take(again)
    };
    Source::new(&output, &mut give).tar(stream)?;
    importer.finish()
}

struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        self.0.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }
    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
    fn one_in(&mut self, n: usize) -> bool {
        self.below(n) == 0
    }
}

const PATHS: [&str; 19] = [
    "a",
    "a/b",
    "a/b/c",
    "./a//b",
    "/abs",
    "../up",
    "a/../../up",
    ".",
    "",
    "/",
    ".kvfs/x",
    "x/.kvfs",
    "./.kvfs/x",
    "//.kvfs",
    ".kvfsx",
    "link",
    "link/through",
    "dir/",
    "a/b/c/d/e/f",
];
/// Records with numeric values.
const NUMBERED: [&[u8]; 5] = [b"mtime", b"atime", b"uid", b"gid", b"size"];
const NUMBERS: [&str; 10] = [
    "0",
    "1",
    "4096",
    "20000",
    "-1",
    "1e9",
    "9223372036854775807",
    "9223372036854775808",
    "18446744073709551615",
    "99999999999999999999999",
];

/// Appends one extension record, whose length includes its own digits.
fn record(out: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let body = key.len() + value.len() + 3;
    let mut len = body + 1;
    while body + len.to_string().len() != len {
        len = body + len.to_string().len();
    }
    out.extend_from_slice(len.to_string().as_bytes());
    out.extend_from_slice(&[b" ", key, b"=", value, b"\n"].concat());
}

fn header(random: &mut Random, kind: u8, path: &[u8], size: u64) -> tar::Header {
    let mut header =
        if random.one_in(3) { tar::Header::new_gnu() } else { tar::Header::new_ustar() };
    header.set_entry_type(tar::EntryType::new(kind));
    header.set_mode(random.next() as u32 & 0o7777);
    header.set_uid(random.next() >> 45);
    header.set_gid(7);
    header.set_mtime(random.next() >> 33);
    header.set_size(size);
    let bytes = header.as_mut_bytes();
    let len = path.len().min(100);
    bytes[..len].copy_from_slice(&path[..len]);
    let link = random.pick(&PATHS).as_bytes();
    bytes[157..157 + link.len()].copy_from_slice(link);
    if random.one_in(6) {
        // Corrupt any field except the checksum, which is recomputed.
        let at = random.below(500);
        bytes[at] = random.next() as u8;
    }
    header.set_cksum();
    header
}

fn put(out: &mut Vec<u8>, header: &tar::Header, content: &[u8]) {
    out.extend_from_slice(header.as_bytes());
    out.extend_from_slice(content);
    out.resize(out.len().next_multiple_of(512), 0);
}

fn archive(random: &mut Random) -> Vec<u8> {
    let mut out = Vec::new();
    for _ in 0..1 + random.below(12) {
        if random.one_in(3) {
            let mut records = Vec::new();
            for _ in 0..1 + random.below(4) {
                let number = random.pick(&NUMBERS).as_bytes().to_vec();
                match random.below(9) {
                    0 => record(&mut records, b"path", random.pick(&PATHS).as_bytes()),
                    1 => record(&mut records, b"linkpath", random.pick(&PATHS).as_bytes()),
                    2 => record(&mut records, NUMBERED[random.below(NUMBERED.len())], &number),
                    3 => record(
                        &mut records,
                        b"mtime",
                        random
                            .pick(&["-5.999999999", "1.", ".5", "9e9", "-9223372036854775807.5"])
                            .as_bytes(),
                    ),
                    4 => record(
                        &mut records,
                        b"SCHILY.xattr.user.a",
                        &vec![b'v'; *random.pick(&[0, 5, 5000, 70_000])],
                    ),
                    5 => record(
                        &mut records,
                        &[b"SCHILY.xattr.", &vec![b'n'; random.below(400)][..]].concat(),
                        b"v",
                    ),
                    6 => record(
                        &mut records,
                        b"GNU.sparse.map",
                        &[&number[..], b",", &number, b",5,5"].concat(),
                    ),
                    7 => {
                        record(&mut records, b"GNU.sparse.major", b"1");
                        record(&mut records, b"GNU.sparse.minor", b"0");
                        record(&mut records, b"GNU.sparse.name", random.pick(&PATHS).as_bytes());
                        record(&mut records, b"GNU.sparse.realsize", &number);
                    }
                    _ => records.extend_from_slice(&number),
                }
            }
            let it = header(random, b'x', b"pax", records.len() as u64);
            put(&mut out, &it, &records);
        }
        let path = random.pick(&PATHS).as_bytes().to_vec();
        let kind = *random.pick(b"00000557125346LKSgxVMA\0");
        let mut content = match kind {
            b'0' | b'\0' | b'7' | b'S' | b'L' | b'K' => vec![b'c'; random.below(9000)],
            _ => Vec::new(),
        };
        if random.one_in(4) {
            let map = format!("{}\n0\n10\n{}\n5\n", random.pick(&NUMBERS), random.pick(&NUMBERS));
            content.splice(0..0, map.into_bytes());
            content.resize(content.len().max(512), 0);
        }
        let said = if random.one_in(10) {
            random.next() >> random.below(64)
        } else {
            content.len() as u64
        };
        let it = header(random, kind, &path, said);
        put(&mut out, &it, &content);
    }
    if random.one_in(3) {
        out.resize(out.len() + 1024, 0);
    }
    if random.one_in(10) {
        out.truncate(random.below(out.len()));
    }
    out
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

#[test]
fn hostile_archives_leave_a_sound_file_system() {
    let base = number("KVFS_BASE", 0);
    let (mut taken, mut refused) = (0, 0);
    for seed in base..base + number("KVFS_HOSTILE", 1500) {
        let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
        random.next();
        let bytes = archive(&mut random);
        let fs =
            Fs::open(Kvdb::in_memory(), Arc::new(env::Simulated::new(seed)), FsOptions::default())
                .expect("a file system");
        match importer(&fs, &bytes[..]) {
            Ok(()) => taken += 1,
            Err(failure) => {
                assert!(failure.exit != Exit::Damaged, "seed {seed}: {}", failure.message);
                refused += 1;
            }
        }
        let report = fs.verify().expect("readable");
        assert!(report.is_clean(), "seed {seed}: {:?}", report.findings);
        assert!(
            matches!(fs.lookup(ROOT, b".kvfs"), Err(kvfs::Error::NotFound)),
            "seed {seed}: something under the views"
        );
    }
    // A generator whose archives are all refused at once would test nothing.
    assert!(taken > 0 && refused > 0, "{taken} taken, {refused} refused");
}

/// Imports a stream. Returns the outcome and the file system.
fn imported(stream: impl BufRead) -> (Outcome, Fs) {
    let fs = Fs::open(Kvdb::in_memory(), Arc::new(env::Simulated::new(1)), FsOptions::default())
        .expect("a file system");
    (importer(&fs, stream), fs)
}

/// An endless stream, which fails once far more is read than allowed.
struct Endless(u64);

impl Read for &mut Endless {
    fn read(&mut self, buf: &mut [u8]) -> io::Result<usize> {
        self.0 += buf.len() as u64;
        if self.0 > 64 << 20 {
            return Err(io::Error::other("too much was read"));
        }
        buf.fill(b'1');
        Ok(buf.len())
    }
}

#[test]
fn what_describes_an_entry_is_not_read_without_end() {
    for kind in *b"xLK" {
        let mut header = tar::Header::new_gnu();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_size(1 << 33);
        header.set_cksum();
        let mut endless = Endless(0);
        let done = imported(BufReader::new(header.as_bytes().as_slice().chain(&mut endless))).0;
        let message = done.expect_err("refused").message;
        assert!(
            message.contains("longer than 8 MiB") && endless.0 < 20 << 20,
            "{message}: {} bytes read",
            endless.0
        );
    }
}

/// Contents bypass the `tar` crate. So the entry after a content must be found wherever pieces of
/// the stream end, and a stream that ends within a content must be refused.
#[test]
fn contents_are_what_they_are_in_pieces_of_any_size_and_never_cut_short() {
    let sizes = [0, 1, 511, 512, 513, 4096, 40_000, (1 << 20) + 5];
    let content = |n: usize| (0..sizes[n]).map(|at| (at * 7 + n) as u8).collect::<Vec<u8>>();
    let mut archive = tar::Builder::new(Vec::new());
    for (n, size) in sizes.iter().enumerate() {
        let mut header = tar::Header::new_gnu();
        header.set_size(*size as u64);
        header.set_mode(0o644);
        archive.append_data(&mut header, n.to_string(), &content(n)[..]).expect("appended");
    }
    let bytes = archive.into_inner().expect("written");
    for piece in [1, 100, 512, 1000, 256 << 10] {
        let (done, fs) = imported(BufReader::with_capacity(piece, &bytes[..]));
        done.expect("imported");
        for (n, size) in sizes.iter().enumerate() {
            let ino = fs.lookup(ROOT, n.to_string().as_bytes()).expect("it is there").ino;
            let there = fs.read(ino, 0, 2 << 20).expect("read");
            assert!(there[..] == content(n)[..], "file {n} of {size} bytes in pieces of {piece}");
        }
    }
    // The last content is followed by padding and two blocks of zeros.
    let behind = 512 - sizes[7] % 512 + 1024;
    for missing in [1, 513, 40_000, (1 << 20) + 4] {
        let cut = &bytes[..bytes.len() - behind - missing];
        let (done, _) = imported(BufReader::with_capacity(1000, cut));
        let message = done.expect_err("cut short").message;
        assert!(message.contains("cannot be read"), "{message}");
    }
}

/// A sparse file in GNU's own format, with more parts than the header has room for.
#[test]
fn holes_of_any_size_cost_nothing() {
    let parts: Vec<(u64, u64)> =
        (0..30).map(|i| (i << 55, 512)).chain([((1 << 60) + 512, 0)]).collect();
    let part = |to: &mut tar::GnuSparseHeader, (at, len): (u64, u64)| {
        for (field, n) in [(&mut to.offset, at), (&mut to.numbytes, len)] {
            // The encoding of large numbers.
            field.fill(0);
            field[0] = 0x80;
            field[4..].copy_from_slice(&n.to_be_bytes());
        }
    };
    let mut header = tar::Header::new_gnu();
    header.set_entry_type(tar::EntryType::GNUSparse);
    header.set_path("sparse").expect("a path");
    header.set_mode(0o644);
    header.set_size(30 * 512);
    let gnu = header.as_gnu_mut().expect("of that form");
    gnu.sparse.iter_mut().zip(&parts).for_each(|(to, place)| part(to, *place));
    gnu.isextended[0] = 1;
    gnu.realsize.fill(0);
    gnu.realsize[0] = 0x80;
    gnu.realsize[4..].copy_from_slice(&((1u64 << 60) + 512).to_be_bytes());
    header.set_cksum();
    let mut bytes = header.as_bytes().to_vec();
    for (n, some) in parts[4..].chunks(21).enumerate() {
        let mut more = tar::GnuExtSparseHeader::new();
        more.sparse.iter_mut().zip(some).for_each(|(to, place)| part(to, *place));
        more.isextended[0] = u8::from(n == 0);
        bytes.extend_from_slice(more.as_bytes());
    }
    (0..30u8).for_each(|i| bytes.extend([i + 1; 512]));
    let mut next = tar::Header::new_gnu();
    next.set_path("next").expect("a path");
    next.set_mode(0o644);
    next.set_size(4);
    next.set_cksum();
    put(&mut bytes, &next, b"next");
    let (done, fs) = imported(&bytes[..]);
    assert!(done.is_ok(), "{:?}", done.map_err(|failure| failure.message));
    let attr = fs.lookup(ROOT, b"sparse").expect("there");
    assert_eq!(attr.size, (1 << 60) + 512);
    for i in 0..30 {
        let found = fs.read(attr.ino, i << 55, 513).expect("read").to_vec();
        assert_eq!(found, [vec![i as u8 + 1; 512], vec![0]].concat(), "part {i}");
    }
    let next = fs.lookup(ROOT, b"next").expect("there");
    assert_eq!(fs.read(next.ino, 0, 10).expect("read").to_vec(), b"next");
}

/// The last of several entries with one path counts, in any combination: small and large files,
/// links to them, directories in between.
#[test]
fn the_last_entry_of_a_path_counts() {
    for seed in 1..200 {
        let mut random = Random(seed * 0x9e37_79b9);
        let mut bytes = Vec::new();
        let mut wanted: std::collections::BTreeMap<String, (Vec<u8>, u8)> =
            std::collections::BTreeMap::new();
        for n in 0..40u8 {
            let path = format!("{}/f{}", random.pick(&["a", "b", "a/c"]), random.below(4));
            let mut header = tar::Header::new_gnu();
            header.set_mode(0o640);
            header.set_mtime(u64::from(n));
            let content = match random.below(8) {
                0 => vec![n; BATCH + 5000],
                1 => Vec::new(),
                _ => vec![n; random.below(9000)],
            };
            if random.one_in(6)
                && let Some(target) = wanted.keys().next().cloned()
            {
                // A link to an existing file: it has the current content of its target.
                let of = wanted[&target].clone();
                header.set_entry_type(tar::EntryType::Link);
                header.set_size(0);
                header.set_link_name(&target).expect("a name");
                header.set_path(&path).expect("a path");
                header.set_cksum();
                put(&mut bytes, &header, b"");
                wanted.insert(path, of);
                continue;
            }
            if random.one_in(10) {
                let mut directory = tar::Header::new_gnu();
                directory.set_entry_type(tar::EntryType::Directory);
                directory.set_path(random.pick(&["a", "b/", "new"])).expect("a path");
                directory.set_mode(0o755);
                directory.set_size(0);
                directory.set_cksum();
                put(&mut bytes, &directory, b"");
            }
            header.set_size(content.len() as u64);
            header.set_path(&path).expect("a path");
            header.set_cksum();
            put(&mut bytes, &header, &content);
            wanted.insert(path, (content, n));
        }
        let (done, fs) = imported(&bytes[..]);
        assert!(done.is_ok(), "seed {seed}: {:?}", done.map_err(|failure| failure.message));
        for (path, (content, n)) in &wanted {
            let attr =
                fs.resolve(path.as_bytes()).unwrap_or_else(|e| panic!("seed {seed}: {path}: {e}"));
            let found = fs.read(attr.ino, 0, 4 << 20).expect("read");
            assert!(
                found[..] == content[..],
                "seed {seed}: {path}: {} bytes, not {}",
                found.len(),
                content.len()
            );
            assert_eq!((attr.perm, attr.mtime.secs), (0o640, i64::from(*n)), "seed {seed}: {path}");
        }
        assert!(fs.verify().expect("readable").is_clean(), "seed {seed}");
    }
}

/// Complete files are made later, in groups; a directory with pending files is not empty.
#[test]
fn what_waits_to_be_made_in_a_directory_keeps_it_from_being_replaced() {
    let mut out = Vec::new();
    for (kind, path, content) in
        [(b'5', "d", &b""[..]), (b'0', "d/x", b"content"), (b'2', "d", b""), (b'0', "y", b"")]
    {
        let mut header = tar::Header::new_ustar();
        header.set_entry_type(tar::EntryType::new(kind));
        header.set_mode(0o700);
        header.set_size(content.len() as u64);
        let bytes = header.as_mut_bytes();
        bytes[..path.len()].copy_from_slice(path.as_bytes());
        bytes[157..161].copy_from_slice(b"else");
        header.set_cksum();
        put(&mut out, &header, content);
    }
    out.resize(out.len() + 1024, 0);
    let (done, fs) = imported(&out[..]);
    let failure = done.expect_err("d is not empty");
    assert!(failure.message.contains("cannot make the symbolic link d"), "{}", failure.message);
    let found = fs.resolve(b"d/x").expect("it stays");
    assert_eq!(&fs.read(found.ino, 0, 100).expect("readable")[..], b"content");
}
