//! `kvfs list`: lists the mounted stores.

use kvfs_fuse::mounts;
use serde_json::{Value, json};

use crate::support::mounts::daemons::Record;
use crate::support::terminal::output::{Failure, Outcome, Output};
use crate::support::terminal::text::{self, Shown};

/// List the mounted stores and their mount points.
#[derive(clap::Args)]
#[command(after_help = "\
Stores of this user are listed with the process that serves each of them; stores of other users \
are listed as in the table of mounts.")]
pub struct Args {}

pub fn run(_: Args, output: &Output) -> Outcome {
    let cannot = |e: std::io::Error| Failure::io("cannot read the table of mounts", &e);
    let records = Record::all();
    let mut lines = String::new();
    let mut all: Vec<Value> = Vec::new();
    for mount in mounts::mounts().map_err(cannot)? {
        let record = records.iter().find(|record| record.mounts().contains(&mount));
        if record.is_none() && !mount.fs_type.ends_with("kvfs") {
            continue;
        }
        let store = record.map_or(std::path::Path::new(&mount.source), |record| &record.store);
        lines += &format!("{} on {}", store.shown(), mount.mount_point.shown());
        if mount.root != std::path::Path::new("/") {
            lines += &format!(", its directory {}", mount.root.shown());
        }
        if let Some(record) = record {
            lines += &format!(" (process {})", record.pid);
            for address in record.listen.iter() {
                lines += &format!(", keys at {}", text::show_line(address));
            }
        }
        lines.push('\n');
        let value = json!({
            "pid": record.map(|record| record.pid),
            "listen": record.and_then(|record| record.listen.clone()),
        });
        let paths = [
            ("store", Some(store)),
            ("mount_point", Some(&*mount.mount_point)),
            ("directory", Some(&*mount.root)),
        ];
        all.push(text::with_paths(value, &paths));
    }
    if all.is_empty() {
        lines = "no store is mounted\n".into();
    }
    output.print(lines, all)
}
