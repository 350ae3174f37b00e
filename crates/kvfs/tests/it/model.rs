//! Compares random sequences of calls with a model file system: names, contents, sizes, stored
//! blocks, link counts and extended attributes. Between the calls the file system is unmounted
//! cleanly or killed, and mounted again. After a kill, names are unchanged, and every file is in
//! one of the states that it had since it was last certainly committed. A failure prints its seed.

use std::collections::{BTreeMap, BTreeSet};

use crate::world::{USER, World};
use env::{Env, Simulated};
use kvfs::{
    Allocate, AllocateMode, Error, FileKind, Ino, ROOT, RenameFlags, SetAttr, Whence, XattrFlags,
};

const PAGE: usize = 4096;
/// Up to here, data lies in the node.
const INLINE: usize = 512;

#[derive(Clone, Debug, Default, PartialEq)]
struct Content {
    data: Vec<u8>,
    /// The written pages, or `None` if the content is in the node.
    pages: Option<BTreeSet<usize>>,
    inline: usize,
    perm: u16,
    xattrs: BTreeMap<String, Vec<u8>>,
}

impl Content {
    fn blocks(&self) -> u64 {
        match &self.pages {
            Some(pages) if pages.len() == self.data.len().div_ceil(PAGE) => {
                self.data.len().div_ceil(512) as u64
            }
            Some(pages) => pages.len() as u64 * 8,
            None => self.inline.div_ceil(512) as u64,
        }
    }
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let end = offset + bytes.len();
        if self.data.len() < end {
            self.data.resize(end, 0);
        }
        self.data[offset..end].copy_from_slice(bytes);
        if self.pages.is_none() {
            if end <= INLINE {
                self.inline = self.inline.max(end);
                return;
            }
            self.pages = Some((self.inline > 0).then_some(0).into_iter().collect());
        }
        self.pages.as_mut().unwrap().extend(offset / PAGE..end.div_ceil(PAGE));
    }
    fn truncate(&mut self, size: usize) {
        self.data.resize(size, 0);
        self.inline = self.inline.min(size);
        match &mut self.pages {
            Some(_) if size == 0 => {
                self.pages = None;
                self.inline = 0;
            }
            Some(pages) => pages.retain(|&b| b < size.div_ceil(PAGE)),
            None => {}
        }
    }
    fn clear(&mut self, offset: usize, end: usize) {
        let end = end.min(self.data.len());
        if offset >= end {
            return;
        }
        self.data[offset..end].fill(0);
        match &mut self.pages {
            Some(pages) => {
                let behind = if end == self.data.len() { end.div_ceil(PAGE) } else { end / PAGE };
                pages.retain(|&b| b < offset.div_ceil(PAGE) || b >= behind);
            }
            None if offset < self.inline && end >= self.inline => self.inline = offset,
            None => {}
        }
    }
}

#[derive(Debug)]
struct Node {
    kind: FileKind,
    nlink: u32,
    entries: BTreeMap<String, Ino>,
    now: Content,
    /// The states it had since it was surely committed, oldest first; the last is `now`.
    states: Vec<Content>,
}

struct Model {
    w: World,
    random: Simulated,
    nodes: BTreeMap<Ino, Node>,
    /// Pages that were written in part, before the last mount.
    patched: u64,
}

impl Model {
    fn new(seed: u64) -> Model {
        let root = Node {
            kind: FileKind::Dir,
            nlink: 2,
            entries: BTreeMap::new(),
            now: Content::default(),
            states: vec![],
        };
        let (w, random) = (World::new(), Simulated::new(seed));
        Model { w, random, nodes: [(ROOT, root)].into(), patched: 0 }
    }
    fn below(&self, n: usize) -> usize {
        (self.random.random() % n.max(1) as u64) as usize
    }
    fn name(&self) -> String {
        format!("n{}", self.below(6))
    }
    fn pick(&self, kind: FileKind) -> Option<Ino> {
        let all: Vec<Ino> = self
            .nodes
            .iter()
            .filter(|(_, n)| n.kind == kind && n.nlink > 0)
            .map(|(&ino, _)| ino)
            .collect();
        all.get(self.below(all.len())).copied()
    }
    fn dir(&self) -> Ino {
        self.pick(FileKind::Dir).unwrap_or(ROOT)
    }
    fn entry(&self, dir: Ino, name: &str) -> Option<Ino> {
        self.nodes[&dir].entries.get(name).copied()
    }
    fn node(&mut self, ino: Ino) -> &mut Node {
        self.nodes.get_mut(&ino).unwrap()
    }
    fn is_dir(&self, ino: Ino) -> bool {
        self.nodes[&ino].kind == FileKind::Dir
    }
    fn is_below(&self, dir: Ino, above: Ino) -> bool {
        let parent = |d: Ino| {
            self.nodes
                .iter()
                .find(|(_, n)| n.kind == FileKind::Dir && n.entries.values().any(|&e| e == d))
        };
        let mut at = dir;
        loop {
            if at == above {
                return true;
            }
            match parent(at) {
                Some((&p, _)) => at = p,
                None => return false,
            }
        }
    }
    /// Changes a file's own state, which is committed later.
    fn change(&mut self, ino: Ino, f: impl FnOnce(&mut Content)) {
        let node = self.node(ino);
        f(&mut node.now);
        node.states.push(node.now.clone());
    }
    /// This inode is committed as it is now.
    fn committed(&mut self, ino: Ino) {
        if let Some(node) = self.nodes.get_mut(&ino) {
            node.states = vec![node.now.clone()];
        }
    }
    fn drop_link(&mut self, ino: Ino) {
        let node = self.node(ino);
        node.nlink = if node.kind == FileKind::Dir { 0 } else { node.nlink - 1 };
        if node.nlink == 0 {
            self.nodes.remove(&ino);
            // The kernel's references; more than it can have.
            self.w.fs.forget(ino, 1 << 40);
        } else {
            self.committed(ino);
        }
    }

    fn expect<T: std::fmt::Debug>(
        &self,
        what: &str,
        result: Result<T, Error>,
        expected: Result<(), i32>,
    ) -> Option<T> {
        let got = result.as_ref().map(|_| ()).map_err(|e| e.errno());
        assert_eq!(got, expected, "{what}: {result:?}");
        result.ok()
    }

    fn make(&mut self, kind: FileKind) {
        let (dir, name) = (self.dir(), self.name());
        let expected = if self.entry(dir, &name).is_some() { Err(libc::EEXIST) } else { Ok(()) };
        let target = vec![b'x'; 1 + self.below(200)];
        let result = match kind {
            FileKind::Dir => self.w.fs.mkdir(dir, name.as_bytes(), 0o755, USER),
            FileKind::Symlink => self.w.fs.symlink(dir, name.as_bytes(), &target, USER),
            kind => self.w.fs.mknod(dir, name.as_bytes(), kind, 0o755, 0, USER),
        };
        let Some(attr) = self.expect("make", result, expected) else { return };
        let mut now = Content { perm: attr.perm, ..Default::default() };
        if kind == FileKind::Symlink {
            now.write(0, &target);
        }
        let nlink = if kind == FileKind::Dir { 2 } else { 1 };
        self.nodes.insert(
            attr.ino,
            Node { kind, nlink, entries: BTreeMap::new(), states: vec![now.clone()], now },
        );
        let parent = self.node(dir);
        parent.entries.insert(name, attr.ino);
        parent.nlink += u32::from(kind == FileKind::Dir);
        self.committed(dir);
    }

    fn link(&mut self) {
        let (Some(ino), dir, name) = (self.pick(FileKind::File), self.dir(), self.name()) else {
            return;
        };
        let expected = if self.entry(dir, &name).is_some() { Err(libc::EEXIST) } else { Ok(()) };
        let result = self.w.fs.link(ino, dir, name.as_bytes());
        if self.expect("link", result, expected).is_some() {
            self.node(ino).nlink += 1;
            self.node(dir).entries.insert(name, ino);
            self.committed(ino);
            self.committed(dir);
        }
    }

    fn unlink(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let target = self.entry(dir, &name);
        let expected = match target {
            None => Err(libc::ENOENT),
            Some(ino) if self.is_dir(ino) => Err(libc::EISDIR),
            Some(_) => Ok(()),
        };
        if self.expect("unlink", self.w.fs.unlink(dir, name.as_bytes()), expected).is_some() {
            self.node(dir).entries.remove(&name);
            self.committed(dir);
            self.drop_link(target.unwrap());
        }
    }

    fn rmdir(&mut self) {
        let (dir, name) = (self.dir(), self.name());
        let target = self.entry(dir, &name);
        let expected = match target {
            None => Err(libc::ENOENT),
            Some(ino) if !self.is_dir(ino) => Err(libc::ENOTDIR),
            Some(ino) if !self.nodes[&ino].entries.is_empty() => Err(libc::ENOTEMPTY),
            Some(_) => Ok(()),
        };
        if self.expect("rmdir", self.w.fs.rmdir(dir, name.as_bytes()), expected).is_some() {
            let node = self.node(dir);
            node.entries.remove(&name);
            node.nlink -= 1;
            self.committed(dir);
            self.drop_link(target.unwrap());
        }
    }

    fn rename(&mut self) {
        let (dir, name, new_dir, new_name) = (self.dir(), self.name(), self.dir(), self.name());
        let mode = self.below(8);
        let flags = RenameFlags { no_replace: mode == 0, exchange: mode == 1, whiteout: false };
        let (source, target) = (self.entry(dir, &name), self.entry(new_dir, &new_name));
        let result = self.w.fs.rename(dir, name.as_bytes(), new_dir, new_name.as_bytes(), flags);
        let got = result.as_ref().map(|_| ()).map_err(|e| e.errno());
        let expected: &[i32] = match (source, target) {
            (None, _) => &[libc::ENOENT],
            (_, Some(_)) if flags.no_replace => &[libc::EEXIST],
            (_, None) if flags.exchange => &[libc::ENOENT],
            (Some(s), Some(t)) if s == t => &[],
            (Some(s), _) if self.is_dir(s) && self.is_below(new_dir, s) => &[libc::EINVAL],
            (_, Some(t)) if flags.exchange && self.is_dir(t) && self.is_below(dir, t) => {
                &[libc::EINVAL]
            }
            (Some(s), Some(t)) if !flags.exchange => match (self.is_dir(s), self.is_dir(t)) {
                (true, false) => &[libc::ENOTDIR],
                (false, true) => &[libc::EISDIR, libc::ENOTEMPTY],
                (true, true) if !self.nodes[&t].entries.is_empty() => &[libc::ENOTEMPTY],
                _ => &[],
            },
            _ => &[],
        };
        match got {
            Ok(()) => assert!(expected.is_empty(), "rename succeeded, expected {expected:?}"),
            Err(e) => assert!(expected.contains(&e), "rename: {result:?}, expected {expected:?}"),
        }
        let (Ok(()), Some(s)) = (got, source) else { return };
        if target == Some(s) {
            return;
        }
        let down =
            |m: &mut Model, dir: Ino, ino: Ino| m.node(dir).nlink -= u32::from(m.is_dir(ino));
        let up = |m: &mut Model, dir: Ino, ino: Ino| m.node(dir).nlink += u32::from(m.is_dir(ino));
        self.node(dir).entries.remove(&name);
        self.node(new_dir).entries.insert(new_name, s);
        down(self, dir, s);
        up(self, new_dir, s);
        for ino in [s, dir, new_dir] {
            self.committed(ino);
        }
        if let Some(t) = target {
            down(self, new_dir, t);
            if flags.exchange {
                self.node(dir).entries.insert(name, t);
                up(self, dir, t);
                self.committed(t);
            } else {
                self.drop_link(t);
            }
        }
    }

    fn data(&mut self) {
        let Some(ino) = self.pick(FileKind::File) else { return };
        let size = self.nodes[&ino].now.data.len();
        let border = [0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 65_536, 100_000][self.below(11)];
        let offset = match self.below(4) {
            0 => 0,
            1 => size,
            2 => border,
            _ => self.below(150_000),
        };
        let len = match self.below(4) {
            0 => 1 + self.below(100),
            1 => 4096,
            2 => 1 + self.below(5000),
            _ => 1 + self.below(100_000),
        };
        match self.below(12) {
            10 | 11 => self.small_writes(ino, offset),
            0..=3 => {
                let byte = self.random.random() as u8;
                let bytes: Vec<u8> = (0..len).map(|n| byte.wrapping_add(n as u8)).collect();
                self.w.write(ino, offset as u64, &bytes);
                self.change(ino, |c| c.write(offset, &bytes));
            }
            4 | 5 => {
                self.w
                    .fs
                    .setattr(
                        ino,
                        &SetAttr { size: Some(offset as u64), ..Default::default() },
                        USER,
                    )
                    .unwrap();
                self.change(ino, |c| c.truncate(offset));
            }
            6 | 7 => {
                let zero = self.below(2) == 0;
                let mode = if zero { AllocateMode::Zero } else { AllocateMode::Punch };
                self.w
                    .fs
                    .fallocate(ino, Allocate { mode, keep_size: !zero }, offset as u64, len as u64)
                    .unwrap();
                // Punching may commit the existing data with the hole before the rest.
                let grown = |c: &mut Content| {
                    if zero && c.data.len() < offset + len {
                        c.data.resize(offset + len, 0);
                    }
                };
                self.change(ino, |c| {
                    let (old, end) = (c.data.clone(), offset + len);
                    let first = offset.div_ceil(PAGE) * PAGE;
                    let behind = if end >= old.len() { old.len() } else { end / PAGE * PAGE };
                    if first < behind {
                        c.clear(first, behind);
                    }
                });
                self.change(ino, |c| {
                    c.clear(offset, offset + len);
                    grown(c);
                });
            }
            8 => {
                if let Some(to) = self.pick(FileKind::File).filter(|&to| to != ino) {
                    let bytes = self.nodes[&ino]
                        .now
                        .data
                        .iter()
                        .skip(offset)
                        .take(len)
                        .copied()
                        .collect::<Vec<u8>>();
                    let copied =
                        self.w.fs.copy_file_range(ino, offset as u64, to, 0, len as u64).unwrap();
                    assert_eq!(copied as usize, bytes.len());
                    self.w.fs.fsync(to, false).unwrap();
                    self.change(to, |c| {
                        if c.data.len() < bytes.len() {
                            c.data.resize(bytes.len(), 0);
                        }
                        c.data[..bytes.len()].copy_from_slice(&bytes);
                    });
                    // The store decides which holes it keeps: the model takes over the number of
                    // stored blocks that the file reports, if they hold the data.
                    self.adopt_blocks(to);
                    self.committed(to);
                }
            }
            _ => {
                let node = &self.nodes[&ino];
                assert!(
                    self.w.read(ino, offset as u64, len)
                        == node.now.data[size.min(offset)..size.min(offset + len)]
                );
            }
        }
    }

    /// Writes a few scattered bytes in one page, usually in one that is not in memory.
    fn small_writes(&mut self, ino: Ino, offset: usize) {
        for _ in 0..1 + self.below(24) {
            let at = offset + self.below(PAGE);
            let bytes = vec![self.random.random() as u8; 1 + self.below(9)];
            self.w.write(ino, at as u64, &bytes);
            self.change(ino, |c| c.write(at, &bytes));
        }
    }

    /// Takes the set of stored pages over from the file system, having checked that nothing but
    /// zeros is outside of them.
    fn adopt_blocks(&mut self, ino: Ino) {
        let size = self.nodes[&ino].now.data.len();
        let mut stored = BTreeSet::new();
        let (mut at, mut data_end) = (0u64, 0);
        while let Ok(from) = self.w.fs.seek(ino, at, Whence::Data) {
            let to = self.w.fs.seek(ino, from, Whence::Hole).unwrap();
            stored.extend(from as usize / PAGE..(to as usize).div_ceil(PAGE));
            (at, data_end) = (to, to as usize);
        }
        let blocks = self.w.fs.getattr(ino).unwrap().blocks;
        if size > 0 && blocks == 0 {
            // All of it is a hole: whether it lies in pages from now on cannot be seen.
            let empty = SetAttr { size: Some(0), ..Default::default() };
            self.w.fs.setattr(ino, &empty, USER).unwrap();
            self.w.fs.fsync(ino, false).unwrap();
            assert!(self.nodes[&ino].now.data.iter().all(|&byte| byte == 0));
            return self.node(ino).now.truncate(0);
        }
        if self.nodes[&ino].now.pages.is_none() && data_end <= INLINE && blocks <= 1 {
            // The content is written again, since it cannot be seen whether it lies in the node or
            // in a page.
            let data = self.nodes[&ino].now.data.clone();
            for size in [0, size as u64] {
                let cut = SetAttr { size: Some(size), ..Default::default() };
                self.w.fs.setattr(ino, &cut, USER).unwrap();
                if size == 0 {
                    self.w.write(ino, 0, &data[..data_end]);
                }
            }
            self.w.fs.fsync(ino, false).unwrap();
            self.node(ino).now.inline = data_end;
            return;
        }
        let now = &mut self.node(ino).now;
        assert!((0..size).all(|n| now.data[n] == 0 || stored.contains(&(n / PAGE))));
        now.pages = Some(stored);
        assert_eq!(blocks, now.blocks());
    }

    fn attributes(&mut self) {
        let Some(ino) =
            self.pick([FileKind::File, FileKind::Dir, FileKind::Symlink][self.below(3)])
        else {
            return;
        };
        match self.below(3) {
            0 => {
                let perm = self.below(0o1000) as u16;
                self.w
                    .fs
                    .setattr(ino, &SetAttr { mode: Some(perm), ..Default::default() }, USER)
                    .unwrap();
                self.change(ino, |c| c.perm = perm);
            }
            1 => {
                let (name, value) = (
                    format!("user.{}", self.below(4)),
                    vec![7; [3, 200, 300, 5000][self.below(4)]],
                );
                self.w.fs.setxattr(ino, name.as_bytes(), &value, XattrFlags::Any).unwrap();
                self.change(ino, |c| drop(c.xattrs.insert(name, value)));
            }
            _ => {
                let name = format!("user.{}", self.below(4));
                let expected = if self.nodes[&ino].now.xattrs.contains_key(&name) {
                    Ok(())
                } else {
                    Err(libc::ENODATA)
                };
                if self
                    .expect("removexattr", self.w.fs.removexattr(ino, name.as_bytes()), expected)
                    .is_some()
                {
                    self.change(ino, |c| drop(c.xattrs.remove(&name)));
                }
            }
        }
    }

    fn commit(&mut self) {
        match self.below(8) {
            // The data in memory goes into runs, and all runs are merged into one.
            6 | 7 => {
                self.w.db.flush().unwrap();
                if self.below(2) == 0 {
                    for name in ["nmap", "imap", "dmap"] {
                        let dict = self.w.db.dictionary(name).unwrap();
                        self.w.db.compact(dict).unwrap();
                    }
                }
            }
            0 | 1 => {
                if let Some(ino) = self.pick(FileKind::File) {
                    self.w.fs.fsync(ino, false).unwrap();
                    self.committed(ino);
                }
            }
            2 => {
                self.w.second();
                self.w.fs.tick().unwrap();
                self.all_committed();
            }
            3 => {
                if let Some(ino) = self.pick(FileKind::File) {
                    // The kernel drops its inode, and dirty data must not be lost.
                    self.w.fs.forget(ino, 1 << 40);
                }
            }
            4 => {
                self.patched += self.w.fs.statistics().pages_patched;
                self.w.remount();
                self.all_committed();
            }
            _ => {
                if self.below(2) == 0 {
                    self.w.fs.sync_all().unwrap();
                    self.all_committed();
                }
                self.patched += self.w.fs.statistics().pages_patched;
                self.w.crash();
                self.compare(true);
            }
        }
    }

    fn all_committed(&mut self) {
        for ino in self.nodes.keys().copied().collect::<Vec<_>>() {
            self.committed(ino);
        }
    }

    fn state(&self, ino: Ino, kind: FileKind, size: u64) -> Content {
        let fs = &self.w.fs;
        let data = match kind {
            FileKind::File => self.w.read(ino, 0, size as usize),
            FileKind::Symlink => fs.readlink(ino).unwrap(),
            _ => vec![],
        };
        let list = fs.listxattr(ino).unwrap();
        let names = list.split(|&b| b == 0).filter(|n| !n.is_empty());
        let xattrs = names
            .map(|n| (String::from_utf8(n.to_vec()).unwrap(), fs.getxattr(ino, n).unwrap()))
            .collect();
        Content { data, xattrs, perm: fs.getattr(ino).unwrap().perm, ..Default::default() }
    }

    /// Everything equals the model. After a kill, the state of an inode may be any since its last
    /// certain commit.
    fn compare(&mut self, killed: bool) {
        for ino in self.nodes.keys().copied().collect::<Vec<_>>() {
            let attr = self.w.fs.getattr(ino).unwrap();
            let node = &self.nodes[&ino];
            assert_eq!((attr.kind, attr.nlink), (node.kind, node.nlink), "inode {ino}");
            if node.kind == FileKind::Dir {
                assert_eq!(attr.size, node.entries.len() as u64);
                let mut listed = self.w.list(ino);
                listed.retain(|n| n != "." && n != "..");
                assert_eq!(listed, node.entries.keys().cloned().collect::<Vec<_>>());
                for (name, &child) in &node.entries {
                    assert_eq!(self.w.fs.lookup(ino, name.as_bytes()).unwrap().ino, child);
                }
            }
            let found = self.state(ino, node.kind, attr.size);
            let same = |c: &Content| {
                let blocks = node.kind != FileKind::File || c.blocks() == attr.blocks;
                blocks && c.data == found.data && c.perm == found.perm && c.xattrs == found.xattrs
            };
            let now = if !killed || node.states.is_empty() {
                (node.states.is_empty() || same(&node.now)).then(|| node.now.clone())
            } else {
                node.states.iter().rev().find(|c| same(c)).cloned()
            };
            let now = now.unwrap_or_else(|| {
                let (have, want) = (attr.size, node.now.data.len());
                panic!(
                    "inode {ino} ({:?}): size {have}/{want}, blocks {}/{}, killed: {killed}",
                    node.kind,
                    attr.blocks,
                    node.now.blocks()
                );
            });
            // States that look the same may be stored in different ways and later differ. An empty
            // file is stored in its node.
            let alike =
                |paged: bool| node.states.iter().any(|c| same(c) && c.pages.is_some() == paged);
            let ambiguous = killed && alike(true) && alike(false);
            let node = self.node(ino);
            node.now = now.clone();
            node.states = vec![now];
            if ambiguous {
                self.w
                    .fs
                    .setattr(ino, &SetAttr { size: Some(0), ..Default::default() }, USER)
                    .unwrap();
                self.change(ino, |c| c.truncate(0));
            }
        }
    }

    /// Returns the number of pages that were written in part.
    fn run(mut self, steps: usize) -> u64 {
        self.node(ROOT).now.perm = 0o755;
        self.committed(ROOT);
        for _ in 0..steps {
            match self.below(100) {
                0..15 => self.make(FileKind::File),
                15..22 => self.make(FileKind::Dir),
                22..25 => self.make(FileKind::Symlink),
                25..29 => self.link(),
                29..34 => self.unlink(),
                34..37 => self.rmdir(),
                37..45 => self.rename(),
                45..83 => self.data(),
                83..92 => self.attributes(),
                92..99 => self.commit(),
                _ => {
                    self.w.check();
                    self.all_committed();
                }
            }
        }
        self.w.check();
        self.all_committed();
        self.compare(false);
        self.patched + self.w.fs.statistics().pages_patched
    }
}

#[test]
fn random_calls_do_what_the_model_does() {
    let number = |name: &str| std::env::var(name).ok().map(|n| n.parse::<u64>().expect("a number"));
    let seeds = match number("KVFS_SEED") {
        Some(seed) => seed..seed + 1,
        None => 0..number("KVFS_SEEDS").unwrap_or(400),
    };
    let many = seeds.end - seeds.start >= 20;
    let mut patched = 0;
    for seed in seeds {
        match std::panic::catch_unwind(|| Model::new(seed).run(250)) {
            Ok(pages) => patched += pages,
            Err(e) => {
                eprintln!("failed with KVFS_SEED={seed}");
                std::panic::resume_unwind(e);
            }
        }
    }
    println!("{patched} pages were written in part");
    assert!(!many || patched > 0, "small writes are meant to find pages that are not in memory");
}
