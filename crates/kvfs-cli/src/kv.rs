//! `kvfs kv`.

use crate::output::{Exit, Failure, Outcome, Output};

/// Read and write keys of a mounted or unmounted store.
#[derive(clap::Args)]
pub struct Args {}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs kv` is not part of this build"))
}
