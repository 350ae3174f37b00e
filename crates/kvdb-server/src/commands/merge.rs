//! `TXN MERGE`: what a clone has changed, in a transaction of the branch that it was made of, or
//! the other way round.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;
use kvdb::{Changed, Clash, Settled, Transaction, TransactionOptions};

use super::txn::{attach, key_of_tuple};
use super::{is, snapshot, undo};
use crate::dictionaries::Place;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{TYPES_PREFIX, count_key, parse_element};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;
use crate::transactions::{Conflicting, Merge, Merging, Preferred};

/// `TXN MERGE clone [REBASE] [DRY] [OURS path] [THEIRS path] [BOTH path] ... [ATTACHED]`: begins a
/// transaction that merges the clone into the branch that it was made of when it commits. Its
/// number, the clone that it commits to and the one whose changes these are (empty: the store
/// itself), and the conflicts: of each its path or key, `path` or `key`, and what each side has
/// done. With conflicts the transaction is of no use but to look at. `REBASE`: the other way round.
/// `DRY`: it is not going to be committed.
pub fn merge(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let clone = snapshot::name(args.get(2).ok_or(Failure::SYNTAX)?)?.to_owned();
    let mut merge = Merge { clone, ..Merge::default() };
    let mut attached = false;
    let mut words = args.from(3);
    while let Some(word) = words.next() {
        let preferred = match word {
            o if is(o, "rebase") => {
                merge.rebase = true;
                continue;
            }
            o if is(o, "dry") => {
                merge.dry_run = true;
                continue;
            }
            o if is(o, "attached") => {
                attached = true;
                continue;
            }
            o if is(o, "ours") => Preferred::Ours,
            o if is(o, "theirs") => Preferred::Theirs,
            o if is(o, "both") => Preferred::Both,
            _ => return Err(Failure::SYNTAX),
        };
        let path = words.next().ok_or(Failure::SYNTAX)?;
        merge.choices.push((path.to_vec(), preferred));
    }
    let verb = if merge.rebase { "rebase" } else { "merge" };
    merge.options = TransactionOptions {
        undoable: true,
        user: s.user,
        label: format!("{verb} {}", merge.clone),
        ..TransactionOptions::default()
    };
    let Merging { id, into, from, conflicts } = begin(s, &merge)?;
    let transaction = s.db().transaction(id)?;
    let finish = || -> Result<Vec<Conflicting>, Failure> {
        if !conflicts.is_empty() {
            return Ok(conflicts.clone());
        }
        mend_counts(s, &transaction)?;
        let meet = kinds_that_meet(s, &transaction)?;
        if meet.is_empty() {
            undo::note_events(s, id, verb)?;
        }
        Ok(meet)
    };
    let conflicts = match finish() {
        Ok(conflicts) => conflicts,
        Err(failure) => {
            let _ = s.shared.transactions.abort(id);
            return Err(failure);
        }
    };
    s.shared.seals.begun(s.id, id);
    if attached {
        attach(s, id);
    }
    out.array(4);
    out.integer(id.0 as i64);
    out.bulk(into.as_bytes());
    out.bulk(from.as_bytes());
    out.array(conflicts.len());
    for Conflicting { path, key, ours, theirs } in conflicts {
        out.array(4);
        out.bulk(&path);
        out.bulk(if key { b"key" } else { b"path" });
        out.bulk(ours.as_bytes());
        out.bulk(theirs.as_bytes());
    }
    Ok(())
}

/// Begins it. Tuples of collections are settled, and named, by the key that they belong to.
fn begin(s: &Session, merge: &Merge) -> Result<Merging, Failure> {
    let named: RefCell<HashMap<Vec<u8>, Vec<u8>>> = RefCell::default();
    let parent = s.db().lineage(&merge.clone)?.parent;
    let settle = |name: &str, clash: &Clash<'_>| {
        let Some(of) = name.strip_prefix(TYPES_PREFIX) else { return Settled::Conflict };
        if let Some((_, 0, _)) = parse_element(clash.key)
            && clash.changed.is_some()
            && clash.here.is_some()
        {
            // How many elements there are follows from which there are.
            return Settled::Left;
        }
        let tuple = Bytes::copy_from_slice(clash.key);
        // One of the two may have removed what says which key it is.
        let owner = |branch: &str| {
            let types = s.db().dictionary_in(branch, name)?;
            Some(key_of_tuple(s, types, &tuple)).filter(|key| *key != tuple)
        };
        let key = owner(&merge.clone).or_else(|| owner(&parent)).unwrap_or_else(|| tuple.clone());
        let shown = [of.as_bytes(), b":", &key].concat();
        let chosen = |path: &[u8]| path == shown || path == of.as_bytes();
        match merge.choices.iter().find(|(path, _)| chosen(path)) {
            Some((_, Preferred::Theirs)) => Settled::Taken,
            Some(_) => Settled::Left,
            None => {
                let tuple = [name.as_bytes(), b":", clash.key].concat();
                named.borrow_mut().insert(tuple, shown);
                Settled::Conflict
            }
        }
    };
    let mut merging = s.shared.transactions.merge(merge, &settle)?;
    let named = named.into_inner();
    for conflict in &mut merging.conflicts {
        if let Some(name) = named.get(&conflict.path).filter(|_| conflict.key) {
            conflict.path.clone_from(name);
        }
    }
    let mut seen = std::collections::HashSet::new();
    merging.conflicts.retain(|conflict| seen.insert(conflict.path.clone()));
    Ok(merging)
}

/// Both sides have added elements to collections and removed some: their numbers are what there
/// was and what is added.
fn mend_counts(s: &Session, transaction: &Transaction) -> Outcome {
    let view = transaction.view()?;
    let before = view.beneath();
    for info in Place::of(transaction).all(s.db()) {
        if !info.name.starts_with(TYPES_PREFIX) {
            continue;
        }
        let mut added: HashMap<u64, i64> = HashMap::new();
        for change in transaction.changes_in(&view, &[info.id])? {
            let (key, by) = match change?.1 {
                Changed::Put { key, .. } | Changed::Update { key, .. } => (key, 1),
                Changed::Delete { key } => (key, -1),
                // All of the dictionary.
                Changed::DeleteRange { .. } => continue,
            };
            if let Some((id, 1, _)) = parse_element(&key) {
                let was = before.value_len(info.id, &key)?.is_some();
                *added.entry(id).or_default() += if was == (by < 0) { by } else { 0 };
            }
        }
        for (id, added) in added {
            let key = count_key(id);
            let number = |value: Option<Bytes>| {
                let text = value.as_deref().and_then(|value| std::str::from_utf8(value).ok());
                text.and_then(|text| text.parse::<i64>().ok())
            };
            let was = number(before.get(info.id, &key)?).unwrap_or(0);
            let Some(now) = number(view.get(info.id, &key)?) else { continue };
            let right = was.saturating_add(added);
            if now != right {
                transaction.put(info.id, &key, right.to_string())?;
            }
        }
    }
    Ok(())
}

/// Keys that would be a string and something else at once.
fn kinds_that_meet(s: &Session, transaction: &Transaction) -> Result<Vec<Conflicting>, Failure> {
    let all = Place::of(transaction).all(s.db());
    let named = |(dict, key): (kvdb::DictionaryId, Bytes)| {
        let name = all.iter().find(|info| info.id == dict).map_or("", |info| &info.name);
        let path = [name.as_bytes(), b":", &key].concat();
        Conflicting { path, key: true, ours: "made", theirs: "made" }
    };
    Ok(undo::kinds_meet(s, transaction)?.into_iter().map(named).collect())
}
