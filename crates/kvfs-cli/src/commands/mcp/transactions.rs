//! Transactions and snapshots as tools.

use std::fmt::Write;
use std::path::PathBuf;

use kvdb_server::Reply;
use serde_json::{Map, Value};

use super::arguments::{Arguments, Told, cut};
use super::session::Session;
use crate::commands::undo::{named, stands_against};
use crate::support::mounts::mounted::{Commit, NotCommitted, fields};
use crate::support::mounts::place::View;
use crate::support::review::changes::{Changes, Choice, Detail, Style, Wanted};
use crate::support::stores::tree::time_text;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::{show, show_json};

fn odd() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")
}

pub fn begin(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let isolation = given.text("isolation").unwrap_or("si").to_ascii_uppercase();
    let within = given.number("within").map(|id| id.to_string());
    let limit = given.number("limit").map(|bytes| bytes.to_string());
    let files = given.number("limit_of_files").map(|files| files.to_string());
    let label = given.text("label").unwrap_or("agent");
    let mut words = vec!["BEGIN"];
    words.extend(given.text("branch").into_iter().flat_map(|branch| ["OF", branch]));
    words.extend([&isolation, "INPLACE", "LABEL", label]);
    match &within {
        // The commit of a nested transaction is undone by aborting the outer one.
        Some(around) => words.extend(["WITHIN", around]),
        None => words.push("UNDOABLE"),
    }
    // Attach the transaction, so that it ends even if this process is killed.
    words.push("ATTACHED");
    words.extend(given.flag("durable").then_some("DURABLE"));
    words.extend(limit.iter().flat_map(|bytes| ["LIMIT", bytes.as_str()]));
    words.extend(files.iter().flat_map(|files| ["FILES", files.as_str()]));
    let Reply::Integer(id) = session.mounted.txn(&words)? else { return Err(odd()) };
    let id = u64::try_from(id).map_err(|_| odd())?;
    session.begun.push(id);
    let beneath = session.mounted.view_beneath(id)?;
    let root = session.mounted.path_of(&beneath);
    let (root, view) = (root.shown(), session.mounted.view(id));
    Ok(format!(
        "transaction {id}\nCommands of `run` see it at {root}; other programs see the transaction's files in {}\n",
        view.shown()
    )
    .into())
}

pub fn undo(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let commit = given.number("commit").map(|number| number.to_string());
    let mut words = vec!["UNDO"];
    words.extend(commit.as_deref());
    words.push("ATTACHED");
    let Reply::Array(reply) = session.mounted.txn(&words)? else { return Err(odd()) };
    let [Reply::Integer(id), Reply::Integer(number), Reply::Bulk(label), Reply::Array(against)] =
        &reply[..]
    else {
        return Err(odd());
    };
    let (id, number) = (*id as u64, *number as u64);
    let label = String::from_utf8_lossy(label);
    if !against.is_empty() {
        session.mounted.txn(&["ABORT", &id.to_string()])?;
        return Err(stands_against(number, &label, against));
    }
    session.begun.push(id);
    Ok(format!(
        "transaction {id}\nIt undoes {} when it is committed; `diff` shows what that changes.\n",
        named(number, &label)
    )
    .into())
}

pub fn diff(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let wanted = if given.flag("patch") { Wanted::ALL } else { Wanted::default() };
    let changes = match (given.number("transaction"), given.text("snapshot")) {
        (Some(id), None) => Changes::of(&mut session.mounted, id, wanted)?,
        (None, Some(name)) => {
            let mut words: Vec<&[u8]> = vec![b"SNAPSHOT", b"CHANGES", name.as_bytes()];
            words.extend(given.flag("patch").then_some(&b"FIELDS"[..]));
            let keys = session.mounted.call(&words)?;
            let mut words: Vec<&[u8]> = vec![b"SNAPSHOT", b"FILES", name.as_bytes()];
            words.extend((!wanted.all).then_some(&b"COLLAPSED"[..]));
            let files = session.mounted.call(&words)?;
            let root = &session.mounted.mount_point;
            let before: PathBuf = View::Snapshot(name.into()).path(root);
            Changes::between(files, keys, Some((before, root.clone())))?
        }
        _ => {
            return Err(Failure::new(
                Exit::Usage,
                "either `transaction` or `snapshot` must be given",
            ));
        }
    };
    let detail = Detail::default();
    let detail = if given.flag("patch") { detail.with_patch() } else { detail };
    // Format the changes as for a terminal: non-text files are only named, and no control
    // characters get through.
    let style = Style { terminal: true, colour: false };
    let (mut text, most, mut more) = (Vec::new(), session.limits.output, false);
    changes.pieces(detail, style, &mut |piece| {
        more = text.len() + piece.len() > most;
        text.extend_from_slice(&piece[..piece.len().min(most - text.len())]);
        Ok(!more)
    })?;
    let mut text = String::from_utf8_lossy(&text).into_owned();
    if more {
        let end = text.rfind('\n').map_or(0, |at| at + 1);
        text.truncate(end);
        text.push_str("[truncated: the rest is left out; look at single files with read_file]\n");
    }
    if let Some(state) = &changes.state {
        let _ = writeln!(text, "state {state}");
    }
    Ok(text.into())
}

pub fn revert(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let id = given.transaction()?;
    let changes = Changes::of(&mut session.mounted, id, Wanted::default())?;
    let mut choices = Vec::new();
    for path in given.texts("paths") {
        choices.extend(changes.choices_at(path.as_bytes())?);
    }
    changes.revert(&mut session.mounted, id, &Choice::distinct(choices))?;
    let left = Changes::of(&mut session.mounted, id, Wanted::default())?;
    let text = left.text(Detail::default(), Style { terminal: true, colour: false });
    let text = format!("What is left of it:\n{}", String::from_utf8_lossy(&text));
    Ok(cut(&text, session.limits.output).into())
}

fn ended(session: &mut Session, id: u64) {
    session.begun.retain(|begun| *begun != id);
}

pub fn commit(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let id = given.transaction()?;
    let state = given.text("state");
    let how = Commit { sync: true, state, stay: true, ..Commit::default() };
    match session.mounted.commit(id, how) {
        Ok(()) => {
            ended(session, id);
            Ok(format!("transaction {id} is committed, and on disk\n").into())
        }
        Err(changed @ NotCommitted::Changed(_)) => Err(changed.into()),
        Err(why) => {
            let conflict = matches!(why, NotCommitted::Conflict(_));
            let failure = Failure::from(why);
            if session.mounted.txn(&["STATUS", &id.to_string()]).is_err() {
                ended(session, id);
            } else if conflict {
                return Err(failure.hint(
                    "it is open still: `rebase` brings it up to what others have committed, `abort` \
                     ends it",
                ));
            }
            Err(failure)
        }
    }
}

pub fn abort(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let id = given.transaction()?;
    session.mounted.txn(&["ABORT", &id.to_string()])?;
    ended(session, id);
    Ok(format!("transaction {id} is aborted: nothing was changed\n").into())
}

pub fn keep(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let id = given.transaction()?;
    session.mounted.txn(&["KEEP", &id.to_string()])?;
    ended(session, id);
    let root = session.mounted.mount_point.shown();
    Ok(format!(
        "transaction {id} stays open. To look at it: kvfs txn diff {root} {id}; to end it: kvfs txn commit {root} {id}, or abort\n"
    )
    .into())
}

fn listed(reply: Reply) -> Outcome<Vec<Map<String, Value>>> {
    let Reply::Array(all) = reply else { return Err(odd()) };
    all.into_iter().map(fields).collect()
}

pub fn list(session: &mut Session, _: &Arguments<'_>) -> Outcome<Told> {
    let all = listed(session.mounted.txn(&["LIST"])?)?;
    let mut text = String::new();
    for info in &all {
        let id = info["id"].as_u64().unwrap_or(0);
        let around = info["within"].as_u64();
        let around = around.map_or(String::new(), |around| format!(" within transaction {around}"));
        let own = if session.begun.contains(&id) { " (begun in this session)" } else { "" };
        let _ = writeln!(
            text,
            "transaction {id}{around}{own}: {} changes, {} s old, label {}",
            info["changes"],
            info["age_ms"].as_u64().unwrap_or(0) / 1000,
            show_json(&info["label"]).unwrap_or_default()
        );
    }
    let text = if text.is_empty() { "no transaction is open\n".into() } else { text };
    Ok(cut(&text, session.limits.output).into())
}

pub fn snapshot(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let name = given.needed("name")?;
    let of = session.mounted.view.clone_name().map(String::from);
    let mut words = vec![&b"SNAPSHOT"[..], b"CREATE", name.as_bytes()];
    words.extend(of.iter().flat_map(|of| [&b"OF"[..], of.as_bytes()]));
    session.mounted.call(&words)?;
    Ok(format!("snapshot {name} is made\n").into())
}

pub fn snapshots(session: &mut Session, _: &Arguments<'_>) -> Outcome<Told> {
    let all = listed(session.mounted.call(&[b"SNAPSHOT", b"LIST"])?)?;
    let line = |info: &Map<String, Value>| {
        let secs = info["created"].as_i64().unwrap_or(0);
        let created = time_text(kvfs::Timestamp { secs, nanos: 0 });
        format!("{created} UTC  {}\n", show(info["name"].as_str().unwrap_or("").as_bytes()))
    };
    let text: String = all.iter().map(line).collect();
    let text = if text.is_empty() { "there are no snapshots\n".into() } else { text };
    Ok(cut(&text, session.limits.output).into())
}

pub fn rollback(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let name = given.needed("snapshot")?;
    session.mounted.call(&[b"SNAPSHOT", b"ROLLBACK", name.as_bytes()])?;
    session.begun.clear();
    Ok(format!("the store is as it was at snapshot {name}; all transactions were aborted\n").into())
}
