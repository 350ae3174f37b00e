//! `kvfs cat`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;

use kvfs::FileKind;

use crate::output::{Exit, Failure, Outcome, Output};
use crate::store::{self, Access};
use crate::{text, tree};

/// Print files of an unmounted store.
#[derive(clap::Args)]
pub struct Args {
    /// The store's file.
    store: PathBuf,
    /// Files in it, printed one after the other.
    #[arg(required = true)]
    paths: Vec<OsString>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let store = store::open_waiting(&args.store, Access::ReadOnly, None)?;
    let fs = store.file_system()?;
    for path in &args.paths {
        let path = path.as_bytes();
        let attr = tree::find(&fs, path)?;
        if attr.kind != FileKind::File {
            let what = format!(
                "cannot print {}: it is a {}",
                text::show(path),
                tree::kind_name(attr.kind)
            );
            return Err(Failure::new(Exit::Failed, what));
        }
        let mut at = 0;
        while at < attr.size {
            let piece = fs
                .read(attr.ino, at, tree::PIECE)
                .map_err(|e| tree::failure(format!("cannot read {}", text::show(path)), e))?;
            if piece.is_empty() {
                break;
            }
            at += piece.len() as u64;
            output.print_bytes(&piece)?;
        }
    }
    drop(fs);
    store.close()
}
