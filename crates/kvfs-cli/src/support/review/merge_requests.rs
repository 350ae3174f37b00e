//! Requests for merges and rebases to the store's daemon or to this process: the words of the
//! socket command, and the conflicts in the reply.

use std::time::{SystemTime, UNIX_EPOCH};

use kvdb_server::Reply;
use serde_json::{Value, json};

use crate::support::review::proposed::odd;
use crate::support::stores::tree::time_text;
use crate::support::terminal::output::Outcome;
use crate::support::terminal::text::show;

/// Choices between the two versions of paths and keys in conflict.
#[derive(clap::Args, Clone, Default)]
pub struct Choices {
    /// Resolve conflicts with the version of the target of the merge (in a rebase, of the clone,
    /// fork or transaction that is rebased), at this path and below it, or for this key
    /// (dictionary:key) or dictionary. May be repeated; "." means everything.
    #[arg(long, value_name = "PATH")]
    pub ours: Vec<String>,
    /// Resolve conflicts with the other version.
    #[arg(long, value_name = "PATH")]
    pub theirs: Vec<String>,
    /// Keep both versions: one of them gets a name with ~ and the clone or transaction that it
    /// comes from.
    #[arg(long, value_name = "PATH")]
    pub both: Vec<String>,
}

impl Choices {
    /// Returns the choices as words of the socket command.
    fn words(&self) -> impl Iterator<Item = &[u8]> {
        let all = [(&b"OURS"[..], &self.ours), (b"THEIRS", &self.theirs), (b"BOTH", &self.both)];
        all.into_iter().flat_map(|(choice, paths)| {
            paths.iter().flat_map(move |path| {
                let path = if path == "." { "" } else { path.trim_start_matches("./") };
                [choice, path.as_bytes()]
            })
        })
    }
}

/// A request for a merge.
pub struct Ask<'a> {
    /// The name of the clone or the fork.
    pub clone: &'a str,
    /// The place of the fork, if it is one.
    pub fork: Option<&'a [u8]>,
    /// The branch that it is merged into, if that is not its parent.
    pub into: Option<&'a str>,
    pub rebase: bool,
    pub dry_run: bool,
    /// True if the transaction ends with the connection.
    pub attached: bool,
    pub choices: &'a Choices,
}

/// A merge as an open transaction. The caller must abort it if there are conflicts.
pub struct Begun {
    pub id: u64,
    pub into: String,
    pub from: String,
    pub conflicts: Vec<Conflict>,
    /// The number of conflicts that are not named, since there are too many.
    pub more: u64,
}

/// A conflict: a path or a key that both sides have changed, with both kinds of change.
pub struct Conflict {
    pub path: Vec<u8>,
    pub key: bool,
    pub ours: String,
    pub theirs: String,
    /// The last commit on the other side that has changed it, if known.
    pub by: Option<Author>,
}

/// A commit that has made a change.
pub struct Author {
    pub commit: i64,
    pub label: String,
    /// Seconds since 1970.
    pub time: i64,
}

impl Author {
    /// Parses an author. Returns `None` if it is not known.
    pub fn of(reply: &Reply) -> Outcome<Option<Author>> {
        match reply {
            Reply::Null => Ok(None),
            Reply::Array(parts) => match &parts[..] {
                [Reply::Integer(commit), label, Reply::Integer(time)] => {
                    Ok(Some(Author { commit: *commit, label: text(label)?, time: *time }))
                }
                _ => Err(odd()),
            },
            _ => Err(odd()),
        }
    }

    /// Describes the commit, like "by commit 17 (make), 2026-11-21 21:40:03 UTC".
    pub fn words(&self) -> String {
        let time = time_text(kvfs::Timestamp { secs: self.time, nanos: 0 });
        let label = match self.label.is_empty() {
            true => String::new(),
            false => format!(" ({})", show(self.label.as_bytes())),
        };
        format!("by commit {}{label}, {time} UTC", self.commit)
    }

    /// Describes the commit as the daemon does in the message of a conflict, like
    /// "by commit 17, "make", 3 s ago".
    pub fn words_with_age(&self) -> String {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
        let ago = now.saturating_sub(u64::try_from(self.time).unwrap_or(0));
        let label = match self.label.is_empty() {
            true => String::new(),
            // A quotation mark in a label must not end it.
            false => format!(" \"{}\",", show(self.label.as_bytes()).replace('"', "\\\"")),
        };
        format!("by commit {},{label} {ago} s ago", self.commit)
    }

    pub fn json(&self) -> Value {
        json!({"commit": self.commit, "label": self.label, "time": self.time})
    }
}

fn text(reply: &Reply) -> Outcome<String> {
    match reply {
        Reply::Bulk(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Err(odd()),
    }
}

fn conflict(reply: &Reply) -> Outcome<Conflict> {
    let Reply::Array(parts) = reply else { return Err(odd()) };
    let [Reply::Bulk(path), kind, ours, theirs, by] = &parts[..] else { return Err(odd()) };
    let (key, ours, theirs) = (text(kind)? == "key", text(ours)?, text(theirs)?);
    Ok(Conflict { path: path.to_vec(), key, ours, theirs, by: Author::of(by)? })
}

/// Parses the number of conflicts that are not named. A daemon of an older version does not send
/// it.
fn unnamed(rest: &[Reply]) -> Outcome<u64> {
    match rest {
        [] => Ok(0),
        [Reply::Integer(more)] => u64::try_from(*more).map_err(|_| odd()),
        _ => Err(odd()),
    }
}

/// Begins a merge. `call` sends the command to the store's daemon.
pub fn begin(ask: &Ask<'_>, call: impl FnOnce(&[&[u8]]) -> Outcome<Reply>) -> Outcome<Begun> {
    let mut words = vec![&b"TXN"[..], b"MERGE", ask.clone.as_bytes()];
    words.extend(ask.fork.into_iter().flat_map(|place| [&b"FORK"[..], place]));
    words.extend(ask.into.into_iter().flat_map(|into| [&b"INTO"[..], into.as_bytes()]));
    words.extend(ask.rebase.then_some(&b"REBASE"[..]));
    words.extend(ask.dry_run.then_some(&b"DRY"[..]));
    words.extend(ask.choices.words());
    words.extend(ask.attached.then_some(&b"ATTACHED"[..]));
    let Reply::Array(reply) = call(&words)? else { return Err(odd()) };
    let [Reply::Integer(id), into, from, Reply::Array(conflicts), more @ ..] = &reply[..] else {
        return Err(odd());
    };
    let id = u64::try_from(*id).map_err(|_| odd())?;
    let conflicts = conflicts.iter().map(conflict).collect::<Outcome<_>>()?;
    Ok(Begun { id, into: text(into)?, from: text(from)?, conflicts, more: unnamed(more)? })
}

/// The result of rebasing a transaction.
pub enum Rebased {
    /// The new transaction that it continues as.
    Done(u64),
    /// The conflicts, and the number of those that are not named; the transaction is unchanged.
    Against(Vec<Conflict>, u64),
}

/// Rebases a transaction: its changes become a new transaction on the current state.
pub fn rebase_transaction(
    id: u64,
    choices: &Choices,
    call: impl FnOnce(&[&[u8]]) -> Outcome<Reply>,
) -> Outcome<Rebased> {
    let id = id.to_string();
    let mut words = vec![&b"TXN"[..], b"REBASE", id.as_bytes()];
    words.extend(choices.words());
    let Reply::Array(reply) = call(&words)? else { return Err(odd()) };
    match &reply[..] {
        [Reply::Integer(id), ..] => Ok(Rebased::Done(u64::try_from(*id).map_err(|_| odd())?)),
        [_, Reply::Array(all), more @ ..] => {
            let all = all.iter().map(conflict).collect::<Outcome<_>>()?;
            Ok(Rebased::Against(all, unnamed(more)?))
        }
        _ => Err(odd()),
    }
}

/// Describes a branch in words.
pub fn named(branch: &str) -> String {
    if branch.is_empty() {
        "the store".into()
    } else {
        format!("clone {}", show(branch.as_bytes()))
    }
}

/// Returns one line for each conflict, and one for those that are not named.
pub fn listed(conflicts: &[Conflict], more: u64, ours: &str, theirs: &str) -> String {
    let line = |conflict: &Conflict| format!("C  {}\n", conflict.line(ours, theirs));
    let lines = conflicts.iter().map(line);
    lines.chain((more > 0).then(|| format!("{}\n", and_more(more)))).collect()
}

/// Says how many conflicts are not named.
pub fn and_more(more: u64) -> String {
    match more {
        1 => "and 1 more conflict".into(),
        _ => format!("and {more} more conflicts"),
    }
}

impl Conflict {
    /// Describes the conflict, with the names of the two sides.
    pub fn line(&self, our: &str, their: &str) -> String {
        let Conflict { path, key, ours, theirs, by } = self;
        let kind = if *key { "key " } else { "" };
        let by = by.as_ref().map(|by| format!("; {}", by.words())).unwrap_or_default();
        format!("{kind}{}: {ours} in {our}, {theirs} in {their}{by}", show(path))
    }

    pub fn json(&self) -> Value {
        json!({
            "path": show(&self.path), "key": self.key, "ours": self.ours, "theirs": self.theirs,
            "by": self.by.as_ref().map(Author::json),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_author_without_a_label_is_named_by_its_number() {
        let author = |label: &str| Author { commit: 8, label: label.into(), time: 0 };
        assert!(author("make").words().starts_with("by commit 8 (make), "));
        assert!(author("").words().starts_with("by commit 8, "));
        assert!(author("a \"b\"").words_with_age().starts_with(r#"by commit 8, "a \"b\"", "#));
        let hostile = "e\u{1b}[2J\nFORGED\u{202e}\u{200b}\"z";
        let shown = r#"e\x1b[2J\nFORGED\xe2\x80\xae\xe2\x80\x8b"#;
        assert!(author(hostile).words().starts_with(&format!("by commit 8 ({shown}\"z), ")));
        let quoted = format!("by commit 8, \"{shown}\\\"z\", ");
        assert!(author(hostile).words_with_age().starts_with(&quoted));
        let now = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_secs();
        let later = Author { time: now as i64 + 1000, ..author("") };
        assert_eq!(later.words_with_age(), "by commit 8, 0 s ago", "a clock that was set back");
    }

    fn one(path: &str) -> Conflict {
        let (ours, theirs) = ("made".into(), "changed".into());
        Conflict { path: path.into(), key: false, ours, theirs, by: None }
    }

    #[test]
    fn a_list_that_is_cut_says_how_many_conflicts_are_missing() {
        let line = "C  a/b: made in it, changed in another\n";
        let list = |more| listed(&[one("a/b")], more, "it", "another");
        assert_eq!(list(0), line);
        assert_eq!(list(1), format!("{line}and 1 more conflict\n"));
        assert_eq!(list(20), format!("{line}and 20 more conflicts\n"));
    }

    #[test]
    fn a_reply_without_the_number_of_unnamed_conflicts_has_none() {
        assert_eq!(unnamed(&[]).ok(), Some(0));
        assert_eq!(unnamed(&[Reply::Integer(7)]).ok(), Some(7));
        assert!(unnamed(&[Reply::Integer(-1)]).is_err() && unnamed(&[Reply::Null]).is_err());
    }
}
