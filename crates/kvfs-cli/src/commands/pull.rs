//! `kvfs pull`: copies a store in object storage into a local file, and brings the file up to date
//! later.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::sync::Arc;

use env::Machine;
use places::Address;
use places::local_copies::own_file;
use serde_json::json;
use zones::FileDevice;

use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::{show, with_paths};

/// Copy a store in object storage into a file, or update such a copy.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs pull s3://team/work work.kvfs        # repeat to update
  kvfs mount -o ro,offline work.kvfs /mnt   # without a network

FILE has everything that was published, and can be read without access to the address. Data that \
it already has is not fetched again. The next pull would discard changes in it, so it is mounted \
read-only; for a writable store see kvfs fork.")]
pub struct Args {
    /// Address of the store: dir:FOLDER/NAME or s3://BUCKET/NAME.
    source: PathBuf,
    /// File to write: a new one, or one that `kvfs pull` has made from the same store.
    file: PathBuf,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let source = Address::required(&args.source)?;
    if let Some(snapshot) = &source.snapshot {
        let what = format!("a store is pulled whole, with its snapshots: leave out @{snapshot}");
        return Err(Failure::new(Exit::Usage, what));
    }
    let from = source.store(false)?;
    let cannot = |e| failures::of_database(format!("cannot pull {source}"), e);
    let was_there = args.file.exists();
    if !was_there && from.head().map_err(cannot)?.is_none_or(|head| head.state.is_none()) {
        return Err(cannot(kvdb::Error::NoStore(source.to_string())));
    }
    let file = own_file(&args.file)
        .map_err(|e| Failure::io(format!("cannot use {}", args.file.shown()), &e))?;
    let device = FileDevice::of(file, &args.file, false)
        .map_err(|e| failures::of_device(&args.file, "open", e))?;
    let bar = output.progress("fetching", Some(0), true);
    let mut bytes = 0;
    let pulled = from.pull_to(Arc::new(device), Arc::new(Machine::default()), &mut |now| {
        bar.set_length(now.bytes_total);
        bar.set_position(now.bytes);
        bytes = now.bytes_total;
        Ok(())
    });
    bar.finish_and_clear();
    let copy = pulled.map_err(cannot)?;
    let text = format!(
        "{} has all of {}: generation {}, {}",
        show(args.file.as_os_str().as_bytes()),
        show(source.to_string().as_bytes()),
        copy.generation,
        human_size(bytes)
    );
    let value = json!({
        "source": source.to_string(), "generation": copy.generation, "published": copy.published,
        "bytes": bytes,
    });
    output.print(text, with_paths(value, &[("file", Some(&args.file))]))
}
