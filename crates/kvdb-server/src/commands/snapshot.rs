//! `SNAPSHOT` and `CLONE`: persistent states of the store, branches that begin at them, and the
//! differences between two states.

use std::collections::BTreeSet;
use std::io::{self, BufRead, BufReader, BufWriter, Read, Write};

use kvdb::{Durability, ReceiveOptions, ReceiveStats, Received};

use super::tell::tell_all;
use super::txn::{arity, list_files, size};
use super::{COMMANDS, changes, find, is};
use crate::dictionaries::{Place, listed_at};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;
use crate::transactions::Snapshots;

pub const USAGE: &str = "CREATE name [OF clone] | LIST | DROP name | ROLLBACK name | CHANGES snapshot [snapshot] [FIELDS] | FILES snapshot [snapshot] [COLLAPSED] | \
     SEND name [BASE snapshot] [FROM position] | RECEIVE clone [AS name] [REPLACE] | RECEIVING | USE name [command ...] | LEAVE";
pub const CLONE_USAGE: &str = "CREATE snapshot name [LIMIT bytes] [FILES n] | LIMIT name bytes|NONE [FILES n|NONE] | \
     LIST | DROP name | \
     USE name [command ...] | LEAVE";

pub fn name(arg: &[u8]) -> Result<&str, Failure> {
    std::str::from_utf8(arg).map_err(|_| Failure::request("a name is UTF-8 text"))
}

/// `SNAPSHOT` with its subcommands. All of their changes are on disk before the reply.
pub fn snapshot(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let snapshots = s.shared.owner.snapshots().clone();
    match (args.at(1), args.len()) {
        (c, 3) if is(c, "create") => snapshots.create("", name(args.at(2))?, Durability::Synced)?,
        (c, 5) if is(c, "create") && is(args.at(3), "of") => {
            snapshots.create(name(args.at(4))?, name(args.at(2))?, Durability::Synced)?;
        }
        (c, 3) if is(c, "drop") => snapshots.remove(name(args.at(2))?)?,
        (c, 3) if is(c, "rollback") => {
            let snapshot = name(args.at(2))?;
            let label = s.db().snapshot_label(snapshot);
            let branch = label.map(|label| label.branch).unwrap_or_default();
            let before = names_in(&branch, s);
            snapshots.roll_back(snapshot)?;
            let all: BTreeSet<_> = before.into_iter().chain(names_in(&branch, s)).collect();
            tell_all("rollback", &branch, all, s);
            s.shared.waiters.wake_all();
        }
        (c, _) if is(c, "list") => {
            arity(args, 2, 2)?;
            list(s, out);
            return Ok(());
        }
        (c, 3..=5) if is(c, "files") => {
            // If a snapshot has the name of the option, the option must be given in addition.
            let last = args.len() - 1;
            let collapsed = last > 2 && is(args.at(last), "collapsed");
            if last > 3 + usize::from(collapsed) {
                return Err(Failure::SYNTAX);
            }
            let after = args.get(3).filter(|_| !collapsed || last > 3).map(name).transpose()?;
            list_files(snapshots.files(name(args.at(2))?, after, collapsed)?, out);
            return Ok(());
        }
        (c, 3 | 5 | 7) if is(c, "send") => return send(s, args, out),
        (c, 3..=6) if is(c, "receive") => return receive(s, args, out),
        (c, 2) if is(c, "receiving") => return receiving(s, out),
        (c, 3..=5) if is(c, "changes") => return changes::of_snapshots(s, args, out),
        (c, 3..) if is(c, "use") => {
            let snapshot = name(args.at(2))?;
            let view = s.db().open_snapshot(snapshot)?;
            let made = s.db().snapshot_label(snapshot);
            let made = made.map_or(s.clock(), |label| label.created.as_millis() as u64);
            let place = Place::Snapshot(view, made);
            return go_to(s, place, args, out);
        }
        (c, 2) if is(c, "leave") => s.leave(),
        _ => {
            return Err(Failure::request(format!(
                "unknown subcommand or wrong number of arguments. SNAPSHOT {USAGE}"
            )));
        }
    }
    out.ok();
    Ok(())
}

/// Returns the names of the user's dictionaries of a branch.
fn names_in(branch: &str, s: &Session) -> Vec<String> {
    let all = listed_at(&Place::of_branch(branch), s.db());
    all.into_iter().map(|(name, _)| name).collect()
}

/// Moves the connection to a place (`USE name`); the connection leaves the transaction that it
/// has joined. With further arguments, runs only one command there (`USE name command …`).
fn go_to(s: &mut Session, place: Place, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if args.len() == 3 {
        s.leave();
        s.place = place;
        out.ok();
        return Ok(());
    }
    if find(args.at(3)).is_some_and(|index| COMMANDS[index].moves_connection) {
        return Err(Failure::request("a command on keys is wanted behind the name"));
    }
    let before = (std::mem::replace(&mut s.place, place), s.joined.take());
    super::run(s, args.behind(3), out);
    (s.place, s.joined) = before;
    Ok(())
}

/// `SNAPSHOT SEND name [BASE snapshot] [FROM position]`: replies with `OK`, and then sends the
/// bytes of a stream for [`kvdb::Kvdb::receive`] until the connection ends.
fn send(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    struct Raw<'a>(&'a mut Output, &'a Session);
    impl Write for Raw<'_> {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            if self.1.check_stopping().is_err() {
                return Err(io::Error::other("the server is stopping"));
            }
            self.0.raw(bytes)?;
            Ok(bytes.len())
        }
        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }
    let (mut base, mut from) = (None, None);
    for at in (3..args.len()).step_by(2) {
        match args.at(at) {
            o if is(o, "base") => base = Some(name(args.at(at + 1))?),
            o if is(o, "from") => from = Some(Received::from_bytes(args.at(at + 1))?),
            _ => return Err(Failure::SYNTAX),
        }
    }
    let snapshot = name(args.at(2))?;
    s.db().may_send(snapshot, base, from.as_ref())?;
    out.ok();
    s.closing = true;
    let sent =
        s.db().send(snapshot, base, BufWriter::with_capacity(1 << 20, Raw(out, s)), from.as_ref());
    if let Err(error) = sent {
        // The client recognizes the failure by the missing end of the stream.
        tracing::warn!("snapshot {snapshot} could not be sent: {error}");
    }
    Ok(())
}

/// Parses the arguments of `SNAPSHOT RECEIVE`.
fn receive_options(args: Arguments<'_>) -> Result<ReceiveOptions, Failure> {
    let mut options =
        ReceiveOptions { branch: name(args.at(2))?.into(), ..ReceiveOptions::default() };
    let mut at = 3;
    while at < args.len() {
        match (args.at(at), args.get(at + 1)) {
            (o, Some(as_name)) if is(o, "as") && options.snapshot.is_none() => {
                options.snapshot = Some(name(as_name)?.into());
                at += 2;
            }
            (o, _) if is(o, "replace") && !options.replace => {
                options.replace = true;
                at += 1;
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    if options.branch.is_empty() {
        return Err(Failure::request("a clone is wanted: what is in use is not replaced"));
    }
    Ok(options)
}

/// Receives streams up to the end of the input. Returns the streams that were received, and the
/// failure that ended the input early, or `None`.
fn receive_all(
    snapshots: &dyn Snapshots,
    input: &mut impl BufRead,
    options: &ReceiveOptions,
) -> (Vec<ReceiveStats>, Option<Failure>) {
    let mut all = Vec::new();
    let failed = loop {
        match snapshots.receive(input, options) {
            Ok(received) => all.push(received),
            Err(error) => break Some(Failure::from(error)),
        }
        match input.fill_buf() {
            Ok([]) => break None,
            // The name that was given can be used for one snapshot only.
            Ok(_) if options.snapshot.is_some() => {
                let what = "more follows behind the stream, and was not taken: AS names one";
                break Some(Failure::request(what));
            }
            Ok(_) => {}
            Err(error) => break Some(kvdb::Error::Io(error).into()),
        }
    };
    (all, failed)
}

/// `SNAPSHOT RECEIVE clone [AS name] [REPLACE]`: replies with `OK`. The client then sends streams
/// of [`kvdb::Kvdb::send`], one after another, and closes its side of the connection. A second
/// reply lists the streams that were received, or says why the rest was not. Then the connection
/// ends.
fn receive(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    struct Raw<'a>(&'a mut Output);
    impl Read for Raw<'_> {
        fn read(&mut self, into: &mut [u8]) -> io::Result<usize> {
            self.0.receive(into)
        }
    }
    let options = receive_options(args)?;
    out.ok();
    s.closing = true;
    if !out.flush() {
        return Ok(());
    }
    let snapshots = s.shared.owner.snapshots().clone();
    let mut of_clone: BTreeSet<String> = names_in(&options.branch, s).into_iter().collect();
    let mut input = BufReader::with_capacity(1 << 20, Raw(out));
    let (all, failed) = receive_all(&*snapshots, &mut input, &options);
    if !all.is_empty() {
        of_clone.extend(names_in(&options.branch, s));
        tell_all("rollback", &options.branch, of_clone, s);
    }
    s.shared.waiters.wake_all();
    if let Some(failure) = failed {
        let before = match all.len() {
            0 => String::new(),
            n => format!(" ({n} streams before this one were received)"),
        };
        out.error(&format!("{failure}{before}"));
        // The rest of the input is still read, so that a client that is sending receives the
        // error.
        return Ok(());
    }
    out.array(all.len());
    for received in all {
        out.map(3);
        out.bulk(b"snapshot");
        out.bulk(received.snapshot.as_bytes());
        size_of(b"tuples", received.tuples, out);
        size_of(b"chunks", received.chunks, out);
    }
    Ok(())
}

fn size_of(what: &[u8], value: u64, out: &mut Output) {
    out.bulk(what);
    size(Some(value), out);
}

/// `SNAPSHOT RECEIVING`: lists interrupted streams, each with the position from which a `SNAPSHOT
/// SEND … FROM` of the other store continues.
fn receiving(s: &Session, out: &mut Output) -> Outcome {
    let all = s.db().receiving()?;
    out.array(all.len());
    for received in all {
        out.map(3);
        out.bulk(b"position");
        out.bulk(&received.to_bytes());
        size_of(b"chunks", received.chunks, out);
        size_of(b"tuples", received.tuples, out);
    }
    Ok(())
}

fn list(s: &Session, out: &mut Output) {
    let all = s.db().snapshots();
    out.array(all.len());
    for info in all {
        out.map(5);
        out.bulk(b"name");
        out.bulk(info.name.as_bytes());
        out.bulk(b"clone");
        out.bulk(info.branch.as_bytes());
        for (name, value) in [
            ("created", info.created.as_secs()),
            ("bytes", info.bytes),
            ("unique_bytes", info.unique_bytes),
        ] {
            out.bulk(name.as_bytes());
            size(Some(value), out);
        }
    }
}

/// Parses a limit on the bytes or on the files of a clone; `None` means no limit.
fn limit(arg: &[u8]) -> Result<Option<u64>, Failure> {
    if is(arg, "none") {
        return Ok(None);
    }
    let bytes = integer(arg).and_then(|n| u64::try_from(n).ok());
    bytes.map(Some).ok_or(Failure::NOT_AN_INTEGER)
}

/// Executes `CLONE CREATE snapshot name [LIMIT bytes] [FILES n]`.
fn create_clone(s: &Session, snapshots: &dyn Snapshots, args: Arguments<'_>) -> Outcome {
    let (mut bytes, mut files) = (None, None);
    for at in (4..args.len()).step_by(2) {
        match args.at(at) {
            o if is(o, "limit") => bytes = Some(limit(args.at(at + 1))?),
            o if is(o, "files") => files = Some(limit(args.at(at + 1))?),
            _ => return Err(Failure::SYNTAX),
        }
    }
    let clone = name(args.at(3))?;
    snapshots.branch_off(name(args.at(2))?, clone)?;
    bytes.map_or(Ok(()), |bytes| s.db().limit_branch(clone, bytes))?;
    files.map_or(Ok(()), |files| s.db().limit_files(clone, files))?;
    Ok(())
}

/// Executes `CLONE LIST`.
fn list_clones(s: &Session, snapshots: &dyn Snapshots, out: &mut Output) {
    let all = s.db().branches();
    out.array(all.len());
    for info in all {
        out.map(7);
        out.bulk(b"name");
        out.bulk(info.name.as_bytes());
        out.bulk(b"snapshot");
        out.value(info.snapshot.as_deref().map(str::as_bytes));
        out.bulk(b"limit");
        size(info.limit.map(|limit| limit.bytes), out);
        out.bulk(b"taken");
        size(info.limit.map(|limit| limit.taken), out);
        out.bulk(b"limit_of_files");
        size(info.limit_of_files, out);
        out.bulk(b"files");
        // A clone whose files cannot be counted does not prevent the others from being listed.
        let count = |_| snapshots.files_of(&info.name).ok().flatten();
        size(info.limit_of_files.and_then(count), out);
        out.bulk(b"parent");
        out.value(info.parent.as_deref().map(str::as_bytes));
    }
}

pub fn clone(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let snapshots = s.shared.owner.snapshots().clone();
    match (args.at(1), args.len()) {
        (c, 4 | 6 | 8) if is(c, "create") => {
            create_clone(s, &*snapshots, args)?;
        }
        (c, 4) if is(c, "limit") => {
            s.db().limit_branch(name(args.at(2))?, limit(args.at(3))?)?;
        }
        (c, 6) if is(c, "limit") && is(args.at(4), "files") => {
            let (clone, bytes, files) = (name(args.at(2))?, limit(args.at(3))?, limit(args.at(5))?);
            s.db().limit_branch(clone, bytes)?;
            s.db().limit_files(clone, files)?;
        }
        (c, 3) if is(c, "drop") => {
            let clone = name(args.at(2))?;
            let all = names_in(clone, s);
            snapshots.remove_clone(clone)?;
            tell_all("delrange", clone, all, s);
        }
        (c, 3..) if is(c, "use") => {
            let clone = name(args.at(2))?;
            if clone.is_empty() || !s.db().has_branch(clone) {
                return Err(kvdb::Error::NoBranch(clone.into()).into());
            }
            return go_to(s, Place::Clone(clone.into()), args, out);
        }
        (c, 2) if is(c, "leave") => s.leave(),
        (c, 2) if is(c, "list") => {
            list_clones(s, &*snapshots, out);
            return Ok(());
        }
        _ => {
            return Err(Failure::request(format!(
                "unknown subcommand or wrong number of arguments. CLONE {CLONE_USAGE}"
            )));
        }
    }
    out.ok();
    Ok(())
}
