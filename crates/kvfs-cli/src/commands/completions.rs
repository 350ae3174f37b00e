//! `kvfs completions`: prints the script that completes commands in a shell.

use clap_complete::Shell;

use crate::support::terminal::output::{Outcome, Output};

/// Print a script that completes commands and options in a shell.
#[derive(clap::Args)]
#[command(after_help = "For bash: kvfs completions bash >/etc/bash_completion.d/kvfs")]
pub struct Args {
    /// Shell that the script is for.
    shell: Shell,
}

pub fn run(args: Args, mut commands: clap::Command, output: &Output) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut commands, "kvfs", &mut script);
    output.print_bytes(&script).map(drop)
}
