//! The content that is found on a file system, and its comparison with the expected content.

use std::collections::BTreeMap;
use std::sync::Arc;

use kvdb::{Kvdb, View as Stored};
use kvfs::{FileKind, Fs, Ino, ROOT, Timestamp};

use super::tree::{Id, Key, Own, TOP, Tree};

/// A file or directory.
#[derive(Clone, Debug)]
pub struct Thing {
    pub ino: Ino,
    pub kind: FileKind,
    pub rdev: u32,
    pub nlink: u32,
    pub size: u64,
    /// The target of `..`, for a directory.
    pub above: Ino,
    pub own: Own,
}

/// Everything in a view, by path, and its keys.
#[derive(Clone, Debug, Default)]
pub struct Found {
    pub things: BTreeMap<Vec<u8>, Thing>,
    pub keys: BTreeMap<Key, Vec<u8>>,
}

/// The properties that are to be compared.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exactly {
    /// Changes that wait in memory may be there or not.
    Stored,
    /// The current state.
    Now,
    /// The current state, except for times, links and sizes of directories.
    ButForDirectories,
}

pub fn thing(fs: &Fs, ino: Ino) -> kvfs::Result<Thing> {
    let attr = fs.getattr(ino)?;
    let data = match attr.kind {
        FileKind::File => fs.read(ino, 0, attr.size as u32 + 1)?.to_vec(),
        FileKind::Symlink => fs.readlink(ino)?,
        _ => Vec::new(),
    };
    let names = fs.listxattr(ino)?;
    let names = names.split(|c| *c == 0).filter(|name| !name.is_empty());
    let xattrs = names
        .map(|name| Ok((name.to_vec(), fs.getxattr(ino, name)?)))
        .collect::<kvfs::Result<_>>()?;
    let is_dir = attr.kind == FileKind::Dir;
    let mtime = if is_dir { Timestamp::default() } else { attr.mtime };
    let own =
        Own { perm: attr.perm, owner: (attr.uid, attr.gid), mtime, xattrs, data: Arc::new(data) };
    Ok(Thing {
        ino,
        kind: attr.kind,
        rdev: attr.rdev,
        nlink: attr.nlink,
        size: attr.size,
        above: 0,
        own,
    })
}

type Names = Vec<(Vec<u8>, Ino)>;

/// The names of a directory, in order, and the number of `..`.
pub fn list(fs: &Fs, dir: Ino) -> kvfs::Result<(Names, Ino)> {
    let (mut names, mut above) = (Vec::new(), 0);
    fs.readdir(dir, 0, false, &mut |e| {
        match e.name {
            b"." => assert_eq!(e.ino, dir),
            b".." => above = e.ino,
            name => names.push((name.to_vec(), e.ino)),
        }
        true
    })?;
    Ok((names, above))
}

pub fn look(fs: &Fs) -> kvfs::Result<Found> {
    let mut found = Found::default();
    let mut todo = vec![(Vec::new(), ROOT)];
    while let Some((path, ino)) = todo.pop() {
        let mut it = thing(fs, ino)?;
        if it.kind == FileKind::Dir {
            let (names, above) = list(fs, ino)?;
            it.above = above;
            let join = |name: Vec<u8>| {
                if path.is_empty() { name } else { [&path[..], b"/", &name].concat() }
            };
            todo.extend(names.into_iter().map(|(name, ino)| (join(name), ino)));
        }
        found.things.insert(path, it);
        assert!(found.things.len() < 5000, "a circle of directories");
    }
    Ok(found)
}

/// Dictionaries of the model's keys; the others are the file system's.
pub const DICTIONARIES: [&str; 2] = ["user", "more"];

/// The keys that a view has of a branch. Of a snapshot or a transaction: `""`.
pub fn keys_of(view: &Stored, branch: &str) -> kvdb::Result<BTreeMap<Key, Vec<u8>>> {
    let mut all = BTreeMap::new();
    for name in DICTIONARIES {
        let Some(dict) = view.dictionary_in(branch, name) else { continue };
        let tuples = view.scan(dict, b"", b"", usize::MAX)?;
        all.extend(tuples.into_iter().map(|(k, v)| ((name.to_string(), k.to_vec()), v.to_vec())));
    }
    Ok(all)
}

pub fn keys_in(db: &Kvdb, branch: &str) -> kvdb::Result<BTreeMap<Key, Vec<u8>>> {
    keys_of(&db.view(), branch)
}

fn shown(own: &Own) -> String {
    let Own { perm, owner, mtime, xattrs, data } = own;
    let xattrs: Vec<_> = xattrs
        .iter()
        .map(|(name, value)| format!("{}: {}", name.escape_ascii(), value.len()))
        .collect();
    format!("{perm:o} {owner:?} {}.{:09} {xattrs:?} {} bytes", mtime.secs, mtime.nanos, data.len())
}

/// Returns the first place at which two contents differ.
fn first_difference(a: &[u8], b: &[u8]) -> Option<usize> {
    a.iter()
        .zip(b)
        .position(|(a, b)| a != b)
        .or_else(|| (a.len() != b.len()).then(|| a.len().min(b.len())))
}

pub type Matched = BTreeMap<Id, (Ino, Arc<Own>)>;

/// Checks that this is the content that was found, and returns the reason if it is not. `inos` are
/// numbers that are known.
pub fn is(
    tree: &Tree,
    found: &Found,
    how: Exactly,
    inos: &BTreeMap<Id, Ino>,
) -> Result<Matched, String> {
    let paths = tree.paths();
    if !paths.keys().eq(found.things.keys()) {
        let missing: Vec<_> = paths
            .keys()
            .filter(|p| !found.things.contains_key(*p))
            .map(|p| p.escape_ascii().to_string())
            .collect();
        let more: Vec<_> = found
            .things
            .keys()
            .filter(|p| !paths.contains_key(*p))
            .map(|p| p.escape_ascii().to_string())
            .collect();
        return Err(format!("names: {missing:?} are missing, {more:?} should not be there"));
    }
    let mut matched = Matched::new();
    for (path, id) in &paths {
        // The result of a commit that meets a conflict need not be a file system.
        let Some(node) = tree.nodes.get(id) else {
            return Err(format!("node {id} has a name and is not there"));
        };
        let it = &found.things[path];
        let fails = |what: String| {
            Err(format!(
                "{:?} (node {id}, inode {}): {what}",
                path.escape_ascii().to_string(),
                it.ino
            ))
        };
        if (it.kind, it.rdev) != (node.kind, node.rdev) {
            return fails(format!("{:?}, not {:?}", it.kind, node.kind));
        }
        if inos.get(id).is_some_and(|ino| *ino != it.ino) {
            return fails(format!("it was inode {}", inos[id]));
        }
        let loose = how == Exactly::ButForDirectories && node.is_dir();
        let (links, size) = match node.is_dir() {
            false => {
                (tree.links(*id), node.kind == FileKind::File || node.kind == FileKind::Symlink)
            }
            true => (
                2 + tree.children(*id).filter(|(_, child)| tree.is_dir(*child)).count() as u32,
                false,
            ),
        };
        if it.nlink != links && !loose {
            return fails(format!("{} links, not {links}", it.nlink));
        }
        let wanted = match node.is_dir() {
            true => tree.children(*id).count(),
            false => it.own.data.len(),
        };
        if it.size != wanted as u64 && !loose && (size || node.is_dir()) {
            return fails(format!("a size of {}, not {wanted}", it.size));
        }
        let own = match how {
            Exactly::Stored => node.possible.iter().rev().find(|own| ***own == it.own),
            _ => node.possible.last().filter(|own| ***own == it.own || loose),
        };
        let Some(own) = own else {
            let at = first_difference(&node.now().data, &it.own.data);
            let others = node.possible.len() - 1;
            return fails(format!(
                "{}, not {}, differs at {at:?}; nor one of {others} before",
                shown(&it.own),
                shown(node.now())
            ));
        };
        if let Some((ino, _)) = matched.insert(*id, (it.ino, own.clone()))
            && ino != it.ino
        {
            return fails("no longer a link of the same file".into());
        }
    }
    for (path, id) in &paths {
        let it = &found.things[path];
        if it.kind == FileKind::Dir && how != Exactly::ButForDirectories {
            let above = if *id == TOP {
                ROOT
            } else {
                tree.parent(*id).and_then(|p| matched.get(&p)).map_or(0, |(ino, _)| *ino)
            };
            if it.above != above {
                return Err(format!(
                    "{:?}: above it is {}, not {above}",
                    path.escape_ascii().to_string(),
                    it.above
                ));
            }
        }
    }
    let mut numbers: Vec<Ino> = matched.values().map(|(ino, _)| *ino).collect();
    numbers.sort_unstable();
    numbers.dedup();
    if numbers.len() != matched.len() {
        return Err("two files with one number".into());
    }
    if !tree.keys.iter().map(|(k, v)| (k, &**v)).eq(&found.keys) {
        let all = tree.keys.keys().chain(found.keys.keys());
        let differs = |k: &&Key| tree.keys.get(*k).map(|v| &**v) != found.keys.get(*k);
        let key = all.filter(differs).min();
        let len = |v: Option<usize>| v.map_or("nothing".into(), |n| format!("{n} bytes"));
        let (is, want) = (
            len(key.and_then(|k| found.keys.get(k)).map(Vec::len)),
            len(key.and_then(|k| tree.keys.get(k)).map(|v| v.len())),
        );
        return Err(format!("key {key:?}: {is}, not {want}"));
    }
    Ok(matched)
}
