//! Undoes the commit of a transaction, files and keys, by another transaction.
//!
//! The changes of the commit are the differences between the states before and after it, tuple by
//! tuple. Each tuple that is still as the commit has left it is changed back. A directory in which
//! others have made or removed entries since is joined with their changes, as for two transactions.
//! Any other later change is named, and the commit cannot be undone.
//!
//! The tuples do not show everything: a file that the commit removed while a program had it open
//! lives on as an orphan, and its content is removed later, when it is closed. So missing content
//! is restored from the state before. If the file is still open, its inode in memory becomes the
//! file again when the transaction commits (`apply_commit`), unless the program has written to it.

use std::collections::{BTreeSet, HashSet};

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, Transaction, TransactionId, TransactionOptions};

use super::merger::Merger;
use crate::attr::Ino;
use crate::error::Result;
use crate::fs::{Core, Fs};
use crate::layout::{self, ImapKey, Layout};

/// The number of tuples or files that are changed in one batch.
const STEP: usize = 256;
/// The maximum number of keys that are named as changed since.
const NAMED: usize = 16;

/// Keys with their dictionaries.
pub type Keys = Vec<(DictionaryId, Bytes)>;

impl Merger {
    /// Begins a transaction that undoes a commit ([`kvdb::Kvdb::undoable_commits`]) when it
    /// commits.
    pub fn undo(&self, commit: u64, options: TransactionOptions) -> Result<(TransactionId, Keys)> {
        let db = &self.db;
        let (before, after) = db.states_around(commit)?;
        let known = db.undoable_commits().into_iter().find(|known| known.number == commit);
        let branch = known.map(|known| known.branch).unwrap_or_default();
        let (transaction, parent) =
            self.transactions.begin_at_rest(TransactionOptions { branch, ..options })?;
        let dictionaries: BTreeSet<DictionaryId> =
            [&before, &after].iter().flat_map(|state| state.dictionaries()).map(|d| d.id).collect();
        let dictionaries: Vec<DictionaryId> = dictionaries.into_iter().collect();
        let layout = &parent.fs.core.layout;
        let changed_back = || -> Result<Keys> {
            let mut conflicts = transaction.change_back(&dictionaries, &before, &after)?;
            if conflicts.is_empty() {
                conflicts = bring_content_back(&transaction, layout, &before, &after)?;
            }
            Ok(conflicts)
        };
        let conflicts = changed_back().inspect_err(|_| transaction.abort())?;
        Ok((self.transactions.show_begun(transaction, parent)?, conflicts))
    }
}

/// Removes the content of files that a transaction has removed and that are not open in its parent
/// view, so that the removal is part of the commit instead of following it. Takes these files out
/// of `orphans`.
pub(super) fn remove_content(
    parent: &Fs,
    transaction: &Transaction,
    orphans: &mut HashSet<Ino>,
) -> Result<()> {
    let Core { layout, inode_cache, .. } = &*parent.core;
    let closed = |ino: &Ino| inode_cache.references(*ino) == 0;
    let closed: Vec<Ino> = orphans.iter().copied().filter(closed).collect();
    for some in closed.chunks(STEP) {
        let mut batch = Batch::new();
        for ino in some {
            layout.stage_content_removal(*ino, &mut batch);
            batch.delete(layout.imap, layout::orphan_key(*ino));
            orphans.remove(ino);
        }
        transaction.apply_at_commit(batch)?;
    }
    Ok(())
}

/// Returns the files without a name that have content in a state.
fn orphans_of(state: &kvdb::View, layout: &Layout) -> Result<BTreeSet<Ino>> {
    let (start, end) = layout::orphan_range();
    let mut all = BTreeSet::new();
    let mut cursor = state.cursor(layout.imap, &start, &end)?;
    while let Some(tuple) = cursor.next()? {
        if let ImapKey::Orphan(ino) = layout::decode_imap_key(&tuple.key)? {
            all.insert(ino);
        }
    }
    Ok(all)
}

/// Restores the missing content of files that a commit has orphaned. Returns keys that have changed
/// since.
fn bring_content_back(
    transaction: &Transaction,
    layout: &Layout,
    before: &kvdb::View,
    after: &kvdb::View,
) -> Result<Keys> {
    let now = transaction.view()?.beneath();
    let mut changed = Keys::new();
    for ino in orphans_of(after, layout)?.difference(&orphans_of(before, layout)?) {
        let (xattrs, pages) = (layout::xattr_key(*ino, b"\0"), layout::page_key(*ino, 0));
        let ranges = [
            (layout.imap, &xattrs[..], layout::node_range(*ino).1),
            (layout.dmap, &pages[..], layout::pages_end(*ino)),
        ];
        for (dict, start, end) in ranges {
            let mut from = start.to_vec();
            loop {
                let some = before.scan_stored(dict, &from, &end, STEP)?;
                let Some((last, _)) = some.last() else { break };
                from = [&last[..], &[0]].concat();
                let mut batch = Batch::new();
                for (key, value) in some {
                    match now.get(dict, &key)? {
                        None => batch.put_stored(dict, key, value),
                        there if there == before.get(dict, &key)? => {}
                        _ => changed.push((dict, key)),
                    }
                }
                if changed.len() >= NAMED {
                    return Ok(changed);
                }
                transaction.apply(batch)?;
            }
        }
    }
    Ok(changed)
}
