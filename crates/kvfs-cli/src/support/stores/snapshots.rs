//! The snapshots of a store and the commits that can be undone: lists of them, and the changes
//! between them.

use std::path::Path;

use kvdb_server::Reply;
use serde_json::Value;

use crate::support::mounts::mounted::{Mounted, fields};
use crate::support::mounts::place::{self, View};
use crate::support::review::changes::{Changes, Wanted};
use crate::support::serving::transactions::{listed, listing};
use crate::support::stores::connection::Connection;
use crate::support::stores::tree;
use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;

/// Fails if a path shows another branch than that of the snapshot. A path that shows the store has
/// every snapshot.
pub fn must_show_what_it_is_of(
    target: &Path,
    snapshot: &str,
    refused: impl FnOnce(&View) -> Failure,
) -> Outcome {
    let Some(place) = place::of_target(target)? else { return Ok(()) };
    let clone = match &place.view {
        View::Mainline => return Ok(()),
        View::Clone(clone) => clone,
        view => return Err(refused(view)),
    };
    let of = all(target)?.into_iter().find(|info| info["name"] == snapshot);
    match of.is_none_or(|info| info["clone"] == clone.as_str()) {
        true => Ok(()),
        false => Err(refused(&place.view)),
    }
}

/// Fails if a path names a clone, and the snapshot is of the store or of another clone. The command
/// itself reports a snapshot that does not exist.
pub fn must_be_of_named(target: &Path, snapshot: &str) -> Outcome {
    let Some(clone) = place::named_clone(target)? else { return Ok(()) };
    let found = all(target)?.into_iter().find(|info| info["name"] == snapshot);
    let of = found.map(|info| info["clone"].as_str().unwrap_or_default().to_owned());
    match of.filter(|of| *of != clone) {
        None => Ok(()),
        Some(of) => {
            let what = format!(
                "snapshot {snapshot} is of {}, and {} leads into clone {clone}",
                View::of_branch(&of),
                target.shown()
            );
            Err(Failure::new(Exit::Usage, what)
                .hint("give the directory where the store is mounted, or a snapshot of the clone"))
        }
    }
}

/// Runs one command on the store, or on the clone that the path leads to.
pub fn with(target: &Path, writes: bool, words: &[&str]) -> Outcome<Reply> {
    let mut connection = Connection::of_branch(target, writes)?;
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let reply = connection.call(&words);
    let closed = connection.close();
    reply.and_then(|reply| closed.map(|()| reply))
}

/// Parses a list of maps.
pub fn list(reply: Reply) -> Outcome<Vec<serde_json::Map<String, Value>>> {
    match reply {
        Reply::Array(all) => all.into_iter().map(fields).collect(),
        _ => Err(Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")),
    }
}

/// Returns the listed snapshots, the oldest first.
pub fn all(target: &Path) -> Outcome<Vec<serde_json::Map<String, Value>>> {
    list(with(target, false, &["SNAPSHOT", "LIST"])?)
}

/// Returns the listed commits to a branch that can be undone, the oldest first.
pub fn commits(target: &Path, branch: &str) -> Outcome<Vec<serde_json::Map<String, Value>>> {
    let mut connection = Connection::open(target, false)?;
    let there = match branch {
        "" => Ok(Reply::Null),
        clone => connection.call(&[b"CLONE", b"USE", clone.as_bytes()]),
    };
    let reply = there.and_then(|_| connection.call(&[b"TXN", b"COMMITS"]));
    let closed = connection.close();
    list(reply.and_then(|reply| closed.map(|()| reply))?)
}

/// Returns the differences between two snapshots, or between one and now.
pub fn between(target: &Path, before: &str, after: Option<&str>) -> Outcome<Changes> {
    let mut connection = Connection::open(target, false)?;
    let changes = difference(&mut connection, target, before, after, Wanted::default());
    let closed = connection.close();
    changes.and_then(|changes| closed.map(|()| changes))
}

pub fn difference(
    connection: &mut Connection,
    target: &Path,
    before: &str,
    after: Option<&str>,
    wanted: Wanted,
) -> Outcome<Changes> {
    let words = |what: &'static str| {
        let mut words: Vec<&[u8]> = vec![b"SNAPSHOT", what.as_bytes(), before.as_bytes()];
        words.extend(after.map(str::as_bytes));
        words
    };
    let mut changes = words("CHANGES");
    changes.extend(wanted.fields.then_some(&b"FIELDS"[..]));
    let keys = connection.call(&changes)?;
    let Some(store) = connection.store() else {
        let roots = Mounted::find_branch(target).ok().map(|mounted| {
            let root = |name: &str| View::Snapshot(name.into()).path(&mounted.mount_point);
            let now = match mounted.view.clone_name() {
                Some(_) => mounted.path_of(&mounted.view),
                None => mounted.mount_point.clone(),
            };
            (root(before), after.map_or(now, root))
        });
        let mut files = words("FILES");
        files.extend((!wanted.all).then_some(&b"COLLAPSED"[..]));
        return Changes::between(connection.call(&files)?, keys, roots);
    };
    let cannot = |e: kvdb::Error| failures::of_database("cannot compare", e);
    let before = store.db.open_snapshot(before).map_err(cannot)?;
    let after = match after {
        Some(name) => store.db.open_snapshot(name).map_err(cannot)?,
        None => store.db.view(),
    };
    Changes::between(files_between(&before, &after, wanted)?, keys, None)
}

/// Returns the changes of a commit that is kept.
pub fn of_commit(target: &Path, number: u64, wanted: Wanted) -> Outcome<Changes> {
    let mut connection = Connection::open(target, false)?;
    let changes = changes_of_commit(&mut connection, number, wanted);
    let closed = connection.close();
    changes.and_then(|changes| closed.map(|()| changes))
}

fn changes_of_commit(connection: &mut Connection, number: u64, wanted: Wanted) -> Outcome<Changes> {
    let name = number.to_string();
    let words = |what: &'static str, option: Option<&'static str>| {
        let words = [Some("TXN"), Some("COMMITS"), Some(&name), Some(what), option];
        words.into_iter().flatten().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>()
    };
    let mut call =
        |words: Vec<Vec<u8>>| connection.call(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let keys = call(words("CHANGES", wanted.fields.then_some("FIELDS")))?;
    let files = call(words("FILES", (!wanted.all).then_some("COLLAPSED")))?;
    let Some(store) = connection.store() else { return Changes::between(files, keys, None) };
    let cannot = |e: kvdb::Error| failures::of_database("cannot compare", e);
    let (before, after) = store.db.states_around(number).map_err(cannot)?;
    Changes::between(files_between(&before, &after, wanted)?, keys, None)
}

/// Returns the differences between the files of two states, in the format of the socket.
fn files_between(before: &kvdb::View, after: &kvdb::View, wanted: Wanted) -> Outcome<Reply> {
    let files = kvfs::difference_of_states(before, after, listing(!wanted.all))
        .map_err(|e| tree::failure("cannot compare the files", e))?;
    let size = |size: Option<u64>| {
        size.map_or(Reply::Null, |size| Reply::Integer(i64::try_from(size).unwrap_or(i64::MAX)))
    };
    let side = |side: Option<Vec<u8>>| side.map_or(Reply::Null, Reply::Bulk);
    let detail = |d: kvdb_server::FileDetail| {
        Reply::Array(vec![Reply::Bulk(d.what), side(d.before), side(d.after)])
    };
    let file = |f: kvdb_server::FileChange| {
        let details = Reply::Array(f.details.into_iter().map(detail).collect());
        Reply::Array(vec![
            Reply::Bulk(f.path),
            Reply::Bulk(f.kind.to_string().into()),
            size(f.before),
            size(f.after),
            details,
        ])
    };
    Ok(Reply::Array(listed(files).into_iter().map(file).collect()))
}

/// Formats seconds since 1970 in UTC, like "2024-05-17 09:30:00".
pub fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last one (Howard Hinnant's algorithm).
    let z = days + 719_468;
    let (era, day) = (z / 146_097, z % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let in_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * in_year + 2) / 153;
    let (date, month) = (
        in_year - (153 * shifted + 2) / 5 + 1,
        if shifted < 10 { shifted + 3 } else { shifted - 9 },
    );
    let year = year + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{date:02} {:02}:{:02}:{:02}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
}
