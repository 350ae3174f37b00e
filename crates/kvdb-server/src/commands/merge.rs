//! Merges and rebases. `TXN MERGE` merges the changes of a clone in a transaction of the branch
//! from which the clone was made, or vice versa, or the changes of a fork in a transaction of its
//! original store. `TXN REBASE` repeats the changes of a transaction in a new transaction.

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

/// Parses the arguments of a merge. Also returns whether it is attached to the connection.
fn parse(args: Arguments<'_>) -> Result<(Merge, bool), Failure> {
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
    Ok((merge, attached))
}

/// Checks that this connection may merge the requested fork.
fn check_fork(s: &Session, merge: &Merge) -> Outcome {
    if merge.rebase {
        return Err(Failure::request("a fork is merged into the store, and not rebased"));
    }
    if merge.into.is_some() {
        return Err(Failure::request("a fork is merged into the store that it comes from"));
    }
    if s.identity.needs_password() {
        return Err(Failure::request("a fork is merged over the store's Unix socket alone"));
    }
    Ok(())
}

/// `TXN MERGE clone [REBASE | INTO branch | FORK place] [DRY] [OURS path] [THEIRS path] [BOTH
/// path] ... [ATTACHED]` begins a transaction that merges the clone into the branch from which it
/// was made when it commits. The reply is the number of the transaction, the branch to which it
/// commits, the branch whose changes are merged (empty for the store itself), and the conflicts.
/// Each conflict has its path or key, `path` or `key`, the change on each side, and the commit
/// that made the change on the other side (number, label, seconds since 1970, or null). The last
/// element is the number of conflicts that are not listed because there are too many. A
/// transaction with conflicts can be read, but not committed. `REBASE` merges in the opposite
/// direction. `DRY` means that the merge is not going to be committed. `INTO` merges into the
/// given branch (empty for the main one), which must share a state with the clone, instead of the
/// branch from which the clone was made. `FORK` merges a fork of this store, at an address or in
/// a file on this machine, under the name `clone`; a client on the network may not open files.
pub fn merge(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut merge, attached) = parse(args)?;
    if merge.fork.is_some() {
        out.will_wait();
        check_fork(s, &merge)?;
    }
    let verb = if merge.rebase { "rebase" } else { "merge" };
    merge.options = TransactionOptions {
        undoable: true,
        user: s.identity.user(),
        label: format!("{verb} {}", merge.clone),
        ..TransactionOptions::default()
    };
    let Merging { id, into, from, conflicts, more, since } = begin(s, &merge)?;
    let transaction = s.db().transaction(id)?;
    let finish = || -> Result<Vec<Conflicting>, Failure> {
        if !conflicts.is_empty() {
            return Ok(conflicts.clone());
        }
        mend_counts(s, &transaction)?;
        undo::keep_deadlines(s, &transaction)?;
        let meet = kinds_that_meet(s, &transaction)?;
        if meet.is_empty() {
            undo::note_events(s, id, verb)?;
        }
        Ok(meet)
    };
    let conflicts = match finish() {
        Ok(conflicts) => conflicts,
        Err(failure) => {
            let _ = s.shared.owner.transactions().abort(id);
            return Err(failure);
        }
    };
    if !conflicts.is_empty() {
        s.shared.prevented.note(s.db(), id);
    }
    s.shared.seals.begun(s.id, id);
    if attached {
        attach(s, id);
    }
    out.array(5);
    out.integer(id.0 as i64);
    out.bulk(into.as_bytes());
    out.bulk(from.as_bytes());
    // The authors are searched on the side opposite to the side of the clone.
    let branch = if merge.rebase { &from } else { &into };
    let since = since.map(|since| (branch.as_str(), since, merge.options.label.as_str()));
    list(s, since, (&conflicts[..], more), out);
    Ok(())
}

/// `TXN REBASE id [OURS path] [THEIRS path] [BOTH path] ... [ATTACHED]` ends a transaction and
/// begins another one with the same options and the same changes, based on the current state. The
/// reply is the number of the new transaction and no conflicts. If there are conflicts, the reply
/// is null and the conflicts, in the format of a merge, and the transaction is unchanged. A
/// connection in the old transaction joins the new one.
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
    // The transaction or another commit may have removed the owner tuple that names the key.
    let states = [view.clone(), view.beneath(), s.db().view()];
    let owner = |types: &str, tuple: &Bytes| {
        let types = s.db().dictionary_in(old.branch(), types)?;
        states.iter().find_map(|state| owner_in(state, types, tuple))
    };
    let keys = Keys::new(&choices, Preferred::Ours, owner);
    let finish = |transaction: &Transaction| {
        let finished = || -> Result<Vec<Conflicting>, Failure> {
            mend_counts(s, transaction)?;
            undo::keep_deadlines(s, transaction)?;
            let found = kinds_that_meet(s, transaction)?;
            if found.is_empty() && s.shared.transaction_states.is_older(id) {
                // The effects of the transaction's earlier commands are no longer known.
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
    let rebased = s.shared.owner.transactions().rebase(id, &choices, &settle, &finish)?;
    let Rebased { id: new, mut conflicts, more } = rebased;
    conflicts.extend(meet.into_inner()?);
    keys.name(&mut conflicts);
    out.array(3);
    match new {
        Some(new) => {
            take_over(s, id, new, attached)?;
            out.integer(new.0 as i64);
        }
        None => out.null(),
    }
    list(s, Some((old.branch(), old.begun_after(), "")), (&conflicts[..], more), out);
    Ok(())
}

/// Transfers the server's state of a transaction to the transaction that replaces it.
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
    // A connection that waits in the old transaction must notice that it has ended.
    s.shared.waiters.wake_all();
    Ok(())
}

/// Parses the version that is preferred at a path.
fn choice(whose: &[u8], path: Option<&[u8]>) -> Result<(Vec<u8>, Preferred), Failure> {
    let preferred = match whose {
        o if is(o, "ours") => Preferred::Ours,
        o if is(o, "theirs") => Preferred::Theirs,
        o if is(o, "both") => Preferred::Both,
        _ => return Err(Failure::SYNTAX),
    };
    Ok((path.ok_or(Failure::SYNTAX)?.to_vec(), preferred))
}

/// Writes the conflicts. `since` is the branch whose commits are searched for authors, the number
/// of the newest commit that both sides have, and a label whose commits do not count. `since` is
/// `None` if the newest common commit is not known. `more` is the number of conflicts that are
/// not listed.
fn list(
    s: &Session,
    since: Option<(&str, u64, &str)>,
    (conflicts, more): (&[Conflicting], u64),
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
        out.send_if_large();
    }
    out.integer(i64::try_from(more).unwrap_or(i64::MAX));
}

/// Begins a merge. Tuples of collections are settled under the key to which they belong, and
/// conflicts name them by this key.
fn begin(s: &Session, merge: &Merge) -> Result<Merging, Failure> {
    let parent = match (&merge.fork, &merge.into) {
        (Some(_), _) => String::new(),
        (None, Some(into)) => into.clone(),
        (None, None) => s.db().lineage(&merge.clone)?.parent,
    };
    let now = s.db().view();
    // One of the two sides may have removed the owner tuple that names the key.
    let owner = |types: &str, tuple: &Bytes| {
        let types = [&merge.clone, &parent].map(|branch| s.db().dictionary_in(branch, types));
        types.into_iter().flatten().find_map(|types| owner_in(&now, types, tuple))
    };
    let keys = Keys::new(&merge.choices, Preferred::Theirs, owner);
    let settle = |name: &str, clash: &Clash<'_>| keys.settle(name, clash);
    let mut merging = s.shared.owner.transactions().merge(merge, &settle)?;
    keys.name(&mut merging.conflicts);
    Ok(merging)
}

/// Returns the key of the collection to which an element belongs in a state.
fn owner_in(state: &View, types: DictionaryId, tuple: &Bytes) -> Option<Bytes> {
    let (id, ..) = parse_element(tuple)?;
    state.get(types, &owner_key(id)).ok().flatten()
}

/// Limit on the conflicting tuples of a dictionary whose names are kept. A merge does not list
/// more of them.
const NAMED: usize = 10_000;

/// Settles conflicting tuples of collections, and keeps their names.
struct Keys<'a, F> {
    choices: &'a [(Vec<u8>, Preferred)],
    /// The choice that means the version that is merged into the transaction.
    taken: Preferred,
    /// Returns the key to which a tuple of a types dictionary belongs.
    owner: F,
    /// The name that is shown for each conflicting tuple.
    named: RefCell<HashMap<Vec<u8>, Vec<u8>>>,
    /// The number of names kept for each dictionary.
    counts: RefCell<HashMap<String, usize>>,
}

impl<'a, F: Fn(&str, &Bytes) -> Option<Bytes>> Keys<'a, F> {
    fn new(choices: &'a [(Vec<u8>, Preferred)], taken: Preferred, owner: F) -> Self {
        Keys { choices, taken, owner, named: RefCell::default(), counts: RefCell::default() }
    }

    fn settle(&self, name: &str, clash: &Clash<'_>) -> Settled {
        let Some(of) = name.strip_prefix(TYPES_PREFIX) else { return Settled::Conflict };
        if let Some((_, 0, _)) = parse_element(clash.key)
            && clash.changed.is_some()
            && clash.here.is_some()
        {
            // The count of a collection is computed from its elements afterwards.
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
                let mut counts = self.counts.borrow_mut();
                let count = counts.entry(name.to_owned()).or_default();
                if *count < NAMED {
                    *count += 1;
                    let tuple = [name.as_bytes(), b":", clash.key].concat();
                    self.named.borrow_mut().insert(tuple, shown);
                }
                Settled::Conflict
            }
        }
    }

    /// Replaces the names of conflicts by the names that are shown, and removes duplicates.
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

/// Corrects the counts of collections in which both sides have added and removed elements. The
/// new count is the count before plus the elements added, minus the elements removed.
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
                // This is the deletion of a whole dictionary.
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

/// Returns the keys that would have a string and a value of another type at once.
fn kinds_that_meet(s: &Session, transaction: &Transaction) -> Result<Vec<Conflicting>, Failure> {
    let all = Place::of(transaction).all(s.db());
    let named = |(dict, key): (kvdb::DictionaryId, Bytes)| {
        let name = all.iter().find(|info| info.id == dict).map_or("", |info| &info.name);
        let path = [name.as_bytes(), b":", &key].concat();
        Conflicting { path, key: true, ours: "made", theirs: "made" }
    };
    Ok(undo::kinds_meet(s, transaction)?.into_iter().map(named).collect())
}
