//! `kvfs defrag`: frees the space of holes, in a store that is mounted or not.

use std::path::PathBuf;
use std::time::Duration;

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::support::stores::connection::Connection;
use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::with_paths;

/// Move live data out of sparsely used zones and free those zones.
#[derive(clap::Args)]
#[command(after_help = "\
TARGET is the directory a store is mounted on, or the file of a store that is not mounted. \
Programs can use the store while it runs. A store defragments itself, slowly, when much of its \
space is unused, and a mount with -o lay lays files in the order of their names while no program \
uses it. Data that was moved stays moved if the command is stopped.")]
pub struct Args {
    /// Directory a store is mounted on, or the file of a store that is not mounted.
    target: PathBuf,
    /// Limit moved data to MIB per second, zone by zone. Without a limit, scattered data is also
    /// rewritten: files in the order of their names, values in the order of their keys.
    #[arg(long, value_name = "MIB")]
    rate: Option<u64>,
    /// Skip zones that are more than PERCENT full.
    #[arg(long, value_name = "PERCENT", default_value_t = 90, value_parser = clap::value_parser!(u8).range(1..=99))]
    fullest: u8,
    /// For a store in object storage: also fetch the live data of objects that are less than half
    /// used. The next publication does not refer to these objects, and kvfs gc deletes them.
    #[arg(long)]
    objects: bool,
    /// Print the progress and exit.
    #[arg(long, conflicts_with = "stop")]
    status: bool,
    /// Stop a running defragmentation.
    #[arg(long)]
    stop: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let mut connection = Connection::open(&args.target, !args.status)?;
    if args.stop {
        connection.call(&[b"DEFRAG", b"STOP"])?;
    } else if !args.status {
        let (rate, fullest) =
            (args.rate.unwrap_or(0).saturating_mul(1 << 20).to_string(), args.fullest.to_string());
        connection.call(&[
            b"DEFRAG",
            b"START",
            b"RATE",
            rate.as_bytes(),
            b"FULLEST",
            fullest.as_bytes(),
            b"OBJECTS",
            if args.objects { b"1" } else { b"0" },
        ])?;
        let bar = output.progress("defragmenting", Some(0), false);
        loop {
            let status = status(&mut connection)?;
            let of = |name: &str| status[name].as_u64().unwrap_or(0);
            bar.set_length(of("zones_reclaimable"));
            bar.set_position(of("zones_reclaimed"));
            if of("running") == 0 {
                break;
            }
            std::thread::sleep(Duration::from_millis(100));
        }
        bar.finish_and_clear();
    }
    let status = status(&mut connection)?;
    connection.close()?;
    let of = |name: &str| status[name].as_u64().unwrap_or(0);
    let text = format!(
        "{}{} of {} reclaimable zones of 8 MiB are free, {} moved",
        if of("running") > 0 { "under way: " } else { "" },
        of("zones_reclaimed"),
        of("zones_reclaimable"),
        human_size(of("bytes_moved"))
    );
    let value = json!({"defrag": status});
    output.print(text, with_paths(value, &[("target", Some(&args.target))]))
}

/// Returns the fields of `DEFRAG STATUS` by name.
fn status(connection: &mut Connection) -> Outcome<Map<String, Value>> {
    let mut map = Map::new();
    if let Reply::Array(fields) = connection.call(&[b"DEFRAG", b"STATUS"])? {
        for pair in fields.chunks(2) {
            if let [Reply::Bulk(name), Reply::Integer(value)] = pair {
                map.insert(String::from_utf8_lossy(name).into_owned(), json!(value));
            }
        }
    }
    Ok(map)
}
