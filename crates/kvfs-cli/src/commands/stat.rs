//! `kvfs stat`: shows the contents and the statistics of a store, or the attributes of a file in
//! it.
//!
//! The statistics of a mounted store come from the running daemon, through its socket. For a store
//! that is not mounted, they are those after opening it for reading.

use std::ffi::OsString;
use std::fmt::Write;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use kvdb_server::{Client, Reply};
use serde_json::{Map, Value, json};

use crate::support::machine::paths;
use crate::support::mounts::daemons::Record;
use crate::support::mounts::mounted::Mounted;
use crate::support::mounts::place::{self, Place};
use crate::support::mounts::{sockets, waiting};
use crate::support::serving::{figures, guest, statistics};
use crate::support::stores::files::Files;
use crate::support::stores::store::{self, Access};
use crate::support::stores::{clones, tree};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;

/// Show space, dictionaries, runs and amplification of a store, or the attributes of a file in it.
#[derive(clap::Args)]
pub struct Args {
    /// Directory a store is mounted on, or the file of a store; or a clone, to show its limits.
    target: PathBuf,
    /// File in the store, to show its attributes.
    path: Option<OsString>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(path) = &args.path {
        return file(&args.target, path.as_bytes(), output);
    }
    if let Some(name) = clone_at(&args.target)? {
        return clone(&args.target, &name, output);
    }
    let full = paths::full_path(&args.target)
        .map_err(|e| Failure::io(format!("cannot find {}", args.target.display()), &e))?;
    let record = Record::all().into_iter().find(|r| r.store == full || r.mount_point == full);
    let mut all = Map::new();
    place::must_be_the_store(&args.target)?;
    match (sockets::socket_of(&args.target)?, record) {
        (Some(socket), record) => {
            let cannot = |e| {
                Failure::io(format!("cannot ask the store's daemon at {}", socket.display()), &e)
            };
            let _waiting = waiting::on(&socket);
            let mut client = Client::connect(&socket).map_err(cannot)?;
            let reply = client.call(&[b"KVFS.STAT"]).map_err(cannot)?;
            let listed = client.call(&clones::LIST.map(str::as_bytes)).map_err(cannot)?;
            let stat: Option<Value> = match &reply {
                Reply::Bulk(json) => serde_json::from_slice(json).ok(),
                _ => None,
            };
            let Some(mut stat) = stat else {
                return Err(Failure::new(
                    Exit::Failed,
                    format!("the daemon at {} gave no statistics", socket.display()),
                ));
            };
            if let Value::Object(store) = stat["store"].take() {
                all.extend(store);
            }
            all.insert("clients".into(), stat["server"].take());
            all.insert("clones".into(), json!(clones::of_reply(listed)?));
            all.insert(
                "daemon".into(),
                record.map_or(text::with_paths(json!({}), &[("socket", Some(&socket))]), |r| {
                    daemon(&r)
                }),
            );
        }
        (None, Some(record)) => {
            all.insert("daemon".into(), daemon(&record));
            if let Some(mut status) = guest::ask(&record, "status")? {
                // A client that knows the key may use the transaction, so it is not shown.
                status.as_object_mut().and_then(|status| status.remove("key"));
                all.insert("server".into(), status["server"].take());
                let what = match status["result"].as_str() {
                    Some("lease" | "lost") => "lease",
                    _ if status["id"].is_null() => "snapshot",
                    _ => "transaction",
                };
                all.insert(what.into(), status);
            }
        }
        (None, None) if args.target.is_dir() => {
            let what = format!(
                "{} is neither a store nor the directory of a mounted one",
                args.target.display()
            );
            return Err(Failure::new(Exit::NotFound, what)
                .hint("mount the store there, or give the store's file"));
        }
        (None, None) => {
            let store = store::open_waiting(&args.target, Access::ReadOnly, None)?;
            all.extend(figures::engine(&store.db.stats()));
            if let Some(remote) = store.db.remote_stats() {
                all.insert("remote".into(), figures::remote(&remote));
            }
            let losses = kvfs::losses(&store.db).unwrap_or_default();
            all.insert("lost".into(), statistics::lost(losses));
            all.insert("clones".into(), json!(clones::of_store(&store.db)));
            store.close()?;
        }
    }
    let all = Value::Object(all);
    output.print(show(&all), &all)
}

/// Returns the clone that a path names. Returns `None` for a path within a clone, and for a mount
/// of a clone.
fn clone_at(target: &Path) -> Outcome<Option<String>> {
    let place = place::of_target(target)?;
    let named = |place: Place| place.view.clone_name().map(String::from);
    Ok(place.filter(|place| !place.bound && place.rest.as_os_str().is_empty()).and_then(named))
}

/// Shows one clone.
fn clone(target: &Path, name: &str, output: &Output) -> Outcome {
    let mut mounted = Mounted::find_view(target)?;
    let all = clones::of_reply(mounted.call(&clones::LIST.map(str::as_bytes))?)?;
    let found = all.into_iter().find(|info| info["name"] == *name).ok_or_else(|| {
        Failure::new(Exit::NotFound, format!("there is no clone {}", text::show(name.as_bytes())))
    })?;
    output.print(clones::line(&found), found)
}

fn daemon(record: &Record) -> Value {
    let paths = [
        ("store", Some(&*record.store)),
        ("mount_point", Some(&*record.mount_point)),
        ("socket", record.socket.as_deref()),
        ("log", record.log.as_deref()),
    ];
    let value = json!({
        "pid": record.pid, "listen": record.listen, "metrics": record.metrics,
        "begun_anew": record.begun_anew.as_ref().map(|anew| anew.count),
        "last_end": record.begun_anew.as_ref().and_then(|anew| anew.last.as_ref()),
    });
    text::with_paths(value, &paths)
}

fn file(target: &Path, path: &[u8], output: &Output) -> Outcome {
    let files = Files::of(target)?;
    let attr = files.look(path, false)?;
    let mut object = Map::new();
    text::put(&mut object, "path", path);
    object.extend(files.json(&attr));
    let names = files.xattrs(path, &attr)?;
    object.insert("xattrs".into(), names.iter().map(|n| Value::from(text::show(n))).collect());
    let mut lines = format!("{}\n", text::show(path));
    let mut line = |name: &str, value: String| {
        let _ = writeln!(lines, "  {name:<9} {value}");
    };
    line("kind", tree::kind_name(attr.kind).into());
    if attr.kind == kvfs::FileKind::Symlink {
        let to = files.target(path, &attr)?;
        line("target", text::show(&to));
        text::put(&mut object, "target", &to);
    }
    line("inode", attr.ino.to_string());
    line("mode", format!("{} ({:04o})", tree::mode_text(attr.kind, attr.perm), attr.perm));
    line("owner", format!("{}:{}", attr.uid, attr.gid));
    line("links", attr.nlink.to_string());
    line("size", format!("{} ({} stored)", attr.size, human_size(attr.blocks.saturating_mul(512))));
    for (name, time) in [
        ("accessed", attr.atime),
        ("modified", attr.mtime),
        ("changed", attr.ctime),
        ("made", attr.btime),
    ] {
        if name == "made" && !files.know_births() {
            continue;
        }
        line(name, format!("{}.{:09} UTC", tree::time_text(time), time.nanos));
    }
    for name in names {
        line("xattr", text::show(&name));
    }
    files.close()?;
    output.print(lines, &object)
}

/// Formats the statistics for people, from the JSON, since that is the answer of a daemon.
fn show(all: &Value) -> String {
    let mut out = String::new();
    let bytes = |v: &Value| human_size(v.as_u64().unwrap_or(0));
    let count = |v: &Value| v.as_u64().unwrap_or(0);
    let mut line = |name: &str, value: String| {
        let _ = writeln!(out, "{name:<13} {value}");
    };
    if let Some(pid) = all["daemon"]["pid"].as_i64() {
        let daemon = &all["daemon"];
        // A path that is not UTF-8 is present only in base64.
        let place = |name: &str| {
            let is_odd = daemon[format!("{name}_base64")].is_string();
            let none = if is_odd { "(its path is no text: --json has it)" } else { "-" };
            text::show_line(daemon[name].as_str().unwrap_or(none))
        };
        line("store", place("store"));
        line("mounted on", format!("{} (process {pid})", place("mount_point")));
        if let Some(count) = daemon["begun_anew"].as_u64() {
            let times = match count {
                0 => "has not begun the daemon anew".into(),
                1 => "has begun the daemon anew once".into(),
                n => format!("has begun the daemon anew {n} times"),
            };
            let last = daemon["last_end"].as_str();
            let last = last.map_or(String::new(), |last| format!("; the last one {last}"));
            line("keeper", text::show_line(&format!("{times}{last}")));
        }
        line("socket", place("socket"));
        for (name, what) in [("listen", "keys at"), ("metrics", "figures at")] {
            if let Some(address) = daemon[name].as_str() {
                line(what, text::show_line(address));
            }
        }
    }
    let transaction = &all["transaction"];
    if transaction.is_object() {
        let how = if transaction["durable"] == true { "durable, " } else { "" };
        let state = text::show_line(transaction["result"].as_str().unwrap_or("-"));
        line("transaction", format!("{} of the server, {how}{state}", transaction["id"]));
    }
    let lease = &all["lease"];
    if lease.is_object() {
        let said = match lease["over"].as_str() {
            None => format!("of the main files of the server, epoch {}", lease["id"]),
            Some(why) => format!("LOST: {}", text::show_line(why)),
        };
        line("lease", said);
    }
    if let Some(state) = all["server"]["state"].as_str() {
        let seconds = count(&all["server"]["seconds"]);
        let said = match state {
            "connected" => state.into(),
            "waiting" => format!("NOT TO BE REACHED, waited for since {seconds} s"),
            _ => format!("GONE since {seconds} s: calls fail until it answers again"),
        };
        line("server", said);
    }
    let sent = [&transaction["requests"], &lease["requests"], &all["snapshot"]["requests"]];
    for (of, name) in sent.map(|of| (of, "sent")).into_iter().chain([(&all["served"], "served")]) {
        for one in of.as_array().into_iter().flatten() {
            let request = text::show_line(one["request"].as_str().unwrap_or("-"));
            let (asked, answered) = (bytes(&one["asked"]), bytes(&one["answered"]));
            let count = count(&one["count"]);
            line(name, format!("{count} {request}: {asked} asked, {answered} answered"));
        }
    }
    if let Some(why) = all["failed"].as_str() {
        line("FAILED", format!("the store takes no more writes: {why}"));
    }
    if let Some(lost) = all["lost"].as_array().filter(|lost| !lost.is_empty()) {
        let first = lost[0]["what"].as_str().unwrap_or_default();
        let more = if lost.len() > 1 {
            format!(" and {} more: kvfs check lists them", lost.len() - 1)
        } else {
            String::new()
        };
        line("LOST", format!("{}{more}", text::show_line(first)));
    }
    if all["space"].is_object() {
        let (total, free) = (count(&all["space"]["total"]), count(&all["space"]["free"]));
        line(
            "space",
            format!("{} used, {} free", human_size(total.saturating_sub(free)), human_size(free)),
        );
    }
    if let Some(all) = all["clones"].as_array().filter(|all| !all.is_empty()) {
        line("clones", all.len().to_string());
        for info in all.iter().filter_map(Value::as_object) {
            let limits = clones::limits(info);
            if !limits.is_empty() {
                let name = info["name"].as_str().unwrap_or_default();
                line("limit", format!("{}: {limits}", text::show(name.as_bytes())));
            }
        }
    }
    if let Some(profile) = all["device"]["profile"].as_str() {
        let seek = bytes(&all["device"]["seek_bytes"]);
        line("profile", format!("{profile}: a seek is taken to cost what reading {seek} costs"));
    }
    if let Some(purposes) = all["remote"]["by_purpose"].as_object() {
        let remote = &all["remote"];
        let sum = |name: &str| purposes.values().map(|p| count(&p[name])).sum::<u64>();
        let waiting = if remote["waiting"] == true { "; IT IS NOT TO BE REACHED" } else { "" };
        line(
            "in a bucket",
            format!(
                "{} zones, {} of them here; {} requests, {} fetched{waiting}",
                count(&remote["zones"]),
                bytes(&remote["cached_bytes"]),
                sum("gets"),
                human_size(sum("bytes")),
            ),
        );
    }
    if all["publishing"].is_object() {
        let publishing = &all["publishing"];
        let published = match publishing["generation"].as_u64() {
            Some(generation) => {
                let ago = count(&publishing["seconds_ago"]);
                format!("generation {generation}, {ago} s ago")
            }
            None => "nothing by this mount yet".into(),
        };
        let rest = match (&publishing["overtaken"], publishing["failing"].as_str()) {
            (Value::Bool(true), _) if publishing["written_at_address"] == true => {
                "; ANOTHER MACHINE WRITES IT NOW, AND THIS MOUNT TAKES NO MORE CHANGES".into()
            }
            (Value::Bool(true), _) => "; ANOTHER MACHINE OR MOUNT PUBLISHES IT NOW".into(),
            (_, Some(why)) => format!("; IT FAILS: {why}"),
            _ if publishing["due"] == true => "; later changes are not there yet".into(),
            _ => "; all of it".into(),
        };
        let to = publishing["to"].as_str().unwrap_or_default();
        let syncs = match publishing["durability"].as_str() {
            Some("remote") => "; syncs wait for it",
            _ => "",
        };
        let to = text::show(to.as_bytes());
        line("published", format!("{to}: {published}{rest}{syncs}"));
    }
    if all["following"].is_object() {
        let following = &all["following"];
        let rest = match (following["ended"] == true, following["failing"].as_str()) {
            (true, Some(why)) => format!("; IT IS NOT FOLLOWED ANY MORE: {why}"),
            (_, Some(why)) => format!("; IT FAILS: {why}"),
            _ => String::new(),
        };
        let of = text::show(following["of"].as_str().unwrap_or_default().as_bytes());
        let (generation, ago) = (count(&following["generation"]), &following["asked_seconds_ago"]);
        let ago = count(ago);
        line("follows", format!("{of}: generation {generation}, the newest {ago} s ago{rest}"));
    }
    if all["memory"].is_object() {
        let m = &all["memory"];
        line(
            "memory",
            format!(
                "{} budget: {} memtables, {} cache",
                bytes(&m["budget"]),
                bytes(&m["memtables"]),
                bytes(&m["cache"])
            ),
        );
        line("journal", bytes(&all["journal_bytes"]));
    }
    if all["commits"].is_object() {
        let (c, m) = (&all["commits"], &all["merges"]);
        let slowed = match count(&c["delays"]) {
            0 => String::new(),
            n => format!(
                ", {n} slowed down by {:.1} s in all",
                count(&c["delayed_micros"]) as f64 / 1e6
            ),
        };
        line(
            "commits",
            format!(
                "{} of {}, {} syncs{slowed}",
                count(&c["count"]),
                bytes(&c["bytes"]),
                count(&c["syncs"])
            ),
        );
        line(
            "merges",
            format!(
                "{} flushes, {} compactions: {} written, {} stitched",
                count(&m["flushes"]),
                count(&m["compactions"]),
                bytes(&m["written_bytes"]),
                bytes(&m["stitched_bytes"])
            ),
        );
        if let Some(times) = figures::shown_amplification(all) {
            line("written", format!("{times:.2} times what was committed"));
        }
    }
    if let Some(jobs) = all["written_by_job"].as_object() {
        let wrote = jobs.iter().filter(|(_, of)| count(of) > 0);
        let wrote: Vec<String> =
            wrote.map(|(job, of)| format!("{} {}", job.replace('_', " "), bytes(of))).collect();
        if !wrote.is_empty() {
            line("written by", wrote.join(", "));
        }
    }
    if let Some(scrub) = all["scrub"].as_object().filter(|s| count(&s["bytes"]) > 0) {
        let state = match (scrub["running"].as_bool(), scrub["complete"].as_bool()) {
            (Some(true), _) => "under way, ",
            (_, Some(true)) => "",
            _ => "ended early, ",
        };
        line(
            "scrub",
            format!("{state}{} read, {} faults", bytes(&scrub["bytes"]), count(&scrub["faults"])),
        );
    }
    if all["files"].is_object() {
        let f = &all["files"];
        line(
            "files",
            format!(
                "{} inodes in memory, {} not committed yet",
                count(&f["inodes_in_memory"]),
                bytes(&f["dirty_bytes"])
            ),
        );
        if count(&f["files_read_ahead"]) > 0 {
            line(
                "read ahead",
                format!(
                    "{} files by place, {} of them used, {} wasted",
                    count(&f["files_read_ahead"]),
                    count(&f["read_ahead_used"]),
                    count(&f["read_ahead_wasted"])
                ),
            );
        }
    }
    if let Some(transport) = all["transport"]["name"].as_str() {
        let round_trip = all["transport"]["round_trip_micros"].as_f64();
        let round_trip =
            round_trip.map_or(String::new(), |mean| format!(", {mean:.0} µs there and back"));
        line("transport", format!("{transport}{round_trip}"));
    }
    if let Some(requests) = all["requests"].as_object() {
        let total: u64 = requests.values().map(count).sum();
        let mut most: Vec<(&String, u64)> =
            requests.iter().map(|(name, n)| (name, count(n))).collect();
        most.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
        let most: Vec<String> =
            most.iter().take(5).map(|(name, n)| format!("{name} {n}")).collect();
        line("requests", format!("{total}: {}", most.join(", ")));
    }
    if all["clients"].is_object() {
        let s = &all["clients"];
        // Do not count the connection of this command.
        let connections = count(&s["connections"]).saturating_sub(1);
        line("clients", format!("{connections} connected, {} commands", count(&s["commands"])));
    }
    if let Some(io) = all["io"].as_object() {
        let _ = writeln!(
            out,
            "\n{:<13} {:>10} {:>9} {:>10} {:>9}",
            "purpose", "read", "ops", "written", "ops"
        );
        for (purpose, p) in io.iter().filter(|(_, p)| p.is_object()) {
            let (read, write) = (bytes(&p["read_bytes"]), bytes(&p["write_bytes"]));
            let _ = writeln!(
                out,
                "{purpose:<13} {read:>10} {:>9} {write:>10} {:>9}",
                count(&p["read_ops"]),
                count(&p["write_ops"])
            );
        }
    }
    if let Some(dictionaries) = all["dictionaries"].as_array() {
        let _ = writeln!(
            out,
            "\n{:<13} {:>6} {:>5} {:>11} {:>10} {:>10} {:>8} {:>8}",
            "dictionary", "level", "runs", "items", "blocks", "values", "spans", "v.spans"
        );
        for d in dictionaries {
            let name = d["name"].as_str().unwrap_or_default();
            let _ = writeln!(
                out,
                "{name:<13} {:>6} {:>5} {:>11} {:>10}",
                "memory",
                "",
                "",
                bytes(&d["memtable_bytes"])
            );
            for (level, runs) in d["levels"].as_array().into_iter().flatten().enumerate() {
                let Some(runs) = runs.as_array().filter(|runs| !runs.is_empty()) else { continue };
                let sum = |key: &str| runs.iter().map(|r| count(&r[key])).sum::<u64>();
                let _ = writeln!(
                    out,
                    "{:<13} {level:>6} {:>5} {:>11} {:>10} {:>10} {:>8} {:>8}",
                    "",
                    runs.len(),
                    sum("items"),
                    human_size(sum("block_bytes")),
                    human_size(sum("value_bytes")),
                    sum("block_spans"),
                    sum("value_spans")
                );
            }
        }
        let unchanged = count(&all["unchanged_dictionaries"]);
        if unchanged > 0 {
            let _ = writeln!(out, "unchanged in clones: {unchanged}");
        }
    }
    out
}
