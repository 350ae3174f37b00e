//! Transactions prepared by the store's daemon, or by this process, for undo and merge: their
//! changes are shown, and then they are committed or aborted.

use std::path::Path;
use std::sync::Arc;

use kvdb_server::{Client, Reply};
use kvfs::Views;

use crate::support::mounts::mounted::{self, refused};
use crate::support::mounts::{place, sockets, waiting};
use crate::support::review::changes::Changes;
use crate::support::serving::transactions::OverFiles;
use crate::support::stores::store::{self, Access, Store};
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::show;

/// The number of attempts if others change the same data at that moment.
const ATTEMPTS: usize = 3;

pub fn odd() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")
}

pub fn call(client: &mut Client, words: &[&[u8]]) -> Outcome<Reply> {
    let reply = client.call(words);
    match reply.map_err(|e| Failure::io("cannot talk to the store's daemon", &e))? {
        Reply::Error(text) => Err(refused(&text)),
        reply => Ok(reply),
    }
}

/// Returns the changes that a transaction would make.
pub fn look(client: &mut Client, id: i64, all: bool) -> Outcome<Changes> {
    let id = id.to_string();
    let mut files = vec![&b"TXN"[..], b"FILES", id.as_bytes()];
    files.extend((!all).then_some(&b"COLLAPSED"[..]));
    let files = call(client, &files)?;
    Changes::of_replies(files, call(client, &[b"TXN", b"CHANGES", id.as_bytes(), b"BEFORE"])?)
}

/// Commits a transaction if examining it succeeded; otherwise aborts it.
pub fn commit<T>(client: &mut Client, id: i64, looked: Outcome<T>) -> Outcome<T> {
    let number = id.to_string();
    let done = looked.and_then(|looked| {
        call(client, &[b"TXN", b"COMMIT", number.as_bytes(), b"SYNC"]).map(|_| looked)
    });
    if done.is_err() {
        // After a conflict, it has ended already.
        abort(client, id);
    }
    done
}

pub fn abort(client: &mut Client, id: i64) {
    let _ = call(client, &[b"TXN", b"ABORT", id.to_string().as_bytes()]);
}

/// Repeats `work` if others have changed the same data at that moment.
pub fn again<T>(mut work: impl FnMut() -> Outcome<T>) -> Outcome<T> {
    for _ in 1..ATTEMPTS {
        match work() {
            Err(failure) if failure.exit == Exit::Conflict => {}
            done => return done,
        }
    }
    work()
}

/// Number of names of a list in a sentence.
const SHOWN: usize = 8;

/// Joins the first names of a list for a sentence.
pub fn some_of(names: &[String]) -> String {
    some_of_all(names, names.len())
}

/// Does the same if only the first of `all` names are known.
pub fn some_of_all(names: &[String], all: usize) -> String {
    let more = all.saturating_sub(names.len().min(SHOWN));
    let more = if more > 0 { format!(", and {more} more") } else { String::new() };
    format!("{}{more}", names[..names.len().min(SHOWN)].join(", "))
}

/// Joins the first names of a list for a sentence if the last one says that there are `others`.
pub fn some_of_others(names: &[String]) -> String {
    let Some((_, known)) = names.split_last().filter(|(last, _)| *last == "others") else {
        return some_of(names);
    };
    let more = match known.len().saturating_sub(SHOWN) {
        0 => "others".to_owned(),
        more => format!("at least {more} more"),
    };
    format!("{}, and {more}", known[..known.len().min(SHOWN)].join(", "))
}

/// Parses the names in a reply.
pub fn names(reply: &[Reply]) -> Vec<String> {
    let names = reply.iter().filter_map(|name| match name {
        Reply::Bulk(name) => Some(show(name)),
        _ => None,
    });
    names.collect()
}

/// Calls `work` with a connection to the store that is mounted at `target`, or whose file is
/// `target`. The second argument says whether it is mounted.
pub fn with_store<T>(
    target: &Path,
    what: &str,
    work: impl FnOnce(&mut Client, bool) -> Outcome<T>,
) -> Outcome<T> {
    match sockets::socket_of(target)? {
        Some(socket) => live(&socket, work),
        None if target.is_dir() => {
            let what = format!("no store with a socket is mounted at {}", target.shown());
            Err(Failure::new(Exit::NotFound, what)
                .hint("mount a store there, or give the store's file"))
        }
        None => {
            let store = store::open_waiting(target, Access::ReadWrite, None)?;
            let done = here(&store, what, work);
            let closed = store.close();
            let done = done?;
            closed?;
            Ok(done)
        }
    }
}

fn here<T>(
    store: &Store,
    what: &str,
    work: impl FnOnce(&mut Client, bool) -> Outcome<T>,
) -> Outcome<T> {
    let fs = store.file_system()?;
    let views = Views::new(store.db.clone(), fs);
    let db = store.db.clone();
    let describe: kvdb_server::Describe =
        Arc::new(move |dictionary, start, end| kvfs::describe_keys(&db, dictionary, start, end));
    let over = Arc::new(OverFiles(views.clone()));
    let mut client = Client::local_over(store.db.clone(), over, describe);
    let done = work(&mut client, false);
    drop(client);
    let down = views.mainline().shutdown().and_then(|()| views.shutdown());
    let done = done?;
    down.map_err(|e| tree::failure(format!("cannot {what}"), e))?;
    Ok(done)
}

fn live<T>(socket: &Path, work: impl FnOnce(&mut Client, bool) -> Outcome<T>) -> Outcome<T> {
    if let Some(id) = mounted::entered(socket) {
        let what = format!("this is inside of transaction {id}, which sees no other commits");
        return Err(Failure::new(Exit::Usage, what).hint("do it from outside"));
    }
    let _waiting = waiting::on(socket);
    let mut client = Client::connect(socket).map_err(|e| {
        Failure::io(format!("cannot reach the store's daemon at {}", socket.shown()), &e)
    })?;
    work(&mut client, true)
}

/// Selects the clone that a path leads to on a connection.
pub fn enter(client: &mut Client, target: &Path) -> Outcome {
    let clone = place::branch_of(target)?;
    if !clone.is_empty() {
        call(client, &[b"CLONE", b"USE", clone.as_bytes()])?;
    }
    Ok(())
}
