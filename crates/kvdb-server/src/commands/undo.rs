//! `TXN UNDO` and `TXN COMMITS`: another transaction undoes the commit of a transaction.

use std::collections::{BTreeSet, HashMap};
use std::sync::atomic::Ordering::Relaxed;

use bytes::Bytes;
use kvdb::{
    Changed, DictionaryId, NAMED_CONFLICTS, Transaction, TransactionId, TransactionOptions,
    UndoableCommit, View,
};

use super::txn::{arity, attach, list_files, names_of};
use super::{changes, is};
use crate::dictionaries::{Place, listed_at};
use crate::effects::Effect;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{
    Head, Kind, TYPES_PREFIX, deadline_key, fields_from, head_key, owner_key, parse_deadline_key,
    parse_element, parse_field_order, types_name,
};
use crate::notifications::{Classes, Event};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::review::{Review, TypedState};
use crate::session::Session;
use crate::waiters::Spot;

/// `TXN COMMITS` lists the commits that can be undone, the oldest first, of the store or of the
/// clone in which the connection works. Each is a map of its number, the label of its
/// transaction, its time in seconds since 1970, and the bytes that are kept only for it. With
/// `number FILES [COLLAPSED]` or `number CHANGES [FIELDS]` the command lists the changes of one
/// commit in the format of `SNAPSHOT FILES` and `SNAPSHOT CHANGES`.
pub fn commits(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if args.len() > 2 {
        return changed_by(s, args, out);
    }
    let mut all = s.db().undoable_commits_and_bytes();
    all.retain(|(commit, _)| Some(&*commit.branch) == s.place.branch());
    out.array(all.len());
    for (commit, held_bytes) in all {
        out.map(4);
        out.bulk(b"number");
        out.integer(commit.number as i64);
        out.bulk(b"label");
        out.bulk(commit.label.as_bytes());
        out.bulk(b"created");
        out.integer(commit.created.as_secs() as i64);
        out.bulk(b"held_bytes");
        out.integer(held_bytes as i64);
    }
    Ok(())
}

fn changed_by(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 4, 5)?;
    let number = integer(args.at(2)).and_then(|number| u64::try_from(number).ok());
    let commit = named(s, Some(number.ok_or(Failure::NOT_AN_INTEGER)?))?;
    let (before, after) = s.db().states_around(commit.number)?;
    // Both states are listed under the main branch.
    let to = (&after, "");
    match (args.at(3), args.get(4)) {
        (what, None) if is(what, "changes") => changes::between(s, &before, to, false, out),
        (what, Some(option)) if is(what, "changes") && is(option, "fields") => {
            changes::between(s, &before, to, true, out)
        }
        (what, option)
            if is(what, "files") && option.is_none_or(|option| is(option, "collapsed")) =>
        {
            let files =
                s.shared.owner.snapshots().files_between(&before, &after, option.is_some())?;
            list_files(files, out);
            Ok(())
        }
        _ => Err(Failure::SYNTAX),
    }
}

/// `TXN UNDO [number] [ATTACHED]` begins a transaction that undoes a commit when it commits.
/// Without a number it undoes the last commit. The reply is the number of the transaction, the
/// number of the commit, the label of the commit, and descriptions of later changes that conflict
/// with the undo. The last description is `others` if there may be more of them. If there are
/// conflicts, the transaction can be read, but not committed.
pub fn undo(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut number, mut attached) = (None, false);
    for word in args.from(2) {
        match (word, integer(word).and_then(|n| u64::try_from(n).ok())) {
            (o, _) if is(o, "attached") => attached = true,
            (_, Some(n)) if number.is_none() => number = Some(n),
            _ => return Err(Failure::SYNTAX),
        }
    }
    let commit = named(s, number)?;
    let options = TransactionOptions {
        undoable: true,
        user: s.identity.user(),
        label: label_of_undo(&commit.label),
        ..TransactionOptions::default()
    };
    let (id, mut changed) = s.shared.owner.transactions().undo(commit.number, options)?;
    let others = changed.len() >= NAMED_CONFLICTS;
    let checked = match changed.is_empty() {
        true => s.db().transaction(id).map_err(Failure::from).and_then(|t| {
            keep_deadlines(s, &t)?;
            kinds_meet(s, &t)
        }),
        false => Ok(Vec::new()),
    };
    match checked {
        Ok(more) => changed.extend(more),
        Err(failure) => {
            let _ = s.shared.owner.transactions().abort(id);
            return Err(failure);
        }
    }
    if changed.is_empty()
        && let Err(failure) = note_events(s, id, "undo")
    {
        let _ = s.shared.owner.transactions().abort(id);
        return Err(failure);
    }
    if !changed.is_empty() {
        s.shared.prevented.note(s.db(), id);
    }
    s.shared.seals.begun(s.id, id);
    if attached {
        attach(s, id);
    }
    out.array(4);
    out.integer(id.0 as i64);
    out.integer(commit.number as i64);
    out.bulk(commit.label.as_bytes());
    let mut names = names_of(s, &changed, usize::MAX);
    names.extend(others.then(|| "others".to_owned()));
    out.array(names.len());
    names.iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(())
}

/// Returns the label of the undo. A repeated undo alternates between `undo` and `redo`, instead
/// of adding a word each time.
fn label_of_undo(label: &str) -> String {
    match (label.strip_prefix("undo "), label.strip_prefix("redo ")) {
        (Some(label), _) => format!("redo {label}"),
        (_, Some(label)) => format!("undo {label}"),
        _ => format!("undo {label}"),
    }
}

/// Returns the undoable commits of the branch on which the connection works.
fn undoable(s: &Session) -> Vec<UndoableCommit> {
    let mut all = s.db().undoable_commits();
    all.retain(|commit| Some(&*commit.branch) == s.place.branch());
    all
}

fn named(s: &Session, number: Option<u64>) -> Result<UndoableCommit, Failure> {
    let found = match number {
        Some(number) => {
            s.db().undoable_commits().into_iter().find(|commit| commit.number == number)
        }
        None => undoable(s).into_iter().next_back(),
    };
    found.ok_or_else(|| {
        let which = number.map_or("no commit".into(), |number| format!("commit {number}"));
        let not = if number.is_some() { "cannot" } else { "can" };
        Failure::coded(
            ErrorCode::NoCommit,
            format!(
                "{which} {not} be undone: the newest are kept for a day, of transactions that \
                 asked for it, and none in a store that was full since"
            ),
        )
    })
}

/// Records an event for each key that a transaction changes, to be published at its commit. The
/// name of the event is `what`: `undo` for keys that the transaction restores.
pub fn note_events(s: &Session, id: TransactionId, what: &'static str) -> Outcome {
    if !s.notes(Classes::GENERIC) {
        return Ok(());
    }
    let transaction = s.db().transaction(id)?;
    let (view, state) = (transaction.view()?, s.shared.transaction_states.of(s.db(), id));
    let place = Place::of(&transaction);
    for (dictionary, strings) in listed_at(&place, s.db()) {
        let types = s.db().dictionary_in(transaction.branch(), &types_name(&dictionary));
        let effects = events_of(s, &transaction, &view, (strings, types), what)?;
        if let Some(kept) = &mut *state.effects.lock()
            && !effects.is_empty()
        {
            let clone = Some(transaction.branch().to_owned()).filter(|clone| !clone.is_empty());
            let spot = Spot { dictionary, clone, ..Spot::default() };
            let dropped = kept.add(spot, effects, s.shared.limits.effects);
            s.shared.metrics.effects_dropped.fetch_add(dropped, Relaxed);
        }
    }
    Ok(())
}

/// Returns the events of a transaction's changes in one dictionary: one for each key, or one for
/// all keys if there are too many.
fn events_of(
    s: &Session,
    transaction: &Transaction,
    view: &View,
    (strings, types): (DictionaryId, Option<DictionaryId>),
    what: &'static str,
) -> Result<Vec<Effect>, Failure> {
    let event = |name| Event { class: Classes::GENERIC, name };
    let most = s.shared.limits.events;
    let mut effects = Vec::new();
    for change in transaction.changes_in(view, &[strings])? {
        effects.push(match change?.1 {
            Changed::DeleteRange { start, end } => {
                Effect::Range { event: event("delrange"), start, end }
            }
            Changed::Put { key, .. } | Changed::Update { key, .. } | Changed::Delete { key } => {
                Effect::Event { event: event(what), key }
            }
        });
        if effects.len() > most {
            return Ok(vec![Effect::of_all("lost")]);
        }
    }
    let (base, check) = (view.beneath(), || s.check_stopping());
    let state = |view| TypedState { view, strings: Some(strings), types };
    let room = s.shared.limits.whole_replies;
    let review = Review::new(state(&base), state(view), false, room, &check);
    match review.of_transaction(transaction) {
        Ok(reviewed) if effects.len() + reviewed.len() <= most => {
            let of_key = |key| Effect::Event { event: event(what), key };
            effects.extend(reviewed.into_iter().map(|one| of_key(one.key)));
        }
        Ok(_) | Err(Failure::Limit(_)) => return Ok(vec![Effect::of_all("lost")]),
        Err(failure) => return Err(failure),
    }
    Ok(effects)
}

/// Corrects the deadlines of fields in a transaction that undoes or merges. A hash whose fields
/// may have deadlines keeps this mark, because others may have set deadlines. The index of
/// deadlines gets an entry for a hash whose deadlines are restored or whose entry is removed. In
/// the same way, a collection that may have long names keeps this mark.
pub fn keep_deadlines(s: &Session, transaction: &Transaction) -> Outcome {
    let view = transaction.view()?;
    let before = view.beneath();
    for info in Place::of(transaction).all(s.db()) {
        if !info.name.starts_with(TYPES_PREFIX) {
            continue;
        }
        let head_in = |view: &View, key: &[u8]| -> Result<Option<Head>, Failure> {
            Ok(view.get(info.id, &head_key(key))?.and_then(|bytes| Head::decode(&bytes)))
        };
        let (mut ids, mut keys, mut heads) = (BTreeSet::new(), BTreeSet::new(), Vec::new());
        for change in transaction.changes_in(&view, &[info.id])? {
            match change?.1 {
                Changed::Put { key, .. } => {
                    if let Some((id, 6, _)) = parse_element(&key) {
                        ids.insert(id);
                    } else if let Some(name) = key.strip_prefix(b"k")
                        && let Some(old) = head_in(&before, name)?
                        && let Some(new) = head_in(&view, name)?
                        && (new.kind, new.id) == (old.kind, old.id)
                    {
                        let (expiring, long) = (old.expiring || new.expiring, old.long || new.long);
                        let kept = Head { expiring, long, ..new };
                        if kept != new {
                            heads.push((key.clone(), kept));
                        }
                    }
                }
                Changed::Delete { key } => {
                    if let Some((_, name)) = parse_deadline_key(&key) {
                        keys.insert(key.slice_ref(name));
                    }
                }
                Changed::Update { .. } | Changed::DeleteRange { .. } => {}
            }
        }
        for (key, head) in heads {
            transaction.put(info.id, &key, head.encode())?;
        }
        for id in ids {
            keys.extend(view.get(info.id, &owner_key(id))?);
        }
        for key in keys {
            let Some(head) = head_in(&view, &key)?.filter(|head| head.kind == Kind::Hash) else {
                continue;
            };
            let (start, end) = fields_from(head.id, 0);
            let first = view.cursor(info.id, &start, &end)?.next()?;
            if let Some((first, _)) = first.as_ref().and_then(|at| parse_field_order(&at.key)) {
                let deadline = deadline_key(first, &key);
                transaction.put(info.id, &deadline, Bytes::new())?;
            }
        }
    }
    Ok(())
}

/// Returns the keys that would have a string and a value of another type at once. A later change
/// by others is in the other dictionary, so it is not a conflict of tuples.
pub fn kinds_meet(
    s: &Session,
    transaction: &Transaction,
) -> Result<Vec<(DictionaryId, Bytes)>, Failure> {
    let all = Place::of(transaction).all(s.db());
    let ids: HashMap<&str, DictionaryId> =
        all.iter().map(|info| (info.name.as_str(), info.id)).collect();
    let view = transaction.view()?;
    let mut found = Vec::new();
    for (name, strings) in &ids {
        let Some(types) = ids.get(types_name(name).as_str()) else { continue };
        let state = TypedState { view: &view, strings: Some(*strings), types: Some(*types) };
        for change in transaction.changes_in(&view, &[*strings, *types])? {
            let (dict, Changed::Put { key: tuple, .. }) = change? else { continue };
            let key = match (dict == *strings, tuple.strip_prefix(b"k")) {
                (true, _) => tuple.clone(),
                (false, Some(key)) => tuple.slice_ref(key),
                (false, None) => continue,
            };
            let other = state.head(&key)?.is_some_and(|head| head.kind != Kind::String);
            if other && state.tuple(&key)?.is_some() {
                found.push((*strings, key));
            }
        }
    }
    Ok(found)
}
