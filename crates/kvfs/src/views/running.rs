//! Protects programs that run from files which a commit or a rollback changes.
//!
//! The text of a program is pages of its file, which the kernel reads when they are needed. A
//! running program fails if it gets pages of other content, so a kernel allows no writes to a file
//! while it is executed. But the kernel does not know of commits. Hence, before a commit, watchers
//! are asked about files that it changes in place, that the kernel has in memory, and that look
//! like programs or libraries ([`Watcher::running`](super::Watcher::running)). A running file gets
//! another inode with the new content and all the names, as if it had been replaced by a rename:
//! the running inode loses its last name and keeps its content until the program ends. If it had
//! none, because an undo brings a removed program back, it stays without one, and the commit leaves
//! its content and its orphan record alone (`apply_commit`). No program can be started from such a
//! file between the question and the end of the commit.
//!
//! A rollback changes all files at once. It fails and names the running program that prevents it.

use std::collections::{BTreeSet, HashSet};

use kvdb::{Batch, Transaction, View};

use super::OpenView;
use super::watcher::Running;
use super::watchers::Watchers;
use crate::attr::{FileKind, Ino, ReadHints};
use crate::commit::apply_commit::ChangeSet;
use crate::difference::{Side, StoredNode, joined, same_content};
use crate::error::Result;
use crate::fs::{Fs, Parent};
use crate::layout::{self, Attributes, Body, Layout};

/// The number of pages or attributes that are moved in one batch.
const STEP: usize = 16 << 10;

/// Returns those of the files changed by a transaction from which programs run.
pub(super) fn at_commit(
    watchers: &Watchers,
    Parent { fs: parent, number }: &Parent,
    transaction: &Transaction,
    changes: &ChangeSet,
) -> Result<Running> {
    let layout = parent.core.layout;
    let mut sides = None;
    let mut may_run = Vec::new();
    for &(ino, removed) in &changes.inodes {
        if removed || !parent.is_referenced(ino) {
            continue;
        }
        let (before, after): &(Side, Side) = match &sides {
            Some(sides) => sides,
            None => {
                let after = transaction.view()?;
                let before = Side::new(after.beneath(), layout);
                sides.insert((before, Side::new(after, layout)))
            }
        };
        let Some(new) = after.node(ino)? else { continue };
        if is_program(parent, ino)
            && (looks_changed(parent, &new) || is_changed(before, (after, &new))?)
        {
            may_run.push(ino);
        }
    }
    Ok(watchers.running(*number, &may_run))
}

/// Fails if a program runs from a file that is different or missing in the state `to`.
pub(super) fn check(watchers: &Watchers, number: u16, fs: &Fs, to: &View) -> Result<()> {
    let mut may_run = Vec::new();
    let before = Side::new(fs.core.scope.view()?, fs.core.layout);
    let after = Layout::of_state(to).map(|layout| Side::new(to.clone(), layout));
    for ino in fs.referenced() {
        let new = match &after {
            Some(after) => after.node(ino)?,
            None => None,
        };
        // No program can set the ctime, so files with an unchanged ctime are not read.
        let differs = |new: &StoredNode| {
            looks_changed(fs, new) || fs.getattr(ino).is_ok_and(|now| now.ctime != new.attr.ctime)
        };
        if !new.as_ref().is_none_or(differs) || !is_program(fs, ino) {
            continue;
        }
        let changed = match (&after, &new) {
            (Some(after), Some(new)) => {
                looks_changed(fs, new) || is_changed(&before, (after, new))?
            }
            _ => true,
        };
        if changed {
            may_run.push(ino);
        }
    }
    let running = watchers.running(number, &may_run).files;
    let Some(&ino) = running.first() else { return Ok(()) };
    let what = match path_of(&fs.core.scope.view()?, fs.core.layout, ino)? {
        Some(path) => format!("`{}`", path.escape_ascii()),
        None => format!("inode {ino}"),
    };
    Err(kvdb::Error::Invalid(format!(
        "a program runs from {what}, which would change under it: end the program first"
    ))
    .into())
}

/// Gives a file of a transaction another inode, with everything that it has in the transaction.
pub(super) fn replace(entry: &OpenView, transaction: &Transaction, ino: Ino) -> Result<()> {
    let layout = entry.fs.core.layout;
    let view = transaction.view()?;
    let Some(value) = view.get(layout.imap, &layout::node_key(ino))? else { return Ok(()) };
    let new = entry.fs.new_ino()?;
    let names = Side::new(view.clone(), layout).names_of(&HashSet::from([ino]))?;
    let mut batch = Batch::new();
    let mut directories = BTreeSet::new();
    for (parent, name, _) in &names {
        let value = layout::encode_name(new, FileKind::File);
        batch.put(layout.nmap, layout::name_key(*parent, name), value);
        directories.insert(*parent);
    }
    // The entries of these directories have changed.
    for dir in directories {
        let Some(node) = view.get(layout.imap, &layout::node_key(dir))? else { continue };
        let (attr, xattrs, content) = layout::decode_node(dir, &node)?;
        let now = entry.fs.now();
        let attr = Attributes { mtime: now, ctime: now, ..attr };
        let node = layout::encode_node(&attr, xattrs.as_ref(), &content);
        batch.put(layout.imap, layout::node_key(dir), node);
    }
    batch.put(layout.imap, layout::node_key(new), value);
    batch.delete(layout.imap, layout::node_key(ino));
    let before = view.beneath();
    if let Some(node) = before.get(layout.imap, &layout::node_key(ino))? {
        let (attr, xattrs, _) = layout::decode_node(ino, &node)?;
        let external =
            |value: &layout::XattrValue| matches!(value, layout::XattrValue::External(_));
        let has_external = xattrs.as_ref().is_some_and(|all| all.values().any(external));
        if matches!(attr.body, Body::Paged(1..)) || has_external {
            batch.put(layout.imap, layout::orphan_key(ino), b"".as_slice());
        }
    }
    transaction.apply_at_commit(batch)?;
    let (xattrs, pages) = (layout::xattr_key(ino, b"\0"), layout::page_key(ino, 0));
    let ranges = [
        (layout.imap, &xattrs[..], layout::node_range(ino).1),
        (layout.dmap, &pages[..], layout::pages_end(ino)),
    ];
    for (dict, start, end) in ranges {
        let mut from = start.to_vec();
        loop {
            let some = view.scan_stored(dict, &from, &end, STEP)?;
            let Some((last, _)) = some.last() else { break };
            from = [&last[..], &[0]].concat();
            let mut batch = Batch::new();
            for (key, value) in some {
                let Some((_, rest)) = key.split_first_chunk::<8>() else { continue };
                batch.put_stored(dict, [&new.to_be_bytes()[..], rest].concat(), value);
            }
            transaction.apply_at_commit(batch)?;
        }
    }
    Ok(())
}

/// Returns whether the size of a file, or the time of its last change, differs from that of `new`.
fn looks_changed(fs: &Fs, new: &StoredNode) -> bool {
    fs.getattr(new.ino).is_ok_and(|now| {
        now.kind == FileKind::File && (now.mtime, now.size) != (new.attr.mtime, new.attr.size)
    })
}

/// Returns whether a file has other bytes in the state `after`. Its time is no proof: a program may
/// have set it, and two changes within a tick of the clock have the same time.
fn is_changed(before: &Side, after: (&Side, &StoredNode)) -> Result<bool> {
    let Some(old) = before.node(after.1.ino)? else { return Ok(true) };
    Ok(old.attr.kind == FileKind::File && !same_content((before, &old), after)?)
}

/// Returns whether a file looks like a program or a library.
fn is_program(fs: &Fs, ino: Ino) -> bool {
    let executable = fs
        .getattr(ino)
        .is_ok_and(|attr| attr.kind == FileKind::File && attr.perm & 0o111 != 0 && attr.size > 0);
    let hints = ReadHints { keep_atime: true };
    executable || fs.read_for(ino, 0, 4, hints).is_ok_and(|start| start[..] == *b"\x7fELF")
}

/// Returns a path of a file from the root.
fn path_of(view: &View, layout: Layout, ino: Ino) -> Result<Option<Vec<u8>>> {
    let side = Side::new(view.clone(), layout);
    let names = side.names_of(&HashSet::from([ino]))?;
    let Some((parent, name, _)) = names.first() else { return Ok(None) };
    Ok(side.path(*parent)?.map(|way| joined(&way, name)))
}
