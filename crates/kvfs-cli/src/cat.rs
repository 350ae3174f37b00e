//! `kvfs cat`.

use crate::output::{Exit, Failure, Outcome, Output};

/// Print a file of an unmounted store.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs cat` is not part of this build"))
}
