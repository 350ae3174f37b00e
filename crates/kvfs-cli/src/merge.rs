//! `kvfs merge` and `kvfs rebase`: what a clone has changed, brought into the branch that it was
//! made of, and the other way round.

use std::path::PathBuf;
use std::process::ExitCode;

use kvdb_server::{Client, Reply};
use serde_json::{Value, json};

use crate::changes::{Changes, Detail, Wanted};
use crate::mounted::{Commit, Mounted, NotCommitted};
use crate::output::{Exit, Failure, Outcome, Output};
use crate::place;
use crate::proposed::{self, call, odd};
use crate::question::{Answer, Question};
use crate::terminal::Terminal;
use crate::text::show;

/// Bring what a clone has changed into the store, or the clone, that it was made of.
#[derive(clap::Args)]
#[command(after_help = "\
What the clone has changed since it was made, or was merged last, becomes one commit, however much \
it is: contents are taken by reference. What both sides have changed is a conflict: then nothing \
is changed, the paths are listed, and the exit code is 75. Choose for them, and merge again.

  kvfs clone create /mnt monday trial
  ...work in /mnt/.kvfs/clone/trial...
  kvfs merge /mnt/.kvfs/clone/trial --dry-run     # what would be changed?
  kvfs merge /mnt/.kvfs/clone/trial
  kvfs merge /mnt/.kvfs/clone/trial --ask         # which of it?
  kvfs merge /mnt/.kvfs/clone/trial --theirs src --ours Cargo.lock
  kvfs merge store.kvfs trial --drop              # of a store that is not mounted
  kvfs undo /mnt                                  # takes the merge back

A clone can be merged again: only what it has changed since then comes. `kvfs rebase` brings into \
the clone what was changed beneath it, by the same rules. With --keep the merge is an open \
transaction: see it, take parts out of it, and commit it with kvfs txn.")]
pub struct Args {
    /// The clone (/mnt/.kvfs/clone/NAME); or a mount, or the file of a store that is not mounted.
    target: PathBuf,
    /// The name of the clone, where TARGET is not the clone itself.
    clone: Option<String>,
    #[command(flatten)]
    choices: Choices,
    /// Say what would be changed, and do nothing.
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Ask about each conflict, then show what would be changed, and ask whether all of it, or what
    /// of it, is committed. What is left out counts as merged.
    #[arg(long, conflicts_with_all = ["dry_run", "keep"])]
    ask: bool,
    /// Do not commit: leave the transaction open for `kvfs txn diff`, `revert` and `commit`.
    #[arg(long, conflicts_with = "dry_run")]
    keep: bool,
    /// Drop the clone once it is merged.
    #[arg(long, conflicts_with_all = ["dry_run", "keep"])]
    drop: bool,
    /// One line for all: how much was added, changed, removed.
    #[arg(long)]
    stat: bool,
    /// Also what lies below directories that are added or removed by it.
    #[arg(long, short = 'a')]
    all: bool,
    /// Not through a pager: on a terminal it is KVFS_PAGER, PAGER or less.
    #[arg(long)]
    no_pager: bool,
}

/// Bring what was changed beneath a clone into the clone.
#[derive(clap::Args)]
#[command(after_help = "\
The same as kvfs merge, the other way round: what the store, or the clone, that this clone was made \
of has changed since becomes one commit in the clone. What the clone has changed stays; where both \
have changed the same, it is listed, and the exit code is 75.

  kvfs rebase /mnt/.kvfs/clone/trial
  kvfs rebase /mnt/.kvfs/clone/trial --theirs .   # what is beneath it wins")]
pub struct RebaseArgs {
    #[command(flatten)]
    args: Args,
}

/// A merge that is done, or was looked at.
struct Done {
    id: i64,
    into: String,
    from: String,
    changes: Changes,
}

impl Args {
    fn wanted(&self) -> Wanted {
        Wanted { fields: false, all: self.all }
    }
}

/// The paths and keys for which there is a choice.
#[derive(clap::Args, Clone, Default)]
pub struct Choices {
    /// Where both have changed the same: take the version of what is merged into, or rebased, at
    /// this path and below, or of this key (dictionary:key) or dictionary. May be repeated; "." is
    /// everything.
    #[arg(long, value_name = "PATH")]
    pub ours: Vec<String>,
    /// Take the other version.
    #[arg(long, value_name = "PATH")]
    pub theirs: Vec<String>,
    /// Keep both: one of them gets a name with ~ and the clone or transaction that it is of.
    #[arg(long, value_name = "PATH")]
    pub both: Vec<String>,
}

impl Choices {
    /// As words of a command of the socket.
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

/// A merge that is asked for.
pub struct Ask<'a> {
    pub clone: &'a str,
    pub rebase: bool,
    pub dry_run: bool,
    /// It ends with the connection.
    pub attached: bool,
    pub choices: &'a Choices,
}

/// A merge as an open transaction. With conflicts it is to be aborted.
pub struct Begun {
    pub id: u64,
    pub into: String,
    pub from: String,
    pub conflicts: Vec<Conflict>,
}

/// What both sides have changed, and how.
pub struct Conflict {
    pub path: Vec<u8>,
    pub key: bool,
    pub ours: String,
    pub theirs: String,
}

enum Merged {
    Done(Done),
    /// There are conflicts, which are listed in place of it.
    Against(Begun),
    /// Who was asked does not want it now.
    Not(NotMerged),
}

/// Why nothing was merged by an answer.
enum NotMerged {
    Aborted,
    /// It is open, as the transaction of this number.
    Kept(u64),
}

fn text(reply: &Reply) -> Outcome<String> {
    match reply {
        Reply::Bulk(text) => Ok(String::from_utf8_lossy(text).into_owned()),
        _ => Err(odd()),
    }
}

fn conflict(reply: &Reply) -> Outcome<Conflict> {
    let Reply::Array(parts) = reply else { return Err(odd()) };
    let [Reply::Bulk(path), kind, ours, theirs] = &parts[..] else { return Err(odd()) };
    let (key, ours, theirs) = (text(kind)? == "key", text(ours)?, text(theirs)?);
    Ok(Conflict { path: path.to_vec(), key, ours, theirs })
}

/// Begins a merge, by a function that calls the store's daemon.
pub fn begin(ask: &Ask<'_>, call: impl FnOnce(&[&[u8]]) -> Outcome<Reply>) -> Outcome<Begun> {
    let mut words = vec![&b"TXN"[..], b"MERGE", ask.clone.as_bytes()];
    words.extend(ask.rebase.then_some(&b"REBASE"[..]));
    words.extend(ask.dry_run.then_some(&b"DRY"[..]));
    words.extend(ask.choices.words());
    words.extend(ask.attached.then_some(&b"ATTACHED"[..]));
    let Reply::Array(reply) = call(&words)? else { return Err(odd()) };
    let [Reply::Integer(id), into, from, Reply::Array(conflicts)] = &reply[..] else {
        return Err(odd());
    };
    let id = u64::try_from(*id).map_err(|_| odd())?;
    let conflicts = conflicts.iter().map(conflict).collect::<Outcome<_>>()?;
    Ok(Begun { id, into: text(into)?, from: text(from)?, conflicts })
}

/// A transaction that was rebased.
pub enum Rebased {
    /// The transaction that it has become.
    Done(u64),
    /// It is as it was.
    Against(Vec<Conflict>),
}

/// Has a transaction begun anew with what it has changed.
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
        [Reply::Integer(id), _] => Ok(Rebased::Done(u64::try_from(*id).map_err(|_| odd())?)),
        [_, Reply::Array(all)] => {
            Ok(Rebased::Against(all.iter().map(conflict).collect::<Outcome<_>>()?))
        }
        _ => Err(odd()),
    }
}

fn merge(client: &mut Client, clone: &str, rebase: bool, args: &Args) -> Outcome<Merged> {
    let ask =
        Ask { clone, rebase, dry_run: args.dry_run, attached: !args.keep, choices: &args.choices };
    let begun = begin(&ask, |words| call(client, words))?;
    let id = i64::try_from(begun.id).map_err(|_| odd())?;
    if !begun.conflicts.is_empty() {
        proposed::abort(client, id);
        return Ok(Merged::Against(begun));
    }
    let Begun { into, from, .. } = begun;
    let looked = proposed::look(client, id, args.all);
    let changes = match () {
        () if args.dry_run => {
            proposed::abort(client, id);
            looked?
        }
        () if args.keep => looked.inspect_err(|_| proposed::abort(client, id))?,
        () => proposed::commit(client, id, looked)?,
    };
    if args.drop {
        call(client, &[b"CLONE", b"DROP", clone.as_bytes()])?;
    }
    Ok(Merged::Done(Done { id, into, from, changes }))
}

/// Merges as much as a person at the terminal decides for, in a store that is mounted.
fn merge_asking(clone: &str, rebase: bool, args: &Args) -> Outcome<Merged> {
    let mut mounted = Mounted::find_branch(&args.target)?;
    let hint = "decide beforehand: --dry-run shows it, --ours, --theirs and --both choose";
    let mut terminal = Terminal::open(hint)?;
    let mut choices = args.choices.clone();
    let begun = loop {
        let ask = Ask { clone, rebase, dry_run: false, attached: true, choices: &choices };
        let begun = begin(&ask, |words| mounted.call(words))?;
        if begun.conflicts.is_empty() {
            break begun;
        }
        mounted.txn(&["ABORT", &begun.id.to_string()])?;
        if !choose(&mut terminal, &begun, &mut choices)? {
            return Ok(Merged::Against(begun));
        }
    };
    let Begun { id, into, from, .. } = begun;
    let number = id.to_string();
    let mut question = Question::new(terminal, id, None);
    let changes = loop {
        match question.ask(&mut mounted)? {
            (Answer::Abort, _) => {
                mounted.txn(&["ABORT", &number])?;
                return Ok(Merged::Not(NotMerged::Aborted));
            }
            (Answer::Keep, _) => {
                mounted.txn(&["KEEP", &number])?;
                return Ok(Merged::Not(NotMerged::Kept(id)));
            }
            (Answer::Commit, state) => {
                let changes = Changes::of(&mut mounted, id, args.wanted())?;
                let how = Commit { sync: true, state: state.as_deref(), ..Commit::default() };
                match mounted.commit(id, how) {
                    Err(NotCommitted::Changed(_)) => question.say_that_it_changed()?,
                    done => {
                        done?;
                        break changes;
                    }
                }
            }
        }
    };
    if args.drop {
        mounted.call(&[b"CLONE", b"DROP", clone.as_bytes()])?;
    }
    let id = i64::try_from(id).map_err(|_| odd())?;
    Ok(Merged::Done(Done { id, into, from, changes }))
}

/// Asks about each conflict, and adds what was chosen. `false`: nothing was decided.
fn choose(terminal: &mut Terminal, against: &Begun, choices: &mut Choices) -> Outcome<bool> {
    let (ours, theirs) = (named(&against.into), named(&against.from));
    for conflict in &against.conflicts {
        // A path that is no text cannot be told to the daemon by a word of ours.
        let Ok(path) = String::from_utf8(conflict.path.clone()) else { return Ok(false) };
        terminal.say(&format!("Conflict: {}", conflict.line(&ours, &theirs)))?;
        // Of a key there cannot be both.
        let both = if conflict.key { "" } else { ", [b]oth" };
        let question = format!("Which one? [o]urs ({ours}), [t]heirs ({theirs}){both}, [q]uit: ");
        loop {
            match terminal.ask(&question)?.as_deref() {
                Some("o" | "ours") => choices.ours.push(path.clone()),
                Some("t" | "theirs") => choices.theirs.push(path.clone()),
                Some("b" | "both") if !conflict.key => choices.both.push(path.clone()),
                Some("q" | "quit") | None => return Ok(false),
                Some(_) => continue,
            }
            break;
        }
    }
    Ok(true)
}

fn not_committed(id: impl std::fmt::Display) -> String {
    format!("not committed: see it with kvfs txn diff, and end it with kvfs txn commit {id}")
}

/// A branch in words.
pub fn named(branch: &str) -> String {
    if branch.is_empty() {
        "the store".into()
    } else {
        format!("clone {}", show(branch.as_bytes()))
    }
}

fn clone_of(args: &Args) -> Outcome<String> {
    let branch = place::branch_of(&args.target)?;
    match (&args.clone, branch.is_empty()) {
        (Some(name), true) => Ok(name.clone()),
        (None, false) => Ok(branch),
        (Some(_), false) => {
            let what = "the path names a clone already: give one clone, by its path or its name";
            Err(Failure::new(Exit::Usage, what))
        }
        (None, true) => Err(Failure::new(Exit::Usage, "which clone?")
            .hint("give its path, as /mnt/.kvfs/clone/NAME, or its name after the store")),
    }
}

fn print(done: Done, args: &Args, clone: &str, output: &Output) -> Outcome {
    let Done { id, into, from, changes } = done;
    let detail = Detail::of_undo(args.stat, args.no_pager);
    let end = match () {
        () if args.dry_run => "nothing was changed".to_owned(),
        () if args.keep => not_committed(id),
        () if args.drop => format!("done, and clone {} is dropped", show(clone.as_bytes())),
        () => "done".to_owned(),
    };
    let text = format!("{} into {}: {end}\n", named(&from), named(&into));
    if !output.is_json() {
        // Who was asked has seen them.
        if !args.ask {
            changes.print(detail, output)?;
        }
        return output.print(text, ());
    }
    // Made for this alone: a list may be too long for it.
    let changes = changes.json(detail);
    let id = args.keep.then_some(id);
    output.print(
        text,
        json!({
            "into": into, "from": from, "changes": changes, "dry_run": args.dry_run,
            "transaction": id, "dropped": args.drop,
        }),
    )
}

fn print_conflicts(against: &Begun, output: &Output) -> Outcome {
    let Begun { into, from, conflicts, .. } = against;
    if output.is_json() {
        let all: Vec<Value> = conflicts.iter().map(Conflict::json).collect();
        return output.print("", json!({"into": into, "from": from, "conflicts": all}));
    }
    output.print(listed(conflicts, &named(into), &named(from)), ())
}

/// One line for each conflict.
pub fn listed(conflicts: &[Conflict], ours: &str, theirs: &str) -> String {
    conflicts.iter().map(|conflict| format!("C  {}\n", conflict.line(ours, theirs))).collect()
}

impl Conflict {
    /// In words, with the names of the two sides.
    pub fn line(&self, our: &str, their: &str) -> String {
        let Conflict { path, key, ours, theirs } = self;
        let kind = if *key { "key " } else { "" };
        format!("{kind}{}: {ours} in {our}, {theirs} in {their}", show(path))
    }

    pub fn json(&self) -> Value {
        json!({
            "path": show(&self.path), "key": self.key, "ours": self.ours, "theirs": self.theirs,
        })
    }
}

fn run_as(args: Args, rebase: bool, output: &Output) -> Outcome<bool> {
    let clone = clone_of(&args)?;
    let verb = if rebase { "rebase" } else { "merge" };
    let merged = match args.ask {
        true => proposed::again(|| merge_asking(&clone, rebase, &args))?,
        false => proposed::with_store(&args.target, verb, |client, mounted| {
            if args.keep && !mounted {
                return Err(Failure::new(
                    Exit::Usage,
                    "a transaction of a store that is not mounted ends with this command",
                )
                .hint("mount the store, or leave out --keep"));
            }
            proposed::again(|| merge(client, &clone, rebase, &args))
        })?,
    };
    match merged {
        Merged::Not(NotMerged::Aborted) => {
            output.print("nothing was changed\n", json!({"merged": false})).map(|()| true)
        }
        Merged::Not(NotMerged::Kept(id)) => {
            let text = format!("{}\n", not_committed(id));
            output.print(text, json!({"merged": false, "transaction": id})).map(|()| true)
        }
        Merged::Done(done) => print(done, &args, &clone, output).map(|()| true),
        Merged::Against(against) => {
            print_conflicts(&against, output)?;
            output.note(
                "both sides have changed these, and nothing was changed: choose with --ours, \
                 --theirs or --both PATH",
            );
            Ok(false)
        }
    }
}

/// The exit code of a merge or a rebase. `false`: there were conflicts, which are printed.
pub fn end(outcome: Outcome<bool>, output: &Output) -> ExitCode {
    match outcome {
        Ok(true) => output.finish(Ok(())),
        Ok(false) => ExitCode::from(Exit::TRY_AGAIN),
        Err(failure) if failure.exit == Exit::Conflict => {
            output.finish(Err(failure));
            ExitCode::from(Exit::TRY_AGAIN)
        }
        Err(failure) => output.finish(Err(failure)),
    }
}

pub fn run(args: Args, output: &Output) -> ExitCode {
    end(run_as(args, false, output), output)
}

pub fn rebase(args: RebaseArgs, output: &Output) -> ExitCode {
    end(run_as(args.args, true, output), output)
}
