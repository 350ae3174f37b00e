//! Formats the statistics of a store for people: lines of a name and a value, then tables. They are
//! made from the JSON, since that is the answer of a daemon.

use std::fmt::Write;

use serde_json::Value;

use crate::support::serving::figures;
use crate::support::stores::clones;
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;

pub fn show(all: &Value) -> String {
    let mut lines = Lines::default();
    lines.daemon(all);
    lines.server(all);
    lines.state(all);
    lines.clones(all);
    lines.bucket(all);
    lines.publishing(all);
    lines.following(all);
    lines.engine(all);
    lines.background(all);
    lines.files(all);
    lines.doors(all);
    lines.traffic(all);
    lines.dictionaries(all);
    lines.0
}

fn count(value: &Value) -> u64 {
    value.as_u64().unwrap_or(0)
}

fn bytes(value: &Value) -> String {
    human_size(count(value))
}

#[derive(Default)]
struct Lines(String);

impl Lines {
    fn line(&mut self, name: &str, value: String) {
        let _ = writeln!(self.0, "{name:<13} {value}");
    }

    /// Shows the daemon that serves the store, and its addresses.
    fn daemon(&mut self, all: &Value) {
        if let Some(pid) = all["daemon"]["pid"].as_i64() {
            let daemon = &all["daemon"];
            // A path that is not UTF-8 is present only in base64.
            let place = |name: &str| {
                let is_odd = daemon[format!("{name}_base64")].is_string();
                let none = if is_odd { "(its path is no text: --json has it)" } else { "-" };
                text::show_message(daemon[name].as_str().unwrap_or(none))
            };
            self.line("store", place("store"));
            self.line("mounted on", format!("{} (process {pid})", place("mount_point")));
            if let Some(count) = daemon["begun_anew"].as_u64() {
                let times = match count {
                    0 => "has not begun the daemon anew".into(),
                    1 => "has begun the daemon anew once".into(),
                    n => format!("has begun the daemon anew {n} times"),
                };
                let last = daemon["last_end"].as_str();
                let last = last.map_or(String::new(), |last| format!("; the last one {last}"));
                self.line("keeper", text::show_message(&format!("{times}{last}")));
            }
            self.line("socket", place("socket"));
            for (name, what) in [("listen", "keys at"), ("metrics", "figures at")] {
                if let Some(address) = daemon[name].as_str() {
                    self.line(what, text::show_message(address));
                }
            }
        }
    }

    /// Shows what a client of a server uses there, and how much was asked and answered.
    fn server(&mut self, all: &Value) {
        let transaction = &all["transaction"];
        if transaction.is_object() {
            let how = if transaction["durable"] == true { "durable, " } else { "" };
            let state = text::show_message(transaction["result"].as_str().unwrap_or("-"));
            self.line("transaction", format!("{} of the server, {how}{state}", transaction["id"]));
        }
        let lease = &all["lease"];
        if lease.is_object() {
            let said = match lease["over"].as_str() {
                None => format!("of the main files of the server, epoch {}", lease["id"]),
                Some(why) => format!("LOST: {}", text::show_message(why)),
            };
            self.line("lease", said);
        }
        if let Some(state) = all["server"]["state"].as_str() {
            let seconds = count(&all["server"]["seconds"]);
            let said = match state {
                "connected" => state.into(),
                "waiting" => format!("NOT TO BE REACHED, waited for since {seconds} s"),
                _ => format!("GONE since {seconds} s: calls fail until it answers again"),
            };
            self.line("server", said);
        }
        let sent = [&transaction["requests"], &lease["requests"], &all["snapshot"]["requests"]];
        for (of, name) in
            sent.map(|of| (of, "sent")).into_iter().chain([(&all["served"], "served")])
        {
            for one in of.as_array().into_iter().flatten() {
                let request = text::show_message(one["request"].as_str().unwrap_or("-"));
                let (asked, answered) = (bytes(&one["asked"]), bytes(&one["answered"]));
                let count = count(&one["count"]);
                self.line(name, format!("{count} {request}: {asked} asked, {answered} answered"));
            }
        }
    }

    /// Shows the health of the store, and its space.
    fn state(&mut self, all: &Value) {
        if let Some(why) = all["failed"].as_str() {
            self.line("FAILED", format!("the store takes no more writes: {why}"));
        }
        if let Some(lost) = all["lost"].as_array().filter(|lost| !lost.is_empty()) {
            let first = lost[0]["what"].as_str().unwrap_or_default();
            let more = if lost.len() > 1 {
                format!(" and {} more: kvfs check lists them", lost.len() - 1)
            } else {
                String::new()
            };
            self.line("LOST", format!("{}{more}", text::show_message(first)));
        }
        if all["space"].is_object() {
            let (total, free) = (count(&all["space"]["total"]), count(&all["space"]["free"]));
            self.line(
                "space",
                format!(
                    "{} used, {} free",
                    human_size(total.saturating_sub(free)),
                    human_size(free)
                ),
            );
        }
    }

    /// Shows the clones that have limits.
    fn clones(&mut self, all: &Value) {
        if let Some(all) = all["clones"].as_array().filter(|all| !all.is_empty()) {
            self.line("clones", all.len().to_string());
            for info in all.iter().filter_map(Value::as_object) {
                let limits = clones::limits(info);
                if !limits.is_empty() {
                    let name = info["name"].as_str().unwrap_or_default();
                    self.line("limit", format!("{}: {limits}", text::show(name.as_bytes())));
                }
            }
        }
    }

    /// Shows the device, and the part of the store that lies in object storage.
    fn bucket(&mut self, all: &Value) {
        if let Some(profile) = all["device"]["profile"].as_str() {
            let seek = bytes(&all["device"]["seek_bytes"]);
            self.line(
                "profile",
                format!("{profile}: a seek is taken to cost what reading {seek} costs"),
            );
        }
        if let Some(purposes) = all["remote"]["by_purpose"].as_object() {
            let remote = &all["remote"];
            let sum = |name: &str| purposes.values().map(|p| count(&p[name])).sum::<u64>();
            let waiting = if remote["waiting"] == true { "; IT IS NOT TO BE REACHED" } else { "" };
            self.line(
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
    }

    /// Shows how far the store is published.
    fn publishing(&mut self, all: &Value) {
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
            self.line("published", format!("{to}: {published}{rest}{syncs}"));
        }
    }

    /// Shows how far a published store is followed.
    fn following(&mut self, all: &Value) {
        if all["following"].is_object() {
            let following = &all["following"];
            let rest = match (following["ended"] == true, following["failing"].as_str()) {
                (true, Some(why)) => format!("; IT IS NOT FOLLOWED ANY MORE: {why}"),
                (_, Some(why)) => format!("; IT FAILS: {why}"),
                _ => String::new(),
            };
            let of = text::show(following["of"].as_str().unwrap_or_default().as_bytes());
            let (generation, ago) =
                (count(&following["generation"]), &following["asked_seconds_ago"]);
            let ago = count(ago);
            self.line(
                "follows",
                format!("{of}: generation {generation}, the newest {ago} s ago{rest}"),
            );
        }
    }

    /// Shows memory, commits and merges.
    fn engine(&mut self, all: &Value) {
        if all["memory"].is_object() {
            let m = &all["memory"];
            self.line(
                "memory",
                format!(
                    "{} budget: {} memtables, {} cache",
                    bytes(&m["budget"]),
                    bytes(&m["memtables"]),
                    bytes(&m["cache"])
                ),
            );
            self.line("journal", bytes(&all["journal_bytes"]));
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
            self.line(
                "commits",
                format!(
                    "{} of {}, {} syncs{slowed}",
                    count(&c["count"]),
                    bytes(&c["bytes"]),
                    count(&c["syncs"])
                ),
            );
            self.line(
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
                self.line("written", format!("{times:.2} times what was committed"));
            }
        }
    }

    /// Shows what jobs of the background have written and read.
    fn background(&mut self, all: &Value) {
        if let Some(jobs) = all["written_by_job"].as_object() {
            let wrote = jobs.iter().filter(|(_, of)| count(of) > 0);
            let wrote: Vec<String> =
                wrote.map(|(job, of)| format!("{} {}", job.replace('_', " "), bytes(of))).collect();
            if !wrote.is_empty() {
                self.line("written by", wrote.join(", "));
            }
        }
        if let Some(scrub) = all["scrub"].as_object().filter(|s| count(&s["bytes"]) > 0) {
            let state = match (scrub["running"].as_bool(), scrub["complete"].as_bool()) {
                (Some(true), _) => "under way, ",
                (_, Some(true)) => "",
                _ => "ended early, ",
            };
            self.line(
                "scrub",
                format!(
                    "{state}{} read, {} faults",
                    bytes(&scrub["bytes"]),
                    count(&scrub["faults"])
                ),
            );
        }
    }

    /// Shows the files in memory.
    fn files(&mut self, all: &Value) {
        if all["files"].is_object() {
            let f = &all["files"];
            self.line(
                "files",
                format!(
                    "{} inodes in memory, {} not committed yet",
                    count(&f["inodes_in_memory"]),
                    bytes(&f["dirty_bytes"])
                ),
            );
            if count(&f["files_read_ahead"]) > 0 {
                self.line(
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
    }

    /// Shows the requests of the kernel and of clients.
    fn doors(&mut self, all: &Value) {
        if let Some(transport) = all["transport"]["name"].as_str() {
            let round_trip = all["transport"]["round_trip_micros"].as_f64();
            let round_trip =
                round_trip.map_or(String::new(), |mean| format!(", {mean:.0} µs there and back"));
            self.line("transport", format!("{transport}{round_trip}"));
        }
        if let Some(requests) = all["requests"].as_object() {
            let total: u64 = requests.values().map(count).sum();
            let mut most: Vec<(&String, u64)> =
                requests.iter().map(|(name, n)| (name, count(n))).collect();
            most.sort_by_key(|(_, n)| std::cmp::Reverse(*n));
            let most: Vec<String> =
                most.iter().take(5).map(|(name, n)| format!("{name} {n}")).collect();
            self.line("requests", format!("{total}: {}", most.join(", ")));
        }
        if all["clients"].is_object() {
            let s = &all["clients"];
            // Do not count the connection of this command.
            let connections = count(&s["connections"]).saturating_sub(1);
            self.line(
                "clients",
                format!("{connections} connected, {} commands", count(&s["commands"])),
            );
        }
    }

    /// Adds a table of the traffic of the device.
    fn traffic(&mut self, all: &Value) {
        if let Some(io) = all["io"].as_object() {
            let _ = writeln!(
                self.0,
                "\n{:<13} {:>10} {:>9} {:>10} {:>9}",
                "purpose", "read", "ops", "written", "ops"
            );
            for (purpose, p) in io.iter().filter(|(_, p)| p.is_object()) {
                let (read, write) = (bytes(&p["read_bytes"]), bytes(&p["write_bytes"]));
                let _ = writeln!(
                    self.0,
                    "{purpose:<13} {read:>10} {:>9} {write:>10} {:>9}",
                    count(&p["read_ops"]),
                    count(&p["write_ops"])
                );
            }
        }
    }

    /// Adds a table of the dictionaries.
    fn dictionaries(&mut self, all: &Value) {
        if let Some(dictionaries) = all["dictionaries"].as_array() {
            let _ = writeln!(
                self.0,
                "\n{:<13} {:>6} {:>5} {:>11} {:>10} {:>10} {:>8} {:>8}",
                "dictionary", "level", "runs", "items", "blocks", "values", "spans", "v.spans"
            );
            for d in dictionaries {
                let name = d["name"].as_str().unwrap_or_default();
                let _ = writeln!(
                    self.0,
                    "{name:<13} {:>6} {:>5} {:>11} {:>10}",
                    "memory",
                    "",
                    "",
                    bytes(&d["memtable_bytes"])
                );
                for (level, runs) in d["levels"].as_array().into_iter().flatten().enumerate() {
                    let Some(runs) = runs.as_array().filter(|runs| !runs.is_empty()) else {
                        continue;
                    };
                    let sum = |key: &str| runs.iter().map(|r| count(&r[key])).sum::<u64>();
                    let _ = writeln!(
                        self.0,
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
                let _ = writeln!(self.0, "unchanged in clones: {unchanged}");
            }
        }
    }
}
