//! `kvfs diff`: shows what differs between two snapshots, or between one and now.

use std::path::PathBuf;

use crate::support::review::changes::Detail;
use crate::support::stores::connection::Connection;
use crate::support::stores::snapshots::{difference, must_show_what_it_is_of};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};

/// Show the files and keys that differ between two snapshots, or between a snapshot and now.
#[derive(clap::Args)]
pub struct Args {
    /// Directory a store is mounted on, or the file of a store that is not mounted.
    target: PathBuf,
    /// Snapshot to compare.
    before: String,
    /// Snapshot to compare it with (default: the current state of the store).
    after: Option<String>,
    #[command(flatten)]
    detail: Detail,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let mut connection = Connection::open(&args.target, false)?;
    if args.after.is_none() {
        must_show_what_it_is_of(&args.target, &args.before, |view| {
            let what =
                format!("{} shows {view}, not the store as it is now", args.target.display());
            Failure::new(Exit::Usage, what)
                .hint("`kvfs txn diff` shows what a transaction would change")
        })?;
    }
    let (after, wanted) = (args.after.as_deref(), args.detail.wanted());
    let changes = difference(&mut connection, &args.target, &args.before, after, wanted);
    let closed = connection.close();
    let changes = changes?;
    closed?;
    changes.print(args.detail, output)
}
