//! `kvfs ls`.

use crate::output::{Exit, Failure, Outcome, Output};

/// List a folder of an unmounted store.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs ls` is not part of this build"))
}
