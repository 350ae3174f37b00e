//! Branches as tools: clones of the store in which transactions begin, and which are merged into
//! their parent.

use std::fmt::Write;

use kvdb_server::Reply;

use super::arguments::{Arguments, Told, cut};
use super::session::Session;
use crate::support::mounts::mounted::fields;
use crate::support::review::merge_requests::{self, Ask, Begun, Choices, Conflict, Rebased, named};
use crate::support::review::proposed;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text::show;

/// Makes a clone of the current state or of a snapshot.
pub fn branch(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let name = given.needed("name")?;
    let limit = [given.number("limit"), given.number("limit_of_files")];
    match (given.text("snapshot"), given.text("of")) {
        (Some(_), Some(_)) => {
            let what = "`snapshot` and `of` are two states to begin from: give one of them";
            return Err(Failure::new(Exit::Usage, what));
        }
        (Some(snapshot), None) => clone(session, snapshot, name, limit)?,
        (None, of) => {
            let of = of.or(session.mounted.view.clone_name()).map(String::from);
            // The snapshot is temporary, since a clone itself keeps the state that it was made of.
            let state = format!("for-branch-{name}-{}", std::process::id());
            let mut words = vec![&b"SNAPSHOT"[..], b"CREATE", state.as_bytes()];
            words.extend(of.iter().flat_map(|of| [b"OF", of.as_bytes()]));
            session.mounted.call(&words)?;
            let made = clone(session, &state, name, limit);
            let dropped = session.mounted.call(&[b"SNAPSHOT", b"DROP", state.as_bytes()]);
            made.and(dropped.map(drop))?;
        }
    }
    session.branches.push(name.to_owned());
    let name = show(name.as_bytes());
    Ok(format!(
        "branch {name} is made, and stays when this session ends. `begin` with it to work in it\n"
    )
    .into())
}

fn clone(session: &mut Session, snapshot: &str, name: &str, limit: [Option<u64>; 2]) -> Outcome {
    let [bytes, files] = limit.map(|most| most.map(|most| most.to_string()));
    let mut words = vec![&b"CLONE"[..], b"CREATE", snapshot.as_bytes(), name.as_bytes()];
    words.extend(bytes.iter().flat_map(|bytes| [b"LIMIT", bytes.as_bytes()]));
    words.extend(files.iter().flat_map(|files| [b"FILES", files.as_bytes()]));
    session.mounted.call(&words).map(drop)
}

pub fn list(session: &mut Session, _: &Arguments<'_>) -> Outcome<Told> {
    let Reply::Array(all) = session.mounted.call(&[b"CLONE", b"LIST"])? else {
        return Err(proposed::odd());
    };
    let mut text = String::new();
    for info in all {
        let info = fields(info)?;
        let _ = writeln!(text, "{}", show(info["name"].as_str().unwrap_or("").as_bytes()));
    }
    let text = if text.is_empty() { "there are no branches\n".into() } else { text };
    Ok(cut(&text, session.limits.output).into())
}

pub fn merge(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    begin_merge(session, given, false)
}

pub fn rebase(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    match (given.text("branch"), given.number("transaction")) {
        (Some(_), None) => begin_merge(session, given, true),
        (None, Some(id)) => rebase_open(session, given, id),
        _ => {
            let what = "either `branch` or `transaction` must be given";
            Err(Failure::new(Exit::Usage, what))
        }
    }
}

/// Rebases an open transaction, which continues as another one.
fn rebase_open(session: &mut Session, given: &Arguments<'_>, id: u64) -> Outcome<Told> {
    let choices = choices(given);
    match merge_requests::rebase_transaction(id, &choices, |words| session.mounted.call(words))? {
        Rebased::Done(new) => {
            // Only transactions begun in this session end with it.
            if let Some(begun) = session.begun.iter_mut().find(|begun| **begun == id) {
                *begun = new;
            }
            Ok(format!(
                "transaction {new}\nIt has what {id} has changed, on what others have committed; {id} has ended.\n"
            )
            .into())
        }
        Rebased::Against(conflicts, more) => {
            let ours = format!("transaction {id}");
            Ok(against(session, (&conflicts[..], more), &ours, "what is there now"))
        }
    }
}

fn choices(given: &Arguments<'_>) -> Choices {
    let texts = |name| given.texts(name).into_iter().map(String::from).collect();
    Choices { ours: texts("ours"), theirs: texts("theirs"), both: texts("both") }
}

fn against(
    session: &Session,
    (conflicts, more): (&[Conflict], u64),
    ours: &str,
    theirs: &str,
) -> Told {
    let mut text = String::from("both sides have changed these, and nothing was changed:\n");
    for conflict in conflicts {
        let _ = writeln!(text, "{}", conflict.line(ours, theirs));
    }
    if more > 0 {
        let _ = writeln!(text, "{}", merge_requests::and_more(more));
    }
    text.push_str("choose for each with `ours`, `theirs` or `both`\n");
    Told { text: cut(&text, session.limits.output), failed: true }
}

fn begin_merge(session: &mut Session, given: &Arguments<'_>, rebase: bool) -> Outcome<Told> {
    let choices = choices(given);
    let clone = given.needed("branch")?;
    let ask = Ask {
        clone,
        fork: None,
        into: given.text("into"),
        rebase,
        dry_run: false,
        attached: true,
        choices: &choices,
    };
    let Begun { id, into, from, conflicts, more } =
        merge_requests::begin(&ask, |words| session.mounted.call(words))?;
    if !conflicts.is_empty() {
        session.mounted.txn(&["ABORT", &id.to_string()])?;
        return Ok(against(session, (&conflicts[..], more), &named(&into), &named(&from)));
    }
    session.begun.push(id);
    Ok(format!(
        "transaction {id}\nIt brings {} into {} when it is committed; `diff` shows what that changes.\n",
        named(&from),
        named(&into)
    )
    .into())
}

pub fn drop_branch(session: &mut Session, given: &Arguments<'_>) -> Outcome<Told> {
    let name = given.needed("branch")?;
    // A clone made by others may be the only place of their work.
    if !session.branches.iter().any(|own| own == name) {
        let what = format!("branch {} was not made in this session", show(name.as_bytes()));
        return Err(Failure::new(Exit::NotPermitted, what)
            .hint("a person can drop it: kvfs clone drop MOUNT NAME"));
    }
    session.mounted.call(&[b"CLONE", b"DROP", name.as_bytes()])?;
    session.branches.retain(|own| own != name);
    Ok(format!("branch {} is gone\n", show(name.as_bytes())).into())
}
