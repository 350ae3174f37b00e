//! `kvfs fork`: makes a store of one's own from the state of one in object storage.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use kvdb::ForkOptions;
use places::{Address, host_name};
use serde_json::json;

use crate::support::machine::destination::{self, Making};
use crate::support::terminal::failures;
use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::span::parse_span;
use crate::support::terminal::text::{show, with_paths};

/// Create a writable fork of a store in object storage.
#[derive(clap::Args)]
#[command(after_help = "\
Examples:
  kvfs fork dir:/srv/stores/work mine.kvfs
  kvfs mount mine.kvfs /mnt/mine && kvfs run /mnt/mine -- make
  kvfs push mine.kvfs dir:/srv/stores/mine

A fork costs four small requests, whatever the size of the store: data is fetched when it is \
read, and changes are written to FILE alone. FILE refers to the objects of the store for as long \
as it is used. It is therefore registered there (kvfs forks), and the objects that it refers to \
are kept until it expires or is dropped. For a complete local copy, use kvfs export, or cp the \
files that you need.")]
pub struct Args {
    /// Address of the store: dir:FOLDER/NAME or s3://BUCKET/NAME; @SNAPSHOT after it selects the
    /// files and keys of that snapshot.
    source: PathBuf,
    /// File to create.
    file: PathBuf,
    /// Let the fork expire after this time, such as 7d or 12h. Objects that it has not fetched may
    /// be deleted then.
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    expires: Option<Duration>,
    /// Label of the fork in kvfs forks, at most 256 bytes (default: the name of this machine).
    #[arg(long, value_name = "TEXT")]
    label: Option<String>,
    #[command(flatten)]
    making: Making,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let source = Address::required(&args.source)?;
    let from = source.store(false)?;
    let cannot = |e| failures::of_database(format!("cannot fork {source}"), e);
    // Check that the source exists before --force removes the old file.
    if args.file.exists() && from.head().map_err(cannot)?.is_none() {
        return Err(cannot(kvdb::Error::NoStore(source.to_string())));
    }
    destination::make_room(&args.file, args.making)?;
    let label = args.label.clone().unwrap_or_else(host_name);
    let options = ForkOptions { lifetime: args.expires, label, snapshot: None };
    let made = || args.making.apply(&args.file);
    let copy = places::fork(&source, &args.file, &options, made, |text| output.note(text))?;
    let (name, file) = (source.to_string(), args.file.as_os_str().as_bytes());
    let text = format!(
        "forked {} to {}: generation {}",
        show(name.as_bytes()),
        show(file),
        copy.generation
    );
    let value = json!({
        "source": source.to_string(), "generation": copy.generation, "published": copy.published,
        "fork": copy.fork.map(|fork| fork.to_string()),
    });
    output.print(text, with_paths(value, &[("file", Some(&args.file))]))
}
