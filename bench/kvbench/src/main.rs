//! `kvbench`: the project's key-value database against the engines that people use, each case alone
//! in its process, engines interleaved, with the same memory and the same journal setting.

mod case;
mod engines;
mod histogram;
mod keys;
mod load;
mod medians;
mod memory_limit;
mod meter;
mod outcome;
mod phase;
mod plot;
mod ranges;
mod reads;
mod report;
mod run;
mod spec;

use std::process::ExitCode;

use anyhow::Result;
use clap::{Parser, Subcommand};

#[derive(Parser)]
#[command(version, about = "Measures key-value engines side by side.")]
struct Arguments {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Runs cases, engines interleaved by rounds; JSON lines go to --out, a line each to the
    /// terminal.
    Run(Box<run::Options>),
    /// Measures range deletes, and reads before and after them.
    Ranges(ranges::Options),
    /// Prints tables of what JSON lines say: medians, and ratios to the best peer.
    Report(report::Options),
    /// Draws what JSON lines say as SVG.
    Plot(plot::Options),
    /// Names the engines that can be run.
    Engines,
    /// One phase of a case: what `run` starts for itself.
    #[command(hide = true)]
    Phase { spec: String },
}

fn main() -> ExitCode {
    match command(Arguments::parse().command) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("kvbench: {e:#}");
            ExitCode::FAILURE
        }
    }
}

fn command(command: Command) -> Result<()> {
    match command {
        Command::Run(options) => run::run(&options),
        Command::Ranges(options) => ranges::run(&options),
        Command::Report(options) => report::run(&options),
        Command::Plot(options) => plot::run(&options),
        Command::Engines => {
            for name in engines::NAMES {
                let note = engines::unfit(name, true, 4096)
                    .map_or_else(String::new, |why| format!("  ({why})"));
                println!("{name}{note}");
            }
            Ok(())
        }
        Command::Phase { spec } => {
            println!("{}", serde_json::to_string(&phase::run(&serde_json::from_str(&spec)?)?)?);
            Ok(())
        }
    }
}
