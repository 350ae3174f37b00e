//! `kvbench report`: medians over the rounds, one table a load, with ratios to the best peer.

use anyhow::Result;
use clap::Args;
use std::path::PathBuf;

#[derive(Args)]
pub struct Options {
    files: Vec<PathBuf>,
}

pub fn run(_: &Options) -> Result<()> {
    Ok(())
}
