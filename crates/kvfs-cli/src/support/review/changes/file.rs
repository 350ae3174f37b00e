//! A path that differs, as a line and as JSON. Every difference is reported, since a reviewer of a
//! change sees nothing else of it.

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use super::anchors::Anchors;
use super::{bulk, lists, number, odd, sizes, word};
use crate::support::terminal::output::Outcome;
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;

/// The prefix of an extended attribute's name.
pub(super) const XATTR: &[u8] = b"xattr:";

/// One difference. A side is `None` if it lacks the property.
#[derive(Clone)]
pub(super) struct Detail {
    pub what: Vec<u8>,
    pub before: Option<Vec<u8>>,
    pub after: Option<Vec<u8>>,
}

/// Counts of the unlisted content of a directory that was added or removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Below {
    files: u64,
    directories: u64,
    bytes: u64,
    /// Paths that have moved with the directory.
    moved: u64,
}

impl Below {
    /// Formats the counts, like "2 files, 1 directory, 3 KiB". Returns `None` if all are zero.
    fn told(self) -> Option<String> {
        let many = |n: u64, one: &str, many: &str| match n {
            0 => None,
            n => Some(format!("{n} {}", if n == 1 { one } else { many })),
        };
        let files = many(self.files, "file", "files");
        let directories = many(self.directories, "directory", "directories");
        let bytes = (self.bytes > 0).then(|| human_size(self.bytes));
        let parts: Vec<String> = [files, directories, bytes].into_iter().flatten().collect();
        (!parts.is_empty()).then(|| parts.join(", "))
    }
}

#[derive(Clone)]
pub(super) struct File {
    pub path: Vec<u8>,
    /// The previous path, or `None` if it has not moved.
    pub from: Option<Vec<u8>>,
    pub kind: String,
    pub before: Option<u64>,
    pub after: Option<u64>,
    pub details: Vec<Detail>,
}

fn bytes(reply: Option<Reply>) -> Outcome<Option<Vec<u8>>> {
    match reply {
        Some(Reply::Bulk(bytes)) => Ok(Some(bytes)),
        Some(Reply::Null) => Ok(None),
        _ => Err(odd()),
    }
}

/// Formats the value of an extended attribute for a line, truncated to its beginning.
fn value(bytes: &[u8]) -> String {
    const SHOWN: usize = 24;
    match bytes.len() {
        0 => "(empty)".into(),
        len if len > SHOWN => format!("{}… ({len} B)", text::show(&bytes[..SHOWN])),
        _ => text::show(bytes),
    }
}

/// Parses the files of `TXN FILES` and `SNAPSHOT FILES`, and the anchors that their paths begin at.
pub(super) fn files(reply: Reply) -> Outcome<(Vec<File>, Anchors)> {
    let (mut files, mut anchors) = (Vec::new(), Anchors::default());
    for mut f in lists(reply)? {
        let (path, kind) =
            (bulk(f.next())?, String::from_utf8_lossy(&bulk(f.next())?).into_owned());
        let (before, after) = (number(f.next())?, number(f.next())?);
        let mut details = Vec::new();
        for mut d in lists(f.next().ok_or_else(odd)?)? {
            details.push(Detail {
                what: bulk(d.next())?,
                before: bytes(d.next())?,
                after: bytes(d.next())?,
            });
        }
        if kind == "a" {
            anchors.push(&path, details.pop().and_then(|detail| detail.after))?;
        } else {
            files.push(File { path, from: None, kind, before, after, details });
        }
    }
    Ok((files, anchors))
}

impl File {
    pub(super) fn letter(&self) -> char {
        match (self.before, self.after) {
            _ if self.from.is_some() => 'R',
            (None, _) => 'A',
            (_, None) => 'D',
            _ => 'M',
        }
    }

    /// Returns whether the path exists on both sides.
    fn stays(&self) -> bool {
        matches!(self.letter(), 'M' | 'R')
    }

    /// Returns whether paths below this one are counted instead of listed.
    pub(super) fn is_counted(&self) -> bool {
        self.below() != Below::default()
    }

    /// Returns the counts of the unlisted content below this path.
    pub(super) fn below(&self) -> Below {
        let told = self.detail("below").and_then(|d| d.after.as_ref().or(d.before.as_ref()));
        let text = told.map(|told| String::from_utf8_lossy(told)).unwrap_or_default();
        let mut numbers = text.split(' ').map(|number| number.parse().unwrap_or(0));
        let mut next = || numbers.next().unwrap_or(0);
        Below { files: next(), directories: next(), bytes: next(), moved: next() }
    }

    /// Returns the bytes before and after.
    pub(super) fn sizes(&self) -> (u64, u64) {
        let (before, after) = self.own_sizes();
        let bytes = self.below().bytes;
        if self.below_is_added() { (before, after + bytes) } else { (before + bytes, after) }
    }

    /// Returns how many unlisted paths below this one were added (letter `A`) or removed (`D`).
    pub(super) fn counted_as(&self, letter: char) -> u64 {
        let below = self.below();
        let is = if self.below_is_added() { 'A' } else { 'D' };
        if letter == is { below.files + below.directories } else { 0 }
    }

    /// Returns whether the unlisted content was added, as opposed to removed.
    fn below_is_added(&self) -> bool {
        self.kind_of(true) == Some('d')
    }

    fn own_sizes(&self) -> (u64, u64) {
        // The size of a directory is the number of its entries.
        if self.is_file() { (self.before.unwrap_or(0), self.after.unwrap_or(0)) } else { (0, 0) }
    }

    /// Returns whether the modification time is the only difference.
    pub(super) fn times_alone(&self) -> bool {
        self.letter() == 'M' && self.details.iter().all(|d| d.what == b"time")
    }

    /// Returns whether the path is the only difference.
    pub(super) fn moved_alone(&self) -> bool {
        self.from.is_some()
            && self.details.iter().all(|d| d.what == b"linked-to" || d.what == b"below")
    }

    /// Returns the path before or after the move, as the daemon reports it.
    pub(super) fn moved(&self) -> Option<&[u8]> {
        self.detail("moved").and_then(|d| d.before.as_deref().or(d.after.as_deref()))
    }

    /// Returns another path of the same file.
    pub(super) fn linked_to(&self) -> Option<&[u8]> {
        self.detail("linked-to").and_then(|d| d.after.as_deref().or(d.before.as_deref()))
    }

    pub(super) fn content_differs(&self) -> bool {
        self.letter() != 'R' || self.detail("content").is_some()
    }

    /// Returns the kind on one side: `d`, `f`, `l` or `o`.
    pub(super) fn kind_of(&self, after: bool) -> Option<char> {
        let there = if after { self.after } else { self.before };
        there?;
        let named = self
            .detail("kind")
            .and_then(|d| if after { d.after.as_deref() } else { d.before.as_deref() });
        match named {
            Some(b"file") => Some('f'),
            Some(b"directory") => Some('d'),
            Some(b"symlink") => Some('l'),
            Some(_) => Some('o'),
            None => self.kind.chars().next(),
        }
    }

    /// Returns whether the owner may execute it, on one side.
    pub(super) fn executable(&self, after: bool) -> bool {
        let mode = self
            .detail("mode")
            .and_then(|d| if after { d.after.as_deref() } else { d.before.as_deref() });
        match mode.and_then(|mode| std::str::from_utf8(mode).ok()) {
            Some(mode) => u32::from_str_radix(mode, 8).is_ok_and(|mode| mode & 0o100 != 0),
            // The mode equals that of the symbolic link on the other side.
            None => self.detail("kind").is_some(),
        }
    }

    /// Returns the target of the link on one side, if the target differs.
    pub(super) fn target(&self, after: bool) -> Option<Vec<u8>> {
        let detail = self.detail("target")?;
        if after { detail.after.clone() } else { detail.before.clone() }
    }

    fn detail(&self, what: &str) -> Option<&Detail> {
        self.details.iter().find(|d| d.what == what.as_bytes())
    }

    /// Formats the value of one side, or both with an arrow.
    fn both(&self, what: &str) -> Option<String> {
        let detail = self.detail(what)?;
        let side = |side: &Option<Vec<u8>>| side.as_deref().map_or("none".into(), text::show);
        Some(match (&detail.before, &detail.after) {
            (None, Some(one)) | (Some(one), None) => text::show(one),
            (before, after) => format!("{} → {}", side(before), side(after)),
        })
    }

    pub(super) fn is_file(&self) -> bool {
        self.kind == "f"
    }

    fn shown(&self) -> String {
        // A path that has become a directory was not one before.
        let directory = self.kind == "d" && (!self.stays() || self.detail("kind").is_none());
        let one = |path: &[u8]| {
            let path = if path.is_empty() { ".".into() } else { text::show(path) };
            if directory { path + "/" } else { path }
        };
        match &self.from {
            Some(from) => format!("{} → {}", one(from), one(&self.path)),
            None => one(&self.path),
        }
    }

    /// Describes the differences, except for the content of files.
    pub(super) fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let letter = self.letter();
        let mut say =
            |what: &str, of: Option<String>| remarks.extend(of.map(|of| format!("{what}{of}")));
        if self.stays() {
            say("", self.both("kind"));
            say("mode ", self.both("mode"));
            say("owner ", self.both("owner"));
            say("device ", self.both("device"));
            say("target ", self.both("target"));
            if let Some(Detail { before: Some(a), after: Some(b), .. }) = self.detail("links") {
                say(
                    "",
                    Some(if a == b {
                        "other links".into()
                    } else {
                        self.both("links").map(|n| format!("links {n}")).unwrap_or_default()
                    }),
                );
            }
            if letter == 'R' {
                say("link of ", self.both("linked-to"));
            }
        } else {
            // Only unusual properties are worth a remark: every file has an owner and a mode.
            let kind = self
                .both("kind")
                .filter(|kind| !matches!(kind.as_str(), "file" | "directory" | "symlink"));
            say("", kind);
            say("", self.both("device"));
            say("-> ", self.both("target"));
            say("link of ", self.both("linked-to"));
            let special = |mode: &String| {
                u32::from_str_radix(mode, 8)
                    .is_ok_and(|mode| mode & 0o6000 != 0 || mode & 0o1002 == 0o002)
            };
            say("mode ", self.both("mode").filter(|mode| self.kind != "l" && special(mode)));
        }
        for detail in &self.details {
            if let Some(name) = detail.what.strip_prefix(XATTR) {
                let sign = match (&detail.before, &detail.after) {
                    (None, _) => "+",
                    (_, None) => "-",
                    _ => "",
                };
                let (name, both) = (text::show(name), (&detail.before, &detail.after));
                remarks.push(match both {
                    (Some(a), Some(b)) => format!("xattr {name} {} → {}", value(a), value(b)),
                    (Some(one), None) | (None, Some(one)) => {
                        format!("{sign}xattr {name} {}", value(one))
                    }
                    (None, None) => format!("{sign}xattr {name}"),
                });
            }
        }
        if letter == 'M' && self.times_alone() {
            remarks.push(self.both("time").map(|time| format!("time {time}")).unwrap_or_default());
        }
        remarks
    }

    /// Returns one line, without its line end.
    pub(super) fn line(&self, below: usize) -> String {
        let mut all = Vec::new();
        match self.letter() {
            'M' | 'R' if self.detail("content").is_some() => {
                let same = self.before == self.after;
                all.push(if same {
                    format!("{}, other content", sizes(self.before, self.after))
                } else {
                    sizes(self.before, self.after)
                });
            }
            'A' | 'D' if self.is_file() => all.push(sizes(self.before, self.after)),
            _ => {}
        }
        let counted = self.below();
        let is_one_sided = matches!(self.letter(), 'A' | 'D');
        if is_one_sided {
            all.extend(counted.told());
        }
        let below = below as u64 + counted.moved;
        if below > 0 {
            all.push(format!("with {below} below"));
        }
        all.extend(self.remarks());
        if !is_one_sided {
            all.extend(counted.told().map(|told| format!("with {told} below")));
        }
        let line = format!("{}  {:40}  {}", self.letter(), self.shown(), all.join(", "));
        line.trim_end().into()
    }

    /// Returns the JSON object. If `times` is set, it includes the modification time.
    pub(super) fn json(&self, times: bool) -> Value {
        let mut object = Map::new();
        text::put(&mut object, "path", &self.path);
        if let Some(from) = &self.from {
            text::put(&mut object, "from", from);
        }
        let kind = match self.kind.as_str() {
            "d" => "directory",
            "f" => "file",
            "l" => "symlink",
            _ => "other",
        };
        for (name, value) in [
            ("change", json!(word(self.letter()))),
            ("kind", json!(kind)),
            ("before", json!(self.before)),
            ("after", json!(self.after)),
        ] {
            object.insert(name.into(), value);
        }
        let (mut differs, mut xattrs) = (Map::new(), Vec::new());
        for detail in self.details.iter().filter(|d| times || d.what != b"time") {
            let mut values = Map::new();
            let sides = [("before", &detail.before), ("after", &detail.after)];
            for (side, value) in sides {
                match value {
                    Some(value) => text::put(&mut values, side, value),
                    None => drop(values.insert(side.into(), Value::Null)),
                }
            }
            match detail.what.strip_prefix(XATTR) {
                Some(name) => {
                    text::put(&mut values, "name", name);
                    xattrs.push(Value::Object(values));
                }
                None if detail.what == b"below" => {
                    let Below { files, directories, bytes, moved } = self.below();
                    let below = json!({
                        "files": files, "directories": directories, "bytes": bytes, "moved": moved,
                    });
                    drop(object.insert("below".into(), below));
                }
                None if detail.what == b"content" => {
                    drop(differs.insert("content".into(), json!(true)))
                }
                None => drop(differs.insert(
                    String::from_utf8_lossy(&detail.what).replace('-', "_"),
                    Value::Object(values),
                )),
            }
        }
        if !xattrs.is_empty() {
            differs.insert("xattrs".into(), xattrs.into());
        }
        object.insert("differs".into(), Value::Object(differs));
        Value::Object(object)
    }

    /// Formats the change of the total size, like "3 KiB more".
    pub(super) fn balance(files: &[File]) -> String {
        let (before, after) =
            files.iter().map(|f| f.sizes()).fold((0, 0), |(b, a), f| (b + f.0, a + f.1));
        match (before, after) {
            (b, a) if a > b => format!("; {} more", human_size(a - b)),
            (b, a) if b > a => format!("; {} less", human_size(b - a)),
            _ => String::new(),
        }
    }
}
