//! Random calls on a tree of files, and the expected result when one of two trees with a common
//! origin is merged into the other.

use std::collections::{BTreeMap, BTreeSet};

use env::Random;
use kvfs::{FileKind, Fs, ROOT, RenameFlags, SetAttr};

use crate::world::{USER, World};

pub fn seeds(usual: u64) -> Vec<u64> {
    let read = |name: &str| std::env::var(name).ok().and_then(|n| n.parse::<u64>().ok());
    let base = read("KVFS_SEED_BASE").unwrap_or(0);
    match (read("KVFS_SEED"), read("KVFS_SEEDS")) {
        (Some(one), _) => vec![one],
        (None, n) => (base..base + n.unwrap_or(usual)).collect(),
    }
}

/// The target of a path: a directory or a file with content, and the mode.
#[derive(Clone, PartialEq, Eq)]
pub struct Thing {
    pub content: Option<Vec<u8>>,
    pub perm: u16,
    pub links: u32,
}

impl std::fmt::Debug for Thing {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let sum = |sum: u32, byte: &u8| sum.wrapping_mul(31).wrapping_add((*byte).into());
        let content = self.content.as_ref().map(|c| (c.len(), c.iter().fold(0, sum)));
        write!(f, "{content:?} {:o} {}", self.perm, self.links)
    }
}

pub type Tree = BTreeMap<String, Thing>;

pub fn tree(fs: &Fs) -> Tree {
    let mut all = Tree::new();
    let mut dirs = vec![(String::new(), ROOT)];
    while let Some((path, dir)) = dirs.pop() {
        let mut entries = Vec::new();
        fs.readdir(dir, 2, false, &mut |e| {
            entries.push((String::from_utf8_lossy(e.name).into_owned(), e.ino));
            true
        })
        .expect("listed");
        for (name, ino) in entries {
            let path = if path.is_empty() { name } else { format!("{path}/{name}") };
            let attr = fs.getattr(ino).expect("there");
            let content = match attr.kind {
                FileKind::File => Some(fs.read(ino, 0, attr.size as u32).expect("read").to_vec()),
                _ => None,
            };
            if attr.kind == FileKind::Dir {
                dirs.push((path.clone(), ino));
            }
            all.insert(path, Thing { content, perm: attr.perm, links: attr.nlink });
        }
    }
    all
}

/// The kinds of calls that are made.
#[derive(Clone, Copy, PartialEq)]
pub enum Calls {
    InPlace,
    All,
}

/// One call in a view, below `within`.
pub fn act_in(w: &World, fs: &Fs, within: &str, random: &mut Random, calls: Calls) {
    if random.one_in(5) {
        w.second();
    }
    let now: Vec<(String, bool)> = tree(fs)
        .into_iter()
        .filter(|(path, _)| path.starts_with(within))
        .map(|(path, thing)| (path, thing.content.is_none()))
        .collect();
    let pick = |random: &mut Random, dir: bool| {
        let all: Vec<&String> =
            now.iter().filter(|(_, is)| *is == dir).map(|(path, _)| path).collect();
        match all.is_empty() {
            true => None,
            false => Some(all[random.below(all.len() as u64) as usize].clone()),
        }
    };
    let place = |random: &mut Random| {
        let dir = pick(random, true).unwrap_or_else(|| within.trim_end_matches('/').into());
        let name = format!("n{}", random.below(7));
        if dir.is_empty() || random.one_in(4) && within.is_empty() {
            name
        } else {
            format!("{dir}/{name}")
        }
    };
    let split = |path: &str| {
        let (dir, name) = path.rsplit_once('/').unwrap_or(("", path));
        (fs.resolve(dir.as_bytes()).expect("there").ino, name.as_bytes().to_vec())
    };
    let sizes = [3, 300, 700, 5000, 40_000];
    let noise = |random: &mut Random| {
        let mut data = vec![0; sizes[random.below(5) as usize]];
        random.fill(&mut data);
        // Sometimes both sides make the same change.
        if random.one_in(3) { vec![b'a' + random.below(3) as u8; data.len()] } else { data }
    };
    let make = |path: &str, data: &[u8]| {
        let (dir, name) = split(path);
        let made = fs.mknod(dir, &name, FileKind::File, 0o644, 0, USER)?;
        fs.write(made.ino, 0, data, Default::default()).map(drop)
    };
    let most = if calls == Calls::All { 20 } else { 14 };
    let call = random.below(most);
    if std::env::var("KVFS_SEED").is_ok() {
        eprintln!("{:?}: call {call}, of {now:?}", fs.transactions());
    }
    let done: kvfs::Result<()> = match call {
        0..=2 => make(&place(random), &noise(random)),
        3 | 4 => {
            let (dir, name) = split(&place(random));
            fs.mkdir(dir, &name, 0o755, USER).map(drop)
        }
        5..=7 => match pick(random, false) {
            Some(path) => {
                let ino = fs.resolve(path.as_bytes()).expect("there").ino;
                fs.write(ino, random.below(9000), &noise(random), Default::default()).map(drop)
            }
            None => Ok(()),
        },
        8 => match pick(random, false) {
            Some(path) => {
                let ino = fs.resolve(path.as_bytes()).expect("there").ino;
                let set = SetAttr { size: Some(random.below(9000)), ..Default::default() };
                fs.setattr(ino, &set, USER).map(drop)
            }
            None => Ok(()),
        },
        9 => {
            let dir = random.one_in(3);
            match pick(random, dir) {
                Some(path) => {
                    let ino = fs.resolve(path.as_bytes()).expect("there").ino;
                    let mode = Some([0o700, 0o711, 0o755][random.below(3) as usize]);
                    fs.setattr(ino, &SetAttr { mode, ..Default::default() }, USER).map(drop)
                }
                None => Ok(()),
            }
        }
        10 | 11 => match pick(random, false) {
            Some(path) => {
                let (dir, name) = split(&path);
                fs.unlink(dir, &name)
            }
            None => Ok(()),
        },
        12 => match pick(random, true) {
            Some(path) if path.len() > within.len() => {
                let (dir, name) = split(&path);
                fs.rmdir(dir, &name)
            }
            _ => Ok(()),
        },
        13 => match pick(random, false) {
            // The file is replaced as editors do it.
            Some(path) => {
                let (dir, name) = split(&path);
                let made = fs.mknod(dir, b"tmp", FileKind::File, 0o644, 0, USER).expect("free");
                fs.write(made.ino, 0, &noise(random), Default::default()).expect("written");
                fs.rename(dir, b"tmp", dir, &name, RenameFlags::default())
            }
            None => Ok(()),
        },
        14..=17 => {
            let dir = random.one_in(2);
            match pick(random, dir) {
                Some(path) if path.len() > within.len() => {
                    let to = place(random);
                    let ((dir, name), (to, new)) = (split(&path), split(&to));
                    fs.rename(dir, &name, to, &new, RenameFlags::default())
                }
                _ => Ok(()),
            }
        }
        _ => match pick(random, false) {
            Some(path) => {
                let ino = fs.resolve(path.as_bytes()).expect("there").ino;
                let (dir, name) = split(&place(random));
                fs.link(ino, dir, &name).map(drop)
            }
            None => Ok(()),
        },
    };
    match done {
        Ok(())
        | Err(
            kvfs::Error::Exists
            | kvfs::Error::NotEmpty
            | kvfs::Error::NotDirectory
            | kvfs::Error::IsDirectory
            | kvfs::Error::Invalid(_),
        ) => {}
        Err(e) => panic!("{e}"),
    }
}

/// The result of a three-way merge by path alone, and the paths that both have changed.
pub fn oracle(base: &Tree, main: &Tree, clone: &Tree) -> (Tree, BTreeSet<String>) {
    let (mut merged, mut conflicts) = (Tree::new(), BTreeSet::new());
    let paths: BTreeSet<&String> = base.keys().chain(main.keys()).chain(clone.keys()).collect();
    // Numbers of links of directories follow from the rest.
    let of = |tree: &Tree, path: &str| tree.get(path).map(|t| Thing { links: 0, ..t.clone() });
    for path in paths {
        let (b, m, c) = (of(base, path), of(main, path), of(clone, path));
        let taken = match () {
            () if m == b => c,
            () if c == b || c == m => m,
            () => {
                conflicts.insert(path.clone());
                continue;
            }
        };
        taken.map(|thing| merged.insert(path.clone(), thing));
    }
    let lost: Vec<String> = merged
        .keys()
        .filter_map(|path| path.rsplit_once('/'))
        .filter(|(dir, _)| merged.get(*dir).is_none_or(|dir| dir.content.is_some()))
        .map(|(dir, _)| dir.to_owned())
        .collect();
    conflicts.extend(lost);
    (merged, conflicts)
}
