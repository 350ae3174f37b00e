//! The message of a conflict: it names the keys that others have changed, in terms that users
//! know, and the commits that changed them.

use bytes::Bytes;
use kvdb::{DictionaryId, NAMED_CONFLICTS, TransactionId};

use super::super::functions;
use crate::keyspace::{TYPES_PREFIX, key_in_tuple, owner_key, parse_element};
use crate::session::Session;

/// Returns the message of a conflict, which names the changed keys in the user's terms. The
/// transaction was within `around`, and began after the commit `since`.
pub(super) fn conflict(
    s: &Session,
    (around, since): (Option<TransactionId>, u64),
    keys: &[(DictionaryId, Bytes)],
    stays: bool,
) -> String {
    const SHOWN: usize = 3;
    let mut all = names_in(s, around, keys, SHOWN);
    // A list of this length may be incomplete.
    let more = match (all.len().saturating_sub(SHOWN), keys.len() >= NAMED_CONFLICTS) {
        (0, false) => String::new(),
        (0, true) => " and others".to_owned(),
        (more, false) => format!(" and {more} more"),
        (more, true) => format!(" and at least {more} more"),
    };
    all.truncate(SHOWN);
    for name in &mut all {
        let of_name = |key: &&(DictionaryId, Bytes)| {
            names_in(s, around, std::slice::from_ref(*key), 1).first() == Some(&*name)
        };
        // A commit into an enclosing transaction does not have a commit number.
        let key = keys.iter().take(SHOWN * 16).find(of_name).filter(|_| around.is_none());
        if let Some(by) = key.and_then(|(dict, key)| changed_by(s, since, *dict, key)) {
            name.push_str(&by);
        }
    }
    let end = if stays { "nothing was committed" } else { "nothing was changed: begin again" };
    format!("others have changed {}{more} meanwhile; {end}", all.join(", "))
}

/// Returns the newest undoable commit after number `since` that has changed a key, and its age.
/// Returns `None` if the key was changed outside of transactions, or in a transaction that cannot
/// be undone. A commit that has written the value that the key already had is also in conflict,
/// but it is not found, because its two states are equal.
fn changed_by(s: &Session, since: u64, dict: DictionaryId, key: &[u8]) -> Option<String> {
    let now = s.db().wall_clock();
    let mut commits = s.db().undoable_commits();
    commits.retain(|commit| commit.number > since);
    commits.into_iter().rev().find_map(|commit| {
        let (before, after) = s.db().states_around(commit.number).ok()?;
        // A state without the dictionary does not have the key.
        let value = |state: &kvdb::View| state.get(dict, key).ok().flatten();
        if value(&before) == value(&after) {
            return None;
        }
        let ago = now.saturating_sub(commit.created).as_secs();
        let label = match commit.label.is_empty() {
            true => String::new(),
            false => format!(" \"{}\",", commit.label.escape_debug()),
        };
        Some(format!(" (by commit {},{label} {ago} s ago)", commit.number))
    })
}

/// Returns the names of keys in the user's terms, without duplicates. Finding the name of a file is
/// expensive, so it is done only for the first `shown` keys.
pub fn names_of(s: &Session, keys: &[(DictionaryId, Bytes)], shown: usize) -> Vec<String> {
    names_in(s, None, keys, shown)
}

/// Does the same as [`names_of`], with the file names of the transaction `around`, if it is
/// given.
fn names_in(
    s: &Session,
    around: Option<TransactionId>,
    keys: &[(DictionaryId, Bytes)],
    shown: usize,
) -> Vec<String> {
    // The list includes the dictionaries of clones.
    let dictionaries = s.db().view().dictionaries();
    let mut all = Vec::new();
    for (dict, key) in keys {
        let name = match dictionaries.iter().find(|d| d.id == *dict) {
            Some(d) if d.options.reserved && d.name == functions::NAME => {
                let kind = if key.starts_with(b"l") { "library" } else { "function" };
                format!("{kind} \"{}\"", key.get(1..).unwrap_or_default().escape_ascii())
            }
            Some(d) if d.options.reserved => {
                let end = [&key[..], &[0]].concat();
                let owner = &s.shared.owner;
                let describe = || match around {
                    Some(id) => owner.transactions().describe(id, &d.name, key, &end),
                    None => owner.describe(&d.name, key, &end),
                };
                of_a_file((all.len() < shown).then(describe).flatten())
            }
            found => {
                let name = found.map_or_else(|| dict.0.to_string(), |d| d.name.clone());
                let types = name.strip_prefix(TYPES_PREFIX);
                let (name, key) = match types {
                    Some(of) => (of, key_of_tuple(s, *dict, key)),
                    None => (name.as_str(), key.clone()),
                };
                let more = if key.len() > 40 { "…" } else { "" };
                format!(
                    "key \"{}\"{more} of dictionary {name}",
                    key[..key.len().min(40)].escape_ascii()
                )
            }
        };
        if !all.contains(&name) {
            all.push(name);
        }
    }
    all
}

/// Returns the name of a file for a description of one of its keys. The user does not need to
/// know that a key has the attributes of the file, or the number of a file without a name.
fn of_a_file(description: Option<String>) -> String {
    let Some(description) = description else { return "a file or directory".to_string() };
    match description.strip_prefix("the node of ") {
        Some(path) if path.starts_with('/') => path.to_string(),
        None if !description.starts_with("nodes from inode ") => description,
        _ => "a file or directory".to_string(),
    }
}

/// Returns the key to which a tuple of a types dictionary belongs, or the key of the tuple itself
/// if the former is not known.
fn key_of_tuple(s: &Session, types: DictionaryId, tuple: &Bytes) -> Bytes {
    if let Some(key) = key_in_tuple(tuple) {
        return key;
    }
    let owner = parse_element(tuple).and_then(|(id, ..)| s.db().get(types, &owner_key(id)).ok());
    owner.flatten().unwrap_or_else(|| tuple.clone())
}
