//! Operations on the content of files and on attributes.

use std::sync::Arc;

use env::Env;
use kvfs::{
    Allocate, AllocateMode, FileKind, Fs, Ino, SetAttr, TimeSet, Timestamp, Whence, WriteHints,
    XattrFlags,
};

use super::tree::{Id, Node, Overlay, Own, Tree};
use super::world::{Dead, Site, USER, World};

const PAGE: usize = 4096;

/// The object of a call.
pub struct Target {
    pub id: Id,
    pub ino: Ino,
    pub node: Node,
    nameless: bool,
}

impl Target {
    pub fn named(id: Id, ino: Ino, tree: &Tree) -> Target {
        Target { id, ino, node: (*tree.nodes[&id]).clone(), nameless: false }
    }
}

impl World {
    /// Returns an object of these kinds, with a name or without, or `None` if none is available.
    pub fn target(
        &mut self,
        site: &Site,
        tree: &Tree,
        wanted: impl Fn(FileKind) -> bool,
    ) -> Result<Option<Target>, Dead> {
        let nameless = self.nameless.iter().filter(|((s, _), node)| s == site && wanted(node.kind));
        let nameless: Vec<(Id, Node)> =
            nameless.map(|((_, id), node)| (*id, node.clone())).collect();
        let named = tree.all(&wanted);
        let (id, node, nameless) = match self.pick(&nameless) {
            Some((id, node)) if named.is_empty() || self.random.one_in(4) => (id, node, true),
            _ => match self.pick(&named) {
                Some(id) => (id, (*tree.nodes[&id]).clone(), false),
                None => return Ok(None),
            },
        };
        Ok(self.ino(site, id)?.map(|ino| Target { id, ino, node, nameless }))
    }

    /// Makes a call that changes an inode apart from its names. `between` has the intermediate
    /// states that a power cut may show.
    #[track_caller]
    pub fn change<T: std::fmt::Debug>(
        &mut self,
        site: &Site,
        on: &Target,
        what: String,
        own: Result<Own, i32>,
        between: Vec<Own>,
        call: impl FnOnce(&Fs) -> kvfs::Result<T>,
    ) -> Result<Option<T>, Dead> {
        let what = format!("{what} of {}", on.id);
        if !on.nameless {
            let effect = own.map(|own| {
                let node = between
                    .into_iter()
                    .chain([own])
                    .fold(on.node.clone(), |node, own| node.changed(own));
                Overlay { nodes: [(on.id, Some(Arc::new(node)))].into(), ..Overlay::default() }
            });
            return self.act(site, what, effect, call);
        }
        let fs = self.fs(site)?;
        self.note(format!("{site:?} {what}, which has no name: {:?}", own.as_ref().err()));
        match (call(&fs), own) {
            (Ok(answer), Ok(own)) => {
                self.nameless.insert(
                    (site.clone(), on.id),
                    Node { possible: vec![Arc::new(own)], ..on.node.clone() },
                );
                Ok(Some(answer))
            }
            (Ok(answer), Err(e)) => panic!("{}: {what}: {answer:?}, not error {e}", self.what()),
            (Err(e), own) => {
                let expected: Vec<i32> = own.err().into_iter().collect();
                self.judge(site, e, &what, &expected)?;
                self.note(format!("{what}: was refused"));
                Ok(None)
            }
        }
    }

    fn place_in(&mut self, size: usize) -> (usize, usize) {
        let border = [0, 1, 511, 512, 513, 4095, 4096, 4097, 8192, 65_536, 100_000]
            [self.random.below(11) as usize];
        let offset = match self.random.below(4) {
            0 => 0,
            1 => size,
            2 => border,
            _ => self.random.below(120_000) as usize,
        };
        let len = match self.random.below(5) {
            0 | 1 => 1 + self.random.below(100),
            2 => 4096,
            3 => 1 + self.random.below(5000),
            _ => 1 + self.random.below(90_000),
        };
        (offset, len as usize)
    }
}

fn is_file(kind: FileKind) -> bool {
    kind == FileKind::File
}

pub fn put(data: &mut Vec<u8>, at: usize, bytes: &[u8]) {
    data.resize(data.len().max(at + bytes.len()), 0);
    data[at..at + bytes.len()].copy_from_slice(bytes);
}

pub fn write(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let wrong = w.random.one_in(30);
    let Some(on) =
        w.target(site, &tree, |kind| is_file(kind) || wrong && kind != FileKind::Symlink)?
    else {
        return Ok(());
    };
    let size = on.node.now().data.len();
    let (mut at, mut len) = w.place_in(size);
    if w.limited && w.random.one_in(10) {
        len += w.random.below(3 << 20) as usize;
    }
    let mut bytes = vec![0; len];
    let noise = if w.random.one_in(2) { len } else { len.min(64) };
    w.random.fill(&mut bytes[..noise]);
    // Kernels hold back data of files only.
    let from_cache = on.node.kind == FileKind::File && w.random.one_in(6);
    let tight = w.fs(site)?.is_tight();
    let announced = from_cache && (w.random.one_in(2) || tight);
    let hints = WriteHints {
        unprivileged_group: w.random.one_in(3).then(|| w.random.below(3) as u32),
        from_cache,
        announced,
        append: w.random.one_in(6),
    };
    if hints.append && !hints.from_cache {
        at = size;
    }
    let mut own = on.node.now().clone();
    put(Arc::make_mut(&mut own.data), at, &bytes);
    let perm = own.perm;
    own.touch(w.now(), hints.unprivileged_group);
    let lost = own.perm != perm;
    let own = match on.node.kind {
        FileKind::File => Ok(own),
        FileKind::Dir => Err(libc::EISDIR),
        _ => Err(libc::EINVAL),
    };
    // An append does not depend on the place where the caller believes the end to be.
    let given = if hints.append && !hints.from_cache { 7 } else { at as u64 };
    let (ino, what) = (on.ino, format!("write {len} at {at} {hints:?}"));
    w.call(&[
        "Fs::write",
        "Fs::write_for",
        "Fs::is_resized",
        "Fs::announce_cached",
        "Fs::is_tight",
    ]);
    let announce = |fs: &Fs| {
        if announced {
            fs.announce_cached(ino, given);
        }
    };
    if w.random.one_in(2) {
        w.change(site, &on, what, own, Vec::new(), |fs| {
            announce(fs);
            fs.write(ino, given, &bytes, hints)
        })?;
    } else {
        let written = w.change(site, &on, what, own, Vec::new(), |fs| {
            announce(fs);
            fs.write_for(ino, given, &bytes, hints)
        })?;
        if let Some(written) = written {
            assert_eq!(
                (written.bytes, written.lost_privileges),
                (len as u64, lost),
                "{}",
                w.what()
            );
        }
    }
    if hints.from_cache && w.log.last().is_some_and(|last| last.ends_with("was refused")) {
        w.lost.insert(ino);
    }
    // No view was replaced as a whole.
    assert!(!w.fs_if_open(site).is_some_and(|fs| fs.is_resized(ino)));
    Ok(())
}

/// Writes a few scattered bytes in one page, which usually is not in memory.
pub fn small_writes(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let Some(on) = w.target(site, &tree, is_file)? else { return Ok(()) };
    let size = on.node.now().data.len();
    let page = w.random.below(1 + (size / PAGE) as u64) as usize * PAGE;
    let count = if w.random.one_in(2) { 1 + w.random.below(3) } else { 1 + w.random.below(24) };
    w.call(&["Fs::write"]);
    for _ in 0..count {
        let at = page + w.random.below(PAGE as u64) as usize;
        let mut bytes = vec![0; 1 + w.random.below(9) as usize];
        w.random.fill(&mut bytes);
        let tree = w.tree(site);
        // The node is the current one, to which a write was made, perhaps a refused one.
        let node = match w.nameless.get(&(site.clone(), on.id)) {
            Some(node) => node.clone(),
            None => match tree.nodes.get(&on.id) {
                Some(node) => (**node).clone(),
                None => return Ok(()),
            },
        };
        let mut own = node.now().clone();
        put(Arc::make_mut(&mut own.data), at, &bytes);
        own.touch(w.now(), None);
        let (ino, what) = (on.ino, format!("small write of {} at {at}", bytes.len()));
        let on = Target { id: on.id, ino, node, nameless: on.nameless };
        w.change(site, &on, what, Ok(own), Vec::new(), |fs| {
            fs.write(ino, at as u64, &bytes, WriteHints::default())
        })?;
    }
    Ok(())
}

impl World {
    /// Returns `None` if the transaction has ended.
    pub fn fs_if_open(&self, site: &Site) -> Option<Fs> {
        match site {
            Site::Transaction(label) if !self.open.iter().any(|o| o.label == *label) => None,
            site => self.views.fs(&self.view_of(site)).ok(),
        }
    }
}

pub fn allocate(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let Some(on) = w.target(site, &tree, is_file)? else { return Ok(()) };
    let size = on.node.now().data.len();
    let (at, len) = w.place_in(size);
    let mode = [
        AllocateMode::Allocate,
        AllocateMode::Punch,
        AllocateMode::Punch,
        AllocateMode::Zero,
        AllocateMode::Zero,
        AllocateMode::Collapse,
    ][w.random.below(6) as usize];
    let how = Allocate {
        mode,
        keep_size: if mode == AllocateMode::Punch {
            !w.random.one_in(10)
        } else {
            w.random.one_in(2)
        },
    };
    let len = if w.random.one_in(20) { 0 } else { len };
    // Kernels hold back data of files only.
    let from_cache = on.node.kind == FileKind::File && w.random.one_in(6);
    let announced = from_cache && w.random.one_in(2);
    let hints = WriteHints {
        unprivileged_group: w.random.one_in(3).then(|| w.random.below(3) as u32),
        from_cache,
        announced,
        append: w.random.one_in(6),
    };
    let mut own = on.node.now().clone();
    if mode != AllocateMode::Allocate {
        Arc::make_mut(&mut own.data)[at.min(size)..(at + len).min(size)].fill(0);
    }
    if !how.keep_size && size < at + len {
        Arc::make_mut(&mut own.data).resize(at + len, 0);
    }
    let perm = own.perm;
    own.touch(w.now(), hints.unprivileged_group);
    let lost = own.perm != perm;
    let own = match mode {
        _ if len == 0 => Err(libc::EINVAL),
        AllocateMode::Collapse => Err(libc::EOPNOTSUPP),
        AllocateMode::Punch if !how.keep_size => Err(libc::EOPNOTSUPP),
        _ => Ok(own),
    };
    let (ino, what) = (on.ino, format!("fallocate {how:?} {len} at {at}"));
    w.call(&["Fs::fallocate", "Fs::fallocate_for"]);
    if hints.unprivileged_group.is_some() || w.random.one_in(2) {
        let done = w.change(site, &on, what, own, Vec::new(), |fs| {
            fs.fallocate_for(ino, how, at as u64, len as u64, hints)
        })?;
        if let Some(done) = done {
            assert_eq!(done.lost_privileges, lost, "{}", w.what());
        }
        return Ok(());
    }
    w.change(site, &on, what, own, Vec::new(), |fs| fs.fallocate(ino, how, at as u64, len as u64))
        .map(drop)
}

pub fn copy(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let (Some(from), Some(to)) = (w.target(site, &tree, is_file)?, w.target(site, &tree, is_file)?)
    else {
        return Ok(());
    };
    let source = from.node.now().data.clone();
    let (mut at, mut len) = w.place_in(source.len());
    let (mut to_at, _) = w.place_in(to.node.now().data.len());
    if w.random.one_in(2) {
        // Whole pages, which may be shared.
        (at, to_at) = (at / PAGE * PAGE, to_at / PAGE * PAGE);
        len = if w.random.one_in(2) { source.len() } else { len.next_multiple_of(PAGE) };
    }
    if w.random.one_in(4) {
        (at, to_at, len) = (0, 0, 1 << 20);
    }
    let from_cache = w.random.one_in(6);
    let announced = from_cache && w.random.one_in(2);
    let hints = WriteHints {
        unprivileged_group: w.random.one_in(3).then(|| w.random.below(3) as u32),
        from_cache,
        announced,
        append: w.random.one_in(6),
    };
    let piece = source.get(at..(at + len).min(source.len())).unwrap_or_default().to_vec();
    let old = to.node.now().clone();
    let mut own = old.clone();
    let mut between = Vec::new();
    if !piece.is_empty() {
        own.touch(w.now(), hints.unprivileged_group);
        // The copy is made in pieces, each up to the next page boundary of the source or the
        // target.
        let ends = (0..piece.len())
            .filter(|k| (to_at + k).is_multiple_of(PAGE) || (at + k).is_multiple_of(PAGE));
        for end in ends {
            let mut part = own.clone();
            put(Arc::make_mut(&mut part.data), to_at, &piece[..end]);
            between.push(part);
        }
        put(Arc::make_mut(&mut own.data), to_at, &piece);
    }
    let own =
        if from.id == to.id && at.abs_diff(to_at) < len { Err(libc::EINVAL) } else { Ok(own) };
    let (source, ino) = ((from.ino, at as u64), to.ino);
    let what = format!("copy {len} of {} at {at} to {to_at}", from.id);
    w.call(&["Fs::copy_file_range", "Fs::copy_file_range_for"]);
    let plain = hints.unprivileged_group.is_none() && w.random.one_in(2);
    let nothing = own.is_ok() && piece.is_empty();
    let copy = |fs: &Fs| match plain {
        true => fs.copy_file_range(source.0, source.1, ino, to_at as u64, len as u64),
        false => fs
            .copy_file_range_for(source, (ino, to_at as u64), len as u64, hints)
            .map(|written| written.bytes),
    };
    let copied = match nothing {
        // The file that it is copied to is not touched.
        true => w.act(site, what, Ok(Overlay::default()), copy)?,
        false => w.change(site, &to, what, own, between, copy)?,
    };
    if let Some(copied) = copied {
        assert!(
            copied == piece.len() as u64 || w.limited,
            "{}: {copied} of {}",
            w.what(),
            piece.len()
        );
        if copied < piece.len() as u64 {
            w.full += 1;
            w.take_as_is(site, &to)?;
        }
    }
    Ok(())
}

impl World {
    /// Only a part of the copy was made, for lack of space. It is not specified which part.
    fn take_as_is(&mut self, site: &Site, on: &Target) -> Result<(), Dead> {
        let fs = self.fs(site)?;
        let size = self.ok(fs.getattr(on.ino))?.size;
        let own = Own {
            data: Arc::new(self.ok(fs.read(on.ino, 0, size as u32))?.to_vec()),
            ..self.newest(site, on.id).clone()
        };
        self.change(site, on, "part of a copy".into(), Ok(own), Vec::new(), |_| Ok(())).map(drop)
    }

    fn newest(&self, site: &Site, id: Id) -> Own {
        match self.nameless.get(&(site.clone(), id)) {
            Some(node) => node.now().clone(),
            None => self.tree(site).nodes[&id].now().clone(),
        }
    }
}

/// Reads the content in every way.
pub fn read(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let Some(on) = w.target(site, &tree, |_| true)? else { return Ok(()) };
    for name in [
        "Fs::getattr",
        "Fs::read",
        "Fs::read_into",
        "Fs::read_for",
        "Fs::read_into_for",
        "Fs::readlink",
        "Fs::seek",
        "Fs::listxattr",
        "Fs::getxattr",
        "Fs::statfs",
        "Fs::files_of_its_own",
    ] {
        w.call(&[name]);
    }
    let (fs, what) = (w.fs(site)?, w.what());
    let all = || -> kvfs::Result<()> {
        let own = on.node.now();
        let attr = fs.getattr(on.ino)?;
        assert_eq!(
            (attr.kind, attr.perm, (attr.uid, attr.gid)),
            (on.node.kind, own.perm, own.owner),
            "{what}: {}",
            on.id
        );
        let names: Vec<u8> =
            own.xattrs.keys().flat_map(|name| [name, &b"\0"[..]].concat()).collect();
        assert_eq!(fs.listxattr(on.ino)?, names, "{what}: {}", on.id);
        for (name, value) in &own.xattrs {
            assert_eq!(fs.getxattr(on.ino, name)?, *value, "{what}: {}", on.id);
        }
        if on.nameless {
            assert_eq!(attr.nlink, 0, "{what}: {}", on.id);
        }
        match on.node.kind {
            FileKind::File => {
                assert_eq!(attr.size, own.data.len() as u64, "{what}: {}", on.id);
                assert_eq!(attr.mtime, own.mtime, "{what}: {}", on.id);
                holes(&fs, on.ino, &own.data, &what)
            }
            FileKind::Symlink => {
                assert_eq!(fs.readlink(on.ino)?, **own.data, "{what}: {}", on.id);
                Ok(())
            }
            _ => {
                assert!(fs.readlink(on.ino).is_err() && fs.read(on.ino, 0, 1).is_err());
                Ok(())
            }
        }
    };
    if on.node.is_dir() && w.exactly(site) == super::found::Exactly::ButForDirectories {
        return Ok(());
    }
    if let Err(e) = all() {
        return w.judge(site, e, "read", &[]);
    }
    if on.node.kind == FileKind::File {
        let data = on.node.now().data.clone();
        let (at, len) = w.place_in(data.len());
        let hints = kvfs::ReadHints { keep_atime: len % 2 == 0 };
        let found = match w.random.one_in(2) {
            true => fs.read_for(on.ino, at as u64, len as u32, hints).map(Vec::from),
            false => {
                // The earlier bytes of the buffer must not be visible.
                let mut room = vec![0xa5; len];
                fs.read_into_for(on.ino, at as u64, &mut room, hints).map(|length| {
                    room.truncate(length);
                    room
                })
            }
        };
        match found {
            Ok(found) => assert!(
                found[..] == data[at.min(data.len())..(at + len).min(data.len())],
                "{}: {}",
                w.what(),
                on.id
            ),
            Err(e) => return w.judge(site, e, "read", &[]),
        }
    }
    let room = w.ok(fs.statfs())?;
    assert!(room.free <= room.blocks && room.block_size == PAGE as u32);
    Ok(())
}

/// The gaps between data are zeros, and all data is found.
fn holes(fs: &Fs, ino: Ino, data: &[u8], what: &str) -> kvfs::Result<()> {
    let mut at = 0;
    loop {
        let from = match fs.seek(ino, at, Whence::Data) {
            Ok(from) => from,
            Err(e) if e.errno() == libc::ENXIO => data.len() as u64,
            Err(e) => return Err(e),
        };
        assert!(
            data[at as usize..from as usize].iter().all(|b| *b == 0),
            "{what}: a hole from {at} to {from} has data"
        );
        if from >= data.len() as u64 {
            return Ok(());
        }
        at = fs.seek(ino, from, Whence::Hole)?;
        assert!(at > from && at <= data.len() as u64, "{what}: data from {from} to {at}");
    }
}

pub fn attributes(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let sized = w.random.one_in(2);
    let Some(on) = w.target(site, &tree, |kind| !sized || is_file(kind))? else { return Ok(()) };
    let (mut set, mut own, now) = (SetAttr::default(), on.node.now().clone(), w.now());
    let is_dir = on.node.is_dir();
    if sized {
        let (size, _) = w.place_in(own.data.len());
        set.size = Some(size as u64);
        set.unprivileged_group = w.random.one_in(3).then(|| w.random.below(3) as u32);
        Arc::make_mut(&mut own.data).resize(size, 0);
        own.touch(now, set.unprivileged_group);
    }
    if w.random.one_in(4) {
        set.uid = w.random.one_in(2).then(|| w.random.below(3) as u32);
        set.gid = w.random.one_in(2).then(|| w.random.below(3) as u32);
        own.owner = (set.uid.unwrap_or(own.owner.0), set.gid.unwrap_or(own.owner.1));
        if !is_dir && (set.uid.is_some() || set.gid.is_some()) {
            own.unprivileged_group(None);
            own.xattrs.remove(super::tree::CAPABILITY);
        }
    }
    if w.random.one_in(3) {
        let perm = w.random.below(0o10000) as u16;
        set.mode = Some(perm);
        own.perm = perm;
    }
    if w.random.one_in(4) {
        let time = Timestamp {
            secs: w.random.below(1 << 33) as i64 - (1 << 32),
            nanos: w.random.below(1_000_000_000) as u32,
        };
        let to_now = w.random.one_in(3);
        set.mtime = Some(if to_now { TimeSet::Now } else { TimeSet::At(time) });
        set.atime = w.random.one_in(2).then_some(TimeSet::At(time));
        set.ctime = w.random.one_in(4).then_some(time);
        own.mtime = match (is_dir, to_now) {
            (true, _) => own.mtime,
            (false, true) => now,
            (false, false) => time,
        };
    }
    let ino = on.ino;
    w.call(&["Fs::setattr"]);
    let (perm, owner, size) = (own.perm, own.owner, own.data.len());
    let set_to = w.change(site, &on, format!("setattr {set:?}"), Ok(own), Vec::new(), |fs| {
        fs.setattr(ino, &set, USER)
    })?;
    if let Some(attr) = set_to {
        assert_eq!((attr.ino, attr.perm, (attr.uid, attr.gid)), (ino, perm, owner), "{}", w.what());
        assert!(on.node.kind != FileKind::File || attr.size == size as u64, "{}", w.what());
    }
    Ok(())
}

pub fn xattrs(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let Some(on) = w.target(site, &tree, |_| true)? else { return Ok(()) };
    let names: [&[u8]; 8] = [
        b"user.a",
        b"user.b",
        b"user.c",
        b"trusted.t",
        super::tree::CAPABILITY,
        b"system.posix_acl_access",
        b"other.x",
        b"user.",
    ];
    let name = if w.random.one_in(8) {
        names[w.random.below(8) as usize]
    } else {
        names[w.random.below(5) as usize]
    };
    let wrong = match name {
        b"system.posix_acl_access" | b"other.x" => Some(libc::EOPNOTSUPP),
        b"user." => Some(libc::EINVAL),
        _ => None,
    };
    let (ino, mut own) = (on.ino, on.node.now().clone());
    let there = own.xattrs.contains_key(name);
    w.call(&["Fs::setxattr", "Fs::removexattr"]);
    if w.random.one_in(3) {
        own.xattrs.remove(name);
        let own = wrong.or((!there).then_some(libc::ENODATA)).map_or(Ok(own), Err);
        return w
            .change(
                site,
                &on,
                format!("removexattr {}", name.escape_ascii()),
                own,
                Vec::new(),
                |fs| fs.removexattr(ino, name),
            )
            .map(drop);
    }
    let len = [0, 3, 200, 257, 600, 5000, 65_536, 65_537][w.random.below(8) as usize];
    let value = vec![w.env.random() as u8; len];
    let flags = [XattrFlags::Any, XattrFlags::Any, XattrFlags::Create, XattrFlags::Replace]
        [w.random.below(4) as usize];
    own.xattrs.insert(name.to_vec(), value.clone());
    let refused = match flags {
        _ if wrong.is_some() => wrong,
        _ if len > 65_536 => Some(libc::E2BIG),
        XattrFlags::Create if there => Some(libc::EEXIST),
        XattrFlags::Replace if !there => Some(libc::ENODATA),
        _ => None,
    };
    let own = refused.map_or(Ok(own), Err);
    w.change(
        site,
        &on,
        format!("setxattr {} {len} {flags:?}", name.escape_ascii()),
        own,
        Vec::new(),
        |fs| fs.setxattr(ino, name, &value, flags),
    )
    .map(drop)
}
