//! Shows the changes of a transaction, or the differences of two snapshots, for people and
//! programs: files by path, keys by dictionary.

mod anchors;
mod choices;
mod file;
mod git_binary;
mod keys;
mod paint;
mod patch;
mod renames;

use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::Arc;

use kvdb_server::Reply;
use serde_json::{Value, json};

use crate::support::mounts::mounted::Mounted;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::pager::Pager;
use crate::support::terminal::sizes::human_size;
use anchors::Anchors;
pub use choices::Choice;
use file::{File, files};
use keys::{Gathered, Key};
pub use paint::Style;
use paint::{Paint, When};
use patch::Roots;
use renames::Renames;

/// Options that select the changes to show, and their format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Detail {
    /// Print only totals: added, changed and removed.
    #[arg(long, conflicts_with = "patch")]
    stat: bool,
    /// Print the contents that differ as a patch for `git apply`. Changes that git does not
    /// represent are lines that begin with `#`. On a terminal, files that are not text are only
    /// named.
    #[arg(long, short = 'p')]
    patch: bool,
    /// Show the elements of hashes, sets, sorted sets and lists that differ, one a line. --patch
    /// shows them, too.
    #[arg(long, conflicts_with = "stat")]
    fields: bool,
    /// Include entries of which only the modification time differs.
    #[arg(long)]
    times: bool,
    /// List the contents of added and removed directories instead of counting them.
    #[arg(long, short = 'a')]
    all: bool,
    /// Show a rename as a removal and an addition.
    #[arg(long)]
    no_renames: bool,
    /// When to colour lines.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: When,
    /// Do not use a pager (KVFS_PAGER, PAGER or less).
    #[arg(long)]
    no_pager: bool,
}

impl Detail {
    /// A one-line summary.
    pub const STAT: Detail = Detail {
        stat: true,
        patch: false,
        fields: false,
        times: false,
        all: false,
        no_renames: false,
        color: When::Auto,
        no_pager: true,
    };

    /// Returns the settings for showing changes that were undone.
    pub fn of_undo(stat: bool, no_pager: bool) -> Detail {
        Detail { stat, no_pager, ..Detail::default() }
    }

    /// Returns which details to request from the daemon.
    pub fn wanted(self) -> Wanted {
        Wanted { fields: self.fields || self.patch, all: self.all || self.patch }
    }

    /// Returns these settings, with contents shown as a patch.
    pub fn with_patch(self) -> Detail {
        Detail { stat: false, patch: true, ..self }
    }

    /// Returns the style for a person at a terminal.
    pub fn style_of_terminal(self) -> Style {
        Style::of(self.color, true)
    }
}

/// Details to request with a list.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wanted {
    /// The changed elements of collections.
    pub fields: bool,
    /// Everything below directories that were added or removed.
    pub all: bool,
}

impl Wanted {
    pub const ALL: Wanted = Wanted { fields: true, all: true };
}

/// Lines are written in pieces of about this many bytes.
const PIECE: usize = 64 << 10;

/// Reads the content of a file as it was before the changes, where no directory has it.
pub type ReadBefore = Arc<dyn Fn(&[u8]) -> Option<Vec<u8>> + Send + Sync>;

/// The largest file whose content is shown, in bytes.
pub const LARGEST: u64 = patch::LARGEST;

pub struct Changes {
    files: Vec<File>,
    anchors: Anchors,
    keys: Vec<Key>,
    /// The state of the transaction that was listed, if this is a list of a transaction.
    pub state: Option<String>,
    /// The directories with the files before and after the change, for `--patch`.
    roots: Option<Roots>,
    /// The path of the directory in the store that these directories show; empty for its root.
    top: Vec<u8>,
    /// Used instead of the first of these directories.
    before: Option<ReadBefore>,
}

/// Returns a path of the store as one in its directory `top`, or `None` if it lies outside.
fn below<'a>(top: &[u8], path: &'a [u8]) -> Option<&'a [u8]> {
    if top.is_empty() {
        return Some(path);
    }
    match path.strip_prefix(top)? {
        rest if rest.is_empty() => Some(rest),
        rest => rest.strip_prefix(b"/"),
    }
}

fn odd() -> Failure {
    Failure::new(Exit::Failed, "the store's daemon gave an unexpected list of changes")
}

fn bulk(reply: Option<Reply>) -> Outcome<Vec<u8>> {
    if let Some(Reply::Bulk(bytes)) = reply { Ok(bytes) } else { Err(odd()) }
}

fn number(reply: Option<Reply>) -> Outcome<Option<u64>> {
    match reply {
        Some(Reply::Integer(n)) => Ok(u64::try_from(n).ok()),
        Some(Reply::Null) => Ok(None),
        _ => Err(odd()),
    }
}

fn lists(reply: Reply) -> Outcome<Vec<std::vec::IntoIter<Reply>>> {
    let Reply::Array(items) = reply else { return Err(odd()) };
    items
        .into_iter()
        .map(
            |item| {
                if let Reply::Array(fields) = item { Ok(fields.into_iter()) } else { Err(odd()) }
            },
        )
        .collect()
}

impl Changes {
    /// Parses the replies to `SNAPSHOT FILES` and `SNAPSHOT CHANGES`.
    pub fn between(
        files_reply: Reply,
        keys_reply: Reply,
        roots: Option<Roots>,
    ) -> Outcome<Changes> {
        let keys = Gathered::between(keys_reply)?;
        let (files, anchors) = files(files_reply)?;
        Ok(Changes { files, anchors, keys, state: None, roots, top: Vec::new(), before: None })
    }

    /// Requests the changes of a transaction.
    pub fn of(mounted: &mut Mounted, id: u64, wanted: Wanted) -> Outcome<Changes> {
        let roots = Some((mounted.mount_point.clone(), mounted.view(id)));
        // Read the state first: a change during the listing then makes it differ.
        let state = Some(mounted.state(id)?);
        let id = id.to_string();
        let mut words = vec!["FILES", &id];
        words.extend((!wanted.all).then_some("COLLAPSED"));
        let (files, anchors) = files(mounted.txn(&words)?)?;
        let mut words = vec!["CHANGES", &id, "BEFORE"];
        words.extend(wanted.fields.then_some("FIELDS"));
        let keys = Gathered::of_transaction(mounted.txn(&words)?)?;
        Ok(Changes { files, anchors, keys, state, roots, top: Vec::new(), before: None })
    }

    /// Parses the replies to `TXN FILES` and `TXN CHANGES BEFORE` for a transaction.
    pub fn of_replies(files_reply: Reply, keys_reply: Reply) -> Outcome<Changes> {
        let keys = Gathered::of_transaction(keys_reply)?;
        let (files, anchors) = files(files_reply)?;
        let (roots, top) = (None, Vec::new());
        Ok(Changes { files, anchors, keys, state: None, roots, top, before: None })
    }

    /// Parses the replies about a transaction that a server has, in a state. Its files from the
    /// path `top` on are in the directory `mounted`.
    pub fn of_server(
        state: String,
        (files_reply, keys_reply): (Reply, Reply),
        (mounted, top): (&Path, &Path),
        before: ReadBefore,
    ) -> Outcome<Changes> {
        let mut changes = Changes::of_replies(files_reply, keys_reply)?;
        changes.state = Some(state);
        changes.roots = Some((mounted.to_owned(), mounted.to_owned()));
        changes.top = top.as_os_str().as_bytes().to_vec();
        changes.before = Some(before);
        Ok(changes)
    }

    /// Returns the paths that are added, but for those too long for a call.
    pub fn added(&self) -> impl Iterator<Item = &[u8]> {
        let added = self.files.iter().filter(|file| file.letter() == 'A');
        added.map(|file| &*file.path).filter(|path| !Anchors::is_deep(path))
    }

    /// Returns the files to show.
    fn shown(&self, detail: Detail) -> Vec<File> {
        let all = self.files.iter().filter(|file| detail.times || !file.times_alone()).cloned();
        if detail.no_renames { all.collect() } else { renames::joined(all.collect()) }
    }

    /// Prints the differences as JSON or for people.
    pub fn print(&self, detail: Detail, output: &Output) -> Outcome {
        if output.is_json() {
            return output.print("", self.json(detail));
        }
        self.print_below("", detail, output)
    }

    /// Prints the differences for people, below a heading.
    pub fn print_below(&self, heading: &str, detail: Detail, output: &Output) -> Outcome {
        let mut pager = Pager::start(!detail.no_pager && !detail.stat, output);
        if !pager.write(heading.as_bytes())? {
            return Ok(());
        }
        self.pieces(detail, Style::of_output(detail.color), &mut |piece| pager.write(piece))
    }

    /// Returns all the text for people.
    pub fn text(&self, detail: Detail, style: Style) -> Vec<u8> {
        let mut all = Vec::new();
        // Collecting in memory does not fail.
        let _ = self.pieces(detail, style, &mut |piece| {
            all.extend_from_slice(piece);
            Ok(true)
        });
        all
    }

    /// Writes the text for people in pieces, since contents may be large, until `put` returns
    /// false.
    pub fn pieces(
        &self,
        detail: Detail,
        style: Style,
        put: &mut dyn FnMut(&[u8]) -> Outcome<bool>,
    ) -> Outcome {
        let files = self.shown(detail);
        if files.is_empty() && self.keys.is_empty() {
            return put(b"nothing is changed\n").map(drop);
        }
        let renames = Renames::of(&files);
        if detail.patch {
            return self.patch(&files, &renames, style, put);
        }
        let mut out = Vec::new();
        let line = |out: &mut Vec<u8>, letter: char, line: String| {
            style.put(Paint::of(letter), line.as_bytes(), out);
            out.push(b'\n');
        };
        if !detail.stat {
            let mut told = 0;
            for file in files.iter().filter(|file| !renames.is_implied(file)) {
                for anchor in self.anchors.lines(file, &mut told) {
                    line(&mut out, '=', anchor);
                }
                line(&mut out, file.letter(), file.line(renames.below(file)));
                if out.len() >= PIECE && !put(&std::mem::take(&mut out))? {
                    return Ok(());
                }
            }
            let mut line = |letter, one| line(&mut out, letter, one);
            self.keys.iter().for_each(|key| key.lines(&mut line));
        }
        out.extend_from_slice(self.summary(&files).as_bytes());
        put(&out).map(drop)
    }

    fn patch(
        &self,
        files: &[File],
        renames: &Renames,
        style: Style,
        put: &mut dyn FnMut(&[u8]) -> Outcome<bool>,
    ) -> Outcome {
        let (roots, before) = (self.roots.as_ref(), self.before.as_ref());
        let mut writer = patch::Writer { roots, top: &self.top, before, style, out: Vec::new() };
        let mut told = 0;
        for file in files {
            for anchor in self.anchors.lines(file, &mut told) {
                writer.remark('=', &anchor);
            }
            let below = renames.below(file);
            // The path is too long to open in one call, which holds for `git apply`, too: it gets a
            // remark only.
            let is_deep = [Some(&file.path), file.from.as_ref()];
            let is_deep = is_deep.into_iter().flatten().any(|path| Anchors::is_deep(path));
            if !renames.is_implied(file)
                && (is_deep || below > 0 || !file.is_file() || !file.remarks().is_empty())
            {
                writer.remark(file.letter(), &file.line(below));
            }
            if !is_deep {
                writer.file(file);
            }
            if !put(&std::mem::take(&mut writer.out))? {
                return Ok(());
            }
        }
        self.keys
            .iter()
            .for_each(|key| key.lines(&mut |letter, line| writer.remark(letter, &line)));
        writer.remark(' ', self.summary(files).trim_end());
        put(&writer.out).map(drop)
    }

    fn summary(&self, files: &[File]) -> String {
        let mut parts = Vec::new();
        let mut count = |what: &str, letter: char| {
            let own = |file: &File| u64::from(file.letter() == letter);
            let n: u64 = files.iter().map(|file| own(file) + file.counted_as(letter)).sum();
            if n > 0 {
                parts.push(format!("{n} {} {what}", if n == 1 { "file" } else { "files" }));
            }
        };
        count("added", 'A');
        count("changed", 'M');
        count("removed", 'D');
        count("renamed", 'R');
        if !self.keys.is_empty() {
            let n = self.keys.len();
            parts.push(format!("{n} {} changed", if n == 1 { "key" } else { "keys" }));
        }
        format!("{}{}\n", parts.join(", "), File::balance(files))
    }

    pub fn json(&self, detail: Detail) -> Value {
        let mut object = json!({
            "files": self.shown(detail).iter().map(|file| file.json(detail.times)).collect::<Vec<_>>(),
            "keys": self.keys.iter().map(Key::json).collect::<Vec<_>>(),
        });
        if let Some(anchors) = self.anchors.json() {
            object["anchors"] = anchors;
        }
        if let Some(state) = &self.state {
            object["state"] = json!(state);
        }
        object
    }
}

fn word(letter: char) -> &'static str {
    match letter {
        'A' => "added",
        'D' => "removed",
        'R' => "renamed",
        _ => "changed",
    }
}

/// Formats sizes, like "300 B" or "300 B → 1.2 KiB".
fn sizes(before: Option<u64>, after: Option<u64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if before != after => {
            format!("{} → {}", human_size(before), human_size(after))
        }
        (_, Some(size)) | (Some(size), None) => human_size(size),
        (None, None) => String::new(),
    }
}
