//! Compares a difference with a naive one that walks both trees and compares everything at every
//! path. Random trees get random changes: hard links, renames and swaps of directories, replaced
//! types, trees removed and made again, extended attributes, owners, modes and times.
//!
//! `KVFS_CASES=20000 cargo test -p kvfs --test it difference_oracle::` runs more cases, from
//! `KVFS_BASE` on.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::sync::Arc;

use env::{Env, Simulated};
use kvdb::{Durability, Kvdb};
use kvfs::{
    Caller, Difference, FileChange, FileKind, Fs, FsOptions, Ino, Listing, ROOT, RenameFlags,
    SetAttr, TimeSet, Timestamp, ViewId, Views, XattrFlags,
};

type Path = Vec<u8>;

/// Everything at a path.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Thing {
    ino: Ino,
    kind: FileKind,
    perm: u16,
    owner: (u32, u32),
    rdev: u32,
    content: Vec<u8>,
    xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    mtime: Timestamp,
}

type Tree = BTreeMap<Path, Thing>;

fn thing(fs: &Fs, ino: Ino) -> Thing {
    let attr = fs.getattr(ino).expect("attributes");
    let content = match attr.kind {
        FileKind::File => fs.read(ino, 0, attr.size as u32).expect("content").to_vec(),
        FileKind::Symlink => fs.readlink(ino).expect("target").to_vec(),
        _ => Vec::new(),
    };
    let names = fs.listxattr(ino).expect("names");
    let names = names.split(|c| *c == 0).filter(|n| !n.is_empty());
    let xattrs = names
        .map(|name| (name.to_vec(), fs.getxattr(ino, name).expect("value").to_vec()))
        .collect();
    let owner = (attr.uid, attr.gid);
    Thing {
        ino,
        kind: attr.kind,
        perm: attr.perm,
        owner,
        rdev: attr.rdev,
        content,
        xattrs,
        mtime: attr.mtime,
    }
}

fn list(fs: &Fs, dir: Ino) -> Vec<(Vec<u8>, Ino)> {
    let mut all = Vec::new();
    fs.readdir(dir, 0, false, &mut |e| {
        if e.name != b"." && e.name != b".." {
            all.push((e.name.to_vec(), e.ino));
        }
        true
    })
    .expect("a listing");
    all
}

fn walk(fs: &Fs) -> Tree {
    let mut tree = Tree::from([(Vec::new(), thing(fs, ROOT))]);
    let mut todo = vec![(Vec::new(), ROOT)];
    while let Some((path, dir)) = todo.pop() {
        for (name, ino) in list(fs, dir) {
            let below = if path.is_empty() { name } else { [&path[..], b"/", &name].concat() };
            let it = thing(fs, ino);
            if it.kind == FileKind::Dir {
                todo.push((below.clone(), ino));
            }
            tree.insert(below, it);
        }
    }
    tree
}

/// The names of each file with several names, by each of them.
fn groups(tree: &Tree) -> HashMap<Path, BTreeSet<Path>> {
    let mut by_ino: HashMap<Ino, BTreeSet<Path>> = HashMap::new();
    for (path, thing) in tree.iter().filter(|(_, t)| t.kind != FileKind::Dir) {
        by_ino.entry(thing.ino).or_default().insert(path.clone());
    }
    by_ino
        .into_values()
        .flat_map(|group| group.clone().into_iter().map(move |path| (path, group.clone())))
        .collect()
}

/// The paths that exist on one side only, for inodes that exist on both, each with the path on the
/// other side.
fn moved(old: &Tree, new: &Tree) -> HashMap<Path, Path> {
    let mut moved = HashMap::new();
    let inodes: BTreeSet<Ino> = old.values().map(|thing| thing.ino).collect();
    for ino in inodes {
        let alone = |here: &Tree, there: &Tree| -> Vec<Path> {
            let named = here.iter().filter(|(path, t)| t.ino == ino && !there.contains_key(*path));
            named.map(|(path, _)| path.clone()).collect()
        };
        for (gone, added) in alone(old, new).into_iter().zip(alone(new, old)) {
            moved.insert(gone.clone(), added.clone());
            moved.insert(added, gone);
        }
    }
    moved
}

/// One line for each path that differs, with all differences.
fn naive(old: &Tree, new: &Tree) -> Vec<String> {
    let (was_linked, is_linked) = (groups(old), groups(new));
    let moved = moved(old, new);
    let renamed = |path: &Path| match moved.get(path) {
        Some(other) => format!(" ~ {}", other.escape_ascii()),
        None => String::new(),
    };
    let paths: BTreeSet<&Path> = old.keys().chain(new.keys()).collect();
    let mut lines = Vec::new();
    for path in paths {
        let shown = path.escape_ascii();
        let xattrs = |a: &Thing, b: &Thing| {
            let names: BTreeSet<&Vec<u8>> = a.xattrs.keys().chain(b.xattrs.keys()).collect();
            names
                .into_iter()
                .filter(|n| a.xattrs.get(*n) != b.xattrs.get(*n))
                .map(|n| format!(" x:{}", n.escape_ascii()))
                .collect()
        };
        let line = match (old.get(path), new.get(path)) {
            (Some(a), Some(b)) => {
                let mut line = String::new();
                let mut say = |differs: bool, what: &str| {
                    if differs {
                        line += what;
                    }
                };
                say(a.kind != b.kind, " kind");
                say(a.perm != b.perm, " mode");
                say(a.owner != b.owner, " owner");
                say(a.rdev != b.rdev, " device");
                say(
                    a.kind == FileKind::File && b.kind == FileKind::File && a.content != b.content,
                    " content",
                );
                let target = |t: &Thing| (t.kind == FileKind::Symlink).then(|| t.content.clone());
                say(target(a) != target(b), " target");
                let names: String = xattrs(a, b);
                say(true, &names);
                let files = a.kind != FileKind::Dir && b.kind != FileKind::Dir;
                say(files && was_linked[path] != is_linked[path], " links");
                if line.is_empty() && a.mtime == b.mtime {
                    continue;
                }
                format!("M {shown}{line}")
            }
            (None, Some(b)) => {
                let names: String = xattrs(&Thing { xattrs: BTreeMap::new(), ..b.clone() }, b);
                let linked =
                    is_linked.get(path).and_then(|group| group.iter().find(|p| *p != path));
                let written = moved.get(path).is_some_and(|from| old[from].content != b.content);
                format!(
                    "A {shown}{names}{}{}{}",
                    linked.map(|p| format!(" = {}", p.escape_ascii())).unwrap_or_default(),
                    renamed(path),
                    if written && b.kind == FileKind::File { " content" } else { "" },
                )
            }
            (Some(a), None) => {
                let names: String = xattrs(a, &Thing { xattrs: BTreeMap::new(), ..a.clone() });
                let linked =
                    was_linked.get(path).and_then(|group| group.iter().find(|p| *p != path));
                format!(
                    "D {shown}{names}{}{}",
                    linked.map(|p| format!(" = {}", p.escape_ascii())).unwrap_or_default(),
                    renamed(path),
                )
            }
            (None, None) => continue,
        };
        lines.push(line);
    }
    lines
}

/// The lines of the difference that is under test.
fn told(changes: &[FileChange]) -> Vec<String> {
    changes
        .iter()
        .map(|c| {
            let shown = c.path.escape_ascii();
            let names: String =
                c.xattrs.iter().map(|x| format!(" x:{}", x.name.escape_ascii())).collect();
            let linked = c
                .linked_to
                .as_ref()
                .map(|p| format!(" = {}", p.escape_ascii()))
                .unwrap_or_default();
            let renamed = c.moved.as_ref().map(|p| format!(" ~ {}", p.escape_ascii()));
            let renamed = renamed.unwrap_or_default();
            let written = if c.content { " content" } else { "" };
            let (a, b) = match (&c.before, &c.after) {
                (Some(a), Some(b)) => (a, b),
                (None, _) => return format!("A {shown}{names}{linked}{renamed}{written}"),
                (_, None) => return format!("D {shown}{names}{linked}{renamed}{written}"),
            };
            let mut line = String::new();
            for (differs, what) in [
                (a.kind != b.kind, " kind"),
                (a.perm != b.perm, " mode"),
                ((a.uid, a.gid) != (b.uid, b.gid), " owner"),
                (a.rdev != b.rdev, " device"),
                (c.content, " content"),
                (c.targets.0 != c.targets.1, " target"),
                (!names.is_empty(), &names),
                (c.links, " links"),
            ] {
                if differs {
                    line += what;
                }
            }
            assert_eq!(line.is_empty(), c.times_alone(), "{c:?}");
            format!("M {shown}{line}")
        })
        .collect()
}

struct Random(u64);

impl Random {
    fn below(&mut self, n: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        (self.0.wrapping_mul(0x2545_f491_4f6c_dd1d) >> 33) as usize % n.max(1)
    }
    fn pick<'a, T>(&mut self, all: &'a [T]) -> &'a T {
        &all[self.below(all.len())]
    }
}

const NAMES: [&str; 6] = ["a", "b", "c", "d", "e", "f"];
const USER: Caller = Caller { uid: 1000, gid: 100, pid: 7 };

/// Everything in a tree: its path, inode, directory and name.
type Places = Vec<(Path, Ino, Ino, Vec<u8>, FileKind)>;

fn places(fs: &Fs) -> Places {
    let (mut all, mut todo) = (Places::new(), vec![(Vec::new(), ROOT)]);
    while let Some((path, dir)) = todo.pop() {
        for (name, ino) in list(fs, dir) {
            let below = [&path[..], b"/", &name].concat();
            let kind = fs.getattr(ino).expect("attributes").kind;
            if kind == FileKind::Dir {
                todo.push((below.clone(), ino));
            }
            all.push((below, ino, dir, name, kind));
        }
    }
    all
}

fn remove(fs: &Fs, dir: Ino, name: &[u8], ino: Ino, kind: FileKind) {
    if kind == FileKind::Dir {
        for (below, ino_below) in list(fs, ino) {
            let kind = fs.getattr(ino_below).expect("attributes").kind;
            remove(fs, ino, &below, ino_below, kind);
        }
        fs.rmdir(dir, name).expect("an empty directory");
    } else {
        fs.unlink(dir, name).expect("a file");
    }
}

/// Removes a tree and makes it again, with other inode numbers and times. Hard links become
/// separate files.
fn copy(fs: &Fs, from: Ino, dir: Ino, name: &[u8]) {
    let it = thing(fs, from);
    let made = match it.kind {
        FileKind::Dir => fs.mkdir(dir, name, it.perm, USER),
        FileKind::Symlink => fs.symlink(dir, name, &it.content, USER),
        kind => fs.mknod(dir, name, kind, it.perm, it.rdev, USER),
    };
    let ino = made.expect("a free name").ino;
    if it.kind == FileKind::File {
        fs.write(ino, 0, &it.content, Default::default()).expect("written");
    }
    let set = SetAttr {
        mode: Some(it.perm),
        uid: Some(it.owner.0),
        gid: Some(it.owner.1),
        ..Default::default()
    };
    fs.setattr(ino, &set, Caller::default()).expect("set");
    for (name, value) in &it.xattrs {
        fs.setxattr(ino, name, value, XattrFlags::Any).expect("set");
    }
    if it.kind == FileKind::Dir {
        list(fs, from).into_iter().for_each(|(name, below)| copy(fs, below, ino, &name));
    }
    fs.forget(ino, 1);
}

/// Makes one random change. Returns its description for the report.
fn change(fs: &Fs, random: &mut Random) -> String {
    let all = places(fs);
    let mut dirs: Vec<Ino> = all.iter().filter(|p| p.4 == FileKind::Dir).map(|p| p.1).collect();
    dirs.push(ROOT);
    let dir = *random.pick(&dirs);
    let name = random.pick(&NAMES).as_bytes();
    let free = fs.lookup(dir, name).map(|attr| fs.forget(attr.ino, 1)).is_err();
    let one = (!all.is_empty()).then(|| random.pick(&all).clone());
    let ino = one.as_ref().map_or(ROOT, |p| p.1);
    let is = |kind: FileKind| one.as_ref().filter(|p| p.4 == kind);
    let sizes = [1, 7, 300, 600, 4096, 5000, 13_000];
    match random.below(20) {
        0..=2 if free => {
            let kind = *random.pick(&[
                FileKind::File,
                FileKind::File,
                FileKind::File,
                FileKind::Fifo,
                FileKind::CharDevice,
            ]);
            let ino = fs.mknod(dir, name, kind, 0o644, 259, USER).expect("made").ino;
            if kind == FileKind::File {
                fs.write(ino, 0, &vec![1; *random.pick(&sizes)], Default::default())
                    .expect("written");
            }
            fs.forget(ino, 1);
            format!("make {kind:?} {dir}/{}", name.escape_ascii())
        }
        3..=4 if free => {
            fs.forget(fs.mkdir(dir, name, 0o755, USER).expect("made").ino, 1);
            format!("mkdir {dir}/{}", name.escape_ascii())
        }
        5 if free => {
            let target = random.pick(&NAMES).as_bytes();
            fs.forget(fs.symlink(dir, name, target, USER).expect("made").ino, 1);
            format!("symlink {dir}/{}", name.escape_ascii())
        }
        6..=7 if free && is(FileKind::File).is_some() => {
            fs.forget(fs.link(ino, dir, name).expect("linked").ino, 1);
            format!("link {ino} {dir}/{}", name.escape_ascii())
        }
        8..=10 => match is(FileKind::File) {
            Some(_) => {
                let (at, len, byte) = (
                    *random.pick(&[0, 0, 100, 5000, 20_000]),
                    *random.pick(&sizes),
                    random.below(3) as u8,
                );
                fs.write(ino, at, &vec![byte; len], Default::default()).expect("written");
                format!("write {byte} to {ino} at {at}, {len} bytes")
            }
            None => "nothing".into(),
        },
        11 => {
            let mut set = SetAttr::default();
            let what = random.below(4);
            match what {
                0 => set.mode = Some(*random.pick(&[0o600, 0o644, 0o4755])),
                1 => set.uid = Some(random.below(2) as u32),
                2 => {
                    set.mtime =
                        Some(TimeSet::At(Timestamp { secs: random.below(2) as i64, nanos: 0 }))
                }
                _ if is(FileKind::File).is_some() => {
                    set.size = Some(*random.pick(&[0, 3, 4096, 9000]))
                }
                _ => {}
            }
            fs.setattr(ino, &set, Caller::default()).expect("set");
            format!("set {ino} {set:?}")
        }
        12 => {
            let (name, len) =
                (*random.pick(&[&b"user.x"[..], b"user.y"]), *random.pick(&[0, 5, 9000]));
            if matches!(one.as_ref().map(|p| p.4), Some(FileKind::File | FileKind::Dir)) {
                fs.setxattr(ino, name, &vec![random.below(2) as u8; len], XattrFlags::Any)
                    .expect("set");
            }
            format!("setxattr {ino} {} {len}", name.escape_ascii())
        }
        13 => {
            let _ = fs.removexattr(ino, b"user.x");
            format!("removexattr {ino}")
        }
        14..=15 => match &one {
            Some((path, ino, parent, name, kind)) => {
                remove(fs, *parent, name, *ino, *kind);
                format!("rm -r {}", path.escape_ascii())
            }
            None => "nothing".into(),
        },
        16..=17 => match &one {
            Some((path, _, parent, from, _)) => {
                let flags = RenameFlags { exchange: random.below(3) == 0, ..Default::default() };
                let done = fs.rename(*parent, from, dir, name, flags);
                format!(
                    "mv {} {dir}/{} {flags:?}: {:?}",
                    path.escape_ascii(),
                    name.escape_ascii(),
                    done.err().map(|e| e.to_string())
                )
            }
            None => "nothing".into(),
        },
        // The tree was removed and made again, so only times and links have changed.
        18 => match &one {
            Some((path, ino, parent, from, kind))
                if fs.lookup(*parent, b"again").map(|a| fs.forget(a.ino, 1)).is_err() =>
            {
                copy(fs, *ino, *parent, b"again");
                remove(fs, *parent, from, *ino, *kind);
                fs.rename(*parent, b"again", *parent, from, RenameFlags::default())
                    .expect("renamed");
                format!("again {}", path.escape_ascii())
            }
            _ => "nothing".into(),
        },
        _ => match &one {
            Some((path, ino, ..)) if free => {
                // A copy does not go into itself.
                let done = fs.clone_tree(*ino, dir, name);
                format!(
                    "clone-tree {} {dir}/{}: {:?}",
                    path.escape_ascii(),
                    name.escape_ascii(),
                    done.is_ok()
                )
            }
            _ => "nothing".into(),
        },
    }
}

fn case(seed: u64) {
    let mut random = Random(seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1);
    for _ in 0..4 {
        random.below(2);
    }
    let (db, env) = (Kvdb::in_memory(), Arc::new(Simulated::new(seed)));
    let fs = Fs::open(db.clone(), env.clone() as Arc<dyn Env>, FsOptions::default())
        .expect("a file system");
    let views = Views::new(db.clone(), fs.clone());
    let mut log = Vec::new();
    let mut changes = |fs: &Fs, random: &mut Random, n: usize| {
        for _ in 0..n {
            env.advance(std::time::Duration::from_millis(10));
            log.push(change(fs, random));
            if fs.statistics().inodes > 300 {
                break;
            }
        }
        log.push("---".into());
        log.clone()
    };
    let few = 1 + random.below(30);
    changes(&fs, &mut random, few);
    if random.below(3) == 0 {
        fs.sync_all().expect("synced");
        db.flush().expect("flushed");
    }
    views.snapshot(&ViewId::Mainline, "a", Durability::Buffered).expect("a snapshot");
    let a = walk(&views.fs(&ViewId::Snapshot("a".into())).expect("a view"));
    let check = |found: Difference, old: &Tree, new: &Tree, what: &str, log: &[String]| {
        let (found, want) = (told(&found), naive(old, new));
        assert!(
            found == want,
            "seed {seed}, {what}:\n{}\nfound {found:#?}\nwant {want:#?}",
            log.join("\n")
        );
    };

    // In a transaction, while others work. The difference is compared with the transaction's own
    // reads.
    let id = views.begin(Default::default()).expect("a transaction");
    let inside = views.fs(&ViewId::Transaction(id)).expect("a view");
    let few = 1 + random.below(12);
    let log = changes(&inside, &mut random, few);
    let found = views.difference(id, Default::default()).expect("a difference");
    let collapsed = views.difference(id, Listing::Collapsed).expect("a difference");
    check_collapsed(&found, &collapsed, "transaction", &log);
    check(found, &a, &walk(&inside), "transaction", &log);
    let few = 1 + random.below(20);
    let log = changes(&fs, &mut random, few);
    let found = views.difference(id, Default::default()).expect("a difference");
    check(found, &a, &walk(&inside), "transaction among others", &log);
    views.abort(id).expect("aborted");

    if random.below(3) == 0 {
        fs.sync_all().expect("synced");
        db.flush().expect("flushed");
    }
    views.snapshot(&ViewId::Mainline, "b", Durability::Buffered).expect("a snapshot");
    let b = walk(&views.fs(&ViewId::Snapshot("b".into())).expect("a view"));
    let difference = |from: &str, to: Option<&str>| {
        let list = |listing| views.difference_of_snapshots(from, to, listing);
        let all = list(Listing::All).expect("a difference");
        let collapsed = list(Listing::Collapsed).expect("a difference");
        check_collapsed(&all, &collapsed, &format!("{from} to {to:?}"), &log);
        all
    };
    check(difference("a", Some("b")), &a, &b, "a to b", &log);
    check(difference("b", Some("a")), &b, &a, "b to a", &log);
    check(difference("a", None), &a, &b, "a to now", &log);
    check(difference("b", None), &b, &b, "b to now", &log);
}

/// A collapsed list has the same changes as the whole one, except for those that it counts at the
/// highest directory that exists on one side only.
fn check_collapsed(
    all: &[FileChange],
    collapsed: &[FileChange],
    what: &str,
    log: &impl std::fmt::Debug,
) {
    let whole: BTreeMap<&[u8], &FileChange> =
        all.iter().map(|change| (&change.path[..], change)).collect();
    let mut left = whole.clone();
    let mut counted: BTreeMap<&[u8], u64> = BTreeMap::new();
    for change in collapsed {
        let same = left.remove(&change.path[..]).expect("the whole list has it");
        let told =
            |c: &FileChange| format!("{:?}", FileChange { below: Default::default(), ..c.clone() });
        assert_eq!(told(change), told(same), "{what}: {log:?}");
        let below = change.below;
        counted.insert(&change.path, below.files + below.directories + below.moved);
    }
    let is_directory =
        |side: &Option<kvfs::Attr>| side.is_some_and(|attr| attr.kind == FileKind::Dir);
    for path in left.keys() {
        let ends = path.iter().enumerate().filter(|(_, byte)| **byte == b'/').map(|(at, _)| at);
        let above = ends.filter_map(|end| whole.get(&path[..end]));
        let mut above = above.filter(|c| is_directory(&c.before) != is_directory(&c.after));
        let top = above.next().unwrap_or_else(|| {
            panic!("{what}: {} is not listed: {log:?}", String::from_utf8_lossy(path))
        });
        *counted.get_mut(&top.path[..]).expect("the highest is listed") -= 1;
    }
    counted.retain(|_, count| *count > 0);
    assert!(counted.is_empty(), "{what}: counted, and not there: {counted:?}: {log:?}");
}

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|text| text.parse().ok()).unwrap_or(or)
}

#[test]
fn a_difference_is_that_of_walking_both_trees() {
    let base = number("KVFS_BASE", 0);
    (base..base + number("KVFS_CASES", 400)).for_each(case);
}
