//! `kvfs completions` and `kvfs man`: what shells and `man` know of the commands, made from their
//! own descriptions.

use std::path::PathBuf;

use clap_complete::Shell;

use crate::output::{Failure, Outcome, Output};
use crate::text::with_paths;

/// Print a script that completes commands and options in a shell.
#[derive(clap::Args)]
#[command(after_help = "For bash: kvfs completions bash >/etc/bash_completion.d/kvfs")]
pub struct CompletionsArgs {
    shell: Shell,
}

pub fn completions(args: CompletionsArgs, mut commands: clap::Command, output: &Output) -> Outcome {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut commands, "kvfs", &mut script);
    output.print_bytes(&script).map(drop)
}

/// Write the manual pages, one for each command.
#[derive(clap::Args)]
pub struct ManArgs {
    /// The directory to write them into, such as /usr/local/share/man/man1; made if it does not
    /// exist.
    directory: PathBuf,
}

pub fn man(args: ManArgs, commands: clap::Command, output: &Output) -> Outcome {
    let cannot = |e| Failure::io(format!("cannot write to {}", args.directory.display()), &e);
    std::fs::create_dir_all(&args.directory).map_err(cannot)?;
    clap_mangen::generate_to(commands, &args.directory).map_err(cannot)?;
    output.print(
        format!("wrote the manual pages to {}", args.directory.display()),
        with_paths(serde_json::json!({}), &[("directory", Some(&args.directory))]),
    )
}
