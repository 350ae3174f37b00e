//! `kvfs secret`: makes the secret by which stores in object storage are encrypted.

use std::path::PathBuf;

use places::secrets::{self, VARIABLE};
use serde_json::json;

use crate::output::{Outcome, Output};
use crate::text::{show, with_paths};

/// Make a file with a secret, with which stores in object storage are encrypted.
#[derive(clap::Args)]
#[command(after_help = "\
  kvfs secret ~/.kvfs-secret                   make one, that you alone may read
  export KVFS_SECRET_FILE=~/.kvfs-secret       all commands use it from now on
  kvfs push work.kvfs s3://bucket/work         what is sent there is encrypted

Commands and mounts that begin with KVFS_SECRET_FILE in their environment encrypt all that they \
put into object storage, by AES-256-GCM, and decrypt what they read. One secret is for a whole \
place, with all its stores and forks; a place without one stays so. Local files are not encrypted. \
Nothing there can be read without the secret: keep a copy of it elsewhere.")]
pub struct Args {
    /// The file to make, where nothing is.
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
