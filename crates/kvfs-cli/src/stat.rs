//! `kvfs stat`.

use crate::output::{Exit, Failure, Outcome, Output};

/// Show space, dictionaries, runs and amplification of a store.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs stat` is not part of this build"))
}
