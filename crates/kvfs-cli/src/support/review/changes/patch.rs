//! Differences as a patch in git's format: files and symbolic links, made, removed and renamed,
//! with their content and executable bit. `git apply` makes the same changes to the same files.
//! Properties that git does not track (owners, other modes, directories, extended attributes, keys)
//! are in lines that begin with `#`, which it ignores.

use std::path::PathBuf;
use std::time::{Duration, Instant};

use similar::{Algorithm, ChangeTag, capture_diff_slices_deadline, group_diff_ops};

use super::file::File;
use super::git_binary;
use super::paint::{Paint, Style};
use super::{ReadBefore, below};
use crate::support::machine::beneath;
use crate::support::terminal::text;

/// The largest file whose lines are compared, in bytes. The content of a larger one is included as
/// a whole.
const LARGEST_TEXT: u64 = 4 << 20;
/// The largest file whose content is included, in bytes.
pub(super) const LARGEST: u64 = 64 << 20;
/// Lines of context around a change.
const CONTEXT: usize = 3;
/// The time after which lines are compared coarsely.
const PATIENCE: Duration = Duration::from_secs(5);

/// The directories with the files before and after the change.
pub type Roots = (PathBuf, PathBuf);

/// One side of a file as git sees it.
enum Side {
    /// Absent, or of a kind that git does not track.
    Nothing,
    Content {
        mode: &'static str,
        bytes: Vec<u8>,
    },
    /// Unreadable or too large.
    Unread {
        mode: &'static str,
    },
}

impl Side {
    fn mode(&self) -> Option<&'static str> {
        match self {
            Side::Nothing => None,
            Side::Content { mode, .. } | Side::Unread { mode } => Some(mode),
        }
    }
}

/// Formats a name as git does: quoted and escaped if it is not a plain word.
fn name(prefix: &str, path: &[u8]) -> String {
    let plain = std::str::from_utf8(path)
        .is_ok_and(|path| !path.contains('"') && text::show(path.as_bytes()) == path);
    if plain {
        return format!("{prefix}{}", String::from_utf8_lossy(path));
    }
    let mut out = format!("\"{prefix}");
    for &byte in path {
        match byte {
            b'"' | b'\\' => out.extend(['\\', char::from(byte)]),
            b'\n' => out.push_str("\\n"),
            b'\t' => out.push_str("\\t"),
            b' '..=b'~' => out.push(char::from(byte)),
            byte => out.push_str(&format!("\\{byte:03o}")),
        }
    }
    out.push('"');
    out
}

/// Splits content into lines, each with its line end if it has one.
fn lines(bytes: &[u8]) -> Vec<&[u8]> {
    bytes.split_inclusive(|byte| *byte == b'\n').collect()
}

fn is_text(bytes: &[u8]) -> bool {
    bytes.len() as u64 <= LARGEST_TEXT && !bytes.contains(&0)
}

/// Writes a patch in pieces.
pub(super) struct Writer<'a> {
    pub roots: Option<&'a Roots>,
    /// The path of the directory in the store that these directories show.
    pub top: &'a [u8],
    pub before: Option<&'a ReadBefore>,
    pub style: Style,
    pub out: Vec<u8>,
}

impl Writer<'_> {
    fn line(&mut self, paint: Paint, line: &[u8]) {
        let shown;
        let line = if self.style.terminal {
            shown = text::show_line(&String::from_utf8_lossy(line));
            shown.as_bytes()
        } else {
            line
        };
        self.style.put(paint, line, &mut self.out);
        self.out.push(b'\n');
    }

    fn side(&self, file: &File, after: bool) -> Side {
        let path = if after { &file.path } else { file.from.as_ref().unwrap_or(&file.path) };
        let root = self.roots.map(|(old, new)| if after { new } else { old });
        let shown = below(self.top, path);
        match file.kind_of(after) {
            Some('f') => {
                let mode = if file.executable(after) { "100755" } else { "100644" };
                let bytes = match self.before.filter(|_| !after) {
                    Some(read) => read(path),
                    None => root
                        .zip(shown)
                        .and_then(|(root, path)| beneath::read_file(root, path, LARGEST).ok()),
                };
                match bytes {
                    Some(bytes) => Side::Content { mode, bytes },
                    None => Side::Unread { mode },
                }
            }
            Some('l') => {
                match file.target(after).or_else(|| beneath::read_link(root?, shown?).ok()) {
                    Some(bytes) => Side::Content { mode: "120000", bytes },
                    None => Side::Unread { mode: "120000" },
                }
            }
            _ => Side::Nothing,
        }
    }

    /// Writes a remark, which is not part of the patch.
    pub fn remark(&mut self, letter: char, line: &str) {
        self.line(Paint::of(letter), format!("# {line}").as_bytes());
    }

    /// Writes the difference of a file, or nothing if git does not track it.
    pub fn file(&mut self, file: &File) {
        let (old, new) = (self.side(file, false), self.side(file, true));
        let kinds = |mode: &str| mode == "120000";
        match (old.mode(), new.mode()) {
            (None, None) => {}
            // For git, a change of kind is a removal and an addition.
            (Some(a), Some(b)) if kinds(a) != kinds(b) => {
                self.pair(file, &old, &Side::Nothing);
                self.pair(file, &Side::Nothing, &new);
            }
            _ => self.pair(file, &old, &new),
        }
    }

    fn pair(&mut self, file: &File, old: &Side, new: &Side) {
        // Only a file that exists on both sides can have moved.
        let (was, is) = (file.from.as_ref().unwrap_or(&file.path), &file.path);
        let same = matches!((old, new), (Side::Content { mode: a, bytes: x }, Side::Content { mode: b, bytes: y }) if a == b && x == y);
        if same && was == is {
            return;
        }
        let (a, b) = (name("a/", was), name("b/", is));
        self.line(Paint::Header, format!("diff --git {a} {b}").as_bytes());
        let terminal = self.style.terminal;
        let mut header = |line: String| self.line(Paint::Header, line.as_bytes());
        match (old.mode(), new.mode()) {
            (None, Some(mode)) => header(format!("new file mode {mode}")),
            (Some(mode), None) => header(format!("deleted file mode {mode}")),
            (Some(before), Some(after)) if before != after => {
                header(format!("old mode {before}"));
                header(format!("new mode {after}"));
            }
            _ => {}
        }
        if was != is {
            header(format!("rename from {}", name("", was)));
            header(format!("rename to {}", name("", is)));
        }
        const NONE: &[u8] = b"";
        let content = |side: &Side| match side {
            Side::Nothing => Some(NONE.to_vec()),
            Side::Content { bytes, .. } => Some(bytes.clone()),
            Side::Unread { .. } => None,
        };
        let differ = format!(
            "Binary files {} and {} differ",
            if old.mode().is_some() { &a } else { "/dev/null" },
            if new.mode().is_some() { &b } else { "/dev/null" }
        );
        let (Some(before), Some(after)) = (content(old), content(new)) else {
            // A rename without a change of content needs no content.
            if file.content_differs() {
                header(differ);
            }
            return;
        };
        if before == after {
            return;
        }
        if !is_text(&before) || !is_text(&after) {
            if terminal {
                return header(differ);
            }
            let id = |side: &Side, bytes: &[u8]| match side {
                Side::Nothing => git_binary::NOTHING.into(),
                _ => git_binary::name(bytes),
            };
            header(format!("index {}..{}", id(old, &before), id(new, &after)));
            self.out.extend_from_slice(git_binary::literal(&after).as_bytes());
            return;
        }
        // A name that contains a blank ends with a tab.
        let tab = |name: &str| if name.contains(' ') { "\t" } else { "" };
        let side = |there: bool, name: &str| match there {
            true => format!("{name}{}", tab(name)),
            false => "/dev/null".into(),
        };
        header(format!("--- {}", side(old.mode().is_some(), &a)));
        header(format!("+++ {}", side(new.mode().is_some(), &b)));
        self.hunks(&before, &after);
    }

    fn hunks(&mut self, before: &[u8], after: &[u8]) {
        let (old, new) = (lines(before), lines(after));
        let until = Instant::now() + PATIENCE;
        let ops = capture_diff_slices_deadline(Algorithm::Myers, &old, &new, Some(until));
        for group in group_diff_ops(ops, CONTEXT) {
            let (Some(first), Some(last)) = (group.first(), group.last()) else { continue };
            let range = |start: usize, end: usize| match end - start {
                0 => format!("{start},0"),
                1 => format!("{}", start + 1),
                n => format!("{},{n}", start + 1),
            };
            let head = format!(
                "@@ -{} +{} @@",
                range(first.old_range().start, last.old_range().end),
                range(first.new_range().start, last.new_range().end)
            );
            self.line(Paint::Hunk, head.as_bytes());
            for change in group.iter().flat_map(|op| op.iter_changes(&old, &new)) {
                let (sign, paint) = match change.tag() {
                    ChangeTag::Equal => (b' ', Paint::Plain),
                    ChangeTag::Delete => (b'-', Paint::Removed),
                    ChangeTag::Insert => (b'+', Paint::Added),
                };
                let line: &[u8] = change.value();
                let bare = line.strip_suffix(b"\n").unwrap_or(line);
                self.line(paint, &[&[sign], bare].concat());
                if bare.len() == line.len() {
                    self.line(Paint::Plain, b"\\ No newline at end of file");
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_quoted_where_they_are_not_one_word_of_text() {
        for (path, want) in [
            (&b"src/a b.rs"[..], "a/src/a b.rs"),
            ("gr\u{fc}n".as_bytes(), "a/gr\u{fc}n"),
            (b"a\"b", "\"a/a\\\"b\""),
            (b"a\nb\\", "\"a/a\\nb\\\\\""),
            (b"\xff\x1b", "\"a/\\377\\033\""),
            ("\u{202e}x".as_bytes(), "\"a/\\342\\200\\256x\""),
        ] {
            assert_eq!(name("a/", path), want);
        }
    }
}
