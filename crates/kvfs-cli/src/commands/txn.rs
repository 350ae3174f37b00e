//! `kvfs txn`: manages transactions explicitly.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Subcommand;
use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::commands::merge;
use crate::commands::run::{self, How, enter};
use crate::support::machine::sandbox;
use crate::support::mounts::mounted::{self, Commit, Mounted, fields};
use crate::support::mounts::place::View;
use crate::support::review::changes::{Changes, Choice, Detail, Wanted};
use crate::support::review::merge_requests::{
    self, Choices, Conflict, Rebased, rebase_transaction,
};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::{show, with_paths};

/// Begin, use and end transactions over the files and keys of a mounted store.
#[derive(clap::Args)]
#[command(after_help = "\
A transaction stays open until a command ends it, however many programs work in it:

  id=$(kvfs txn begin /mnt)
  kvfs txn exec /mnt $id -- make          # or work in /mnt/.kvfs/txn/$id
  kvfs txn diff /mnt $id
  kvfs txn revert /mnt $id notes tmp      # undo these parts
  kvfs txn commit /mnt $id                # or abort; --if STATE: only if unchanged since diff

Inside of `kvfs run` and `kvfs txn exec` the number may be left out, and also if the path \
contains it: /mnt/.kvfs/txn/17")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Begin a transaction, and print its number.
    Begin {
        /// Directory a store is mounted on, or a clone in it (/mnt/.kvfs/clone/NAME), to begin the
        /// transaction in that clone.
        mount: PathBuf,
        /// Nest the new transaction in transaction ID: it sees ID's changes and commits into it.
        #[arg(long, value_name = "ID")]
        within: Option<u64>,
        #[command(flatten)]
        how: How,
    },
    /// Run a program in an open transaction, which stays open; exits with the exit code of the
    /// program.
    Exec {
        /// Directory a store is mounted on.
        mount: PathBuf,
        /// Number of the transaction.
        id: u64,
        /// Make the view the root of the program.
        #[arg(long)]
        chroot: bool,
        /// End the program, and all processes that it has started, when the process that started
        /// this command ends.
        #[arg(long, hide = true, value_name = "PROCESS")]
        ends_with: Option<i32>,
        /// Program and its arguments, after `--`.
        #[arg(last = true, required = true, value_name = "COMMAND")]
        command: Vec<OsString>,
    },
    /// List the open transactions.
    #[command(visible_alias = "ls")]
    List {
        /// Directory a store is mounted on, or a clone in it, to list only the transactions of that
        /// clone.
        mount: PathBuf,
        /// Show nested transactions below their parents.
        #[arg(long)]
        tree: bool,
    },
    /// Show the state of a transaction.
    Status {
        /// Directory a store is mounted on, or the path of the transaction (/mnt/.kvfs/txn/17),
        /// which contains the number.
        mount: PathBuf,
        /// Number of the transaction; it may be left out inside of `kvfs run` and `kvfs txn exec`,
        /// and if the path contains it.
        id: Option<u64>,
    },
    /// Show the changes of a transaction: files and keys.
    Diff {
        /// Directory a store is mounted on, or the path of the transaction (/mnt/.kvfs/txn/17),
        /// which contains the number.
        mount: PathBuf,
        /// Number of the transaction; it may be left out inside of `kvfs run` and `kvfs txn exec`,
        /// and if the path contains it.
        id: Option<u64>,
        /// Show only changes at these paths and below them, from the root of the store.
        paths: Vec<OsString>,
        #[command(flatten)]
        detail: Detail,
    },
    /// Revert the changes of a transaction at these paths and below them, and of these keys; all
    /// others stay.
    Revert {
        /// Directory a store is mounted on.
        mount: PathBuf,
        /// Number of the transaction.
        id: u64,
        /// Paths to revert, from the root of the store, as `diff` shows them. "." means all files.
        #[arg(required_unless_present = "keys")]
        paths: Vec<OsString>,
        /// Key to revert, with its elements and its deadline, as `diff` shows it: dictionary:key.
        /// May be repeated.
        #[arg(long = "key", value_name = "DICTIONARY:KEY")]
        keys: Vec<OsString>,
    },
    /// Commit a transaction: make its changes part of the store, all at once.
    Commit {
        /// Directory a store is mounted on, or the path of the transaction (/mnt/.kvfs/txn/17),
        /// which contains the number.
        mount: PathBuf,
        /// Number of the transaction; it may be left out inside of `kvfs run` and `kvfs txn exec`,
        /// and if the path contains it.
        id: Option<u64>,
        /// Commit only if the transaction is still in the state that `kvfs txn diff` printed.
        #[arg(long = "if", value_name = "STATE")]
        only_if: Option<String>,
        /// Abort open nested transactions; without this, the commit fails if there are any.
        #[arg(long)]
        abort_nested: bool,
        /// Do not wait until the commit is on disk; it gets there within the flush interval.
        #[arg(long)]
        no_sync: bool,
    },
    /// Rebase a transaction onto the commits made since it began, so that it can be committed after
    /// a conflict. It continues as another transaction, whose number is printed. If both have
    /// changed the same files or keys, these are listed, the exit code is 75, and the transaction
    /// stays as it was.
    #[command(after_help = "\
Examples:
  kvfs txn rebase /mnt 17                        # prints 18, say
  kvfs txn rebase /mnt 17 --ours src --theirs .  # its version below src, else the committed one
  kvfs txn diff /mnt 18
  kvfs txn commit /mnt 18

--ours selects the version of the transaction, --theirs the committed one; with --both the \
version of the transaction gets a name with ~ and its number. Files and keys that the transaction \
has only read are not compared. The savepoints of the transaction are lost.")]
    Rebase {
        /// Directory a store is mounted on, or the path of the transaction (/mnt/.kvfs/txn/17),
        /// which contains the number.
        mount: PathBuf,
        /// Number of the transaction; it may be left out inside of `kvfs run` and `kvfs txn exec`,
        /// and if the path contains it.
        id: Option<u64>,
        #[command(flatten)]
        choices: Choices,
    },
    /// Abort a transaction and discard its changes.
    Abort {
        /// Directory a store is mounted on, or the path of the transaction (/mnt/.kvfs/txn/17),
        /// which contains the number.
        mount: PathBuf,
        /// Number of the transaction; it may be left out inside of `kvfs run` and `kvfs txn exec`,
        /// and if the path contains it.
        id: Option<u64>,
    },
}

/// Runs the command. `exec` and `rebase` have exit codes of their own.
pub fn run(args: Args, output: &Output) -> ExitCode {
    if let Action::Exec { mount, id, chroot, ends_with, command } = &args.action {
        return match named(mount, Some(*id)).and_then(|(mut mounted, id)| {
            enter(&mut mounted, id, *chroot, *ends_with, command, output)
        }) {
            Ok(code) => ExitCode::from(code),
            Err(failure) => {
                output.print_error(&failure);
                ExitCode::from(sandbox::NOT_STARTED)
            }
        };
    }
    if let Action::Rebase { mount, id, choices } = &args.action {
        let found = named(mount, *id);
        let done = found.and_then(|(mounted, id)| rebase(mounted, id, choices, output));
        return merge::end(done, output);
    }
    output.finish(act(args.action, output))
}

/// Rebases a transaction. Returns `false` if there are conflicts.
fn rebase(mut mounted: Mounted, id: u64, choices: &Choices, output: &Output) -> Outcome<bool> {
    match rebase_transaction(id, choices, |words| mounted.call(words))? {
        Rebased::Done(new) => {
            let value = json!({"id": new, "was": id});
            output.print(new, with_paths(value, &[("view", Some(&mounted.view(new)))]))?;
            Ok(true)
        }
        Rebased::Against(conflicts, more) => {
            let all: Vec<Value> = conflicts.iter().map(Conflict::json).collect();
            let text = merge_requests::listed(
                &conflicts,
                more,
                &format!("transaction {id}"),
                "what is there now",
            );
            output.print(text, json!({"conflicts": all, "more": more}))?;
            output.note(
                "others have changed these, too, and the transaction is as it was: choose with \
                 --ours, --theirs or --both PATH",
            );
            Ok(false)
        }
    }
}

/// Returns whether a transaction belongs to the branch that the path leads to, or is shown by the
/// mount of a clone alone, as those of its own clones are.
fn is_of(mounted: &mut Mounted, id: u64) -> bool {
    let is_shown = mounted.bound && mounted.view(id).is_dir();
    is_shown || mounted.view_beneath(id).is_ok_and(|view| view == mounted.view)
}

/// Returns the store, and the transaction that the arguments name.
fn named(mount: &Path, id: Option<u64>) -> Outcome<(Mounted, u64)> {
    let mut mounted = Mounted::find_view(mount)?;
    let by_path = match mounted.view.clone() {
        View::Mainline => None,
        // The transaction may be one of this clone.
        View::Clone(_) if id.is_some_and(|id| is_of(&mut mounted, id)) => None,
        // The number may name another transaction, if the path does not name this one.
        View::Transaction(_) if id.is_some() && mounted.bound => None,
        View::Transaction(this) if id.is_none_or(|id| id == this) => Some(this),
        view => {
            let what = format!("{} leads into {view}, which is another one", mount.shown());
            return Err(Failure::new(Exit::Usage, what).hint(format!(
                "give the directory of the mount: {}",
                mounted.mount_point.shown()
            )));
        }
    };
    let id = id.or(by_path).or_else(|| mounted.entered()).ok_or_else(|| {
        Failure::new(Exit::Usage, "which transaction?")
            .hint(format!("give its number; kvfs txn list {} lists them", mount.shown()))
    })?;
    Ok((mounted, id))
}

fn act(action: Action, output: &Output) -> Outcome {
    match action {
        Action::Exec { .. } | Action::Rebase { .. } => Ok(()),
        Action::Begin { mount, within, how } => {
            let mut mounted = Mounted::find_branch(&mount)?;
            let id = how.begin(&mut mounted, within, false, "")?;
            let environment = with_paths(
                json!({mounted::TRANSACTION: id.to_string()}),
                &[(mounted::SOCKET, Some(&mounted.socket))],
            );
            let value = json!({"id": id, "environment": environment});
            output.print(id, with_paths(value, &[("view", Some(&mounted.view(id)))]))
        }
        Action::List { mount, tree } => list(&mount, tree, output),
        Action::Status { mount, id } => status(&mount, id, output),
        Action::Diff { mount, id, paths, detail } => diff(&mount, id, &paths, detail, output),
        Action::Revert { mount, id, paths, keys } => revert(&mount, id, &paths, &keys, output),
        Action::Commit { mount, id, only_if, abort_nested, no_sync } => {
            let (mut mounted, id) = named(&mount, id)?;
            let how =
                Commit { sync: !no_sync, state: only_if.as_deref(), abort_nested, stay: true };
            let done = mounted.commit(id, how);
            done.map_err(|why| run::kept(&mut mounted, id, "what was done in it", why))?;
            output.print("", json!({"committed": id}))
        }
        Action::Abort { mount, id } => {
            let (mut mounted, id) = named(&mount, id)?;
            mounted.txn(&["ABORT", &id.to_string()])?;
            output.print("", json!({"aborted": id}))
        }
    }
}

fn list(mount: &Path, tree: bool, output: &Output) -> Outcome {
    let mut mounted = Mounted::find_branch(mount)?;
    let Reply::Array(all) = mounted.txn(&["LIST"])? else { return Err(odd()) };
    let mut all: Vec<Map<String, Value>> = all.into_iter().map(fields).collect::<Outcome<_>>()?;
    if let Some(clone) = mounted.view.clone_name() {
        all.retain(|info| info["clone"] == clone);
    }
    let mut text = String::new();
    if !all.is_empty() {
        let _ = writeln!(
            text,
            "{:>6}  {:4}  {:>8}  {:>8}  {:>8}  LABEL",
            "ID", "", "AGE", "IDLE", "SIZE"
        );
    }
    for (info, depth) in listed(&all, tree) {
        let size = human_size(
            info["memory"].as_u64().unwrap_or(0) + info["run_bytes"].as_u64().unwrap_or(0),
        );
        let clone = match info["clone"].as_str().unwrap_or("") {
            "" => String::new(),
            clone => format!("  (clone {})", show(clone.as_bytes())),
        };
        let _ = writeln!(
            text,
            "{:>6}  {:4}  {:>8}  {:>8}  {size:>8}  {:indent$}{}{clone}",
            info["id"].as_u64().unwrap_or(0),
            info["isolation"].as_str().unwrap_or(""),
            duration(&info["age_ms"]),
            duration(&info["idle_ms"]),
            "",
            show(info["label"].as_str().unwrap_or("").as_bytes()),
            indent = 2 * depth
        );
    }
    output.print(text, all)
}

fn status(mount: &Path, id: Option<u64>, output: &Output) -> Outcome {
    let (mut mounted, id) = named(mount, id)?;
    let info = fields(mounted.txn(&["STATUS", &id.to_string()])?)?;
    let isolation = if info["isolation"] == "ser" { "serializable" } else { "snapshot isolation" };
    let of = match info["clone"].as_str().unwrap_or("") {
        "" => String::new(),
        clone => format!(" of clone {}", show(clone.as_bytes())),
    };
    let within = info["within"].as_u64();
    let within = within.map_or(String::new(), |id| format!(" within transaction {id}"));
    let text = format!(
        "transaction {id}{of}{within}: {isolation}\nlabel    {}\nage      {}\nidle     {}\nchanges  {}\nsize     {} in memory, {} in runs of its own\nview     {}\n",
        show(info["label"].as_str().unwrap_or("").as_bytes()),
        duration(&info["age_ms"]),
        duration(&info["idle_ms"]),
        info["changes"],
        human_size(info["memory"].as_u64().unwrap_or(0)),
        human_size(info["run_bytes"].as_u64().unwrap_or(0)),
        mounted.view(id).shown(),
    );
    output.print(text, info)
}

/// Shows the changes of a transaction, all of them or those at `paths`.
fn diff(
    mount: &Path,
    id: Option<u64>,
    paths: &[OsString],
    detail: Detail,
    output: &Output,
) -> Outcome {
    let (mut mounted, id) = named(mount, id)?;
    let mut wanted = detail.wanted();
    let mut changes = Changes::of(&mut mounted, id, wanted)?;
    if !paths.is_empty() {
        let paths: Vec<&[u8]> = paths.iter().map(|path| path.as_bytes()).collect();
        // The complete list is long, so it is requested only if needed.
        if !wanted.all && !changes.lists(&paths) {
            wanted.all = true;
            changes = Changes::of(&mut mounted, id, wanted)?;
        }
        changes.keep(&paths)?;
    }
    changes.print(detail, output)?;
    if let Some(state) = &changes.state {
        output.note(format!("state {state}: to commit this and nothing else, --if {state}"));
    }
    Ok(())
}

fn revert(
    mount: &Path,
    id: u64,
    paths: &[OsString],
    keys: &[OsString],
    output: &Output,
) -> Outcome {
    let (mut mounted, id) = named(mount, Some(id))?;
    let changes = Changes::of(&mut mounted, id, Wanted::default())?;
    // Look up all paths before anything is reverted.
    let mut choices = Vec::new();
    for path in paths {
        choices.extend(changes.choices_at(path.as_bytes())?);
    }
    for key in keys {
        choices.push(changes.choice_of_key(key.as_bytes())?);
    }
    changes.revert(&mut mounted, id, &Choice::distinct(choices))?;
    output.print("", json!({"reverted": paths.len() + keys.len()}))
}

/// Returns the transactions in the order of the list, each with its nesting depth; with `tree`,
/// nested transactions directly follow their parent.
fn listed(all: &[Map<String, Value>], tree: bool) -> Vec<(&Map<String, Value>, usize)> {
    fn add<'a>(
        all: &'a [Map<String, Value>],
        around: Option<u64>,
        depth: usize,
        out: &mut Vec<(&'a Map<String, Value>, usize)>,
    ) {
        for info in all.iter().filter(|info| info["within"].as_u64() == around) {
            out.push((info, depth));
            add(all, info["id"].as_u64(), depth + 1, out);
        }
    }
    if !tree {
        return all.iter().map(|info| (info, 0)).collect();
    }
    let mut out = Vec::new();
    add(all, None, 0, &mut out);
    out
}

fn odd() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")
}

/// Formats a duration, like "3 s", "5 min", "2 h".
fn duration(millis: &Value) -> String {
    match millis.as_u64().unwrap_or(0) {
        ms if ms < 1000 => format!("{ms} ms"),
        ms if ms < 120_000 => format!("{} s", ms / 1000),
        ms if ms < 7_200_000 => format!("{} min", ms / 60_000),
        ms => format!("{} h", ms / 3_600_000),
    }
}
