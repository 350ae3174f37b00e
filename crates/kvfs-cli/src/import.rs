//! `kvfs import`.

use crate::output::{Exit, Failure, Outcome, Output};

/// Put a tar stream or a folder straight into an unmounted store.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs import` is not part of this build"))
}
