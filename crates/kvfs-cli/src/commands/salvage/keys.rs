//! Extracts keys and values.

use std::fs::File;
use std::io::{BufWriter, Write};
use std::path::Path;

use indicatif::ProgressBar;
use kvdb::{Remnant, Salvage};
use serde_json::{Map, Value};

use super::report::Report;
use crate::support::terminal::output::{Failure, Outcome};
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// The dictionaries of the file system.
const FILES: [&str; 3] = ["nmap", "imap", "dmap"];

/// Reads all keys, and writes them to a file, if one is given: a line of JSON for each.
pub fn bring_out(
    salvage: &Salvage,
    to: Option<(&Path, File)>,
    bar: &ProgressBar,
    report: &mut Report,
) -> Outcome {
    let cannot =
        |path: &Path, e: std::io::Error| Failure::io(format!("cannot write {}", path.shown()), &e);
    let mut out = to.map(|(path, file)| (path, BufWriter::new(file)));
    for dictionary in
        salvage.dictionaries().into_iter().filter(|name| !FILES.contains(&name.as_str()))
    {
        for remnant in salvage.scan(&dictionary, b"", b"") {
            let (key, value) = match remnant {
                Remnant::Gap { start, end, what } => {
                    report.keys_missing(&dictionary, &start, &end, &what);
                    continue;
                }
                // The tuple lies in a gap reported before: a newer value or its deletion may be
                // lost.
                Remnant::Tuple { stale: true, .. } => continue,
                Remnant::Tuple { key, value, .. } => (key, salvage.value(&value)),
            };
            let value = match value {
                Ok(value) => value,
                Err(e) => {
                    report.keys_missing(
                        &dictionary,
                        &key,
                        &[&key, &[0][..]].concat(),
                        &e.to_string(),
                    );
                    continue;
                }
            };
            bar.inc(value.len() as u64);
            report.keys += 1;
            if let Some((path, out)) = &mut out {
                let mut object = Map::new();
                object.insert("dictionary".into(), dictionary.clone().into());
                text::put(&mut object, "key", &key);
                text::put(&mut object, "value", &value);
                writeln!(out, "{}", Value::Object(object)).map_err(|e| cannot(path, e))?;
            }
        }
    }
    match out {
        Some((path, mut out)) => out.flush().map_err(|e| cannot(path, e)),
        None => Ok(()),
    }
}
