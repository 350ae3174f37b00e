//! `kvfs mount`.

use std::ffi::OsString;
use std::process::ExitCode;

use crate::output::{Exit, Failure, Outcome, Output};

/// Mount a store's file system on a folder.
#[derive(clap::Args)]
pub struct Args {}

/// When called as `mount.kvfs` or `mount.fuse.kvfs`: does what mount(8) asks for and gives its exit code.
pub fn run_as_mount_helper(_arguments: &[OsString]) -> Option<ExitCode> {
    None
}

pub fn run(_args: Args, _output: &Output) -> Outcome {
    Err(Failure::new(Exit::Failed, "`kvfs mount` is not part of this build"))
}
