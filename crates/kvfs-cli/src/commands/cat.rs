//! `kvfs cat`: prints files of a store.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use kvfs::FileKind;

use crate::support::stores::files::Files;
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;

/// Print files of a store.
#[derive(clap::Args)]
#[command(after_help = "\
TARGET is the file of a store, mounted or not, or a directory of a mounted store or of one of its \
views, such as /mnt/.kvfs/snapshot/monday; PATHS are relative to that directory. Files of a \
mounted store are read through the mount, so their modes must allow you to read them.")]
pub struct Args {
    /// The store's file, or a directory where it is mounted.
    target: PathBuf,
    /// Files of the store, printed one after the other.
    #[arg(required = true)]
    paths: Vec<OsString>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let files = Files::of(&args.target)?;
    for path in &args.paths {
        let path = path.as_bytes();
        let attr = files.look(path, true)?;
        if attr.kind != FileKind::File {
            let what = format!(
                "cannot print {}: it is a {}",
                text::show(path),
                tree::kind_name(attr.kind)
            );
            return Err(Failure::new(Exit::Failed, what));
        }
        if !files.read(path, &attr, &mut |piece| output.print_bytes(piece))? {
            break;
        }
    }
    files.close()
}
