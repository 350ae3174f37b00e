//! `kvfs merge`: brings the changes of a clone or a fork into its parent branch.

mod fork_file;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use kvdb_server::Client;
use serde_json::{Value, json};

use crate::support::mounts::mounted::{Commit, Mounted, NotCommitted};
use crate::support::mounts::place;
use crate::support::review::changes::{Changes, Detail, Wanted};
use crate::support::review::merge_requests::{Ask, Begun, Choices, Conflict, begin, listed, named};
use crate::support::review::proposed::{self, call, odd};
use crate::support::review::question::{Answer, Question};
use crate::support::review::reviewed::OfMount;
use crate::support::stores::forked::{self, Forked};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::prompt::Terminal;
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::show;

/// Merge the changes of a clone or a fork into its parent.
#[derive(clap::Args)]
#[command(after_help = "\
The changes in the clone since it was made, or since its last merge, become one commit, whatever \
their size: contents are taken by reference. Files and keys that both sides have changed are \
conflicts: nothing is changed then, the paths are listed, and the exit code is 75. Choose a \
version for each of them, and merge again.

  kvfs clone create /mnt monday trial
  ...work in /mnt/.kvfs/clone/trial...
  kvfs merge /mnt/.kvfs/clone/trial --dry-run     # only show the changes
  kvfs merge /mnt/.kvfs/clone/trial
  kvfs merge /mnt/.kvfs/clone/trial --ask         # choose the changes
  kvfs merge /mnt/.kvfs/clone/trial --theirs src --ours Cargo.lock
  kvfs merge store.kvfs trial --drop              # a store that is not mounted
  kvfs undo /mnt                                  # undo the merge

A clone can be merged again: then only its changes since the last merge are merged. `kvfs rebase` \
merges the changes of the parent into the clone, by the same rules. With --keep the merge is an \
open transaction: inspect it, revert parts of it, and commit it with kvfs txn.

--into names another clone, or the store, that shares a state with the clone: a sibling, made \
from the same snapshot, or the parent of its parent. The changes in the clone since that state \
are merged.

  kvfs merge /mnt/.kvfs/clone/trial --into other
  kvfs merge /mnt/.kvfs/clone/trial-of-trial --into /mnt

A fork (kvfs fork), or the fork of a fork, is merged into the store that it was made from, with \
the same options. Its changes since it was made are copied:

  kvfs merge dir:/srv/stores/mine --into /mnt      # where the fork is published (kvfs push)
  kvfs merge mine.kvfs --into /mnt --dry-run       # its file, which is not mounted
  kvfs merge mine.kvfs --into store.kvfs           # into a store that is not mounted

A fork can be merged again. Changes that were merged before are then the same on both sides, and \
changes that were left out are merged again. Later changes of the fork to its own new files are \
conflicts: choose --theirs.")]
pub struct Args {
    /// Clone to merge (/mnt/.kvfs/clone/NAME), or a mount, or the file of a store that is not
    /// mounted, together with CLONE. To merge a fork: its address or its file, together with
    /// --into.
    target: PathBuf,
    /// Name of the clone, if TARGET is not the clone itself.
    clone: Option<String>,
    /// Merge into PARENT instead of the parent of the clone: into another clone, by its name or
    /// path, or into the store itself, by its mount or file. If TARGET is a fork: the store to
    /// merge into, by its mount or file.
    #[arg(long, value_name = "PARENT")]
    into: Option<PathBuf>,
    #[command(flatten)]
    choices: Choices,
    /// Print the changes that would be made, and make none.
    #[arg(long, short = 'n')]
    dry_run: bool,
    /// Ask about each conflict, then show the changes that would be made, and ask whether to commit
    /// all or only some of them. Changes that are left out count as merged.
    #[arg(long, conflicts_with_all = ["dry_run", "keep"])]
    ask: bool,
    /// Do not commit: leave the transaction open for `kvfs txn diff`, `revert` and `commit`.
    #[arg(long, conflicts_with = "dry_run")]
    keep: bool,
    /// Drop the clone after the merge; in a rebase of a fork, drop the fork as it was before.
    #[arg(long, conflicts_with_all = ["dry_run", "keep"])]
    drop: bool,
    /// Print only totals: added, changed and removed.
    #[arg(long)]
    stat: bool,
    /// List the contents of added and removed directories instead of counting them.
    #[arg(long, short = 'a')]
    all: bool,
    /// Do not use a pager (KVFS_PAGER, PAGER or less).
    #[arg(long)]
    no_pager: bool,
}

/// A completed merge, or a dry run.
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

enum Merged {
    Done(Done),
    /// Not merged because of conflicts, which are listed instead.
    Against(Begun),
    /// The person who was asked has declined.
    Not(NotMerged),
}

/// The reason why nothing was merged after the question.
enum NotMerged {
    Aborted,
    /// Kept open, as the transaction of this number.
    Kept(u64),
}

/// The clone or the fork whose changes are merged.
struct Source {
    /// The name of the clone or the fork.
    name: String,
    /// The place of the fork, if it is one.
    fork: Option<OsString>,
    /// The branch that the clone is merged into, if that is not its parent.
    into: Option<String>,
    /// True for a rebase.
    rebase: bool,
}

impl Source {
    fn of(args: &Args, rebase: bool) -> Outcome<Source> {
        let Some(into) = &args.into else {
            return Ok(Source { name: clone_of(args)?, fork: None, into: None, rebase });
        };
        if rebase {
            let what = "a clone is rebased onto what it was made of, and so is the file of a fork";
            return Err(Failure::new(Exit::Usage, what).hint("kvfs rebase, without --into"));
        }
        if is_clone(args) {
            let into = Some(branch_named(&args.target, into)?);
            return Ok(Source { name: clone_of(args)?, fork: None, into, rebase });
        }
        if args.drop {
            let what = "a fork is dropped where it is: kvfs unpublish, or remove its file";
            return Err(Failure::new(Exit::Usage, what));
        }
        forked::check_target(into)?;
        let Forked { name, place } = Forked::parse(&args.target)?;
        Ok(Source { name, fork: Some(place), into: None, rebase })
    }

    /// Returns the store that is merged into, or a path in it.
    fn store<'a>(&self, args: &'a Args) -> &'a Path {
        args.into.as_ref().filter(|_| self.fork.is_some()).unwrap_or(&args.target)
    }

    fn ask<'a>(&'a self, choices: &'a Choices) -> Ask<'a> {
        let fork = self.fork.as_deref().map(OsStrExt::as_bytes);
        let Source { name: clone, rebase, .. } = self;
        let into = self.into.as_deref();
        Ask { clone, fork, into, rebase: *rebase, dry_run: false, attached: true, choices }
    }

    /// Describes a branch in words.
    fn named(&self, branch: &str) -> String {
        match self.fork {
            Some(_) if !branch.is_empty() => format!("fork {}", show(branch.as_bytes())),
            _ => named(branch),
        }
    }
}

fn merge(client: &mut Client, source: &Source, args: &Args) -> Outcome<Merged> {
    let ask = Ask { dry_run: args.dry_run, attached: !args.keep, ..source.ask(&args.choices) };
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
        call(client, &[b"CLONE", b"DROP", source.name.as_bytes()])?;
    }
    Ok(Merged::Done(Done { id, into, from, changes }))
}

/// Merges the changes that a person at the terminal accepts, in a mounted store.
fn merge_asking(source: &Source, args: &Args) -> Outcome<Merged> {
    let mut mounted = Mounted::find_branch(source.store(args))?;
    let hint = "decide beforehand: --dry-run shows it, --ours, --theirs and --both choose";
    let mut terminal = Terminal::open(hint)?;
    let mut choices = args.choices.clone();
    let begun = loop {
        let begun = begin(&source.ask(&choices), |words| mounted.call(words))?;
        if begun.conflicts.is_empty() {
            break begun;
        }
        mounted.txn(&["ABORT", &begun.id.to_string()])?;
        if !choose(&mut terminal, source, &begun, &mut choices)? {
            return Ok(Merged::Against(begun));
        }
    };
    let Begun { id, into, from, .. } = begun;
    let number = id.to_string();
    let mut question = Question::new(terminal, None);
    let changes = loop {
        match question.ask(&mut OfMount { mounted: &mut mounted, id })? {
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
        mounted.call(&[b"CLONE", b"DROP", source.name.as_bytes()])?;
    }
    let id = i64::try_from(id).map_err(|_| odd())?;
    Ok(Merged::Done(Done { id, into, from, changes }))
}

/// Asks about each conflict, and adds the answers to the choices. Returns `false` if the person
/// quits.
fn choose(
    terminal: &mut Terminal,
    source: &Source,
    against: &Begun,
    choices: &mut Choices,
) -> Outcome<bool> {
    let (ours, theirs) = (source.named(&against.into), source.named(&against.from));
    for conflict in &against.conflicts {
        // A path that is not UTF-8 cannot be passed as a choice.
        let Ok(path) = String::from_utf8(conflict.path.clone()) else { return Ok(false) };
        terminal.say(&format!("Conflict: {}", conflict.line(&ours, &theirs)))?;
        // A key cannot keep both versions.
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

/// Returns whether the source of the merge is a clone, as opposed to a fork.
fn is_clone(args: &Args) -> bool {
    args.clone.is_some() || place::branch_of(&args.target).is_ok_and(|name| !name.is_empty())
}

/// Returns the branch that `--into` names, in the clone's own store.
fn branch_named(target: &Path, into: &Path) -> Outcome<String> {
    let (store, _) = place::store_and_branch(target)?;
    if !into.exists() {
        let name = into.to_str().filter(|name| !name.is_empty());
        let bad = || Failure::new(Exit::Usage, "--into names a clone, or is a path of one");
        return name.map(str::to_owned).ok_or_else(bad);
    }
    let (there, branch) = place::store_and_branch(into)?;
    let full = |path: &Path| std::fs::canonicalize(path).unwrap_or_else(|_| path.to_owned());
    if full(&there) != full(&store) {
        let what = format!(
            "{} is not of the store that the clone is in: a clone is merged in its own store",
            into.shown()
        );
        return Err(Failure::new(Exit::Usage, what));
    }
    Ok(branch)
}

fn clone_of(args: &Args) -> Outcome<String> {
    let branch = place::branch_of(&args.target)?;
    // The mount of one clone alone stands for that clone, unless another one is named.
    let is_named = place::named_clone(&args.target)?.is_some();
    match (&args.clone, branch.is_empty()) {
        (Some(name), _) if !is_named => Ok(name.clone()),
        (None, false) => Ok(branch),
        (Some(_), _) => {
            let what = "the path names a clone already: give one clone, by its path or its name";
            Err(Failure::new(Exit::Usage, what))
        }
        (None, true) => Err(Failure::new(Exit::Usage, "which clone?")
            .hint("give its path, as /mnt/.kvfs/clone/NAME, or its name after the store")),
    }
}

fn print(done: Done, args: &Args, source: &Source, output: &Output) -> Outcome {
    let Done { id, into, from, changes } = done;
    let detail = Detail::of_undo(args.stat, args.no_pager);
    let end = match () {
        () if args.dry_run => "nothing was changed".to_owned(),
        () if args.keep => not_committed(id),
        () if args.drop => format!("done, and clone {} is dropped", show(source.name.as_bytes())),
        () => "done".to_owned(),
    };
    let text = format!("{} into {}: {end}\n", source.named(&from), source.named(&into));
    if !output.is_json() {
        // With `--ask`, they were shown before the question.
        if !args.ask {
            changes.print(detail, output)?;
        }
        return output.print(text, ());
    }
    // Build the list only if needed, since it may be long.
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

fn print_conflicts(against: &Begun, source: &Source, output: &Output) -> Outcome {
    let Begun { into, from, conflicts, more, .. } = against;
    if output.is_json() {
        let all: Vec<Value> = conflicts.iter().map(Conflict::json).collect();
        return output
            .print("", json!({"into": into, "from": from, "conflicts": all, "more": more}));
    }
    output.print(listed(conflicts, *more, &source.named(into), &source.named(from)), ())
}

fn run_as(args: Args, rebase: bool, output: &Output) -> Outcome<bool> {
    let source = Source::of(&args, rebase)?;
    let verb = if rebase { "rebase" } else { "merge" };
    let merged = match args.ask {
        true => proposed::again(|| merge_asking(&source, &args))?,
        false => proposed::with_store(source.store(&args), verb, |client, mounted| {
            if args.keep && !mounted {
                return Err(Failure::new(
                    Exit::Usage,
                    "a transaction of a store that is not mounted ends with this command",
                )
                .hint("mount the store, or leave out --keep"));
            }
            proposed::again(|| merge(client, &source, &args))
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
        Merged::Done(done) => print(done, &args, &source, output).map(|()| true),
        Merged::Against(against) => {
            print_conflicts(&against, &source, output)?;
            output.note(
                "both sides have changed these, and nothing was changed: choose with --ours, \
                 --theirs or --both PATH",
            );
            Ok(false)
        }
    }
}

/// Returns the exit code of a merge or a rebase. `Ok(false)` stands for conflicts, which were
/// printed.
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

/// Merges in the other direction.
pub fn rebase(args: Args, output: &Output) -> ExitCode {
    let of_fork = match args.clone.is_none() && args.into.is_none() {
        true => fork_file::rebase(&args, output),
        false => Ok(None),
    };
    let outcome = of_fork.and_then(|done| done.map_or_else(|| run_as(args, true, output), Ok));
    end(outcome, output)
}
