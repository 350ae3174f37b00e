//! The authors of conflicting changes in a merge, a rebase or a commit. The author is the newest
//! commit of a transaction to the branch that has changed the path or the key since the two sides
//! diverged. Only commits that can be undone are known, with their labels and times
//! ([`kvdb::Kvdb::undoable_commits`]); writes outside of transactions have no author.

use std::collections::BTreeSet;
use std::ops::Bound;

use kvdb::{TransactionId, UndoableCommit, View};

use super::txn::{arity, named};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// The paths that a commit has changed.
struct Changed(BTreeSet<Vec<u8>>);

impl Changed {
    /// Returns whether the commit has changed the file at a path or anything below it, or has
    /// removed a directory above it.
    fn has(&self, path: &[u8]) -> bool {
        let below = [path, b"/"].concat();
        let is_below = self.0.range(below.clone()..).next().is_some_and(|p| p.starts_with(&below));
        is_below || self.has_from_above(path)
    }

    /// Returns whether the commit has changed the file at a path or a directory above it. A
    /// directory above the path is a prefix of every changed path between the directory and
    /// `path`. The search therefore continues from the part that `path` has in common with the
    /// last changed path before it, instead of looking up each of a thousand directories above.
    fn has_from_above(&self, mut path: &[u8]) -> bool {
        loop {
            let until = (Bound::Unbounded, Bound::Included(path));
            let Some(last) = self.0.range::<[u8], _>(until).next_back() else { return false };
            if last == path {
                return true;
            }
            // `path` is longer, so it comes after `last`.
            let common = last.iter().zip(path).take_while(|(a, b)| a == b).count();
            if common == last.len() && path[common] == b'/' {
                return true;
            }
            match path[..=common].iter().rposition(|byte| *byte == b'/') {
                Some(end) => path = &path[..end],
                None => return false,
            }
        }
    }
}

fn has_changed_key(before: &View, after: &View, branch: &str, key: &[u8]) -> Option<bool> {
    let at = key.iter().position(|byte| *byte == b':')?;
    let name = std::str::from_utf8(&key[..at]).ok()?;
    let value = |view: &View| {
        let dict = view.dictionary_in(branch, name).or_else(|| view.dictionary(name))?;
        view.get(dict, &key[at + 1..]).ok()
    };
    Some(value(before)? != value(after)?)
}

/// Returns for each of these paths, or keys if marked `true`, the last commit to a branch after
/// number `since` that has changed it. A commit with the label `but` does not count as a change,
/// because it is an earlier merge, which made both sides equal.
pub fn of(
    s: &Session,
    (branch, since, but): (&str, u64, &str),
    all: &[(&[u8], bool)],
) -> Vec<Option<UndoableCommit>> {
    let mut authors: Vec<Option<UndoableCommit>> = vec![None; all.len()];
    if all.is_empty() {
        return authors;
    }
    let commits = s.db().undoable_commits().into_iter().rev();
    let is_one = |c: &UndoableCommit| c.branch == branch && c.number > since;
    for commit in commits.filter(|c| is_one(c) && (but.is_empty() || c.label != but)) {
        if authors.iter().all(Option::is_some) {
            break;
        }
        let Ok((before, after)) = s.db().states_around(commit.number) else { continue };
        // If the changes of a commit cannot be listed, or are too numerous, the commit is not
        // named as an author.
        let files =
            s.shared.owner.snapshots().files_between(&before, &after, false).unwrap_or_default();
        let changed = Changed(files.into_iter().map(|file| file.path).collect());
        for ((path, key), author) in all.iter().zip(&mut authors).filter(|(_, by)| by.is_none()) {
            let is_its = match key {
                true => has_changed_key(&before, &after, branch, path) == Some(true),
                false => changed.has(path),
            };
            if is_its {
                *author = Some(commit.clone());
            }
        }
    }
    authors
}

/// Writes the number of a commit, its label and its time in seconds since 1970, or null if the
/// commit is not known.
pub fn put(author: Option<&UndoableCommit>, out: &mut Output) {
    match author {
        None => out.null(),
        Some(commit) => {
            out.array(3);
            out.integer(i64::try_from(commit.number).unwrap_or(i64::MAX));
            out.bulk(commit.label.as_bytes());
            out.integer(i64::try_from(commit.created.as_secs()).unwrap_or(i64::MAX));
        }
    }
}

/// `TXN AGAINST [id]`: lists the paths that both the transaction and another commit have changed
/// since the transaction began, each with the other commit.
pub fn against(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 3)?;
    let transaction = named(s, args, 2)?;
    let id: TransactionId = transaction.id();
    let since = transaction.begun_after();
    let files = s.shared.owner.transactions().files(id, false).map_err(Failure::from)?;
    let paths: Vec<(&[u8], bool)> = files.iter().map(|file| (&*file.path, false)).collect();
    let authors = of(s, (transaction.branch(), since, ""), &paths);
    let known: Vec<_> = paths.iter().zip(&authors).filter(|(_, by)| by.is_some()).collect();
    out.array(known.len());
    for ((path, _), author) in known {
        out.array(2);
        out.bulk(path);
        put(author.as_ref(), out);
        out.send_if_large();
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_has_changed_what_lies_below_and_what_it_took_away_from_above() {
        let changed = Changed([&b"a/b"[..], b"c"].map(<[u8]>::to_vec).into());
        for path in [&b"a/b"[..], b"a", b"a/b/c", b"c", b"c/d/e"] {
            assert!(changed.has(path), "{}", path.escape_ascii());
        }
        for path in [&b"a/bc"[..], b"b", b"a/c", b"cd", b"ca/b"] {
            assert!(!changed.has(path), "{}", path.escape_ascii());
        }
        // These names sort between a directory and its entries.
        let names = [&b"d"[..], b"d-", b"d/a-", b"d/a.", b"e/f/g-", b"e/f-/g", b"e-"];
        let changed = Changed(names.map(<[u8]>::to_vec).into());
        for path in [&b"d/a/b/c"[..], b"d/x", b"d-/y", b"e/f-/g/h", b"e-/z", b"e", b"e/f"] {
            assert!(changed.has(path), "{}", path.escape_ascii());
        }
        for path in [&b"e/f/g/h"[..], b"e/x", b"d.", b"dd/a", b"e/f/g"] {
            assert!(!changed.has(path), "{}", path.escape_ascii());
        }
    }

    #[test]
    fn deep_paths_are_found_by_what_lies_above_them() {
        let deep = |levels: usize| vec![&b"d"[..]; levels].join(&b'/');
        let changed = Changed((1..1000).map(|n| [&deep(n)[..], b"-"].concat()).collect());
        assert!((1..1000).all(|n| !changed.has(&[&deep(n)[..], b"+"].concat())));
        let changed = Changed([b"d".to_vec()].into());
        assert!((1..1000).all(|n| changed.has(&deep(n))));
    }
}
