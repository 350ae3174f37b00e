//! `TXN`: transactions over keys, and over files if the store is mounted, shared by any number of
//! connections and processes.

use std::time::Duration;

use bytes::Bytes;
use kvdb::{
    CommitOptions, DictionaryId, Durability, Isolation, Transaction, TransactionId,
    TransactionInfo, TransactionOptions,
};

use super::tell::tell_all;
use super::{authors, changes, is, merge, revert, snapshot, undo, wrong_arity};
use crate::dictionaries::{self, Place};
use crate::effects::Effects;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{TYPES_PREFIX, head_key, key_in_tuple, owner_key, parse_element};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::transactions::{FileChange, Named};

pub const USAGE: &str = "BEGIN [OF clone] [WITHIN id] [SI|SER] [LABEL text] [IDLE seconds] [TIMEOUT seconds] [LIMIT bytes] [FILES n] [NOCHECK] [DURABLE] [UNDOABLE] [INPLACE] [ATTACHED] | JOIN id | LEAVE | \
                         COMMIT [id] [SYNC] [IF state] [STAY] [ABORTNESTED] | ABORT [id] | KEEP id | SEAL [id] | LIST | STATUS [id] | STATE [id] | LOCK KEY key [SHARED] | LOCK RANGE start end [SHARED] | CHANGES [id] [BEFORE] [FIELDS] | REVERT KEY key | FILES [id] [COLLAPSED] | SAVEPOINT name | ROLLBACK name | COMMITS [number FILES [COLLAPSED]] [number CHANGES [FIELDS]] | UNDO [number] [ATTACHED] | AGAINST [id] | MERGE clone [REBASE|INTO branch|FORK place] [DRY] [OURS path] [THEIRS path] [BOTH path] [ATTACHED] | REBASE id [OURS path] [THEIRS path] [BOTH path] [ATTACHED]";

pub fn txn(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    // The other subcommands wait for the mount, for a sync or for a lock, or read much data.
    const SHORT: [&str; 5] = ["files", "join", "leave", "list", "status"];
    if !SHORT.iter().any(|short| is(args.at(1), short)) {
        out.will_wait();
    }
    match args.at(1) {
        c if is(c, "begin") => begin(s, args, out),
        c if is(c, "join") => join(s, args, out),
        c if is(c, "leave") => {
            arity(args, 2, 2)?;
            s.leave();
            out.ok();
            Ok(())
        }
        c if is(c, "commit") => commit(s, args, out),
        c if is(c, "abort") => abort(s, args, out),
        c if is(c, "keep") => {
            arity(args, 3, 3)?;
            let id = number(args.at(2))?;
            s.shared.transactions.keep(id).map_err(|error| ended(s, id, error))?;
            s.attached.retain(|attached| *attached != id);
            out.ok();
            Ok(())
        }
        c if is(c, "list") => {
            arity(args, 2, 2)?;
            let all = s.db().transactions();
            out.array(all.len());
            all.iter().for_each(|info| describe(info, out));
            Ok(())
        }
        c if is(c, "status") => status(s, args, out),
        c if is(c, "state") => {
            arity(args, 2, 3)?;
            let id = named(s, args, 2)?.id();
            out.bulk(s.shared.transactions.revision(id)?.to_string().as_bytes());
            Ok(())
        }
        c if is(c, "seal") => seal(s, args, out),
        c if is(c, "lock") => lock(s, args, out),
        c if is(c, "changes") => changes::of_transaction(s, args, out),
        c if is(c, "revert") => revert::revert(s, args, out),
        c if is(c, "files") => files(s, args, out),
        c if is(c, "savepoint") => savepoint(s, args, out),
        c if is(c, "rollback") => rollback(s, args, out),
        c if is(c, "commits") => undo::commits(s, args, out),
        c if is(c, "undo") => undo::undo(s, args, out),
        c if is(c, "against") => authors::against(s, args, out),
        c if is(c, "merge") => merge::merge(s, args, out),
        c if is(c, "rebase") => merge::rebase(s, args, out),
        c => {
            let c = String::from_utf8_lossy(&c[..c.len().min(64)]).into_owned();
            Err(Failure::request(format!("unknown subcommand '{c}'. TXN {USAGE}")))
        }
    }
}

pub fn arity(args: Arguments<'_>, least: usize, most: usize) -> Outcome {
    if (least..=most).contains(&args.len()) { Ok(()) } else { Err(wrong_arity("txn")) }
}

fn number(arg: &[u8]) -> Result<TransactionId, Failure> {
    let id = integer(arg).and_then(|id| u64::try_from(id).ok());
    id.map(TransactionId)
        .ok_or_else(|| Failure::request("a transaction is named by the number that TXN BEGIN gave"))
}

/// Returns the transaction named by argument `at`, or the joined one.
pub fn named(s: &Session, args: Arguments<'_>, at: usize) -> Result<Transaction, Failure> {
    match args.get(at) {
        Some(id) => Ok(s.db().transaction(number(id)?)?),
        None => joined(s).cloned(),
    }
}

pub fn joined(s: &Session) -> Result<&Transaction, Failure> {
    let none = || {
        Failure::request("this connection is in no transaction: TXN JOIN one, or give its number")
    };
    s.joined.as_ref().map(|(transaction, _)| transaction).ok_or_else(none)
}

fn seconds(arg: Option<&[u8]>) -> Result<Duration, Failure> {
    let text =
        arg.and_then(|arg| std::str::from_utf8(arg).ok()).and_then(|arg| arg.parse::<f64>().ok());
    let duration = text.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| Failure::request("not a number of seconds"))
}

/// `TXN BEGIN [OF clone] [WITHIN id] [SI|SER] [LABEL text] [IDLE seconds] [TIMEOUT seconds] [LIMIT
/// bytes] [FILES n] [NOCHECK] [DURABLE] [UNDOABLE] [INPLACE] [ATTACHED]` begins a transaction and
/// replies with its number. If the connection works in a clone, the transaction belongs to that
/// clone.
fn begin(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let mut options = TransactionOptions {
        detached: true,
        user: s.user,
        branch: s.place.branch().unwrap_or_default().into(),
        ..TransactionOptions::default()
    };
    let mut attached = false;
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        match word {
            o if is(o, "of") => {
                options.branch = snapshot::name(words.next().ok_or(Failure::SYNTAX)?)?.into();
            }
            o if is(o, "within") && options.within.is_none() => {
                options.within = Some(number(words.next().ok_or(Failure::SYNTAX)?)?);
            }
            o if is(o, "si") => options.isolation = Isolation::Snapshot,
            o if is(o, "ser") => options.isolation = Isolation::Serializable,
            o if is(o, "label") => {
                let label = words.next().ok_or(Failure::SYNTAX)?;
                options.label =
                    String::from_utf8_lossy(&label[..label.len().min(256)]).into_owned();
            }
            o if is(o, "idle") => options.idle_limit = Some(seconds(words.next())?),
            o if is(o, "timeout") => options.lock_timeout = seconds(words.next())?,
            o if is(o, "limit") => {
                let bytes = words.next().and_then(integer).and_then(|n| u64::try_from(n).ok());
                options.limit = Some(bytes.ok_or(Failure::NOT_AN_INTEGER)?);
            }
            o if is(o, "files") => {
                let files = words.next().and_then(integer).and_then(|n| u64::try_from(n).ok());
                options.limit_of_files = Some(files.ok_or(Failure::NOT_AN_INTEGER)?);
            }
            o if is(o, "nocheck") => options.check_conflicts = false,
            o if is(o, "durable") => options.durable = true,
            o if is(o, "undoable") => options.undoable = true,
            o if is(o, "inplace") => options.in_place = true,
            o if is(o, "attached") => attached = true,
            _ => return Err(Failure::SYNTAX),
        }
    }
    let id = s.shared.transactions.begin(options)?;
    s.shared.seals.begun(s.id, id);
    if let Some(confined) = s.confined {
        s.shared.seals.begun_within(confined, id);
    }
    if attached {
        attach(s, id);
    }
    out.integer(id.0 as i64);
    Ok(())
}

/// Makes a transaction end with the connection.
pub fn attach(s: &mut Session, id: TransactionId) {
    if s.attached.len() >= 64 && s.attached.len().is_power_of_two() {
        // Other connections may have ended some of them.
        let db = s.shared.db.clone();
        s.attached.retain(|attached| db.transaction(*attached).is_ok());
    }
    s.attached.push(id);
}

/// `TXN SEAL [id]`: from here on, until this connection ends, programs that descend from its
/// process can write only in the transactions that it begins, and in this one, and cannot end them;
/// see [`crate::seals`].
fn seal(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 3)?;
    let also = args.get(2).map(number).transpose()?;
    let process = s.process.ok_or_else(|| {
        Failure::request(
            "the process at the other end of this connection cannot be seen from the store's \
             daemon, so what it starts cannot be confined",
        )
    })?;
    s.shared.seals.seal(s.id, process);
    if let Some(id) = also {
        s.shared.seals.begun(s.id, id);
    }
    out.ok();
    Ok(())
}

fn join(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 3, 3)?;
    let transaction = s.db().transaction(number(args.at(2))?)?;
    enter(s, transaction);
    out.ok();
    Ok(())
}

/// Moves the connection into a transaction.
pub fn enter(s: &mut Session, transaction: Transaction) {
    let state = s.shared.transaction_states.of(s.db(), transaction.id());
    s.leave();
    s.place = Place::of(&transaction);
    s.joined = Some((transaction, state));
}

/// Removes the connection from a transaction that has ended.
pub fn over(s: &mut Session, id: TransactionId) {
    s.attached.retain(|attached| *attached != id);
    if s.joined.as_ref().is_some_and(|(transaction, _)| transaction.id() == id) {
        s.leave();
    }
}

/// Returns the number in argument 2, or that of the joined transaction, which may have ended.
fn id_of(s: &Session, id: Option<&[u8]>) -> Result<TransactionId, Failure> {
    match id {
        Some(id) => number(id),
        None => joined(s).map(Transaction::id),
    }
}

/// `TXN COMMIT [id] [SYNC] [IF state] [STAY] [ABORTNESTED]`. `IF` commits only in the state that
/// `TXN STATE` returned; any other state is the error `CHANGED`. With `STAY` the transaction stays
/// open after a conflict. With `ABORTNESTED` open transactions within it are aborted; without it
/// they are the error `NESTED`.
fn commit(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 8)?;
    let durability = if s.durable { Durability::Synced } else { Durability::Buffered };
    let mut options = CommitOptions { durability, ..CommitOptions::default() };
    let mut id = None;
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        match word {
            o if is(o, "sync") => options.durability = Durability::Synced,
            o if is(o, "stay") => options.stays = true,
            o if is(o, "abortnested") => options.aborts_nested = true,
            o if is(o, "if") => {
                let state = words.next().and_then(|word| std::str::from_utf8(word).ok());
                options.only_in = Some(state.ok_or(Failure::SYNTAX)?.parse()?);
            }
            o if id.is_none() => id = Some(o),
            _ => return Err(Failure::SYNTAX),
        }
    }
    let id = id_of(s, id)?;
    let (around, branch, since) = match s.db().transaction(id) {
        Ok(transaction) => {
            (transaction.within(), transaction.branch().to_owned(), transaction.begun_after())
        }
        Err(_) => (None, String::new(), u64::MAX),
    };
    let done = s.shared.transactions.commit(id, options);
    // The commit has happened all the same.
    let (done, unsynced) = match done {
        Err(error @ kvdb::Error::NotSynced(_)) => (Ok(()), Some(error)),
        done => (done, None),
    };
    match done {
        Err(kvdb::Error::Conflict { keys }) => {
            if !options.stays {
                over(s, id);
            }
            Err(Failure::Conflict(conflict(s, (around, since), &keys, options.stays)))
        }
        Err(error) => {
            if s.db().transaction(id).is_err() {
                over(s, id);
            }
            Err(ended(s, id, error).into())
        }
        Ok(()) => {
            if let Some(state) = s.shared.transaction_states.end(id) {
                let effects = state.effects.lock().take().unwrap_or_default();
                match around {
                    Some(around) => s.settle_in(around, effects),
                    None => s.shared.reached().carry_out(effects),
                }
            }
            if s.shared.transaction_states.is_older(id) {
                let place = Place::of_branch(&branch);
                let all = dictionaries::listed_at(&place, s.db()).into_iter().map(|(name, _)| name);
                tell_all("lost", &branch, all, s);
            }
            s.shared.waiters.wake_all();
            over(s, id);
            if let Some(error) = unsynced {
                return Err(error.into());
            }
            out.ok();
            Ok(())
        }
    }
}

/// Returns the conflict's message, which names the changed keys in the user's terms. The
/// transaction was within `around`, and began after the commit `since`.
fn conflict(
    s: &Session,
    (around, since): (Option<TransactionId>, u64),
    keys: &[(DictionaryId, Bytes)],
    stays: bool,
) -> String {
    const SHOWN: usize = 3;
    let mut all = names_in(s, around, keys, SHOWN);
    let more =
        if all.len() > SHOWN { format!(" and {} more", all.len() - SHOWN) } else { String::new() };
    all.truncate(SHOWN);
    for name in &mut all {
        let of_name = |key: &&(DictionaryId, Bytes)| {
            names_in(s, around, std::slice::from_ref(*key), 1).first() == Some(&*name)
        };
        // A commit into an enclosing transaction has no commit number.
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
/// be undone.
fn changed_by(s: &Session, since: u64, dict: DictionaryId, key: &[u8]) -> Option<String> {
    let now = s.db().wall_clock();
    let mut commits = s.db().undoable_commits();
    commits.retain(|commit| commit.number > since);
    commits.into_iter().rev().find_map(|commit| {
        let (before, after) = s.db().states_around(commit.number).ok()?;
        // A state without the dictionary has no such key.
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

/// Does the same as [`names_of`], with the file names of the transaction `around`, if given.
fn names_in(
    s: &Session,
    around: Option<TransactionId>,
    keys: &[(DictionaryId, Bytes)],
    shown: usize,
) -> Vec<String> {
    // Includes the dictionaries of clones.
    let dictionaries = s.db().view().dictionaries();
    let mut all = Vec::new();
    for (dict, key) in keys {
        let name = match dictionaries.iter().find(|d| d.id == *dict) {
            Some(d) if d.options.reserved => {
                let end = [&key[..], &[0]].concat();
                let describe = || match (around, &s.shared.describe) {
                    (Some(id), _) => s.shared.transactions.describe(id, &d.name, key, &end),
                    (None, Some(describe)) => describe(&d.name, key, &end),
                    (None, None) => None,
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

/// Returns the name of a file for a description of one of its keys: that a key has its attributes,
/// and a number of a file without a name, say nothing to the user.
fn of_a_file(description: Option<String>) -> String {
    let Some(description) = description else { return "a file or directory".to_string() };
    match description.strip_prefix("the node of ") {
        Some(path) if path.starts_with('/') => path.to_string(),
        None if !description.starts_with("nodes from inode ") => description,
        _ => "a file or directory".to_string(),
    }
}

/// Returns the key that a tuple of a types dictionary belongs to, or the tuple's own key if that is
/// not known.
fn key_of_tuple(s: &Session, types: DictionaryId, tuple: &Bytes) -> Bytes {
    if let Some(key) = key_in_tuple(tuple) {
        return key;
    }
    let owner = parse_element(tuple).and_then(|(id, ..)| s.db().get(types, &owner_key(id)).ok());
    owner.flatten().unwrap_or_else(|| tuple.clone())
}

/// For a transaction that has ended already, returns the error that tells whether a retry is
/// worthwhile.
fn ended(s: &Session, id: TransactionId, error: kvdb::Error) -> kvdb::Error {
    match error {
        kvdb::Error::NoTransaction(_) => s.db().lost_to_another(id).unwrap_or(error),
        other => other,
    }
}

fn abort(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 3)?;
    let id = id_of(s, args.get(2))?;
    over(s, id);
    s.shared.transactions.abort(id).map_err(|error| ended(s, id, error))?;
    // A connection that waits in this transaction must notice that it has ended.
    s.shared.waiters.wake_all();
    out.ok();
    Ok(())
}

/// Writes one transaction as a map of names and values.
fn describe(info: &TransactionInfo, out: &mut Output) {
    let millis = |duration: Duration| i64::try_from(duration.as_millis()).unwrap_or(i64::MAX);
    out.map(12);
    out.bulk(b"id");
    out.integer(info.id.0 as i64);
    out.bulk(b"within");
    match info.within {
        Some(around) => out.integer(around.0 as i64),
        None => out.null(),
    }
    out.bulk(b"clone");
    out.bulk(info.branch.as_bytes());
    out.bulk(b"isolation");
    out.bulk(match info.isolation {
        Isolation::Snapshot => b"si",
        Isolation::Serializable => b"ser",
    });
    out.bulk(b"label");
    out.bulk(info.label.as_bytes());
    for (name, value) in [
        ("age_ms", millis(info.age)),
        ("idle_ms", millis(info.idle)),
        ("changes", info.changes as i64),
        ("memory", info.memory as i64),
        ("run_bytes", info.run_bytes as i64),
    ] {
        out.bulk(name.as_bytes());
        out.integer(value);
    }
    for (name, limit) in [("limit", info.limit), ("limit_of_files", info.limit_of_files)] {
        out.bulk(name.as_bytes());
        match limit {
            Some(limit) => out.integer(i64::try_from(limit).unwrap_or(i64::MAX)),
            None => out.null(),
        }
    }
}

/// Replies with the status of the named transaction, or else of the joined one; nil if there is
/// none.
fn status(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 3)?;
    if args.len() == 2 && s.joined.is_none() {
        out.null();
        return Ok(());
    }
    let transaction = named(s, args, 2)?;
    if s.db().transaction(transaction.id()).is_err() {
        return Err(kvdb::Error::NoTransaction(transaction.id()).into());
    }
    describe(&transaction.info(), out);
    Ok(())
}

/// `TXN LOCK KEY key [SHARED]`, `TXN LOCK RANGE start end [SHARED]`: locks keys for the rest of the
/// joined serializable transaction, against changes by others, and without `SHARED` also against
/// their reads.
fn lock(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let keys = match args.get(2) {
        Some(c) if is(c, "key") => 1,
        Some(c) if is(c, "range") => 2,
        _ => return Err(Failure::SYNTAX),
    };
    let exclusive = match args.get(3 + keys) {
        None => true,
        Some(c) if is(c, "shared") => false,
        Some(_) => return Err(Failure::SYNTAX),
    };
    arity(args, 3 + keys, 4 + keys)?;
    let space = s.writable()?;
    let transaction =
        s.inside().ok_or(Failure::request("TXN LOCK works in a transaction: join one"))?;
    if transaction.isolation() == Isolation::Snapshot {
        return Err(Failure::request("a transaction of snapshot isolation locks nothing"));
    }
    match keys {
        1 => {
            transaction.lock_key(space.strings, args.at(3), exclusive)?;
            if let Some(types) = space.types {
                transaction.lock_key(types, &head_key(args.at(3)), exclusive)?;
                // The elements are locked as well: others can change them without touching the
                // head.
                let live = s.see()?.live(args.at(3))?;
                if let Some((start, end)) = live.head.and_then(|head| head.beneath()) {
                    transaction.lock_range(types, &start, &end, exclusive)?;
                }
            }
        }
        _ => {
            let (start, end) = (args.at(3), args.at(4));
            let (start, end) =
                (if start == b"-" { b"" } else { start }, if end == b"+" { b"" } else { end });
            transaction.lock_range(space.strings, start, end, exclusive)?;
            if let Some(types) = space.types {
                let end = if end.is_empty() { b"l".to_vec() } else { head_key(end) };
                transaction.lock_range(types, &head_key(start), &end, exclusive)?;
            }
        }
    }
    out.ok();
    Ok(())
}

/// `TXN FILES [id] [COLLAPSED]` lists the files that the transaction has changed, by path. Each is
/// an array of path, kind (`d`, `f`, `l`, `o`), bytes before (nil if it did not exist), bytes now
/// (nil if it no longer exists), and the differences. Each difference is an array of its name, and
/// the values before and now (nil if absent); see [`crate::FileDetail`]. With `COLLAPSED`, most
/// entries below directories that were added or removed are only counted.
fn files(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 2, 4)?;
    let collapsed = args.len() > 2 && is(args.at(args.len() - 1), "collapsed");
    let id = match args.len() - usize::from(collapsed) {
        2 => joined(s)?.id(),
        3 => named(s, args, 2)?.id(),
        _ => return Err(Failure::SYNTAX),
    };
    list_files(s.shared.transactions.files(id, collapsed)?, out);
    Ok(())
}

pub fn list_files(all: Vec<FileChange>, out: &mut Output) {
    out.array(all.len());
    for file in all {
        out.array(5);
        out.bulk(&file.path);
        out.bulk(file.kind.to_string().as_bytes());
        for bytes in [file.before, file.after] {
            size(bytes, out);
        }
        out.array(file.details.len());
        for detail in &file.details {
            out.array(3);
            out.bulk(&detail.what);
            for value in [&detail.before, &detail.after] {
                match value {
                    Some(value) => out.bulk(value),
                    None => out.null(),
                }
            }
        }
        out.send_if_large();
    }
}

/// Writes a number of bytes, or nil if there is none.
pub fn size(bytes: Option<u64>, out: &mut Output) {
    match bytes {
        Some(bytes) => out.integer(i64::try_from(bytes).unwrap_or(i64::MAX)),
        None => out.null(),
    }
}

fn savepoint(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 3, 3)?;
    let most = s.shared.limits.name;
    if args.at(2).len() > most {
        return Err(Failure::request(format!("a savepoint's name has up to {most} bytes")));
    }
    let transaction = joined(s)?;
    if let Some((_, state)) = &s.joined {
        // Under these locks no command is between its change and its effects, and savepoints are
        // listed in the order in which they are made.
        let _held = state.locks.all();
        let savepoint = s.shared.transactions.savepoint(transaction)?;
        let effects = state.effects.lock().as_ref().map_or(0, Effects::len);
        let name = args.at(2).to_vec();
        state.savepoints.lock().push(Named { name, savepoint, effects });
    }
    out.ok();
    Ok(())
}

/// Undoes the changes since a savepoint, which stays; later savepoints are removed.
fn rollback(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    arity(args, 3, 3)?;
    let transaction = joined(s)?;
    if let Some((_, state)) = &s.joined {
        let _held = state.locks.all();
        let mut savepoints = state.savepoints.lock();
        let missing = || Failure::request("this transaction has no savepoint of that name");
        let at = savepoints.iter().rposition(|one| one.name == args.at(2)).ok_or_else(missing)?;
        s.shared.transactions.rollback(transaction, &savepoints[at].savepoint)?;
        if let Some(kept) = &mut *state.effects.lock() {
            kept.cut(savepoints[at].effects);
        }
        savepoints.truncate(at + 1);
    }
    out.ok();
    Ok(())
}
