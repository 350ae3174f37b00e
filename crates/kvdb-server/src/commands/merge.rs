//! `TXN MERGE`: what a clone has changed, in a transaction of the branch that it was made of, or
//! the other way round; or what a fork has, in one of the store that it was made of. `TXN REBASE`:
//! what a transaction has changed, in one that begins now.

use std::cell::RefCell;
use std::collections::HashMap;

use bytes::Bytes;
use kvdb::{
    Changed, Clash, DictionaryId, Settled, Transaction, TransactionId, TransactionOptions, View,
};

use super::txn::{attach, enter, named, over};
use super::{authors, is, snapshot, undo};
use crate::dictionaries::Place;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{TYPES_PREFIX, count_key, key_in_tuple, owner_key, parse_element};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;
use crate::transactions::{Conflicting, Merge, Merging, Preferred, Rebased};

/// `TXN MERGE clone [REBASE | INTO branch | FORK place] [DRY] [OURS path] [THEIRS path] [BOTH path]
/// ... [ATTACHED]`: begins a transaction that merges the clone into the branch that it was made of
/// when it commits. Its number, the clone that it commits to and the one whose changes these are
/// (empty: the store itself), and the conflicts: of each its path or key, `path` or `key`, what
/// each side has done, and by which commit on the other side (number, label, seconds since 1970, or
/// null). With conflicts the transaction is of no use but to look at. `REBASE`: the other way
/// round. `DRY`: it is not going to be committed. `INTO`: not into what the clone was made of but
/// into that branch (empty: the main one), with which it shares a state. `FORK`: not a clone but a
/// fork of this store, at an address or in a file of this machine, which is called `clone`; a
/// client of the network may not have files opened.
pub fn merge(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let clone = snapshot::name(args.get(2).ok_or(Failure::SYNTAX)?)?.to_owned();
    let mut merge = Merge { clone, ..Merge::default() };
    let mut attached = false;
    let mut words = args.from(3);
    while let Some(word) = words.next() {
        match word {
            o if is(o, "rebase") => merge.rebase = true,
            o if is(o, "dry") => merge.dry_run = true,
            o if is(o, "into") => {
                let into = words.next().ok_or(Failure::SYNTAX)?;
                merge.into = Some(snapshot::name(into)?.to_owned());
            }
            o if is(o, "fork") => {
                merge.fork = Some(words.next().ok_or(Failure::SYNTAX)?.to_vec());
            }
            o if is(o, "attached") => attached = true,
            o => merge.choices.push(choice(o, words.next())?),
        }
    }
    if merge.fork.is_some() {
        out.will_wait();
        if merge.rebase {
            return Err(Failure::request("a fork is merged into the store, and not rebased"));
        }
        if merge.into.is_some() {
            return Err(Failure::request("a fork is merged into the store that it comes from"));
        }
        if s.needs_password {
            return Err(Failure::request("a fork is merged over the store's Unix socket alone"));
        }
    }
    let verb = if merge.rebase { "rebase" } else { "merge" };
    merge.options = TransactionOptions {
        undoable: true,
        user: s.user,
        label: format!("{verb} {}", merge.clone),
        ..TransactionOptions::default()
    };
    let Merging { id, into, from, conflicts, since } = begin(s, &merge)?;
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
    // Who did it on the other side than the clone's.
    let branch = if merge.rebase { &from } else { &into };
    let since = since.map(|since| (branch.as_str(), since, merge.options.label.as_str()));
    list(s, since, &conflicts, out);
    Ok(())
}

/// `TXN REBASE id [OURS path] [THEIRS path] [BOTH path] ... [ATTACHED]`: ends a transaction and
/// begins another one as it was begun, with what it has changed, in the state that there is now.
/// The number of that one, and no conflicts; or null and the conflicts, as of a merge, and the
/// transaction is as it was. A connection that is in it is in the other one then.
pub fn rebase(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let old = named(s, args, 2)?;
    let (mut choices, mut attached) = (Vec::new(), false);
    let mut words = args.from(3);
    while let Some(word) = words.next() {
        match word {
            o if is(o, "attached") => attached = true,
            o => choices.push(choice(o, words.next())?),
        }
    }
    let id = old.id();
    let (view, meet) = (old.view()?, RefCell::new(Ok(Vec::new())));
    // The transaction, or others, may have removed what says which key it is.
    let states = [view.clone(), view.beneath(), s.db().view()];
    let owner = |types: &str, tuple: &Bytes| {
        let types = s.db().dictionary_in(old.branch(), types)?;
        states.iter().find_map(|state| owner_in(state, types, tuple))
    };
    let keys = Keys { choices: &choices, taken: Preferred::Ours, owner, named: RefCell::default() };
    let finish = |transaction: &Transaction| {
        let finished = || -> Result<Vec<Conflicting>, Failure> {
            mend_counts(s, transaction)?;
            let found = kinds_that_meet(s, transaction)?;
            if found.is_empty() && s.shared.transaction_states.is_older(id) {
                // The effects of its own commands are not known any more.
                undo::note_events(s, transaction.id(), "rebase")?;
            }
            Ok(found)
        };
        let found = finished();
        let done = found.as_ref().is_ok_and(Vec::is_empty);
        *meet.borrow_mut() = found;
        Ok(done)
    };
    let settle = |name: &str, clash: &Clash<'_>| keys.settle(name, clash);
    let rebased = s.shared.transactions.rebase(id, &choices, &settle, &finish)?;
    let Rebased { id: new, mut conflicts } = rebased;
    conflicts.extend(meet.into_inner()?);
    keys.name(&mut conflicts);
    out.array(2);
    match new {
        Some(new) => {
            take_over(s, id, new, attached)?;
            out.integer(new.0 as i64);
        }
        None => out.null(),
    }
    list(s, Some((old.branch(), old.begun_after(), "")), &conflicts, out);
    Ok(())
}

/// What the server knows of a transaction is known of the one that it has become.
fn take_over(s: &mut Session, old: TransactionId, new: TransactionId, attached: bool) -> Outcome {
    let states = &s.shared.transaction_states;
    if let Some(effects) = states.end(old).and_then(|state| state.effects.lock().take())
        && !states.is_older(old)
    {
        *states.of(s.db(), new).effects.lock() = Some(effects);
    }
    s.shared.seals.begun(s.id, new);
    if attached || s.attached.contains(&old) {
        attach(s, new);
    }
    let joined = s.joined.as_ref().is_some_and(|(transaction, _)| transaction.id() == old);
    over(s, old);
    if joined {
        enter(s, s.db().transaction(new)?);
    }
    // A connection that waits in the old one must see that it has ended.
    s.shared.waiters.wake_all();
    Ok(())
}

/// Whose version counts at a path.
fn choice(whose: &[u8], path: Option<&[u8]>) -> Result<(Vec<u8>, Preferred), Failure> {
    let preferred = match whose {
        o if is(o, "ours") => Preferred::Ours,
        o if is(o, "theirs") => Preferred::Theirs,
        o if is(o, "both") => Preferred::Both,
        _ => return Err(Failure::SYNTAX),
    };
    Ok((path.ok_or(Failure::SYNTAX)?.to_vec(), preferred))
}

/// `since`: the branch whose commits are looked at, from the newest one on that both sides have, as
/// far as that is known; and a label that does not count.
fn list(
    s: &Session,
    since: Option<(&str, u64, &str)>,
    conflicts: &[Conflicting],
    out: &mut Output,
) {
    let paths: Vec<_> = conflicts.iter().map(|one| (&*one.path, one.key)).collect();
    let authors = match since {
        Some(since) => authors::of(s, since, &paths),
        None => vec![None; paths.len()],
    };
    out.array(conflicts.len());
    for (Conflicting { path, key, ours, theirs }, author) in conflicts.iter().zip(&authors) {
        out.array(5);
        out.bulk(path);
        out.bulk(if *key { b"key" } else { b"path" });
        out.bulk(ours.as_bytes());
        out.bulk(theirs.as_bytes());
        authors::put(author.as_ref(), out);
    }
}

/// Begins a merge. Tuples of collections are settled, and named, by the key that they belong to.
fn begin(s: &Session, merge: &Merge) -> Result<Merging, Failure> {
    let parent = match (&merge.fork, &merge.into) {
        (Some(_), _) => String::new(),
        (None, Some(into)) => into.clone(),
        (None, None) => s.db().lineage(&merge.clone)?.parent,
    };
    let now = s.db().view();
    // One of the two may have removed what says which key it is.
    let owner = |types: &str, tuple: &Bytes| {
        let types = [&merge.clone, &parent].map(|branch| s.db().dictionary_in(branch, types));
        types.into_iter().flatten().find_map(|types| owner_in(&now, types, tuple))
    };
    let (choices, taken) = (&merge.choices[..], Preferred::Theirs);
    let keys = Keys { choices, taken, owner, named: RefCell::default() };
    let settle = |name: &str, clash: &Clash<'_>| keys.settle(name, clash);
    let mut merging = s.shared.transactions.merge(merge, &settle)?;
    keys.name(&mut merging.conflicts);
    Ok(merging)
}

/// The key of the collection that an element belongs to, as a state has it.
fn owner_in(state: &View, types: DictionaryId, tuple: &Bytes) -> Option<Bytes> {
    let (id, ..) = parse_element(tuple)?;
    state.get(types, &owner_key(id)).ok().flatten()
}

/// Settles and names the tuples of collections.
struct Keys<'a, F> {
    choices: &'a [(Vec<u8>, Preferred)],
    /// The choice for the version that comes into the transaction.
    taken: Preferred,
    /// The key that a tuple of a dictionary of types belongs to.
    owner: F,
    /// What is shown of a tuple in conflict.
    named: RefCell<HashMap<Vec<u8>, Vec<u8>>>,
}

impl<F: Fn(&str, &Bytes) -> Option<Bytes>> Keys<'_, F> {
    fn settle(&self, name: &str, clash: &Clash<'_>) -> Settled {
        let Some(of) = name.strip_prefix(TYPES_PREFIX) else { return Settled::Conflict };
        if let Some((_, 0, _)) = parse_element(clash.key)
            && clash.changed.is_some()
            && clash.here.is_some()
        {
            // How many elements there are follows from which there are.
            return Settled::Left;
        }
        let tuple = Bytes::copy_from_slice(clash.key);
        let key = key_in_tuple(&tuple).or_else(|| (self.owner)(name, &tuple)).unwrap_or(tuple);
        let shown = [of.as_bytes(), b":", &key].concat();
        let chosen = |path: &[u8]| path == shown || path == of.as_bytes();
        match self.choices.iter().find(|(path, _)| chosen(path)) {
            Some((_, choice)) if *choice == self.taken => Settled::Taken,
            Some(_) => Settled::Left,
            None => {
                let tuple = [name.as_bytes(), b":", clash.key].concat();
                self.named.borrow_mut().insert(tuple, shown);
                Settled::Conflict
            }
        }
    }

    /// Names conflicts as they are shown, each once.
    fn name(&self, conflicts: &mut Vec<Conflicting>) {
        let named = self.named.borrow();
        for conflict in &mut *conflicts {
            if let Some(name) = named.get(&conflict.path).filter(|_| conflict.key) {
                conflict.path.clone_from(name);
            }
        }
        let mut seen = std::collections::HashSet::new();
        conflicts.retain(|conflict| seen.insert(conflict.path.clone()));
    }
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
