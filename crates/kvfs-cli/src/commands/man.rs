//! `kvfs man`: writes the manual pages, made from the descriptions of the commands.

use std::io::Write;
use std::path::{Path, PathBuf};

use crate::support::machine::destination::{self, Judge, Making};
use crate::support::terminal::output::{Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::with_paths;

/// Write the manual pages, one for each command.
#[derive(clap::Args)]
pub struct Args {
    /// Directory to write the pages to, such as /usr/local/share/man/man1; created if it does not
    /// exist.
    directory: PathBuf,
}

/// Writes the page of a command, and those of its subcommands.
fn pages_of(command: &clap::Command, directory: &Path) -> Outcome {
    for below in command.get_subcommands().filter(|below| !below.is_hide_set()) {
        pages_of(below, directory)?;
    }
    let man = clap_mangen::Man::new(command.clone());
    let path = directory.join(man.get_filename());
    let cannot = |e| Failure::io(format!("cannot write {}", path.shown()), &e);
    let mut page = Vec::new();
    man.render(&mut page).map_err(cannot)?;
    let mut file = destination::create(&path, Making::PUBLIC, Judge::strict())?;
    file.write_all(&page).map_err(cannot)
}

pub fn run(args: Args, commands: clap::Command, output: &Output) -> Outcome {
    let cannot = |e| Failure::io(format!("cannot write to {}", args.directory.shown()), &e);
    std::fs::create_dir_all(&args.directory).map_err(cannot)?;
    let mut commands = commands.disable_help_subcommand(true);
    commands.build();
    pages_of(&commands, &args.directory)?;
    output.print(
        format!("wrote the manual pages to {}", args.directory.shown()),
        with_paths(serde_json::json!({}), &[("directory", Some(&args.directory))]),
    )
}
