//! `kvfs create`: makes an empty store.

use std::path::PathBuf;

use crate::destination::{self, Making};
use crate::device_profile::{self, Asked};
use crate::output::{Outcome, Output};
use crate::sizes;
use crate::store;
use crate::text;

/// Make an empty store in a new file or on a block device.
#[derive(clap::Args)]
pub struct Args {
    /// The file to make, or a block device.
    store: PathBuf,
    /// The most the store may grow to: bytes, or with a unit (200M, 10G, 1T); at least 160M. A
    /// file's space is taken as it is needed.
    #[arg(long, value_parser = sizes::parse_size)]
    size: Option<u64>,
    /// What kind of device the store lies on: what a seek is taken to cost goes by it, hence what
    /// merges move and how much is read ahead. Stored with it for all later mounts.
    #[arg(long, value_enum, default_value = "auto")]
    profile: Asked,
    /// Bytes of small files for which a new directory reserves a place, so that its files lie
    /// together on the device however they come (512K by default): more for directories of many
    /// files that are read together, less for many small directories. 0: files lie in the order in
    /// which they are made. Stored with the store for all later mounts.
    #[arg(long, value_parser = sizes::parse_size)]
    zone_size: Option<u64>,
    #[command(flatten)]
    making: Making,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    destination::make_room(&args.store, args.making)?;
    let (size, profile) = store::create(&args.store, args.size, args.profile, args.zone_size)?;
    if args.store.is_file() {
        args.making.apply(&args.store)?;
    }
    let room = size.map_or("growing as far as its host lets it".into(), |s| {
        format!("up to {}", sizes::human_size(s))
    });
    output.print(
        format!("created {} ({room})", args.store.display()),
        text::with_paths(
            serde_json::json!({
                "size": size, "profile": device_profile::name(profile),
                "zone_size": args.zone_size.unwrap_or(kvfs::ZONE_SIZE),
            }),
            &[("store", Some(&args.store))],
        ),
    )
}
