//! `kvfs abort`: discards a mount that is a transaction on a server.

use std::path::PathBuf;
use std::process::ExitCode;

use crate::commands::commit::end;
use crate::commands::merge;
use crate::support::terminal::output::Output;

/// Discard the changes in a mount of `kvfs mount kvfs+unix:SOCKET DIR --txn`, and unmount it.
#[derive(clap::Args)]
pub struct Args {
    /// The directory of the mount.
    dir: PathBuf,
}

pub fn run(args: Args, output: &Output) -> ExitCode {
    merge::end(end(&args.dir, "abort", output), output)
}
