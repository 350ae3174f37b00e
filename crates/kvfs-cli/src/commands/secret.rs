//! `kvfs secret`: makes the secret by which stores in object storage are encrypted.

use std::path::PathBuf;

use places::secrets::{self, VARIABLE};
use serde_json::json;

use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::text::{show, with_paths};

/// Create a file with a secret that encrypts stores in object storage.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs secret ~/.kvfs-secret                   create one that only you can read
  export KVFS_SECRET_FILE=~/.kvfs-secret       all commands use it from now on
  kvfs push work.kvfs s3://bucket/work         objects are encrypted

Commands and mounts that have KVFS_SECRET_FILE in their environment encrypt everything they write \
to object storage, by AES-256-GCM, and decrypt what they read. A place has one secret for all its \
stores and forks; a place without a secret stays unencrypted. Local files are not encrypted. \
Without the secret nothing there can be read: keep a copy of it elsewhere.")]
pub struct Args {
    /// File to create; it must not exist.
    file: PathBuf,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let id = secrets::make(&args.file)?.to_string();
    let file = show(args.file.as_os_str().as_encoded_bytes());
    let text = format!(
        "{file} has the new secret {id}; keep a copy of it elsewhere. To use it:\n  \
         export {VARIABLE}={file}\n"
    );
    output.print(text, with_paths(json!({"secret": id}), &[("file", Some(&*args.file))]))
}
