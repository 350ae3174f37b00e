//! `kvfs scrub`: reads everything in a store again and verifies the checksums, in a store that is
//! mounted or not.

use std::path::PathBuf;
use std::time::Duration;

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::support::stores::connection::Connection;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// Read all data again and verify its checksums, while the store is in use.
#[derive(clap::Args)]
#[command(after_help = "\
TARGET is the directory a store is mounted on, or the file of a store that is not mounted. \
Programs can use the store while it runs. A scrub finds data that the disk has lost in places \
that are seldom read, and changes nothing. Damage is listed with its place and with the files and \
keys that depend on it; the exit code is 5 then. `kvfs check` examines an unmounted store more \
closely; `kvfs salvage` copies what is readable. A mount with -o scrub=DAYS scrubs by itself.")]
pub struct Args {
    /// Directory a store is mounted on, or the file of a store that is not mounted.
    target: PathBuf,
    /// Read at most MIB per second.
    #[arg(long, value_name = "MIB")]
    rate: Option<u64>,
    /// Print progress and findings, and exit.
    #[arg(long, conflicts_with = "stop")]
    status: bool,
    /// Stop a running scrub.
    #[arg(long)]
    stop: bool,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let mut connection = Connection::open(&args.target, false)?;
    if args.stop {
        connection.call(&[b"SCRUB", b"STOP"])?;
    } else if !args.status {
        whole(&mut connection, args.rate.unwrap_or(0).saturating_mul(1 << 20), output)?;
    }
    let status = status(&mut connection)?;
    let faults = faults(&mut connection)?;
    connection.close()?;
    let of = |name: &str| status[name].as_u64().unwrap_or(0);
    let mut lines = String::new();
    for fault in &faults {
        let part = |name: &str| fault[name].as_str().unwrap_or_default();
        let depends = if fault["concerns"].is_null() { part("keys") } else { part("concerns") };
        let depends = if depends.is_empty() { String::new() } else { format!(" ({depends})") };
        lines += &format!("{}: {}{depends}\n", part("place"), part("what"));
    }
    if of("faults") > faults.len() as u64 {
        lines += "more is not shown\n";
    }
    let state = match () {
        () if of("running") > 0 => "under way",
        () if of("complete") > 0 => "done",
        () => "not done to its end",
    };
    lines += &format!("scrub {state}: {} read, {} faults", human_size(of("bytes")), of("faults"));
    let value = json!({"scrub": status, "faults": faults});
    output.print(lines, text::with_paths(value, &[("target", Some(&args.target))]))?;
    match of("faults") {
        // Nothing is known about data that was not read.
        0 if !args.stop && !args.status && of("complete") == 0 => {
            let what = format!(
                "the scrub of {} was stopped before it had read everything",
                args.target.shown()
            );
            Err(Failure::new(Exit::Failed, what).hint("begin it again"))
        }
        0 => Ok(()),
        n => Err(Failure::new(
            Exit::Damaged,
            format!("{n} places of {} cannot be read as they were written", args.target.shown()),
        )
        .hint("bring out what is readable: kvfs salvage STORE DIRECTORY, and look at the disk")),
    }
}

/// Reads everything again, at most `rate` bytes a second (0 for no limit).
pub fn whole(connection: &mut Connection, rate: u64, output: &Output) -> Outcome {
    connection.call(&[b"SCRUB", b"START", b"RATE", rate.to_string().as_bytes()])?;
    let bar = output.progress("scrubbing", Some(0), true);
    loop {
        let status = status(connection)?;
        let of = |name: &str| status[name].as_u64().unwrap_or(0);
        bar.set_length(of("bytes_total"));
        bar.set_position(of("bytes"));
        if of("running") == 0 {
            break;
        }
        std::thread::sleep(Duration::from_millis(100));
    }
    bar.finish_and_clear();
    Ok(())
}

/// Returns the fields of `SCRUB STATUS` by name.
pub fn status(connection: &mut Connection) -> Outcome<Map<String, Value>> {
    let mut map = Map::new();
    if let Reply::Array(fields) = connection.call(&[b"SCRUB", b"STATUS"])? {
        for pair in fields.chunks(2) {
            if let [Reply::Bulk(name), Reply::Integer(value)] = pair {
                map.insert(String::from_utf8_lossy(name).into_owned(), json!(value));
            }
        }
    }
    Ok(map)
}

/// Returns the places that could not be read.
pub fn faults(connection: &mut Connection) -> Outcome<Vec<Value>> {
    let mut faults = Vec::new();
    let Reply::Array(found) = connection.call(&[b"SCRUB", b"FAULTS"])? else { return Ok(faults) };
    for fault in found {
        let Reply::Array(fields) = fault else { continue };
        let bytes: Vec<&[u8]> = fields
            .iter()
            .map(|f| if let Reply::Bulk(bytes) = f { bytes.as_slice() } else { b"" })
            .collect();
        let [place, what, dictionary, start, end, concerns] = bytes[..] else { continue };
        let string = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let mut object = Map::new();
        object.insert("place".into(), string(place).into());
        object.insert("what".into(), string(what).into());
        if !dictionary.is_empty() {
            object.insert("dictionary".into(), string(dictionary).into());
            text::put(&mut object, "start", start);
            text::put(&mut object, "end", end);
            let local = || {
                connection
                    .store()
                    .and_then(|s| kvfs::describe_keys(&s.db, &string(dictionary), start, end))
            };
            let concerns = Some(string(concerns)).filter(|c| !c.is_empty()).or_else(local);
            object.insert("concerns".into(), concerns.map_or(Value::Null, Value::String));
            object.insert("keys".into(), keys(start, end).into());
        }
        faults.push(Value::Object(object));
    }
    Ok(faults)
}

fn keys(start: &[u8], end: &[u8]) -> String {
    match end.split_last() {
        Some((0, key)) if key == start => format!("key {}", text::show(start)),
        None => format!("keys from {} on", text::show(start)),
        _ => format!("keys from {} up to {}", text::show(start), text::show(end)),
    }
}
