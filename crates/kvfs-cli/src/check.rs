//! `kvfs check`.

use crate::output::{Exit, Failure, Outcome, Output};

/// Verify every byte of an unmounted store.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs check` is not part of this build"))
}
