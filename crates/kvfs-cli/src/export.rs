//! `kvfs export`.

use crate::output::{Exit, Failure, Outcome, Output};

/// Take a folder out of an unmounted store, as a tar stream or a folder.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs export` is not part of this build"))
}
