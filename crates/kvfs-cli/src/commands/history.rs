//! `kvfs history`: lists the snapshots of a store and the commits that can be undone, in order of
//! time.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::support::mounts::place;
use crate::support::review::changes::{Changes, Detail, Style};
use crate::support::stores::snapshots;
use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;

/// Show the snapshots of a store and the commits that can be undone, the newest first, with the
/// space that each of them holds.
#[derive(clap::Args)]
#[command(after_help = "\
HELD is the space that would be freed if this snapshot alone were dropped, or if this commit \
alone could no longer be undone. --changes compares each snapshot with the one before it, and the \
current state with the newest snapshot; its cost is proportional to the changes.

A commit is named by its number. It is listed for a day at most, while it is one of the newest \
16, and until the store is full; a snapshot is listed until it is dropped.

  kvfs history /mnt --changes
  kvfs diff /mnt monday tuesday        # all changes
  kvfs restore /mnt monday src         # restore a path
  kvfs undo /mnt --commit 1843         # revert that commit")]
pub struct Args {
    /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
    /// store that is not mounted.
    target: PathBuf,
    /// Count the changes between each snapshot and the one before it.
    #[arg(long)]
    changes: bool,
    /// Show at most N entries.
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
}

/// The subject of a line.
enum Entry {
    Snapshot { at: usize },
    Commit { at: usize },
}

fn number(info: &Map<String, Value>, name: &str) -> u64 {
    info[name].as_u64().unwrap_or(0)
}

pub fn run(args: Args, output: &Output) -> Outcome {
    // Each clone has its own history.
    let (target, branch) = place::store_and_branch(&args.target)?;
    let mut all = snapshots::all(&target)?;
    all.retain(|info| info["clone"].as_str().unwrap_or_default() == branch);
    let commits = snapshots::commits(&target, &branch)?;
    let names: Vec<String> =
        all.iter().map(|info| info["name"].as_str().unwrap_or("").to_string()).collect();
    // Both lists are in order of time. Within the same second, a snapshot comes before a commit,
    // since snapshots are often made right before a change.
    let mut entries: Vec<(u64, Entry)> = (0..all.len())
        .map(|at| (number(&all[at], "created"), Entry::Snapshot { at }))
        .chain((0..commits.len()).map(|at| (number(&commits[at], "created"), Entry::Commit { at })))
        .collect();
    entries.sort_by_key(|(created, _)| *created);
    entries.reverse();
    entries.truncate(args.limit.unwrap_or(usize::MAX));
    let since = |before: Option<&String>, after: Option<&String>| -> Outcome<Option<Changes>> {
        match before.filter(|_| args.changes) {
            Some(before) => {
                snapshots::between(&target, before, after.map(String::as_str)).map(Some)
            }
            None => Ok(None),
        }
    };
    let summary = |changes: &Option<Changes>| {
        let text = changes.as_ref().map(|changes| changes.text(Detail::STAT, Style::default()));
        text.map(|text| format!("  {}", String::from_utf8_lossy(&text).trim_end()))
            .unwrap_or_default()
    };
    let (mut lines, mut list, mut commit_list) = (String::new(), Vec::new(), Vec::new());
    let now = since(names.last(), None)?;
    if args.changes && !names.is_empty() {
        lines.push_str(&format!("{:20}  {:>8}  now{}\n", "", "", summary(&now)));
    }
    for (created, entry) in entries {
        let (held, name) = match entry {
            Entry::Snapshot { at } => {
                let before = at.checked_sub(1).and_then(|before| names.get(before));
                let changes = since(before, names.get(at))?;
                let name = format!("{}{}", text::show(names[at].as_bytes()), summary(&changes));
                list.push(described(&all[at], changes));
                (number(&all[at], "unique_bytes"), name)
            }
            Entry::Commit { at } => {
                let commit = &commits[at];
                commit_list.push(Value::Object(commit.clone()));
                let label = commit["label"].as_str().unwrap_or("");
                let label = text::show(label.as_bytes());
                let name = format!("commit {}  {label}", number(commit, "number"));
                (number(commit, "held_bytes"), name.trim_end().to_owned())
            }
        };
        let created = snapshots::time(created);
        lines.push_str(&format!("{created:20}  {:>8}  {name}\n", human_size(held)));
    }
    if lines.is_empty() {
        lines.push_str("there are no snapshots, and no commits that can be undone: kvfs snapshot create gives a state a name\n");
    } else {
        lines.insert_str(0, &format!("{:20}  {:>8}  NAME\n", "CREATED (UTC)", "HELD"));
    }
    let now = now.map(|changes| changes.json(Detail::default()));
    output.print(lines, json!({"snapshots": list, "commits": commit_list, "now": now}))
}

fn described(info: &Map<String, Value>, changes: Option<Changes>) -> Value {
    let mut object = info.clone();
    if let Some(changes) = changes {
        object.insert("changes".into(), changes.json(Detail::default()));
    }
    Value::Object(object)
}
