//! Walks everything below a path, read from the dictionaries: the daemon of a mounted store walks
//! one state of the view that the path leads to; an unmounted store is walked by this process.

use std::collections::VecDeque;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb_server::{EntryKind, EntryTime, Reply, WalkedEntry};
use kvfs::{Attr, FileKind, Fs, Timestamp};

use crate::support::machine::paths;
use crate::support::mounts::mounted::{Mounted, Naming};
use crate::support::mounts::place::{self, View};
use crate::support::stores::store::{self, Access, Store};
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text;

/// An entry that a walk has reached.
pub struct Found {
    /// The path from the top, which is empty for the top itself.
    pub path: Vec<u8>,
    pub attr: Attr,
}

/// A walk through a tree; directories precede their entries.
pub struct Walk {
    source: Source,
}

enum Source {
    Mounted { mounted: Box<Mounted>, waiting: VecDeque<Found>, over: bool },
    Store { walk: Box<kvfs::Walk>, fs: Fs, store: Store },
}

impl Walk {
    /// Begins a walk at a path on a mount, which may lead into any view.
    pub fn mounted(path: &Path) -> Outcome<Walk> {
        let mounted = begin(path, "WALK")?;
        Ok(Walk {
            source: Source::Mounted {
                mounted: Box::new(mounted),
                waiting: VecDeque::new(),
                over: false,
            },
        })
    }

    /// Begins a walk of a store that is not mounted, at a path from its root.
    pub fn of_store(store: &Path, path: &[u8]) -> Outcome<Walk> {
        let store = store::open_waiting(store, Access::ReadOnly, None)?;
        let fs = store.file_system()?;
        let failed = |e| tree::failure(format!("cannot find {}", text::show(path)), e);
        let walk = fs.resolve(path).and_then(|attr| fs.walk(attr.ino)).map_err(failed)?;
        Ok(Walk { source: Source::Store { walk: Box::new(walk), fs, store } })
    }

    pub fn next(&mut self) -> Outcome<Option<Found>> {
        match &mut self.source {
            Source::Store { walk, .. } => {
                let walked = walk.next().map_err(|e| tree::failure("cannot go on", e))?;
                Ok(walked.map(|walked| Found { path: walked.path.to_vec(), attr: walked.attr }))
            }
            Source::Mounted { mounted, waiting, over } => {
                if waiting.is_empty() && !*over {
                    let Reply::Bulk(bytes) = mounted.receive()? else { return Err(broken()) };
                    *over = bytes.is_empty();
                    if !*over {
                        mounted.send(&[b"WALK", b"NEXT"])?;
                    }
                    let mut bytes = &bytes[..];
                    while !bytes.is_empty() {
                        let entry = WalkedEntry::decode(&mut bytes).ok_or_else(broken)?;
                        waiting.push_back(found(entry));
                    }
                }
                Ok(waiting.pop_front())
            }
        }
    }

    pub fn close(self) -> Outcome {
        match self.source {
            Source::Mounted { .. } => Ok(()),
            Source::Store { walk, fs, store } => {
                drop((walk, fs));
                store.close()
            }
        }
    }
}

/// Starts `WALK` or `EXPORT` in the daemon of a mounted store, for a path on a mount, which may
/// lead into any view. The next reply to receive is the first piece.
pub fn begin(path: &Path, command: &str) -> Outcome<Mounted> {
    let shown = text::show(path.as_os_str().as_bytes());
    let cannot = |e: std::io::Error| Failure::io(format!("cannot find {shown}"), &e);
    place::must_let_us_in(path)?;
    // Do not follow the last name, unless it is followed by a slash.
    let full = match path.symlink_metadata().map_err(cannot)?.is_dir() {
        true => paths::full_path(path).map_err(cannot)?,
        false => paths::path_beside(path).map_err(cannot)?,
    };
    let none = || {
        Failure::new(Exit::NotFound, format!("{shown} is in no mounted store"))
            .hint("of one that is not mounted: --store FILE")
    };
    let place = place::of(&full).map_err(cannot)?.ok_or_else(none)?;
    let directory = if full.is_dir() {
        full.clone()
    } else {
        full.parent().map_or_else(PathBuf::new, Path::to_path_buf)
    };
    let mut mounted = Mounted::find_view(&directory)?;
    if place.view == View::Listing {
        let what = format!("{shown} is a list of views: give one of them");
        return Err(Failure::new(Exit::Usage, what));
    }
    let naming = mounted.naming(&place.view);
    let mut words = vec![command.as_bytes(), b"BEGIN", place.rest.as_os_str().as_bytes()];
    words.extend(naming.iter().flat_map(Naming::words));
    mounted.call(&words)?;
    // Request the next piece before this one is processed, so that both overlap.
    mounted.send(&[command.as_bytes(), b"NEXT"])?;
    Ok(mounted)
}

fn broken() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")
}

const KINDS: [(FileKind, EntryKind); 7] = [
    (FileKind::File, EntryKind::File),
    (FileKind::Dir, EntryKind::Directory),
    (FileKind::Symlink, EntryKind::Symlink),
    (FileKind::Fifo, EntryKind::Fifo),
    (FileKind::Socket, EntryKind::Socket),
    (FileKind::CharDevice, EntryKind::CharDevice),
    (FileKind::BlockDevice, EntryKind::BlockDevice),
];

/// Returns the entry that crosses the socket.
pub fn entry(path: &[u8], attr: &Attr) -> WalkedEntry {
    let kind = KINDS.iter().find(|(kind, _)| *kind == attr.kind);
    let time = |time: Timestamp| EntryTime { secs: time.secs, nanos: time.nanos };
    WalkedEntry {
        path: path.to_vec(),
        kind: kind.map_or(EntryKind::File, |(_, kind)| *kind),
        perm: attr.perm,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        ino: attr.ino,
        size: attr.size,
        blocks: attr.blocks,
        atime: time(attr.atime),
        mtime: time(attr.mtime),
        ctime: time(attr.ctime),
        btime: time(attr.btime),
    }
}

/// Returns what an entry from the socket stands for.
fn found(entry: WalkedEntry) -> Found {
    let kind = KINDS.iter().find(|(_, kind)| *kind == entry.kind);
    let time = |time: EntryTime| Timestamp { secs: time.secs, nanos: time.nanos };
    let attr = Attr {
        ino: entry.ino,
        kind: kind.map_or(FileKind::File, |(kind, _)| *kind),
        perm: entry.perm,
        nlink: entry.nlink,
        uid: entry.uid,
        gid: entry.gid,
        rdev: entry.rdev,
        size: entry.size,
        blocks: entry.blocks,
        atime: time(entry.atime),
        mtime: time(entry.mtime),
        ctime: time(entry.ctime),
        btime: time(entry.btime),
    };
    Found { path: entry.path, attr }
}

/// Returns the path of an entry below `top` as a user would write it.
pub fn joined(top: &[u8], path: &[u8]) -> Vec<u8> {
    match (path.is_empty(), top.ends_with(b"/")) {
        (true, _) => top.to_vec(),
        (false, true) => [top, path].concat(),
        (false, false) => [top, b"/", path].concat(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn entries_come_as_they_were_sent() {
        let time = Timestamp { secs: -1, nanos: 7 };
        for (kind, _) in KINDS {
            let attr = Attr {
                ino: 1 << 40,
                kind,
                perm: 0o4755,
                nlink: 2,
                uid: 3,
                gid: 4,
                rdev: 5,
                size: u64::MAX,
                blocks: 6,
                atime: time,
                mtime: Timestamp { secs: 1, nanos: 0 },
                ctime: Timestamp { secs: 2, nanos: 1 },
                btime: Timestamp { secs: 3, nanos: 2 },
            };
            let found = found(entry(b"a/\xff", &attr));
            assert_eq!((&found.path[..], found.attr), (&b"a/\xff"[..], attr));
        }
    }

    #[test]
    fn paths_are_joined_by_one_slash() {
        assert_eq!(
            [joined(b"/mnt", b""), joined(b"/mnt", b"a"), joined(b"/", b"a")],
            [&b"/mnt"[..], b"/mnt/a", b"/a"]
        );
    }
}
