//! `kvfs rebase`: brings the changes of the parent into a clone or a fork.

use std::process::ExitCode;

use crate::commands::merge;
use crate::support::terminal::output::Output;

/// Rebase a clone or a fork: merge its parent's changes into it.
#[derive(clap::Args)]
#[command(after_help = "\
The reverse of kvfs merge: the changes since the clone was made, in the store or clone that it \
was made from, become one commit in the clone. The changes in the clone stay; files and keys that \
both have changed are listed as conflicts, and the exit code is 75.

  kvfs rebase /mnt/.kvfs/clone/trial
  kvfs rebase /mnt/.kvfs/clone/trial --theirs .   # the parent's version wins

With the file of a fork (kvfs fork) that is not mounted, the fork is recreated from the newest \
publication, and its changes are applied to it. The previous fork is kept as FILE.before, with \
its clones and snapshots; --drop removes it and its registration. The new fork is another store, \
which is published under another name.

  kvfs rebase mine.kvfs
  kvfs rebase mine.kvfs --dry-run                 # the fork's changes after it
  kvfs rebase mine.kvfs --ours src --drop")]
pub struct RebaseArgs {
    #[command(flatten)]
    args: merge::Args,
}

pub fn run(args: RebaseArgs, output: &Output) -> ExitCode {
    merge::rebase(args.args, output)
}
