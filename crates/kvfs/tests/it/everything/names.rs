//! Operations on names.

use kvfs::{Caller, Earlier, FileKind, Ino, RenameFlags};

use super::branches::any_snapshot;
use super::effects::check_name;
use super::tree::{Entry, Id, Node, Own, Tree};
use super::world::{Dead, Site, USER, World};

/// The most nodes of a tree, so that trees stay small.
const MOST: usize = 70;

impl World {
    pub fn some_name(&mut self) -> Vec<u8> {
        match self.random.below(60) {
            0 => vec![b'l'; 255],
            1 => vec![b'l'; 256],
            2 => b"".to_vec(),
            3 => b".".to_vec(),
            4 => b"..".to_vec(),
            5 => b"a/b".to_vec(),
            6 => vec![0xff, 0xfe, b'\n'],
            _ => format!("n{}", self.random.below(12)).into_bytes(),
        }
    }

    fn dir(&mut self, tree: &Tree) -> Id {
        let dirs = tree.all(|kind| kind == FileKind::Dir);
        self.pick(&dirs).expect("there is the root")
    }

    /// Returns a place where a name may exist or not.
    pub fn somewhere(&mut self, tree: &Tree) -> Entry {
        (self.dir(tree), self.some_name())
    }

    /// Returns a name, usually an existing one.
    pub fn entry(&mut self, tree: &Tree) -> Entry {
        let all: Vec<Entry> = tree.entries.keys().cloned().collect();
        match self.pick(&all) {
            Some(entry) if !self.random.one_in(8) => entry,
            _ => self.somewhere(tree),
        }
    }
}

fn caller(w: &mut World) -> Caller {
    if w.random.one_in(3) { Caller { uid: 0, gid: 5, pid: 1 } } else { USER }
}

pub fn make(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    if tree.nodes.len() > MOST {
        return remove(w, site);
    }
    let at = w.somewhere(&tree);
    let (who, now) = (caller(w), w.now());
    let perm = [0o644, 0o755, 0o4755, 0o2775, 0o600][w.random.below(5) as usize];
    let kind = match w.random.below(20) {
        0..=4 => FileKind::Dir,
        5 | 6 => FileKind::Symlink,
        7 => [FileKind::Fifo, FileKind::Socket, FileKind::CharDevice, FileKind::BlockDevice]
            [w.random.below(4) as usize],
        _ => FileKind::File,
    };
    let rdev = if matches!(kind, FileKind::CharDevice | FileKind::BlockDevice) { 259 } else { 0 };
    w.fresh += 1;
    let (id, mut own) = (w.fresh, tree.newborn(at.0, kind, perm, who, now));
    let mut wrong = None;
    if kind == FileKind::Symlink {
        let target = match w.random.below(12) {
            0 => Vec::new(),
            1 => vec![b't'; 4096],
            2 => vec![b't'; 4095],
            _ => vec![b't'; 1 + w.random.below(300) as usize],
        };
        wrong = [(target.is_empty(), libc::ENOENT), (target.len() > 4095, libc::ENAMETOOLONG)]
            .iter()
            .find(|w| w.0)
            .map(|w| w.1);
        own = Own { perm: 0o777, data: target.into(), ..own };
    }
    let Some(dir) = w.ino(site, at.0)? else { return Ok(()) };
    w.call(&["Fs::mkdir", "Fs::symlink", "Fs::mknod"]);
    let target = own.data.clone();
    let effect = wrong.map_or_else(|| tree.make(&at, id, Node::new(kind, rdev, own)), Err);
    let made = w.act(
        site,
        format!("make {kind:?} {id} {}/{}", at.0, at.1.escape_ascii()),
        effect,
        |fs| match kind {
            FileKind::Dir => fs.mkdir(dir, &at.1, perm, who),
            FileKind::Symlink => fs.symlink(dir, &at.1, &target, who),
            kind => fs.mknod(dir, &at.1, kind, perm, 259, who),
        },
    )?;
    if let Some(attr) = made {
        w.is_new(site, id, attr.ino);
        w.refer(site, id);
        let links = if kind == FileKind::Dir { 2 } else { 1 };
        assert_eq!((attr.kind, attr.nlink, attr.rdev), (kind, links, rdev), "{}", w.what());
        if !w.random.one_in(3) {
            w.forget(site, id, attr.ino, 1)?;
        }
    }
    Ok(())
}

/// Creates several files at once, with their content and attributes.
pub fn make_whole(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    if tree.nodes.len() > MOST {
        return Ok(());
    }
    let (mut all, mut over, mut ids) = (Vec::new(), super::tree::Overlay::default(), Vec::new());
    let mut effect = Ok(());
    // Wrong names are reported before all other errors of a call.
    let mut wrong = None;
    for _ in 0..1 + w.random.below(4) {
        let at = w.somewhere(&tree);
        let Some(parent) = w.ino(site, at.0)? else { return Ok(()) };
        let kind =
            [FileKind::File, FileKind::File, FileKind::File, FileKind::Symlink, FileKind::Fifo]
                [w.random.below(5) as usize];
        let len = match kind {
            FileKind::File => [0, 300, 512, 513, 4096, 9000, 50_000][w.random.below(7) as usize],
            FileKind::Symlink => 1 + w.random.below(300),
            _ => 0,
        };
        let mut content = vec![b't'; len as usize];
        if kind == FileKind::File {
            w.random.fill(&mut content);
        }
        let mtime = kvfs::Timestamp { secs: w.random.below(1 << 32) as i64, nanos: 7 };
        let (perm, uid, gid) = (
            [0o644, 0o4755, 0o600][w.random.below(3) as usize],
            w.random.below(3) as u32,
            w.random.below(3) as u32,
        );
        w.fresh += 1;
        let own =
            Own { perm, owner: (uid, gid), mtime, data: content.clone().into(), ..Own::default() };
        match tree.with(&over).make(&at, w.fresh, Node::new(kind, 0, own)) {
            Ok(one) => over.add(&one),
            Err(e) if check_name(&at.1).is_err() => wrong = wrong.or(Some(e)),
            Err(e) => effect = Err(e),
        }
        ids.push(w.fresh);
        let name = at.1.clone().into();
        all.push(kvfs::Whole {
            parent,
            name,
            kind,
            perm,
            uid,
            gid,
            rdev: 0,
            atime: mtime,
            mtime,
            content: content.into(),
        });
    }
    let effect = match wrong {
        Some(e) => Err(e),
        None => effect.map(|()| over),
    };
    w.call(&["Fs::make_whole"]);
    w.act(site, format!("make whole {ids:?}"), effect, |fs| fs.make_whole(&all)).map(drop)
}

/// A file without a name, which may get one later.
pub fn tmpfile(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let at = w.somewhere(&tree);
    let (who, now) = (caller(w), w.now());
    w.fresh += 1;
    let (id, own) = (w.fresh, tree.newborn(at.0, FileKind::File, 0o640, who, now));
    let Some(dir) = w.ino(site, at.0)? else { return Ok(()) };
    w.call(&["Fs::tmpfile"]);
    w.note(format!("{site:?} tmpfile {id}"));
    match w.fs(site)?.tmpfile(dir, 0o640, who) {
        Ok(attr) => {
            w.is_new(site, id, attr.ino);
            w.refer(site, id);
            w.nameless.insert((site.clone(), id), Node::new(FileKind::File, 0, own));
            Ok(())
        }
        Err(e) => w.judge(site, e, "tmpfile", &[]),
    }
}

pub fn link(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let at = w.somewhere(&tree);
    let nameless: Vec<(Id, Node)> = w
        .nameless
        .iter()
        .filter(|((s, _), n)| s == site && n.kind == FileKind::File)
        .map(|((_, id), n)| (*id, n.clone()))
        .collect();
    let (id, node) = match w.pick(&nameless) {
        Some((id, node)) if w.random.one_in(2) => (id, Some(node)),
        _ => {
            let dirs_too = w.random.one_in(10);
            let all = tree.all(|kind| kind != FileKind::Dir || dirs_too);
            match w.pick(&all) {
                Some(id) => (id, None),
                None => return Ok(()),
            }
        }
    };
    let (Some(ino), Some(dir)) = (w.ino(site, id)?, w.ino(site, at.0)?) else { return Ok(()) };
    let effect = tree.link(id, &at, node);
    w.call(&["Fs::link"]);
    let linked =
        w.act(site, format!("link {id} {}/{}", at.0, at.1.escape_ascii()), effect, |fs| {
            fs.link(ino, dir, &at.1)
        })?;
    if let Some(attr) = linked {
        w.refer(site, id);
        assert_eq!((attr.ino, attr.nlink), (ino, w.tree(site).links(id)), "{}", w.what());
        if w.random.one_in(2) {
            w.forget(site, id, ino, 1)?;
        }
    }
    Ok(())
}

pub fn remove(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let at = w.entry(&tree);
    let Some(dir) = w.ino(site, at.0)? else { return Ok(()) };
    let is_dir = tree.entries.get(&at).is_some_and(|id| tree.is_dir(*id));
    let what = format!("remove {}/{}", at.0, at.1.escape_ascii());
    if is_dir != w.random.one_in(10) {
        w.call(&["Fs::rmdir"]);
        w.act(site, what, tree.rmdir(&at), |fs| fs.rmdir(dir, &at.1)).map(drop)
    } else {
        w.call(&["Fs::unlink"]);
        w.act(site, what, tree.unlink(&at), |fs| fs.unlink(dir, &at.1)).map(drop)
    }
}

/// Removes a directory with its content, call by call, as programs do.
pub fn remove_tree(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let dirs: Vec<Id> = tree
        .all(|kind| kind == FileKind::Dir)
        .into_iter()
        .filter(|id| *id != super::tree::TOP)
        .collect();
    let Some(dir) = w.pick(&dirs) else { return Ok(()) };
    let below = |id: Id| tree.is_below(id, dir);
    let mut doomed: Vec<(usize, Entry)> = tree
        .entries
        .iter()
        .filter(|((parent, _), id)| below(*parent) || **id == dir)
        .map(|(at, id)| {
            (
                tree.path(if tree.is_dir(*id) { *id } else { at.0 })
                    .map_or(0, |p| p.len() + 1 - usize::from(tree.is_dir(*id))),
                at.clone(),
            )
        })
        .collect();
    // The deepest first.
    doomed.sort_by_key(|(depth, _)| std::cmp::Reverse(*depth));
    for (_, at) in doomed.into_iter().take(12) {
        if matches!(site, Site::Transaction(label) if !w.open.iter().any(|o| o.label == *label)) {
            break;
        }
        let tree = w.tree(site);
        let Some(id) = tree.entries.get(&at).copied() else { continue };
        let Some(dir) = w.ino(site, at.0)? else { continue };
        let what = format!("remove {}/{}", at.0, at.1.escape_ascii());
        match tree.is_dir(id) {
            true => drop(w.act(site, what, tree.rmdir(&at), |fs| fs.rmdir(dir, &at.1))?),
            false => drop(w.act(site, what, tree.unlink(&at), |fs| fs.unlink(dir, &at.1))?),
        }
    }
    Ok(())
}

/// Removes a tree by one call.
pub fn remove_at_once(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let at = w.entry(&tree);
    let effect = tree.remove_tree(&at);
    let Some(dir) = w.ino(site, at.0)? else { return Ok(()) };
    let what = format!("remove_tree {}/{}", at.0, at.1.escape_ascii());
    if w.random.one_in(2) || check_name(&at.1).is_err() {
        w.call(&["Fs::remove_tree", "Views::tell_changed"]);
        w.act(site, what, effect, |fs| fs.remove_tree(dir, &at.1))?;
        // This changes nothing else.
        if !matches!(site, Site::Transaction(label) if !w.open.iter().any(|open| open.label == *label))
        {
            w.ok(w.views.tell_changed(
                &w.view_of(site),
                vec![(dir, at.1.clone().into())],
                vec![dir],
            ))?;
        }
    } else {
        let view = w.view_of(site);
        let number = w.ok(w.views.number(&view))?;
        let path = [&tree.path(at.0).expect("named")[..], b"/", &at.1].concat();
        let views = w.views.clone();
        w.call(&["Views::remove_tree"]);
        w.listen();
        if w.act(site, what, effect, |_| views.remove_tree(&view, &path))?.is_some() {
            w.was_told(site, number, &tree, &w.tree(site));
        }
    }
    Ok(())
}

pub fn rename(w: &mut World, site: &Site) -> Result<(), Dead> {
    let (tree, now) = (w.tree(site), w.now());
    let from = w.entry(&tree);
    let to = if w.random.one_in(2) { w.entry(&tree) } else { w.somewhere(&tree) };
    let flags = match w.random.below(12) {
        0 => RenameFlags { no_replace: true, ..RenameFlags::default() },
        1 | 2 => RenameFlags { exchange: true, ..RenameFlags::default() },
        3 => RenameFlags { whiteout: true, ..RenameFlags::default() },
        4 => RenameFlags { no_replace: true, whiteout: true, ..RenameFlags::default() },
        5 if w.random.one_in(4) => {
            RenameFlags { exchange: true, no_replace: true, whiteout: false }
        }
        _ => RenameFlags::default(),
    };
    w.fresh += 1;
    let white = w.fresh;
    let effect = tree.rename(&from, &to, flags, white, now);
    let (Some(dir), Some(new_dir)) = (w.ino(site, from.0)?, w.ino(site, to.0)?) else {
        return Ok(());
    };
    w.call(&["Fs::rename"]);
    let what = format!(
        "rename {}/{} {}/{} {flags:?}",
        from.0,
        from.1.escape_ascii(),
        to.0,
        to.1.escape_ascii()
    );
    w.act(site, what, effect, |fs| fs.rename(dir, &from.1, new_dir, &to.1, flags)).map(drop)
}

pub fn clone_tree(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let all = tree.all(|_| true);
    let from = w.pick(&all).expect("there is the root");
    let at = w.somewhere(&tree);
    if tree.nodes.len() > MOST / 2 || check_name(&at.1).is_err() {
        return Ok(());
    }
    let mut fresh = w.fresh;
    let effect = tree.clone_tree(from, &at, &mut fresh);
    w.fresh = fresh;
    let what = format!("clone_tree {from} {}/{}", at.0, at.1.escape_ascii());
    let (Some(source), Some(dir)) = (w.ino(site, from)?, w.ino(site, at.0)?) else { return Ok(()) };
    // The file system itself does not know the data that the kernel holds.
    if !w.kernel.holds() && w.random.one_in(2) {
        w.call(&["Fs::clone_tree"]);
        w.act(site, what, effect, |fs| fs.clone_tree(source, dir, &at.1))?;
    } else {
        let view = w.view_of(site);
        let (path, to) = (tree.path(from).expect("named"), tree.path(at.0).expect("named"));
        let to = [&to[..], b"/", &at.1].concat();
        let views = w.views.clone();
        w.call(&["Views::clone_tree"]);
        w.act(site, what, effect, |_| views.clone_tree(&view, &path, &to))?;
    }
    Ok(())
}

/// Restores a file from a snapshot.
pub fn clone_earlier(w: &mut World, site: &Site) -> Result<(), Dead> {
    let Some((name, _, then)) = any_snapshot(w) else { return Ok(()) };
    let tree = w.tree(site);
    let from = w.pick(&then.all(|_| true)).expect("there is the root");
    let at = w.somewhere(&tree);
    if tree.nodes.len() + then.nodes.len() > MOST || check_name(&at.1).is_err() {
        return Ok(());
    }
    let (path, to) = (then.path(from).expect("named"), tree.path(at.0).expect("named"));
    let to = [&to[..], b"/", &at.1].concat();
    // A file that is restored to its own place may become another name of an existing file.
    let names = |path: &[u8]| -> Vec<Vec<u8>> {
        path.split(|&b| b == b'/').filter(|name| !name.is_empty()).map(<[u8]>::to_vec).collect()
    };
    if names(&path) == names(&to) {
        return Ok(());
    }
    let mut fresh = w.fresh;
    let effect = tree.clone_of(&then, from, &at, &mut fresh);
    w.fresh = fresh;
    let what = format!("clone {from} of snapshot {name} {}/{}", at.0, at.1.escape_ascii());
    let (view, views) = (w.view_of(site), w.views.clone());
    let earlier = Earlier::Snapshot(name);
    if w.random.one_in(2) {
        w.call(&["Views::clone_several_earlier"]);
        let places: [(&[u8], &[u8]); 1] = [(&path, &to)];
        let clone = |_: &_| views.clone_several_earlier(&view, &earlier, &places);
        return w.act(site, what, effect, clone).map(drop);
    }
    w.call(&["Views::clone_earlier"]);
    w.act(site, what, effect, |_| views.clone_earlier(&view, &earlier, &path, &to)).map(drop)
}

/// Everything below an object, in one state.
pub fn walk(w: &mut World, site: &Site) -> Result<(), Dead> {
    let tree = w.tree(site);
    let all = tree.all(|_| true);
    let from = w.pick(&all).expect("there is the root");
    let Some(ino) = w.ino(site, from)? else { return Ok(()) };
    w.note(format!("{site:?} walk from {from}"));
    let top = tree.path(from).expect("named");
    let begun = if w.kernel.holds() || w.random.one_in(2) {
        w.call(&["Views::walk"]);
        w.views.walk(&w.view_of(site), &top)
    } else {
        w.call(&["Fs::walk"]);
        w.fs(site)?.walk(ino)
    };
    let mut walk = match begun {
        Ok(walk) => walk,
        Err(e) => return w.judge(site, e, "walk", &[]),
    };
    let mut found = Vec::new();
    loop {
        match walk.next() {
            Ok(None) => break,
            Ok(Some(kvfs::Walked { path, attr })) => found.push((path.to_vec(), attr)),
            Err(e) => return w.judge(site, e, "walk", &[]),
        }
    }
    let mut todo = vec![(Vec::new(), from)];
    let mut wanted = Vec::new();
    while let Some((path, id)) = todo.pop() {
        // Paths in the order of the names. Names below a name follow it and precede the next one.
        let below: Vec<_> = tree.children(id).map(|(name, child)| (name.clone(), child)).collect();
        if tree.is_dir(id) {
            let join = |name: Vec<u8>| {
                if path.is_empty() { name } else { [&path[..], b"/", &name].concat() }
            };
            todo.extend(below.into_iter().rev().map(|(name, child)| (join(name), child)));
        }
        wanted.push((path, id));
    }
    let paths = |all: &[(Vec<u8>, kvfs::Attr)]| {
        all.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>()
    };
    assert_eq!(
        paths(&found),
        wanted.iter().map(|(path, _)| path.clone()).collect::<Vec<_>>(),
        "{}",
        w.what()
    );
    let locks = w.views.takes_locks();
    for ((path, attr), (_, id)) in found.iter().zip(&wanted) {
        let (node, own) = (&tree.nodes[id], tree.nodes[id].now());
        let what = format!("{}: {}", w.what(), path.escape_ascii());
        assert_eq!(attr.kind, node.kind, "{what}");
        // Locked data may wait, and so may dirty data in a full store.
        if node.kind == FileKind::File && !locks && !w.limited && w.lost.is_empty() {
            assert_eq!(
                (attr.size, attr.perm, (attr.uid, attr.gid)),
                (own.data.len() as u64, own.perm, own.owner),
                "{what}"
            );
            assert_eq!(attr.nlink, tree.links(*id), "{what}");
        }
    }
    Ok(())
}

// --- references

impl World {
    /// The kernel gives references back.
    pub fn forget(&mut self, site: &Site, id: Id, ino: Ino, count: u64) -> Result<(), Dead> {
        let at = (site.clone(), id);
        let Some(had) = self.references.get_mut(&at) else { return Ok(()) };
        *had = had.saturating_sub(count);
        let last = *had == 0;
        if last {
            self.references.remove(&at);
            self.nameless.remove(&at);
            self.stale.remove(&at);
        }
        let fs = self.fs(site)?;
        if self.random.one_in(2) {
            self.call(&["Fs::forget"]);
            fs.forget(ino, count);
        } else {
            let number = self.ok(self.views.number(&self.view_of(site)))?;
            self.call(&["Views::forget", "Views::number"]);
            match number {
                0 => fs.forget(ino, count),
                number => self.views.forget(number, ino, count),
            }
        }
        if self.device.is_dead() { Err(Dead) } else { Ok(()) }
    }
}

/// Opens a file, or closes an open one.
pub fn handles(w: &mut World, site: &Site) -> Result<(), Dead> {
    let mine: Vec<(Id, u64)> =
        w.references.iter().filter(|((s, _), _)| s == site).map(|((_, id), n)| (*id, *n)).collect();
    if let Some((id, count)) = w.pick(&mine)
        && w.random.one_in(2)
    {
        let ino = w.inos[&id];
        let some = if w.random.one_in(3) { 1 } else { count };
        w.note(format!("{site:?} forget {id} {some}"));
        return w.forget(site, id, ino, some);
    }
    let tree = w.tree(site);
    let at = w.entry(&tree);
    let Some(dir) = w.ino(site, at.0)? else { return Ok(()) };
    let expected = match check_name(&at.1) {
        Err(libc::ENAMETOOLONG) => Err(libc::ENAMETOOLONG),
        // `.` and `..` are found, and invalid names are not.
        Err(_) if at.1.starts_with(b".") => return Ok(()),
        Err(_) => Err(libc::ENOENT),
        Ok(()) => tree.entries.get(&at).copied().ok_or(libc::ENOENT),
    };
    w.call(&["Fs::lookup", "Fs::peek", "Fs::is_referenced", "Fs::referenced"]);
    let fs = w.fs(site)?;
    w.note(format!("{site:?} lookup {}/{}", at.0, at.1.escape_ascii()));
    match (fs.lookup(dir, &at.1), expected) {
        (Ok(attr), Ok(id)) => {
            match w.inos.get(&id) {
                Some(ino) => assert_eq!(*ino, attr.ino, "{}", w.what()),
                None => w.is_new(site, id, attr.ino),
            }
            w.refer(site, id);
            assert_eq!(attr.kind, tree.nodes[&id].kind, "{}", w.what());
            assert!(fs.is_referenced(attr.ino));
            let peeked = w.ok(fs.peek(dir, &at.1))?;
            assert_eq!(peeked, Some((attr.ino, attr.kind)), "{}", w.what());
        }
        (Ok(attr), Err(e)) => panic!("{}: {attr:?}, not error {e}", w.what()),
        (Err(e), expected) => {
            let expected: Vec<i32> = expected.err().into_iter().collect();
            return w.judge(site, e, "lookup", &expected);
        }
    }
    let mut referenced = fs.referenced();
    referenced.sort_unstable();
    let mut wanted: Vec<Ino> =
        w.references.keys().filter(|(s, _)| s == site).map(|(_, id)| w.inos[id]).collect();
    wanted.sort_unstable();
    assert_eq!(referenced, wanted, "{}: what the kernel refers to", w.what());
    Ok(())
}
