//! `kvfs diff`: shows what differs between two snapshots, or between one and now.

use std::path::{Path, PathBuf};

use crate::support::review::changes::Detail;
use crate::support::review::reviewed::changes_of_server;
use crate::support::serving::guest;
use crate::support::stores::connection::Connection;
use crate::support::stores::snapshots::{difference, must_show_what_it_is_of};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// Show the files and keys that differ between two snapshots, or between a snapshot and now.
#[derive(clap::Args)]
#[command(after_help = "\
Of a transaction of a server (kvfs mount kvfs://HOST:PORT DIR --txn) it shows what kvfs commit \
would change:

  kvfs diff DIR")]
pub struct Args {
    /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
    /// store that is not mounted.
    target: PathBuf,
    /// Snapshot to compare. Left out for the mount of a transaction of a server.
    before: Option<String>,
    /// Snapshot to compare it with (default: the current state of the store or of the clone).
    after: Option<String>,
    #[command(flatten)]
    detail: Detail,
}

/// Shows what the transaction of a server changes that is mounted on a directory.
fn show_transaction(dir: &Path, detail: Detail, output: &Output) -> Outcome {
    let record = guest::record_at(dir).ok().filter(guest::is_served).ok_or_else(|| {
        let what = format!("what is {} to be compared with?", dir.shown());
        Failure::new(Exit::Usage, what).hint("name a snapshot: kvfs snapshot list shows them")
    })?;
    changes_of_server(&record, dir, detail.wanted())?.print(detail, output)
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let Some(before) = &args.before else {
        return show_transaction(&args.target, args.detail, output);
    };
    let mut connection = Connection::of_branch(&args.target, false)?;
    if args.after.is_none() {
        must_show_what_it_is_of(&args.target, before, |view| {
            let hint = match view.clone_name() {
                Some(_) => "`kvfs merge --dry-run` shows what a clone has changed",
                None => "`kvfs txn diff` shows what a transaction would change",
            };
            let target = args.target.shown();
            let what = format!("{target} shows {view}, and snapshot {before} is not of it");
            Failure::new(Exit::Usage, what).hint(hint)
        })?;
    }
    let (after, wanted) = (args.after.as_deref(), args.detail.wanted());
    let changes = difference(&mut connection, &args.target, before, after, wanted);
    let closed = connection.close();
    let changes = changes?;
    closed?;
    changes.print(args.detail, output)
}
