//! `kvfs umount`.

use crate::output::{Exit, Failure, Outcome, Output};

/// Unmount, and wait until everything is on disk and the store is free.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs umount` is not part of this build"))
}
