//! A path at which something differs, as a line, as the lines of its content that differ, and as
//! JSON. Whatever differs is said: who reviews a change sees nothing else of it.

use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use kvdb_server::Reply;
use serde_json::{Map, Value, json};
use similar::TextDiff;

use super::{bulk, lists, number, odd, sizes, word};
use crate::output::Outcome;
use crate::store::human_size;
use crate::{beneath, text};

/// The largest file of which lines are compared, bytes.
const LARGEST: u64 = 4 << 20;
/// In front of the name of an extended attribute.
const XATTR: &[u8] = b"xattr:";

/// One thing that differs; what is missing is not there on that side.
struct Detail {
    what: Vec<u8>,
    before: Option<Vec<u8>>,
    after: Option<Vec<u8>>,
}

pub(super) struct File {
    path: Vec<u8>,
    kind: String,
    before: Option<u64>,
    after: Option<u64>,
    details: Vec<Detail>,
}

fn bytes(reply: Option<Reply>) -> Outcome<Option<Vec<u8>>> {
    match reply {
        Some(Reply::Bulk(bytes)) => Ok(Some(bytes)),
        Some(Reply::Null) => Ok(None),
        _ => Err(odd()),
    }
}

/// The files of `TXN FILES` and `SNAPSHOT FILES`.
pub(super) fn files(reply: Reply) -> Outcome<Vec<File>> {
    let mut files = Vec::new();
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
        files.push(File { path, kind, before, after, details });
    }
    Ok(files)
}

impl File {
    pub(super) fn letter(&self) -> char {
        match (self.before, self.after) {
            (None, _) => 'A',
            (_, None) => 'D',
            _ => 'M',
        }
    }

    /// Bytes before and after.
    pub(super) fn sizes(&self) -> (u64, u64) {
        // Of a folder it is the number of its entries.
        if self.is_file() { (self.before.unwrap_or(0), self.after.unwrap_or(0)) } else { (0, 0) }
    }

    /// Nothing differs but the time of the last change.
    pub(super) fn times_alone(&self) -> bool {
        self.letter() == 'M' && self.details.iter().all(|d| d.what == b"time")
    }

    fn detail(&self, what: &str) -> Option<&Detail> {
        self.details.iter().find(|d| d.what == what.as_bytes())
    }

    /// Text of one side, or both with an arrow.
    fn both(&self, what: &str) -> Option<String> {
        let detail = self.detail(what)?;
        let side = |side: &Option<Vec<u8>>| side.as_deref().map_or("none".into(), text::show);
        Some(match (&detail.before, &detail.after) {
            (None, Some(one)) | (Some(one), None) => text::show(one),
            (before, after) => format!("{} → {}", side(before), side(after)),
        })
    }

    fn is_file(&self) -> bool {
        self.kind == "f"
    }

    /// It is a file on both sides, or on the only one.
    fn stays_file(&self) -> bool {
        self.is_file() && (self.letter() != 'M' || self.detail("kind").is_none())
    }

    fn shown(&self) -> String {
        let path = if self.path.is_empty() { ".".into() } else { text::show(&self.path) };
        // What became a folder was none before.
        let folder = self.kind == "d" && (self.letter() != 'M' || self.detail("kind").is_none());
        if folder { path + "/" } else { path }
    }

    /// What differs, except for the content of files.
    fn remarks(&self) -> Vec<String> {
        let mut remarks = Vec::new();
        let letter = self.letter();
        let mut say =
            |what: &str, of: Option<String>| remarks.extend(of.map(|of| format!("{what}{of}")));
        if letter == 'M' {
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
        } else {
            // What is special about it is said; that a file has an owner and a mode is not.
            let kind = self
                .both("kind")
                .filter(|kind| !matches!(kind.as_str(), "file" | "folder" | "symlink"));
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
                remarks.push(format!("{sign}xattr {}", text::show(name)));
            }
        }
        if letter == 'M' && self.times_alone() {
            remarks.push(self.both("time").map(|time| format!("time {time}")).unwrap_or_default());
        }
        remarks
    }

    pub(super) fn line(&self, out: &mut String) {
        let mut all = Vec::new();
        match self.letter() {
            'M' if self.detail("content").is_some() => {
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
        all.extend(self.remarks());
        let _ = writeln!(
            out,
            "{}",
            format!("{}  {:40}  {}", self.letter(), self.shown(), all.join(", ")).trim_end()
        );
    }

    /// The lines that differ, where both are text that is not too long; otherwise as in the list.
    /// For a terminal, what would act on it is escaped: a line must not hide others.
    pub(super) fn patch(
        &self,
        roots: Option<&(PathBuf, PathBuf)>,
        terminal: bool,
        out: &mut String,
    ) {
        let other_content = self.letter() != 'M' || self.detail("content").is_some();
        let Some((old, new)) = roots.filter(|_| self.stays_file() && other_content) else {
            return self.line(out);
        };
        let read = |root: &Path, size: Option<u64>| -> Option<String> {
            if size.is_none() {
                return Some(String::new());
            }
            let bytes = beneath::read_file(root, &self.path, LARGEST).ok()?;
            String::from_utf8(bytes).ok().filter(|text| !text.contains('\0'))
        };
        let (Some(before), Some(after)) = (read(old, self.before), read(new, self.after)) else {
            return self.line(out);
        };
        let name = |there: bool, side: &str| {
            if there { format!("{side}/{}", self.shown()) } else { "/dev/null".into() }
        };
        let diff = TextDiff::from_lines(&before, &after);
        let unified = diff
            .unified_diff()
            .header(&name(self.before.is_some(), "a"), &name(self.after.is_some(), "b"))
            .to_string();
        if unified.is_empty() || !self.remarks().is_empty() {
            self.line(out);
        }
        match terminal {
            true => {
                unified.split_inclusive('\n').for_each(|line| out.push_str(&text::show_line(line)))
            }
            false => out.push_str(&unified),
        }
    }

    /// With `times`, the time of the last change, too.
    pub(super) fn json(&self, times: bool) -> Value {
        let mut object = Map::new();
        text::put(&mut object, "path", &self.path);
        let kind = match self.kind.as_str() {
            "d" => "folder",
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

    /// "3 KiB more".
    pub(super) fn balance(files: &[&File]) -> String {
        let (before, after) =
            files.iter().map(|f| f.sizes()).fold((0, 0), |(b, a), f| (b + f.0, a + f.1));
        match (before, after) {
            (b, a) if a > b => format!("; {} more", human_size(a - b)),
            (b, a) if b > a => format!("; {} less", human_size(b - a)),
            _ => String::new(),
        }
    }
}
