//! Describes ranges of keys in terms of the file system, for reports of damaged keys.

use std::collections::HashSet;

use kvdb::{Kvdb, View};

use crate::attr::{FileKind, Ino, ROOT};
use crate::difference::{Side, joined};
use crate::layout::{Layout, PAGE};

/// Describes the keys from `start` up to `end` of a dictionary in words: the bytes of a file, for
/// example. Returns `None` if the dictionary does not belong to the file system.
pub fn describe_keys(db: &Kvdb, dictionary: &str, start: &[u8], end: &[u8]) -> Option<String> {
    describe_keys_in(db.view(), Layout::find(db)?, dictionary, start, end)
}

/// Describes keys like `describe_keys`, in one state of the store.
pub(crate) fn describe_keys_in(
    view: View,
    layout: Layout,
    dictionary: &str,
    start: &[u8],
    end: &[u8],
) -> Option<String> {
    let side = Side::new(view, layout);
    let number = |key: &[u8]| Some(Ino::from_be_bytes(*key.first_chunk::<8>()?));
    let first = number(start).unwrap_or(0);
    // This is the last inode that has a key below the end.
    let last = match number(end) {
        Some(ino) if end.len() == 8 => ino.saturating_sub(1),
        Some(ino) => ino,
        None => u64::MAX,
    };
    let one = first == last && first != 0;
    let path = || name_of(&side, first);
    Some(match dictionary {
        "dmap" if one => {
            let block = |key: &[u8], or: u64| {
                key.get(8..16).and_then(|b| b.try_into().ok()).map_or(or, u64::from_be_bytes)
            };
            let (from, to) = (block(start, 0), block(end, u64::MAX / PAGE));
            // The end of the range of a single key is that key with a zero appended.
            let to = if end.len() > 16 { to.saturating_add(1) } else { to };
            format!(
                "bytes {}..{} of {}",
                from.saturating_mul(PAGE),
                to.saturating_mul(PAGE),
                path()
            )
        }
        "dmap" => format!("data of files from inode {first} to inode {last}, of {} first", path()),
        "imap" if one => format!("the node of {}", path()),
        "imap" => format!("nodes from inode {first} to inode {last}"),
        // The range contains a single key, which is one name.
        "nmap" if one && start.len() > 8 && end.strip_prefix(start) == Some(&[0]) => {
            format!("the name {} in {}", start[8..].escape_ascii(), path())
        }
        "nmap" if one => format!("names in {}", path()),
        "nmap" => {
            format!("names in directories from inode {first} to inode {last}, of {} first", path())
        }
        _ => return None,
    })
}

/// Returns a path of an inode, or its number if no path is found.
fn name_of(side: &Side, ino: Ino) -> String {
    find_name(side, ino)
        .map_or_else(|| format!("inode {ino}"), |path| format!("/{}", path.escape_ascii()))
}

fn find_name(side: &Side, ino: Ino) -> Option<Vec<u8>> {
    if ino == ROOT {
        return Some(Vec::new());
    }
    let node = side.node(ino).ok()??;
    if node.attr.kind == FileKind::Dir {
        return side.path(ino).ok()?;
    }
    let (parent, name, _) = side.names_of(&HashSet::from([ino])).ok()?.into_iter().next()?;
    let parent = side.path(parent).ok()??;
    Some(joined(&parent, &name))
}
