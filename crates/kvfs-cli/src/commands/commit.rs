//! `kvfs commit`: ends a mount that is a transaction on a server.

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use serde_json::{Value, json};

use crate::commands::{merge, umount};
use crate::support::serving::guest;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// Commit the changes in a mount of `kvfs mount kvfs+unix:SOCKET DIR --txn`, and unmount it.
#[derive(clap::Args)]
#[command(after_help = "\
All changes become part of the store of the server at once. If others have changed the same files \
since the mount, the conflicts are listed, nothing is changed on the server, the exit code is 75, \
and the mount stays as it was, so that you can inspect it. `kvfs abort DIR` ends it.

To commit a transaction of a store that is mounted on this machine, use: kvfs txn commit")]
pub struct Args {
    /// The directory of the mount.
    dir: PathBuf,
    /// Do not wait until the commit is on the disk of the server; it gets there within its flush
    /// interval.
    #[arg(long)]
    no_sync: bool,
}

pub fn run(args: Args, output: &Output) -> ExitCode {
    let request = if args.no_sync { "commit" } else { "commit synced" };
    merge::end(end(&args.dir, request, output), output)
}

/// Ends the transaction of a mount by `request`. Returns `false` if it is in conflict and remains
/// open.
pub fn end(dir: &Path, request: &str, output: &Output) -> Outcome<bool> {
    let record = guest::record_at(dir)?;
    let answer = guest::ask(&record, request)?.filter(|answer| answer["result"] != "snapshot");
    let Some(answer) = answer else {
        let what = format!("the mount on {} is no transaction of a server", dir.shown());
        return Err(Failure::new(Exit::Usage, what)
            .hint("those of a store that is mounted end with: kvfs txn commit, kvfs txn abort"));
    };
    let id = answer["id"].clone();
    match answer["result"].as_str() {
        Some("conflict") => {
            let places = &answer["places"];
            let lines: Vec<String> = places.as_array().into_iter().flatten().map(shown).collect();
            let text = match lines.is_empty() {
                true => shown(&answer["what"]),
                false => lines.join("\n"),
            };
            output.print(text, json!({"conflicts": places, "id": id}))?;
            output.note("others have changed these, too, and nothing was committed");
            Ok(false)
        }
        Some(done @ ("committed" | "aborted")) => {
            if let Some(why) = answer["not_synced"].as_str() {
                output.note(format!("it is committed, and perhaps not on disk there: {why}"));
            }
            if let Some(why) = answer["later"].as_str() {
                output.note(format!("the server ends it by itself, in a minute: {why}"));
            }
            if let Err(failure) = umount::unmount_clean(dir) {
                output
                    .note(format!("{}: no file of it is to be reached any more", failure.message));
            }
            output.print("", json!({done: id}))?;
            Ok(true)
        }
        result => {
            let why = answer["why"].as_str().unwrap_or("its daemon gave an unexpected reply");
            let what = match result {
                Some("unknown") => format!("it is not known whether it has committed: {why}"),
                _ => why.to_owned(),
            };
            Err(Failure::new(Exit::Failed, what))
        }
    }
}

fn shown(value: &Value) -> String {
    text::show(value.as_str().unwrap_or("").as_bytes())
}
