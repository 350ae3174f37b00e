//! `kvfs undo`: undoes the commit of a transaction by a new commit.

use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb_server::{Client, Reply};
use serde_json::json;

use crate::support::mounts::place;
use crate::support::over::differences;
use crate::support::over::folder::Folder;
use crate::support::over::undo::Last;
use crate::support::review::changes::{Changes, Detail};
use crate::support::review::proposed::{self, call, odd};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::show;

/// Undo the last commit of a transaction, files and keys, by a new commit.
#[derive(clap::Args)]
#[command(after_help = "\
The changes of the transaction are reverted, and all later changes by others stay. If others have \
changed the same file or key, nothing is undone, and the conflicts are listed. An undo is itself \
a commit: undoing it restores the changes.

  kvfs run /mnt -- make install
  kvfs undo /mnt --dry-run            # only show the changes
  kvfs undo /mnt
  kvfs history /mnt                   # the commits that can be undone
  kvfs undo /mnt --commit 1843

After `kvfs run --over DIR` the last run over the folder is undone: kvfs undo DIR. That cannot be \
undone in turn.

Commits of `kvfs run`, `txn commit`, `restore`, `import`, `undo`, of agents, and of clients that \
ask for it (TXN BEGIN UNDOABLE) can be undone: the newest 16, for a day, and none from before the \
store was full. Until then the space of the data that they removed is kept.")]
pub struct Args {
    /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), the file of a store
    /// that is not mounted, or a folder that a program was run over (kvfs run --over).
    target: PathBuf,
    /// Undo this commit, by its number in `kvfs history`, instead of the last one.
    #[arg(long, short = 'c', value_name = "NUMBER")]
    commit: Option<u64>,
    /// Print only totals: added, changed and removed.
    #[arg(long)]
    stat: bool,
    /// List the contents of added and removed directories instead of counting them.
    #[arg(long, short = 'a')]
    all: bool,
    /// Do not use a pager (KVFS_PAGER, PAGER or less).
    #[arg(long)]
    no_pager: bool,
    /// Print the changes that would be undone, and undo nothing.
    #[arg(long)]
    dry_run: bool,
}

/// Limit of the names that are looked up before an undo.
const MOST_LOOKED_UP: usize = 10_000;

/// A commit that was undone, or would be.
struct Undone {
    number: u64,
    label: String,
    changes: Changes,
}

/// Undoes a commit, the last one unless `chosen` names another. The commit is noted in `chosen`: if
/// others commit in the meantime, another attempt must not undo theirs.
fn undo(
    client: &mut Client,
    mounted: bool,
    args: &Args,
    chosen: &mut Option<u64>,
) -> Outcome<Undone> {
    let number = chosen.map(|number| number.to_string());
    let mut words = vec![&b"TXN"[..], b"UNDO"];
    words.extend(number.as_ref().map(|number| number.as_bytes()));
    words.push(b"ATTACHED");
    let Reply::Array(reply) = call(client, &words)? else { return Err(odd()) };
    let [Reply::Integer(id), Reply::Integer(number), Reply::Bulk(label), Reply::Array(changed)] =
        &reply[..]
    else {
        return Err(odd());
    };
    let (id, number) = (*id, u64::try_from(*number).unwrap_or(0));
    *chosen = Some(number);
    let label = String::from_utf8_lossy(label).into_owned();
    let looked = match changed.is_empty() {
        true => proposed::look(client, id, args.all),
        false => Err(stands_against(number, &label, changed)),
    };
    let changes = match args.dry_run {
        true => {
            proposed::abort(client, id);
            looked
        }
        false => {
            if let (true, Ok(changes)) = (mounted, &looked) {
                look_up_added(&args.target, changes);
            }
            proposed::commit(client, id, looked)
        }
    };
    Ok(Undone { number, label, changes: changes? })
}

/// Looks up the names that an undo brings back. The kernel keeps a name that a commit has removed
/// until the next look-up, and with it a file that no program has open any more: if a program has
/// written to such a file before it closed it, the undo would conflict with that.
fn look_up_added(root: &Path, changes: &Changes) {
    for path in changes.added().take(MOST_LOOKED_UP) {
        let _ = std::fs::symlink_metadata(root.join(OsStr::from_bytes(path)));
    }
}

/// Returns a commit's number with its label, if it has one.
pub fn named(number: u64, label: &str) -> String {
    match label.is_empty() {
        true => format!("commit {number}"),
        false => format!("commit {number} ({})", show(label.as_bytes())),
    }
}

/// Returns the failure if others have changed the same data since the commit.
pub fn stands_against(number: u64, label: &str, changed: &[Reply]) -> Failure {
    let what = format!(
        "{} cannot be undone: it was changed since then: {}",
        named(number, label),
        proposed::some_of_others(&proposed::names(changed))
    );
    Failure::new(Exit::Conflict, what)
        .hint("nothing was changed; bring single files back from a snapshot with kvfs restore")
}

/// Takes the last run over a folder back.
fn undo_over(folder: &Folder, args: &Args, output: &Output) -> Outcome {
    if args.commit.is_some() {
        let what = "of the runs over a folder the last one can be undone: --commit is for stores";
        return Err(Failure::new(Exit::Usage, what).hint("leave it out"));
    }
    let last = Last::find(folder, output)?;
    let changes = differences::of_undo(&last.now, &last.before, &last.log)?;
    let label = last.log.label.clone();
    if !args.dry_run {
        last.undo()?;
    }
    let end = if args.dry_run { "nothing was changed" } else { "undone" };
    let text = format!("the run ({}): {end}\n", show(label.as_bytes()));
    let detail = Detail::of_undo(args.stat, args.no_pager);
    if !output.is_json() {
        changes.print(detail, output)?;
        return output.print(text, ());
    }
    let changes = changes.json(detail);
    output.print(
        text,
        json!({"commit": null, "label": label, "changes": changes, "dry_run": args.dry_run}),
    )
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(folder) = Folder::with_state(&args.target) {
        return undo_over(&folder, &args, output);
    }
    place::must_be_a_branch(&args.target)?;
    let undone = proposed::with_store(&args.target, "undo", |client, mounted| {
        if mounted {
            proposed::enter(client, &args.target)?;
        }
        let mut chosen = args.commit;
        proposed::again(|| undo(client, mounted, &args, &mut chosen))
    })?;
    let Undone { number, label, changes } = undone;
    let detail = Detail::of_undo(args.stat, args.no_pager);
    let end = if args.dry_run { "nothing was changed" } else { "undone" };
    let text = format!("{}: {end}\n", named(number, &label));
    if !output.is_json() {
        changes.print(detail, output)?;
        return output.print(text, ());
    }
    let changes = changes.json(detail);
    output.print(
        text,
        json!({"commit": number, "label": label, "changes": changes, "dry_run": args.dry_run}),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_without_a_label_is_named_by_its_number() {
        assert_eq!(named(8, ""), "commit 8");
        assert_eq!(named(8, "sh -c x"), "commit 8 (sh -c x)");
    }
}
