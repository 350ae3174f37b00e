//! `kvfs history`: the states of a store that are kept, in the order of time.

use std::path::PathBuf;

use serde_json::{Map, Value, json};

use crate::changes::{Changes, Detail, Style};
use crate::output::{Outcome, Output};
use crate::sizes::human_size;
use crate::snapshot;

/// Show the snapshots of a store by name and time, the newest first, and what each of them keeps.
#[derive(clap::Args)]
#[command(after_help = "\
HELD is what the store would give back if that snapshot were dropped alone. --changes compares each with the one before it, and now with the
newest; it costs what has changed. Commits have no names: a snapshot gives one to a state.

  kvfs history /mnt --changes
  kvfs diff /mnt monday tuesday        # all of it
  kvfs restore /mnt monday src         # what lay there")]
pub struct Args {
    /// The directory a store is mounted on, or the file of a store that is not mounted.
    target: PathBuf,
    /// Say how much has changed up to each of them.
    #[arg(long)]
    changes: bool,
    /// At most so many.
    #[arg(long, short = 'n', value_name = "N")]
    limit: Option<usize>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let mut all = snapshot::all(&args.target)?;
    // Those of clones have a history of their own.
    all.retain(|info| info["clone"].as_str().is_none_or(str::is_empty));
    let names: Vec<String> =
        all.iter().map(|info| info["name"].as_str().unwrap_or("").to_string()).collect();
    let first = all.len().saturating_sub(args.limit.unwrap_or(usize::MAX));
    let since = |before: Option<&String>, after: Option<&String>| -> Outcome<Option<Changes>> {
        match before.filter(|_| args.changes) {
            Some(before) => {
                snapshot::between(&args.target, before, after.map(String::as_str)).map(Some)
            }
            None => Ok(None),
        }
    };
    let summary = |changes: &Option<Changes>| {
        let text = changes.as_ref().map(|changes| changes.text(Detail::STAT, Style::default()));
        text.map(|text| format!("  {}", String::from_utf8_lossy(&text).trim_end()))
            .unwrap_or_default()
    };
    let (mut text, mut list) = (String::new(), Vec::new());
    let now = since(names.last(), None)?;
    if args.changes && !names.is_empty() {
        text.push_str(&format!("{:20}  {:>8}  now{}\n", "", "", summary(&now)));
    }
    for at in (first..all.len()).rev() {
        let info = &all[at];
        let before = at.checked_sub(1).and_then(|before| names.get(before));
        let changes = since(before, names.get(at))?;
        text.push_str(&format!(
            "{:20}  {:>8}  {}{}\n",
            snapshot::time(info["created"].as_u64().unwrap_or(0)),
            human_size(info["unique_bytes"].as_u64().unwrap_or(0)),
            names[at],
            summary(&changes)
        ));
        list.push(described(info, changes));
    }
    if text.is_empty() {
        text.push_str("there are no snapshots: kvfs snapshot create gives a state a name\n");
    } else {
        text.insert_str(0, &format!("{:20}  {:>8}  NAME\n", "CREATED (UTC)", "HELD"));
    }
    let now = now.map(|changes| changes.json(Detail::default()));
    output.print(text, json!({"snapshots": list, "now": now}))
}

fn described(info: &Map<String, Value>, changes: Option<Changes>) -> Value {
    let mut object = info.clone();
    if let Some(changes) = changes {
        object.insert("changes".into(), changes.json(Detail::default()));
    }
    Value::Object(object)
}
