//! Reads all of a store and compares it with what was written. Each answer must be right, or an
//! error that says "corrupt".

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use env::Simulated;
use kvdb::Kvdb;
use kvfs::{Atime, Attr, FileKind, Fs, FsOptions, Ino, ROOT, Whence};

/// One inode, by one of its paths.
#[derive(Debug, PartialEq, Eq)]
pub struct Node {
    pub attr: Attr,
    pub content: Vec<u8>,
    first_data: Option<u64>,
    pub xattrs: BTreeMap<Vec<u8>, Vec<u8>>,
    /// Names with their inodes, in the order of the listing.
    pub entries: Vec<(Vec<u8>, Ino)>,
}

/// The content of a store.
#[derive(Debug, PartialEq, Eq)]
pub struct Expected {
    pub dictionaries: BTreeMap<String, Vec<(Bytes, Bytes)>>,
    pub nodes: BTreeMap<Vec<u8>, Node>,
}

/// Reading leaves no traces.
pub fn fs_options() -> FsOptions {
    FsOptions { atime: Atime::Never, ..FsOptions::default() }
}

pub fn corrupt(e: &kvdb::Error) -> bool {
    matches!(e, kvdb::Error::Corrupt(_))
}

/// Returns the answer, or `None` for an error, which must be a report of corruption.
fn answer<T>(what: &str, result: kvfs::Result<T>) -> Option<T> {
    match result {
        Ok(answer) => Some(answer),
        Err(kvfs::Error::Store(e)) if corrupt(&e) => None,
        Err(e) => panic!("{what}: {e}"),
    }
}

fn value<T>(what: &str, result: kvdb::Result<T>) -> Option<T> {
    answer(what, result.map_err(Into::into))
}

impl Expected {
    /// Reads a store that is whole.
    pub fn read(db: &Kvdb, fs: &Fs) -> Expected {
        let view = db.view();
        let dictionaries = db
            .dictionaries()
            .into_iter()
            .map(|d| (d.name, view.scan(d.id, b"", b"", usize::MAX).unwrap()))
            .collect();
        let mut nodes = BTreeMap::new();
        let mut paths = vec![Vec::new()];
        while let Some(path) = paths.pop() {
            let node = node(fs, &path, &mut false).expect("the store is whole");
            for (name, _) in
                node.entries.iter().filter(|(name, _)| !matches!(&name[..], b"." | b".."))
            {
                paths.push([&path[..], b"/", name].concat());
            }
            nodes.insert(path, node);
        }
        assert!(nodes.len() > 1 && !dictionaries_empty(&dictionaries));
        Expected { dictionaries, nodes }
    }

    /// Reads all keys: forward, backward and one by one. Returns whether there was an error.
    pub fn keys(&self, db: &Kvdb) -> bool {
        let mut hurt = false;
        let there: Vec<String> = db.dictionaries().into_iter().map(|d| d.name).collect();
        assert_eq!(there.len(), self.dictionaries.len(), "dictionaries");
        let view = db.view();
        for (name, tuples) in &self.dictionaries {
            let dict =
                db.dictionary(name).unwrap_or_else(|| panic!("dictionary {name} is missing"));
            for backward in [false, true] {
                let Some(mut cursor) = value("a cursor", view.cursor(dict, b"", b"")) else {
                    return true;
                };
                if backward && value("to the end", cursor.seek_to_end()).is_none() {
                    return true;
                }
                let expected: &mut dyn Iterator<Item = _> =
                    if backward { &mut tuples.iter().rev() } else { &mut tuples.iter() };
                loop {
                    let next = if backward { cursor.prev() } else { cursor.next() };
                    let Some(tuple) = value("a scan", next) else {
                        hurt = true;
                        break;
                    };
                    match (tuple, expected.next()) {
                        (None, None) => break,
                        (Some(t), Some((k, v))) => {
                            assert!(
                                t.key == k,
                                "{name}: a wrong key in a scan: {:?} instead of {k:?}",
                                t.key
                            );
                            match value("a value", t.value()) {
                                Some(found) => {
                                    assert!(found == v, "{name}: a wrong value of {k:?} in a scan")
                                }
                                None => hurt = true,
                            }
                        }
                        (found, wanted) => panic!(
                            "{name}: a scan gives {found:?} instead of {:?}",
                            wanted.map(|(k, _)| k)
                        ),
                    }
                }
            }
            for (k, v) in tuples {
                match value("a get", view.get(dict, k)) {
                    Some(found) => {
                        assert!(found.as_ref() == Some(v), "{name}: a wrong or no value of {k:?}")
                    }
                    None => hurt = true,
                }
                let absent = [k, &b"!"[..]].concat();
                match value("a get", view.get(dict, &absent)) {
                    Some(found) => assert!(found.is_none(), "{name}: {absent:?} was never written"),
                    None => hurt = true,
                }
            }
        }
        hurt
    }

    /// Asks for every key, of a store that is whole.
    pub fn get_all(&self, db: &Kvdb) {
        for (name, tuples) in &self.dictionaries {
            let dict = db.dictionary(name).unwrap();
            tuples.iter().for_each(|(k, v)| assert!(db.get(dict, k).unwrap().as_ref() == Some(v)));
        }
    }

    /// Reads all files and directories. Returns whether there was an error.
    pub fn files(&self, db: &Kvdb, env: Arc<Simulated>, read_only: bool) -> bool {
        let options = FsOptions { read_only, ..fs_options() };
        let Some(fs) = answer("opening the file system", Fs::open(db.clone(), env, options)) else {
            return true;
        };
        let mut hurt = false;
        for (path, expected) in &self.nodes {
            if let Some(found) = node(&fs, path, &mut hurt) {
                let shown = path.escape_ascii();
                assert_eq!(found.attr, expected.attr, "attributes of {shown}");
                assert!(found == *expected, "{shown} differs");
            }
        }
        hurt
    }
}

fn dictionaries_empty(dictionaries: &BTreeMap<String, Vec<(Bytes, Bytes)>>) -> bool {
    dictionaries.values().all(Vec::is_empty)
}

/// Returns everything of one inode. If an error hides a part of it, returns `None` and sets `hurt`.
fn node(fs: &Fs, path: &[u8], hurt: &mut bool) -> Option<Node> {
    let found = read_node(fs, path);
    *hurt |= found.is_none();
    found
}

fn read_node(fs: &Fs, path: &[u8]) -> Option<Node> {
    let shown = path.escape_ascii().to_string();
    let attr = answer(&shown, fs.resolve(path))?;
    let ino = attr.ino;
    let content = match attr.kind {
        FileKind::File => answer(&shown, fs.read(ino, 0, attr.size as u32 + 100))?.to_vec(),
        FileKind::Symlink => answer(&shown, fs.readlink(ino))?,
        _ => Vec::new(),
    };
    let first_data = match attr.kind {
        FileKind::File if attr.size > 0 => Some(answer(&shown, fs.seek(ino, 0, Whence::Data))?),
        _ => None,
    };
    let mut xattrs = BTreeMap::new();
    let list = answer(&shown, fs.listxattr(ino))?;
    for name in list.split(|&b| b == 0).filter(|n| !n.is_empty()) {
        xattrs.insert(name.to_vec(), answer(&shown, fs.getxattr(ino, name))?);
    }
    let mut entries = Vec::new();
    if attr.kind == FileKind::Dir {
        let mut list = Vec::new();
        answer(
            &shown,
            fs.readdir(ino, 0, true, &mut |e| {
                list.push((e.name.to_vec(), e.ino));
                if e.attr.is_some() && !matches!(e.name, b"." | b"..") {
                    fs.forget(e.ino, 1);
                }
                true
            }),
        )?;
        entries = list;
        assert!(ino != ROOT || path.is_empty());
    }
    Some(Node { attr, content, first_data, xattrs, entries })
}
