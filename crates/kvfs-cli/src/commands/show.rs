//! `kvfs show`: shows the changes of a transaction's commit.

use std::path::PathBuf;

use serde_json::json;

use crate::support::mounts::place;
use crate::support::review::changes::Detail;
use crate::support::stores::snapshots;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;

/// Show the files and keys that the commit of a transaction has changed.
#[derive(clap::Args)]
#[command(after_help = "\
Commits that can be undone are kept, with the states before and after them: `kvfs history` lists \
them. Later changes by others are not shown.

  kvfs run /mnt -- make install
  kvfs show /mnt                      # the last commit
  kvfs show /mnt 1843 --stat
  kvfs undo /mnt --commit 1843")]
pub struct Args {
    /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
    /// store that is not mounted.
    target: PathBuf,
    /// Number of the commit in `kvfs history` (default: the last commit).
    commit: Option<u64>,
    #[command(flatten)]
    detail: Detail,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let (target, branch) = place::store_and_branch(&args.target)?;
    let commits = snapshots::commits(&target, &branch)?;
    let found = match args.commit {
        Some(wanted) => commits.iter().find(|commit| commit["number"].as_u64() == Some(wanted)),
        None => commits.last(),
    };
    let Some(commit) = found else {
        let what = match args.commit {
            Some(wanted) => format!("commit {wanted} is not kept"),
            None => "no commit is kept".into(),
        };
        return Err(Failure::new(Exit::NotFound, what).hint("kvfs history lists those that are"));
    };
    let number = commit["number"].as_u64().unwrap_or(0);
    let changes = snapshots::of_commit(&target, number, args.detail.wanted())?;
    let label = commit["label"].as_str().unwrap_or("");
    if output.is_json() {
        let mut object = commit.clone();
        object.insert("changes".into(), changes.json(args.detail));
        return output.print("", json!(object));
    }
    let made = snapshots::time(commit["created"].as_u64().unwrap_or(0));
    let heading = format!("commit {number}  {}", text::show(label.as_bytes()));
    let heading = format!("{}  {made} UTC\n", heading.trim_end());
    changes.print_below(&heading, args.detail, output)
}
