//! `kvfs create`: makes an empty store.

use std::path::PathBuf;

use kvfs::Compress;
use places::{Address, local_copies, publishing};

use crate::commands::push;
use crate::support::machine::destination::{self, Making};
use crate::support::stores::device_profile::{self, Asked};
use crate::support::stores::store::{self, Access, FilesOfStore};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::{self, show};
use crate::support::terminal::{failures, sizes};

/// Create an empty store in a new file, on a block device, or in object storage.
#[derive(clap::Args)]
pub struct Args {
    /// File to create, or a block device; or dir:FOLDER/NAME or s3://BUCKET/NAME for a store in
    /// object storage, which kvfs mount --write mounts.
    store: PathBuf,
    /// Maximum size of the store, in bytes or with a unit (200M, 10G, 1T); at least 160M. The file
    /// grows as needed.
    #[arg(long, value_parser = sizes::parse_size)]
    size: Option<u64>,
    /// Kind of device the store is on. It sets the assumed cost of a seek, and so the amount of
    /// data that merges move and that is read ahead. Recorded in the store for all later mounts.
    #[arg(long, value_enum, default_value = "auto")]
    profile: Asked,
    /// Bytes that a new directory reserves for its small files, so that they are stored together on
    /// the device in whatever order they are written (default: 512K). Use more for directories with
    /// many files that are read together, less for many small directories. With 0, files are stored
    /// in the order in which they are created. Recorded in the store for all later mounts.
    #[arg(long, value_parser = sizes::parse_size)]
    zone_size: Option<u64>,
    /// Compression of files, page by page: by LZ4, by Zstandard (smaller, more work), or by LZ4
    /// where that saves something (auto). The root directory gets it, and what is made in the store
    /// inherits it; kvfs set changes it for a directory or a file (default: none).
    #[arg(long, value_name = "WAY", value_parser = ["none", "lz4", "zstd", "auto"])]
    compress: Option<String>,
    #[command(flatten)]
    making: Making,
}

impl Args {
    /// Returns the options of the new file system.
    fn files(&self) -> FilesOfStore {
        let compress = self.compress.as_ref().and_then(|way| Compress::named(way.as_bytes()));
        FilesOfStore { zone_size: self.zone_size, compress }
    }
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(address) = Address::parse(&args.store)? {
        return at_address(&args, &address, output);
    }
    destination::make_room(&args.store, args.making)?;
    let (size, profile) = store::create(&args.store, args.size, args.profile, args.files())?;
    if args.store.is_file() {
        args.making.apply(&args.store)?;
    }
    let room = size.map_or("growing as far as its host lets it".into(), |s| {
        format!("up to {}", sizes::human_size(s))
    });
    output.print(
        format!("created {} ({room})", args.store.shown()),
        text::with_paths(
            serde_json::json!({
                "size": size, "profile": device_profile::name(profile),
                "zone_size": args.zone_size.unwrap_or(kvfs::ZONE_SIZE), "compress": args.compress,
            }),
            &[("store", Some(&args.store))],
        ),
    )
}

/// Makes an empty store in a local file, which is removed once the store is published.
fn at_address(args: &Args, address: &Address, output: &Output) -> Outcome {
    let shown = show(address.to_string().as_bytes());
    let cannot = |e| failures::of_database(format!("cannot create {shown}"), e);
    if address.snapshot.is_some() {
        return Err(Failure::new(Exit::Usage, format!("{shown} would be a snapshot")));
    }
    if args.size.is_some() {
        let refused = "a store in object storage has no size: it takes what is written";
        return Err(Failure::new(Exit::Usage, refused).hint("leave out --size"));
    }
    let there = address.store(true)?;
    if there.head().map_err(cannot)?.is_some_and(|head| head.state.is_some()) {
        let what = format!("there is a store {shown} already");
        return Err(Failure::new(Exit::Failed, what).hint("take it back: kvfs unpublish"));
    }
    push::check(address, &there, output)?;
    let directory = local_copies::directory_of_writers(None)?;
    let directory = tempfile::tempdir_in(&directory)
        .map_err(|e| Failure::io(format!("cannot use {}", directory.shown()), &e))?;
    let file = directory.path().join("empty.kvfs");
    let (_, profile) = store::create(&file, None, args.profile, args.files())?;
    let store = store::open(&file, Access::ReadWrite, None)?;
    publishing::publisher(&store.db, &there)
        .and_then(|mut publisher| publisher.publish(&mut |_| Ok(())))
        .map_err(cannot)?;
    store.close()?;
    let value = serde_json::json!({
        "address": address.to_string(), "profile": device_profile::name(profile),
        "zone_size": args.zone_size.unwrap_or(kvfs::ZONE_SIZE), "compress": args.compress,
    });
    output.print(format!("created {shown}: mount it with kvfs mount --write"), value)
}
