//! Reports the extracted data and the losses.

use std::ops::Range;
use std::path::Path;

use kvfs::FileKind;
use serde_json::{Map, Value, json};

use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;
use crate::support::terminal::text::Shown;

/// The limit of listed losses; all are counted.
const LISTED: usize = 100_000;

pub struct Report {
    notes: Vec<String>,
    directories: u64,
    files: u64,
    others: u64,
    bytes: u64,
    pub keys: u64,
    damaged: u64,
    keys_damaged: u64,
    list: Vec<Value>,
    lines: Vec<String>,
    /// The name of the directory for inodes without a name.
    lost_found: Option<Vec<u8>>,
}

impl Report {
    pub fn new(notes: &[String]) -> Report {
        Report {
            notes: notes.to_vec(),
            directories: 0,
            files: 0,
            others: 0,
            bytes: 0,
            keys: 0,
            damaged: 0,
            keys_damaged: 0,
            list: Vec::new(),
            lines: Vec::new(),
            lost_found: None,
        }
    }

    /// Counts an entry that was made.
    pub fn wrote(&mut self, kind: FileKind, bytes: u64) {
        match kind {
            FileKind::Dir => self.directories += 1,
            FileKind::File => self.files += 1,
            _ => self.others += 1,
        }
        self.bytes += bytes;
    }

    /// Records that a part of the data at `path` is missing or may be outdated.
    pub fn damaged(&mut self, path: &[u8], what: Vec<String>, missing: Vec<Range<u64>>) {
        self.damaged += 1;
        if self.list.len() >= LISTED {
            return;
        }
        let mut object = Map::new();
        text::put(&mut object, "path", path);
        object.insert("what".into(), what.clone().into());
        let end =
            |range: &Range<u64>| if range.end == u64::MAX { Value::Null } else { range.end.into() };
        let ranges: Vec<Value> = missing.iter().map(|r| json!([r.start, end(r)])).collect();
        object.insert("missing".into(), ranges.into());
        self.list.push(Value::Object(object));
        let mut line = text::show(path);
        for (i, what) in what.iter().enumerate() {
            line += if i == 0 { ": " } else { "; " };
            line += what;
        }
        if !missing.is_empty() {
            let all: Vec<String> = missing
                .iter()
                .map(|r| {
                    if r.end == u64::MAX {
                        format!("{} to the end", r.start)
                    } else {
                        format!("{}..{}", r.start, r.end)
                    }
                })
                .collect();
            line += &format!(
                "{} bytes {} are missing",
                if what.is_empty() { ":" } else { ";" },
                all.join(", ")
            );
        }
        self.lines.push(line);
    }

    /// Records that keys from `start` up to `end` (no bound if empty) may be lost.
    pub fn keys_missing(&mut self, dictionary: &str, start: &[u8], end: &[u8], what: &str) {
        self.keys_damaged += 1;
        if self.list.len() >= LISTED {
            return;
        }
        let mut object = Map::new();
        object.insert("dictionary".into(), dictionary.into());
        text::put(&mut object, "start", start);
        text::put(&mut object, "end", end);
        object.insert("what".into(), what.into());
        self.list.push(Value::Object(object));
        let keys = match end.split_last() {
            Some((0, key)) if key == start => format!("key {}", text::show(start)),
            None => format!("keys from {} on", text::show(start)),
            _ => format!("keys from {} up to {}", text::show(start), text::show(end)),
        };
        self.lines.push(format!("dictionary {dictionary}, {keys}: {what}"));
    }

    /// Returns the name of the directory for inodes without a name, which no other entry has.
    pub fn lost_found(&mut self, root: &Path) -> Vec<u8> {
        let free = |name: &String| root.join(name).symlink_metadata().is_err();
        let first = || {
            (0..)
                .map(|n| if n == 0 { "lost+found".into() } else { format!("lost+found.{n}") })
                .find(free)
        };
        self.lost_found.get_or_insert_with(|| first().unwrap_or_default().into_bytes()).clone()
    }

    /// Prints the report. Fails if something is missing.
    pub fn finish(self, store: &Path, directory: &Path, output: &Output) -> Outcome {
        let whole = self.notes.is_empty() && self.damaged == 0 && self.keys_damaged == 0;
        let mut text = String::new();
        for note in &self.notes {
            text += &format!("{note}\n");
        }
        for line in &self.lines {
            text += &format!("{line}\n");
        }
        if self.damaged + self.keys_damaged > self.lines.len() as u64 {
            text += "more is not shown\n";
        }
        text += &format!(
            "brought out {} directories, {} files, {} others, {} of data, {} keys; {}",
            self.directories,
            self.files,
            self.others,
            human_size(self.bytes),
            self.keys,
            if whole {
                "nothing is missing".to_string()
            } else {
                format!("{} losses", self.damaged + self.keys_damaged)
            },
        );
        let value = json!({
            "whole": whole, "notes": self.notes, "directories": self.directories, "files": self.files,
            "others": self.others, "bytes": self.bytes, "keys": self.keys, "losses": self.damaged + self.keys_damaged,
            "lost": self.list,
            "lost_found": self.lost_found.map(|name| String::from_utf8_lossy(&name).into_owned()),
        });
        let paths = [("store", Some(store)), ("directory", Some(directory))];
        output.print(text, text::with_paths(value, &paths))?;
        if whole {
            return Ok(());
        }
        Err(Failure::new(
            Exit::Damaged,
            format!("not all of {} could be brought out", store.shown()),
        ))
    }
}
