//! `kvfs fsmonitor`: the hook that git calls instead of examining every file of a work tree.

mod hook;
mod names;
mod repository;
mod token;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Subcommand;

use crate::support::terminal::output::{Outcome, Output};

/// Tell git which files of a work tree in a mounted store have changed, so that it need not examine
/// every file.
#[derive(clap::Args)]
#[command(after_help = "\
git calls this program because of its settings core.fsmonitor and core.fsmonitorHookVersion, and \
examines only the files that it lists. If the list of changes does not reach back far enough, the \
answer is that everything may have changed, and git examines all files: the first time after a \
mount, after a rollback, in transactions, clones and snapshots, if another file system is mounted \
within the work tree, and after the work tree was moved. If git's cache of untracked files is \
enabled, unchanged directories are not listed either.

  kvfs fsmonitor install /mnt/project
  git -C /mnt/project config core.untrackedCache true
  git -C /mnt/project status
  cd /mnt/project && kvfs --json fsmonitor 2 \"\"    # the answer to git, and its reason")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Set core.fsmonitor and core.fsmonitorHookVersion of a repository whose work tree lies in a
    /// mounted store.
    Install {
        /// A directory in the work tree.
        #[arg(default_value = ".", value_name = "REPO")]
        repository: PathBuf,
    },
    /// Remove these settings.
    Uninstall {
        /// A directory in the work tree.
        #[arg(default_value = ".", value_name = "REPO")]
        repository: PathBuf,
    },
    /// Answer git, which calls this in the root of the work tree: version 2 of its hook. Prints a
    /// token, and the paths that may have changed since an earlier token, each followed by a zero
    /// byte; the path / stands for all paths.
    #[command(name = "2")]
    Version2 {
        /// Token that the last call printed; empty if there was no call.
        #[arg(default_value = "")]
        token: OsString,
    },
}

pub fn run(args: Args, output: &Output) -> Outcome {
    match args.action {
        Action::Install { repository } => repository::install(&repository, output),
        Action::Uninstall { repository } => repository::uninstall(&repository, output),
        Action::Version2 { token } => hook::run(&token, output),
    }
}
