//! Checks a mounted store through its daemon: a scrub of all live data, and the committed file
//! system.

use std::path::Path;

use serde_json::Value;

use super::{Found, concerned, place_of};
use crate::commands::scrub;
use crate::support::mounts::live::{count, object};
use crate::support::mounts::sockets;
use crate::support::stores::connection::Connection;
use crate::support::stores::losses::Loss;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;

/// Checks a mounted store. Returns `None` if it is not mounted.
pub fn examine(target: &Path, repair: bool, output: &Output) -> Outcome<Option<Found>> {
    if !target.is_dir() && sockets::served(target)?.is_none() {
        return Ok(None);
    }
    if repair {
        let what = format!("{} is mounted: it cannot be repaired", target.shown());
        return Err(Failure::new(Exit::Busy, what).hint("unmount it first: kvfs umount"));
    }
    let mut connection = Connection::open(target, false)?;
    scrub::whole(&mut connection, 0, output)?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_string();
    let faults = scrub::faults(&mut connection)?;
    let concerns = concerned(&faults);
    let mut faults: Vec<(String, String)> =
        faults.iter().map(|fault| (text(&fault["place"]), text(&fault["what"]))).collect();
    let status = scrub::status(&mut connection)?;
    let found = status["faults"].as_u64().unwrap_or(0);
    if found > faults.len() as u64 {
        let what = format!("{} more that are not listed", found - faults.len() as u64);
        faults.push(("elsewhere".into(), what));
    }
    if status["complete"].as_u64() == Some(0) {
        let what = "it was stopped before it had read everything";
        return Err(Failure::new(Exit::Failed, what).hint("check it again"));
    }
    let files = match connection.call(&[b"KVFS.CHECK"]) {
        Ok(reply) => Some(object(reply)?),
        Err(failure) if failure.exit == Exit::Damaged => {
            faults.push(("file system".into(), failure.message));
            None
        }
        Err(failure) => return Err(failure),
    };
    for finding in files.iter().flat_map(|files| files["findings"].as_array()).flatten() {
        faults.push((place_of(count(&finding["ino"])), text(&finding["what"])));
    }
    let losses = files.iter().flat_map(|files| files["losses"].as_array()).flatten();
    let losses = losses.filter_map(Loss::of_json).collect();
    let stat = object(connection.call(&[b"KVFS.STAT"])?)?["store"].take();
    connection.close()?;
    let dictionaries: Vec<&Value> = stat["dictionaries"].as_array().into_iter().flatten().collect();
    let runs = |dictionary: &&Value| -> Vec<Value> {
        let levels = dictionary["levels"].as_array().into_iter().flatten();
        levels.filter_map(Value::as_array).flatten().cloned().collect()
    };
    let all: Vec<Value> = dictionaries.iter().flat_map(runs).collect();
    let report = kvdb::CheckReport {
        dictionaries: dictionaries.len() as u64 + count(&stat["unchanged_dictionaries"]),
        runs: all.len() as u64,
        items: all.iter().map(|run| count(&run["items"])).sum(),
        bytes: status["bytes"].as_u64().unwrap_or(0),
        ..kvdb::CheckReport::default()
    };
    let files = files.map(|f| kvfs::Report {
        directories: count(&f["directories"]),
        files: count(&f["files"]),
        others: count(&f["others"]),
        names: count(&f["names"]),
        pages: count(&f["pages"]),
        bytes: count(&f["bytes"]),
        lost_pages: count(&f["lost_pages"]),
        // Programs may have some of these open.
        orphans: count(&f["orphans"]),
        findings: Vec::new(),
    });
    Ok(Some(Found { faults, concerns, losses, opened: true, report, journal: false, files }))
}
