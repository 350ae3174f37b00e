//! Stores with hostile content and valid checksums: small sound file systems, into whose
//! dictionaries the tests put raw tuples that no file system can have made. The encoding follows
//! `docs/format.md` and is implemented a second time here, so that anything can be encoded.
#![allow(dead_code)]

use kvdb::{Batch, DictionaryId, Durability, Kvdb};
use kvfs::{Caller, FileKind, Fs, ROOT, XattrFlags};

pub const LIMIT: u64 = 1 << 48;

pub struct Random {
    state: u64,
    silent: bool,
}

impl Random {
    pub fn new(seed: u64) -> Random {
        let mut random =
            Random { state: seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1, silent: false };
        for _ in 0..4 {
            random.next();
        }
        random
    }
    pub fn next(&mut self) -> u64 {
        self.state ^= self.state << 13;
        self.state ^= self.state >> 7;
        self.state ^= self.state << 17;
        self.state.wrapping_mul(0x2545_f491_4f6c_dd1d)
    }
    pub fn below(&mut self, n: usize) -> usize {
        (self.next() >> 33) as usize % n.max(1)
    }
    pub fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
    pub fn one_in(&mut self, n: usize) -> bool {
        !self.silent && self.below(n) == 0
    }
    /// From here on a change is skipped once in this many times.
    pub fn silent(&mut self) {
        self.silent = true;
    }
}

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

pub fn name_key(parent: u64, name: &[u8]) -> Vec<u8> {
    [&parent.to_be_bytes(), name].concat()
}

pub fn entry(kind: u8, ino: u64) -> Vec<u8> {
    let mut out = vec![1 << 4 | kind];
    varint(&mut out, ino);
    out
}

/// The name, the place, the stated length, and the value.
type Xattr = (Vec<u8>, u8, u64, Vec<u8>);

/// A node, field by field.
#[derive(Clone)]
pub struct Node {
    pub version: u8,
    pub kind: u8,
    pub perm: u16,
    pub numbers: [u64; 4],
    pub rdev: Option<u64>,
    pub parent: Option<u64>,
    pub pages: Option<u64>,
    pub nanos: u32,
    /// The stated count, and the name, place and length of each.
    pub xattrs: Option<(u64, Vec<Xattr>)>,
    pub content: Vec<u8>,
}

impl Node {
    /// Returns the node that a writer would make.
    pub fn sound(kind: u8, parent: u64) -> Node {
        let links = if kind == 1 { 2 } else { 1 };
        Node {
            version: 1,
            kind,
            perm: 0o755,
            numbers: [links, 0, 0, 0],
            rdev: None,
            parent: Some(parent),
            pages: None,
            nanos: 0,
            xattrs: None,
            content: Vec::new(),
        }
    }

    pub fn encode(&self) -> Vec<u8> {
        let flags = u16::from(self.rdev.is_some()) << 3
            | u16::from(self.parent.is_some()) << 4
            | u16::from(self.pages.is_some()) << 5
            | u16::from(self.xattrs.is_some()) << 6;
        let mut out = vec![self.version];
        out.extend_from_slice(&flags.to_le_bytes());
        out.extend_from_slice(&(u16::from(self.kind) << 12 | self.perm & 0o7777).to_le_bytes());
        self.numbers.iter().for_each(|n| varint(&mut out, *n));
        varint(&mut out, 2_000_000_000);
        out.extend_from_slice(&self.nanos.to_le_bytes());
        [self.rdev, self.parent, self.pages]
            .into_iter()
            .flatten()
            .for_each(|n| varint(&mut out, n));
        if let Some((count, all)) = &self.xattrs {
            varint(&mut out, *count);
            for (name, place, len, value) in all {
                varint(&mut out, name.len() as u64);
                out.extend_from_slice(name);
                out.push(*place);
                varint(&mut out, *len);
                out.extend_from_slice(value);
            }
        }
        out.extend_from_slice(&self.content);
        out
    }
}

pub struct Dictionaries {
    pub nmap: DictionaryId,
    pub imap: DictionaryId,
    pub dmap: DictionaryId,
}

impl Dictionaries {
    pub fn of(db: &Kvdb) -> Dictionaries {
        let of = |name| db.dictionary(name).expect("made with the file system");
        Dictionaries { nmap: of("nmap"), imap: of("imap"), dmap: of("dmap") }
    }
}

/// Makes a small tree with every kind of file. Returns its inodes.
pub fn sound(fs: &Fs) -> Vec<u64> {
    let user = Caller { uid: 1000, gid: 100, pid: 7 };
    let a = fs.mkdir(ROOT, b"a", 0o755, user).expect("made").ino;
    let b = fs.mkdir(a, b"b", 0o755, user).expect("made").ino;
    let c = fs.mkdir(b, b"c", 0o755, user).expect("made").ino;
    let small = fs.mknod(a, b"small", FileKind::File, 0o644, 0, user).expect("made").ino;
    fs.write(small, 0, b"small", Default::default()).expect("written");
    let large = fs.mknod(b, b"large", FileKind::File, 0o644, 0, user).expect("made").ino;
    fs.write(large, 0, &[7; 20_000], Default::default()).expect("written");
    fs.write(large, 1 << 20, &[8; 5000], Default::default()).expect("written");
    fs.setxattr(large, b"user.small", b"1", XattrFlags::Any).expect("set");
    fs.setxattr(small, b"user.large", &[1; 5000], XattrFlags::Any).expect("set");
    fs.link(large, c, b"linked").expect("linked");
    let link = fs.symlink(c, b"link", b"../large", user).expect("made").ino;
    let fifo = fs.mknod(c, b"fifo", FileKind::Fifo, 0o644, 0, user).expect("made").ino;
    fs.sync_all().expect("synced");
    let all = vec![ROOT, a, b, c, small, large, link, fifo];
    all.iter().for_each(|ino| fs.forget(*ino, 2));
    all
}

fn number(random: &mut Random, known: &[u64]) -> u64 {
    match random.below(10) {
        0 => *random.pick(&[
            0,
            2,
            1000,
            LIMIT - 1,
            LIMIT,
            LIMIT + 1,
            1 << 63,
            u64::MAX - 1,
            u64::MAX,
        ]),
        1 => random.next() >> random.below(64),
        _ => *random.pick(known),
    }
}

fn size(random: &mut Random) -> u64 {
    match random.below(3) {
        0 => *random.pick(&[
            0,
            1,
            4095,
            4096,
            4097,
            u64::from(u32::MAX),
            1 << 40,
            i64::MAX as u64,
            1 << 63,
            u64::MAX,
        ]),
        1 => random.next() >> random.below(64),
        _ => random.below(30_000) as u64,
    }
}

fn bytes(random: &mut Random) -> Vec<u8> {
    let len = match random.below(12) {
        0 => *random.pick(&[4096, 4097, 32 << 10, 300_000, 2 << 20]),
        1 => 0,
        _ => random.below(60),
    };
    let fill = random.next() as u8;
    let mut out = vec![fill; len];
    out.iter_mut().take(200).for_each(|b| *b = random.next() as u8);
    out
}

fn name(random: &mut Random) -> Vec<u8> {
    let hostile: [&[u8]; 11] = [
        b"",
        b".",
        b"..",
        b"/",
        b"/etc/passwd",
        b"../x",
        b"a/b",
        b"nul\0",
        b"\0",
        &[b'n'; 256],
        &[b'n'; 20_000],
    ];
    match random.below(3) {
        0 => random.pick(&hostile).to_vec(),
        1 => random
            .pick(&[
                &b"a"[..],
                b"b",
                b"c",
                b"small",
                b"large",
                b"new",
                b"\xff",
                b".kvfs",
                &[b'n'; 255],
            ])
            .to_vec(),
        _ => format!("n{}", random.below(50)).into_bytes(),
    }
}

fn node(random: &mut Random, known: &[u64]) -> Vec<u8> {
    let kind = if random.one_in(8) { random.below(16) as u8 } else { random.below(7) as u8 };
    let parent = number(random, known);
    let mut node = Node::sound(kind, parent);
    for _ in 0..1 + random.below(4) {
        match random.below(13) {
            0 => node.version = random.next() as u8,
            1 => node.perm = random.next() as u16,
            2 => {
                node.numbers[0] = *random.pick(&[
                    0,
                    1,
                    2,
                    1000,
                    u64::from(u32::MAX) - 1,
                    u64::from(u32::MAX),
                    1 << 40,
                ])
            }
            3 => node.numbers[1 + random.below(2)] = size(random),
            4 | 5 => node.numbers[3] = size(random),
            6 => node.rdev = Some(size(random)),
            7 => node.parent = if random.one_in(2) { None } else { Some(number(random, known)) },
            8 => {
                node.pages = Some(if random.one_in(2) {
                    node.numbers[3].div_ceil(4096)
                } else {
                    size(random)
                })
            }
            9 => node.nanos = *random.pick(&[999_999_999, 1_000_000_000, u32::MAX]),
            10 => {
                let count = 1 + random.below(4);
                let mut one = || {
                    let value = bytes(random);
                    let said = if random.one_in(3) { size(random) } else { value.len() as u64 };
                    (
                        name(random),
                        random.below(3) as u8,
                        said,
                        if random.one_in(3) { Vec::new() } else { value },
                    )
                };
                let all: Vec<_> = (0..count).map(|_| one()).collect();
                let said = if random.one_in(3) { size(random) } else { all.len() as u64 };
                node.xattrs = Some((said, all));
            }
            _ => {
                node.content = bytes(random);
                if random.one_in(2) {
                    node.numbers[3] = node.content.len() as u64;
                }
            }
        }
    }
    let mut out = node.encode();
    if random.one_in(6) {
        out.truncate(random.below(out.len()));
    }
    if random.one_in(6) && !out.is_empty() {
        let at = random.below(out.len().min(100));
        out[at] = random.next() as u8;
    }
    out
}

/// One hostile change of the store.
fn harm(random: &mut Random, d: &Dictionaries, known: &mut Vec<u64>, batch: &mut Batch) {
    let free = 5000 + random.below(1000) as u64;
    match random.below(13) {
        // An entry in any directory, with any name, for any inode.
        0..=2 => {
            let mut value = entry(
                if random.one_in(6) { random.below(16) as u8 } else { random.below(7) as u8 },
                number(random, known),
            );
            if random.one_in(6) {
                value[0] = random.next() as u8;
            }
            if random.one_in(10) {
                value.extend(bytes(random));
            }
            batch.put(d.nmap, name_key(number(random, known), &name(random)), value);
        }
        3 => batch.put(d.nmap, bytes(random), bytes(random)),
        // A node that replaces a sound one, or a new one with a name.
        4..=6 => {
            let ino = if random.one_in(2) { free } else { number(random, known) };
            batch.put(d.imap, ino.to_be_bytes().to_vec(), node(random, known));
            let kind = random.below(7) as u8;
            batch.put(
                d.nmap,
                name_key(number(random, known), format!("named{ino}").as_bytes()),
                entry(kind, ino),
            );
            known.push(ino);
        }
        7 => {
            let mut key = bytes(random);
            if random.one_in(2) {
                key = [
                    &number(random, known).to_be_bytes()[..],
                    &[*random.pick(b"\x01som")],
                    &name(random),
                ]
                .concat();
            }
            batch.put(d.imap, key, bytes(random));
        }
        // Pages.
        8 => {
            let block = *random.pick(&[0, 1, 4, 255, 256, 1 << 40, 1 << 52, u64::MAX]);
            let key = [number(random, known).to_be_bytes(), block.to_be_bytes()].concat();
            batch.put(d.dmap, if random.one_in(6) { bytes(random) } else { key }, bytes(random));
        }
        // A directory in itself, in one below it, or with a second name.
        9 => {
            let ino = *random.pick(&known[..4.min(known.len())]);
            let within = *random.pick(&known[..4.min(known.len())]);
            batch.put(d.nmap, name_key(within, b"again"), entry(1, ino));
            if random.one_in(2) {
                let mut node = Node::sound(1, within);
                node.numbers[3] = 1 + random.below(3) as u64;
                batch.put(d.imap, ino.to_be_bytes().to_vec(), node.encode());
            }
        }
        // A ladder: each directory has two names in the one above it, so the number of paths
        // doubles with each step.
        10 => {
            let mut above = *random.pick(&known[..4.min(known.len())]);
            for step in free * 100..free * 100 + 40 {
                for side in [b"left".as_slice(), b"right"] {
                    batch.put(d.nmap, name_key(above, side), entry(1, step));
                }
                let mut node = Node::sound(1, above);
                node.numbers = [4, 0, 0, 2];
                batch.put(d.imap, step.to_be_bytes().to_vec(), node.encode());
                above = step;
            }
        }
        // A cycle of directories that is not reachable from the root.
        11 => {
            let (one, other) = (free * 100, free * 100 + 1);
            for (ino, parent) in [(one, other), (other, one)] {
                batch.put(d.imap, ino.to_be_bytes().to_vec(), Node::sound(1, parent).encode());
                batch.put(d.nmap, name_key(parent, b"round"), entry(1, ino));
            }
            batch.put(
                d.nmap,
                name_key(*random.pick(&known[..4.min(known.len())]), b"into"),
                entry(1, one),
            );
            known.push(one);
        }
        // The file system's own record, and false orphans.
        _ => {
            let key = match random.below(3) {
                0 => [&[0; 8][..], b"s"].concat(),
                1 => [&[0; 8][..], b"m"].concat(),
                _ => [&[0; 8][..], b"o", &number(random, known).to_be_bytes()[..]].concat(),
            };
            match random.below(3) {
                0 => batch.delete(d.imap, key),
                1 => batch.put(
                    d.imap,
                    key,
                    [b"kvfs", &[random.below(4) as u8][..], &[3; 16]].concat(),
                ),
                _ => batch.put(d.imap, key, bytes(random)),
            }
        }
    }
}

/// Puts hostile tuples into a store with a sound file system of these inodes. Returns `false` if
/// the store refused them.
pub fn spoil(random: &mut Random, db: &Kvdb, mut known: Vec<u64>) -> bool {
    let d = Dictionaries::of(db);
    let mut batch = Batch::new();
    for _ in 0..1 + random.below(8) {
        harm(random, &d, &mut known, &mut batch);
    }
    // A key may exceed the length limit. Then the store refuses it, and the case ends.
    db.commit(batch, Durability::Buffered).is_ok()
}
