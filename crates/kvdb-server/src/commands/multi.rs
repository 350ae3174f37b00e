//! `MULTI`, `EXEC`, `DISCARD`, `WATCH`, `UNWATCH`, with the semantics of Redis.
//!
//! Commands between `MULTI` and `EXEC` are queued, and `EXEC` runs them in one transaction of the
//! store, so that either all or none of them become visible and survive a crash. `EXEC` holds the
//! locks of the keys that the commands touch, so that other clients do not interfere. A
//! transaction that commits in between is a conflict, after which the commands are run again. In
//! a joined transaction the commands run on a nested batch of the transaction, which is applied
//! after all of them have run. As in Redis, a command that fails does not prevent the other
//! commands from taking effect. But if the store fails (a lock cannot be obtained, or the store
//! is full), none takes effect, and `EXEC` itself returns the error.
//!
//! `WATCH` begins a transaction whose commit would depend on the watched keys, and which never
//! commits. The transaction of `EXEC` depends on the watching transaction, so the store checks in
//! the commit itself whether a watched key was changed, which leaves no window for a race. The
//! commit also depends on the reads of the commands: `EXEC` is serializable.

use bytes::Bytes;
use env::sync::Mutex;
use kvdb::{Batch, Durability, Transaction, TransactionOptions};

use super::row::InMulti;
use super::{COMMANDS, Command, find, monitor, run_one, tracking};
use crate::dictionaries::Selected;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::keyspace::{Keyspace, Kind};
use crate::locks::{Held, keeping_clear};
use crate::output::Output;
use crate::request::{Arguments, Request};
use crate::session::multi::{Counted, Queue, WATCHED, Watch, Watched, is_over};
use crate::session::seen::Seen;
use crate::session::{Executing, Session, Shared, TRIES};

pub fn multi(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    if s.multi.is_queuing() {
        return Err(Failure::request("MULTI calls can not be nested"));
    }
    s.multi.begin(&s.shared);
    out.ok();
    Ok(())
}

pub fn discard(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    if !s.multi.is_queuing() {
        return Err(Failure::request("DISCARD without MULTI"));
    }
    s.multi.discard();
    out.ok();
    Ok(())
}

/// Queues a command for `EXEC`.
pub fn queue(s: &mut Session, command: &Command, args: Arguments<'_>) -> Outcome {
    if command.in_multi == InMulti::Refused {
        return Err(Failure::request(format!(
            "'{}' is not possible between MULTI and EXEC",
            command.name
        )));
    }
    s.multi.push(args.to_request())
}

pub fn watch(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if s.multi.is_queuing() {
        return Err(Failure::request("WATCH inside MULTI is not allowed"));
    }
    let space = s.writable()?;
    let mut counted = Counted::new(&s.shared)?;
    counted.add(args.from(1).map(|key| key.len() + WATCHED).sum())?;
    args.from(1).try_for_each(|key| s.check_key(key))?;
    let keys = args.from(1).map(Bytes::copy_from_slice).collect();
    let dictionary = s.dictionary.clone();
    let watch = match &s.joined {
        Some((transaction, _)) => {
            let (before, mut expires) = (transaction.view()?, None);
            let seen = s.see()?;
            for key in args.from(1) {
                expires = [expires, seen.live(key)?.deadline()].into_iter().flatten().min();
            }
            Watch { dictionary, space, keys, expires, state: Watched::Joined(before) }
        }
        None => {
            let (watch, expires) = watch_store(s, space, args)?;
            Watch { dictionary, space, keys, expires, state: Watched::Store(watch) }
        }
    };
    s.multi.watch(watch, counted);
    out.ok();
    Ok(())
}

/// Begins a transaction of the store that depends on the watched keys. Also returns the earliest
/// deadline of these keys.
fn watch_store(
    s: &Session,
    space: Keyspace,
    args: Arguments<'_>,
) -> Result<(Transaction, Option<u64>), Failure> {
    // Expired keys do not exist, and their removal is not a change. So they are removed first.
    let purge = |seen: &Seen<'_>, batch: &mut Batch| {
        for key in args.from(1) {
            let live = seen.live(key)?;
            if live.head.is_some_and(|head| head.is_expired(seen.now)) {
                seen.remove(key, &live, batch);
            }
        }
        Ok(())
    };
    if space.types.is_some() {
        s.change(space, args.from(1), purge)?;
    }
    let options = TransactionOptions {
        label: "WATCH".into(),
        private: true,
        idle_limit: Some(s.shared.limits.watch_time),
        ..TransactionOptions::default()
    };
    let (watch, mut expires) = (s.db().begin_with(options)?, None);
    {
        let seen = Seen::of(&watch, s, space)?;
        for key in args.from(1) {
            watch.read_conflict_key(space.strings, key)?;
            let live = seen.live(key)?;
            expires = [expires, live.deadline()].into_iter().flatten().min();
            // Every change of a string changes its tuple or its head.
            if let (Some(types), Some(head)) = (space.types, live.head)
                && head.kind != Kind::Pages
                && let Some((start, end)) = head.beneath()
            {
                watch.read_conflict_range(types, &start, &end)?;
            }
        }
    }
    Ok((watch, expires))
}

pub fn unwatch(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    s.multi.unwatch();
    out.ok();
    Ok(())
}

pub fn exec(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let queue = s.multi.take_queue().ok_or(Failure::request("EXEC without MULTI"))?;
    let watches = s.multi.take_watches();
    if queue.is_spoilt() {
        return Err(Failure::coded(
            ErrorCode::ExecAbort,
            "Transaction discarded because of previous errors.",
        ));
    }
    let mut slot = None;
    let needs_worker = |request: &Request| {
        find(request.arguments().at(0)).is_some_and(|index| COMMANDS[index].needs_worker)
    };
    if queue.requests().iter().any(needs_worker) {
        // The worker is taken before any lock, because connections that use the other workers may
        // wait for the lock.
        match s.shared.scripts.slot() {
            Err(failure) if failure.is_of_the_store() => return Err(failure),
            taken => slot = taken.ok(),
        }
    }
    s.exec.begin_exec(slot);
    let done = atomically(s, &watches, Locks::Queue(&queue), out, |s, out| run(s, &queue, out));
    s.exec.end_exec();
    done.map_err(|failure| match failure {
        Failure::Locked(why) => Failure::Locked(format!("{why}; nothing of this EXEC was done")),
        failure => failure,
    })
}

/// The locks that are taken in the first attempt.
#[derive(Clone, Copy)]
pub enum Locks<'a> {
    /// The locks of the keys that these commands touch.
    Queue(&'a Queue),
    /// The locks of these keys of the selected dictionary.
    Keys(&'a [&'a [u8]]),
    /// The locks of these keys of any dictionaries.
    Places(&'a [(&'a Selected, &'a [u8])]),
}

/// Runs `work` in one transaction of the store, unless a watched key has changed, and retries it
/// after conflicts. If it fails, it has no effect.
pub fn atomically(
    s: &mut Session,
    watches: &[(Watch, Counted)],
    locks: Locks<'_>,
    out: &mut Output,
    mut work: impl FnMut(&mut Session, &mut Output) -> Outcome,
) -> Outcome {
    let position = out.position();
    out.keep();
    let (dictionary, durable, name, resp3) =
        (s.dictionary.clone(), s.durable, s.identity.name().to_owned(), out.resp3);
    let mut outcome = Err(Failure::again_and_again());
    for tried in 0..TRIES {
        s.exec.take_lines();
        outcome = attempt(s, watches, locks, tried, out, &mut work);
        tracking::end_reading(s);
        s.exec.end_attempt();
        if outcome.is_ok() {
            break;
        }
        // The attempt had no effect, so the state of the connection is reset as well.
        out.rewind(position);
        (s.dictionary, s.durable, out.resp3) = (dictionary.clone(), durable, resp3);
        s.identity.set_name(name.clone());
        // In a joined transaction the client that began it decides about a retry.
        if s.joined.is_some() || !matches!(outcome, Err(Failure::Conflict(_))) {
            break;
        }
    }
    out.release();
    match outcome.is_ok() && !out.is_broken() {
        true => monitor::show_kept(s),
        false => drop(s.exec.take_lines()),
    }
    outcome
}

fn attempt(
    s: &mut Session,
    watches: &[(Watch, Counted)],
    locks: Locks<'_>,
    tried: usize,
    out: &mut Output,
    work: &mut impl FnMut(&mut Session, &mut Output) -> Outcome,
) -> Outcome {
    let (shared, state) = (s.shared.clone(), s.joined.as_ref().map(|(_, state)| state.clone()));
    s.exec.begin_attempt(s.clock());
    let held = match (&state, locks) {
        // Other connections in the transaction wait, possibly for a long time if one of these
        // commands waits for a lock.
        (Some(state), _) => state.locks.all(),
        // Keys that are only read need not be locked at first; in a retry all keys are locked.
        (None, _) if tried > 0 => shared.locks.all(),
        (None, Locks::Queue(queue)) => hold(s, &shared, queue)?,
        (None, Locks::Keys(keys)) => match s.existing()? {
            Some(space) => shared.locks.keys(space.strings, keys.iter().copied()),
            None => Held::Already,
        },
        (None, Locks::Places(places)) => hold_places(s, &shared, places)?,
    };
    s.exec.set_all_locked(held.is_all());
    tracking::begin_reading(s)?;
    let transaction = match &s.joined {
        Some((transaction, _)) => transaction.clone(),
        None => s.db().begin_with(TransactionOptions {
            label: "EXEC".into(),
            private: true,
            ..TransactionOptions::default()
        })?,
    };
    if !depends_on(s, &transaction, watches)? {
        out.null_array();
        return Ok(());
    }
    s.exec.begin(match &state {
        Some(_) => Executing::Joined(Mutex::new(transaction.nested_batch()?)),
        None => Executing::Own(transaction.clone()),
    });
    work(s, out)?;
    if out.is_broken() {
        // The client has disconnected, so nothing is committed.
        return Ok(());
    }
    // The locks are still held, so that the events of a key are in the order of its commits.
    let _held = match s.exec.end() {
        Some(Executing::Joined(nested)) => {
            nested.into_inner().finish()?;
            held
        }
        _ => commit(&shared, &transaction, held)?,
    };
    s.settle_all();
    Ok(())
}

/// Makes the commit of a transaction depend on the watched keys. Returns `false` if one of the
/// watched keys has changed.
fn depends_on(
    s: &Session,
    transaction: &Transaction,
    watches: &[(Watch, Counted)],
) -> Result<bool, Failure> {
    for (watch, _) in watches {
        if watch.is_broken(transaction, s)? {
            return Ok(false);
        }
        if let Watched::Store(watch) = &watch.state {
            match transaction.depend_on(watch) {
                Err(error) if is_over(&error) => return Ok(false),
                noted => noted?,
            }
        }
    }
    Ok(true)
}

/// Commits the changes that were made under these locks, and returns the locks. They are released
/// while the commit waits for a transaction. All keys are locked after the wait, because the rest
/// of the work is not repeated.
fn commit<'a>(
    shared: &'a Shared,
    transaction: &Transaction,
    held: Held<'a>,
) -> Result<Held<'a>, Failure> {
    let mut first = Some(held);
    keeping_clear(&shared.stopping, || {
        let held = first.take().unwrap_or_else(|| shared.locks.all());
        transaction.commit(Durability::Buffered)?;
        Ok(held)
    })
}

/// Runs the commands of an `EXEC`.
fn run(s: &mut Session, queue: &Queue, out: &mut Output) -> Outcome {
    out.array(queue.requests().len());
    for request in queue.requests() {
        let args = request.arguments();
        match find(args.at(0)) {
            Some(index) => drop(run_one(s, index, args, out)),
            None => out.error("ERR unknown command"),
        }
        if let Some(failure) = s.exec.take_stopped() {
            return Err(failure);
        }
        out.send_if_large();
        if out.is_overfull() {
            let most = s.shared.limits.whole_replies;
            return Err(Failure::Limit(format!(
                "the replies of this EXEC, with those of others, take more than {most} bytes; nothing of it was done"
            )));
        }
        if out.is_broken() {
            return Ok(());
        }
    }
    Ok(())
}

/// Takes the locks of the keys that the commands touch if all of these are known beforehand, and
/// otherwise the locks of all keys.
fn hold<'a>(s: &mut Session, shared: &'a Shared, queue: &Queue) -> Result<Held<'a>, Failure> {
    let mut keys: Vec<&[u8]> = Vec::new();
    let mut writes = false;
    let tuple = shared.limits.tuple;
    if queue.requests().iter().any(|request| super::may_need_types(request.arguments(), tuple)) {
        // The types dictionary cannot be created under some of the locks.
        s.typed()?;
    }
    for request in queue.requests() {
        let args = request.arguments();
        let Some(command) = find(args.at(0)).map(|index| &COMMANDS[index]) else { continue };
        writes |= command.writes;
        let named = command.keys_of(args);
        if !named.is_empty() {
            keys.extend(named);
        } else if command.writes || command.moves {
            return Ok(shared.locks.all());
        }
    }
    let space = if writes { Some(s.writable()?) } else { s.existing()? };
    Ok(match space {
        Some(space) => shared.locks.keys(space.strings, keys.into_iter()),
        None => Held::Already,
    })
}

/// Takes the locks of keys of several dictionaries. Takes the locks of all keys if a dictionary
/// does not exist, because the command may create it.
fn hold_places<'a>(
    s: &Session,
    shared: &'a Shared,
    places: &[(&Selected, &[u8])],
) -> Result<Held<'a>, Failure> {
    let mut found = Vec::with_capacity(places.len());
    for (dictionary, key) in places {
        match s.existing_of(dictionary)? {
            Some(space) => found.push((space.strings, *key)),
            None => return Ok(shared.locks.all()),
        }
    }
    Ok(shared.locks.places(found.into_iter()))
}
