//! `kvfs fsmonitor`: the hook that git calls instead of examining every file of a work tree.

mod hook;
mod names;
mod repository;
mod token;

use std::ffi::OsString;
use std::path::PathBuf;

use clap::Subcommand;

use crate::output::{Outcome, Output};

/// Let git ask a mounted store what has changed in a work tree, instead of looking at every file.
#[derive(clap::Args)]
#[command(after_help = "\
git calls this program by its settings core.fsmonitor and core.fsmonitorHookVersion, and looks at \
those files alone that it names. Wherever the list of changes does not reach back, the answer is \
that everything may have changed, and git looks at all: the first time after a mount, after a \
rollback, in transactions, clones and snapshots, where something else is mounted within the work \
tree, and for a work tree that was moved. With git's cache of untracked files, directories that \
have not changed are not listed either.

  kvfs fsmonitor install /mnt/project
  git -C /mnt/project config core.untrackedCache true
  git -C /mnt/project status
  cd /mnt/project && kvfs --json fsmonitor 2 \"\"    # what git is told, and why")]
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
    /// Take these settings back.
    Uninstall {
        /// A directory in the work tree.
        #[arg(default_value = ".", value_name = "REPO")]
        repository: PathBuf,
    },
    /// What git calls, in the root of the work tree: version 2 of its hook. Prints a token and
    /// the paths that may have changed since another one, each with a zero byte after it; the
    /// path / stands for all.
    #[command(name = "2")]
    Version2 {
        /// What the last call has printed; empty: there was none.
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
