//! `kvfs fork`: makes a store of one's own from the state of one in object storage.

use std::os::unix::ffi::OsStrExt;
use std::path::PathBuf;
use std::time::Duration;

use kvdb::ForkOptions;
use places::{Address, host_name};
use serde_json::json;

use crate::destination::{self, Making};
use crate::failures;
use crate::output::{Outcome, Output};
use crate::span::parse_span;
use crate::text::{show, with_paths};

/// Begin a store of your own as one in object storage is.
#[derive(clap::Args)]
#[command(after_help = "\
  kvfs fork dir:/srv/stores/work mine.kvfs
  kvfs mount mine.kvfs /mnt/mine && kvfs run /mnt/mine -- make
  kvfs push mine.kvfs dir:/srv/stores/mine

It costs four small requests, however large the store is: what is read is fetched then, and what \
is written is in FILE alone. FILE refers to what lies there for as long as it is used. So it is \
registered there (kvfs forks), and what it refers to stays until it expires or is dropped. To have \
everything here: kvfs export, or cp of what is read.")]
pub struct Args {
    /// Which store: dir:FOLDER/NAME or s3://BUCKET/NAME; with @SNAPSHOT behind it for its files and
    /// keys as they were.
    source: PathBuf,
    /// The file to make.
    file: PathBuf,
    /// FILE is done with after this time, as 7d or 12h. Then what it has not fetched may be
    /// deleted.
    #[arg(long, value_name = "TIME", value_parser = parse_span)]
    expires: Option<Duration>,
    /// Whose it is, for kvfs forks: at most 256 bytes. The name of this machine if it is left out.
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
