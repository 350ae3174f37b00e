//! What a transaction would change, or what two snapshots differ in, for people and programs: files
//! by path, keys by dictionary.

mod choices;
mod file;
mod git_binary;
mod paint;
mod patch;
mod renames;

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::mounted::Mounted;
use crate::output::{Exit, Failure, Outcome, Output};
use crate::pager::Pager;
use crate::store::human_size;
use crate::text;
pub use choices::Choice;
use file::{File, files};
pub use paint::Style;
use paint::{Paint, When};
use patch::Roots;
use renames::Renames;

/// How much is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Detail {
    /// One line for all: how much was added, changed, removed.
    #[arg(long, conflicts_with = "patch")]
    stat: bool,
    /// The contents that differ, as a patch that `git apply` takes. What git does not keep stands
    /// in lines that begin with `#`. On a terminal, files that are not text are only named.
    #[arg(long, short = 'p')]
    patch: bool,
    /// Also what differs in nothing but the time of its last change.
    #[arg(long)]
    times: bool,
    /// What was renamed as something removed and something added.
    #[arg(long)]
    no_renames: bool,
    /// When lines have colours.
    #[arg(long, value_enum, value_name = "WHEN", default_value_t)]
    color: When,
    /// Not through a pager: on a terminal it is KVFS_PAGER, PAGER or less.
    #[arg(long)]
    no_pager: bool,
}

impl Detail {
    /// One line for all.
    pub const STAT: Detail = Detail {
        stat: true,
        patch: false,
        times: false,
        no_renames: false,
        color: When::Auto,
        no_pager: true,
    };

    /// Everything, what differs in nothing but a time as well.
    pub const WITH_TIMES: Detail = Detail {
        stat: false,
        patch: false,
        times: true,
        no_renames: false,
        color: When::Auto,
        no_pager: true,
    };

    /// These settings, with contents shown as a patch.
    pub fn with_patch(self) -> Detail {
        Detail { stat: false, patch: true, ..self }
    }

    /// For a person at a terminal.
    pub fn style_of_terminal(self) -> Style {
        Style::of(self.color, true)
    }
}

struct Key {
    dictionary: String,
    what: KeyChange,
}

enum KeyChange {
    /// Bytes of the value before, if there was one, and now.
    Put {
        key: Vec<u8>,
        before: Option<u64>,
        after: u64,
    },
    Delete {
        key: Vec<u8>,
        before: Option<u64>,
    },
    DeleteRange {
        start: Vec<u8>,
        end: Vec<u8>,
    },
}

pub struct Changes {
    files: Vec<File>,
    keys: Vec<Key>,
    /// The folders in which files are as they were and as they are, for `--patch`.
    roots: Option<Roots>,
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
    /// From the replies to `SNAPSHOT FILES` and `SNAPSHOT CHANGES`.
    pub fn between(
        files_reply: Reply,
        keys_reply: Reply,
        roots: Option<Roots>,
    ) -> Outcome<Changes> {
        let mut keys = Vec::new();
        for mut f in lists(keys_reply)? {
            let (dictionary, key) =
                (String::from_utf8_lossy(&bulk(f.next())?).into_owned(), bulk(f.next())?);
            let what = match (number(f.next())?, number(f.next())?) {
                (before, None) => KeyChange::Delete { key, before },
                (before, Some(after)) => KeyChange::Put { key, before, after },
            };
            keys.push(Key { dictionary, what });
        }
        Ok(Changes { files: files(files_reply)?, keys, roots })
    }

    /// Of a transaction.
    pub fn of(mounted: &mut Mounted, id: u64) -> Outcome<Changes> {
        let roots = Some((mounted.mount_point.clone(), mounted.view(id)));
        let id = id.to_string();
        let files = files(mounted.txn(&["FILES", &id])?)?;
        let mut keys = Vec::new();
        let mut chosen = None;
        for mut f in lists(mounted.txn(&["CHANGES", &id])?)? {
            let dictionary = String::from_utf8_lossy(&bulk(f.next())?).into_owned();
            let (what, key) = (bulk(f.next())?, bulk(f.next())?);
            let mut before = |mounted: &mut Mounted, key: &[u8]| -> Outcome<Option<u64>> {
                if chosen.as_ref() != Some(&dictionary) {
                    mounted.call(&[b"USE", dictionary.as_bytes()])?;
                    chosen = Some(dictionary.clone());
                }
                let there = number(Some(mounted.call(&[b"EXISTS", key])?))?;
                if there == Some(0) {
                    Ok(None)
                } else {
                    number(Some(mounted.call(&[b"STRLEN", key])?))
                }
            };
            let what = match what.as_slice() {
                b"put" | b"update" => {
                    let before = before(mounted, &key)?;
                    KeyChange::Put { key, before, after: number(f.next())?.unwrap_or(0) }
                }
                b"delete" => match before(mounted, &key)? {
                    // It was not there: nothing changes.
                    None => continue,
                    before => KeyChange::Delete { key, before },
                },
                _ => KeyChange::DeleteRange { start: key, end: bulk(f.next())? },
            };
            keys.push(Key { dictionary, what });
        }
        Ok(Changes { files, keys, roots })
    }

    /// Those that are to be shown.
    fn shown(&self, detail: Detail) -> Vec<File> {
        let all = self.files.iter().filter(|file| detail.times || !file.times_alone()).cloned();
        if detail.no_renames { all.collect() } else { renames::joined(all.collect()) }
    }

    /// Prints what differs: as JSON, or for people.
    pub fn print(&self, detail: Detail, output: &Output) -> Outcome {
        if output.is_json() {
            return output.print("", self.json(detail));
        }
        let mut pager = Pager::start(!detail.no_pager && !detail.stat, output);
        self.pieces(detail, Style::of_output(detail.color), &mut |piece| pager.write(piece))
    }

    /// For people, at once.
    pub fn text(&self, detail: Detail, style: Style) -> Vec<u8> {
        let mut all = Vec::new();
        // Memory takes it all.
        let _ = self.pieces(detail, style, &mut |piece| {
            all.extend_from_slice(piece);
            Ok(true)
        });
        all
    }

    /// For people, piece by piece, for contents may be large; until `put` wants no more.
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
        let mut line = |letter: char, line: String| {
            style.put(Paint::of(letter), line.as_bytes(), &mut out);
            out.push(b'\n');
        };
        if !detail.stat {
            for file in files.iter().filter(|file| !renames.is_implied(file)) {
                line(file.letter(), file.line(renames.below(file)));
            }
            self.keys.iter().for_each(|key| line(key.letter(), key.line()));
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
        let mut writer = patch::Writer { roots: self.roots.as_ref(), style, out: Vec::new() };
        for file in files {
            let below = renames.below(file);
            if !renames.is_implied(file)
                && (below > 0 || !file.is_file() || !file.remarks().is_empty())
            {
                writer.remark(file.letter(), &file.line(below));
            }
            writer.file(file);
            if !put(&std::mem::take(&mut writer.out))? {
                return Ok(());
            }
        }
        self.keys.iter().for_each(|key| writer.remark(key.letter(), &key.line()));
        writer.remark(' ', self.summary(files).trim_end());
        put(&writer.out).map(drop)
    }

    fn summary(&self, files: &[File]) -> String {
        let mut parts = Vec::new();
        let mut count = |what: &str, letter: char| {
            let n = files.iter().filter(|f| f.letter() == letter).count();
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
        json!({
            "files": self.shown(detail).iter().map(|file| file.json(detail.times)).collect::<Vec<_>>(),
            "keys": self.keys.iter().map(Key::json).collect::<Vec<_>>(),
        })
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

/// "300 B", "300 B → 1.2 KiB".
fn sizes(before: Option<u64>, after: Option<u64>) -> String {
    match (before, after) {
        (Some(before), Some(after)) if before != after => {
            format!("{} → {}", human_size(before), human_size(after))
        }
        (_, Some(size)) | (Some(size), None) => human_size(size),
        (None, None) => String::new(),
    }
}

impl Key {
    fn letter(&self) -> char {
        match &self.what {
            KeyChange::Put { before: None, .. } => 'A',
            KeyChange::Put { .. } => 'M',
            KeyChange::Delete { .. } | KeyChange::DeleteRange { .. } => 'D',
        }
    }

    /// One line, without its end.
    fn line(&self) -> String {
        let name =
            |key: &[u8]| format!("{}:{}", text::show(self.dictionary.as_bytes()), text::show(key));
        let (shown, size) = match &self.what {
            KeyChange::Put { key, before, after } => (name(key), sizes(*before, Some(*after))),
            KeyChange::Delete { key, before } => (name(key), sizes(*before, None)),
            KeyChange::DeleteRange { start, end } => {
                (format!("{} … {}", name(start), text::show(end)), String::new())
            }
        };
        let line = format!("{}  {:40}  {size}", self.letter(), format!("key {shown}"));
        line.trim_end().into()
    }

    fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("dictionary".into(), json!(self.dictionary));
        match &self.what {
            KeyChange::Put { key, before, after } => {
                text::put(&mut object, "key", key);
                object.insert(
                    "change".into(),
                    json!(if before.is_some() { "changed" } else { "added" }),
                );
                object.insert("before".into(), json!(before));
                object.insert("after".into(), json!(after));
            }
            KeyChange::Delete { key, before } => {
                text::put(&mut object, "key", key);
                object.insert("change".into(), json!("removed"));
                object.insert("before".into(), json!(before));
            }
            KeyChange::DeleteRange { start, end } => {
                text::put(&mut object, "start", start);
                text::put(&mut object, "end", end);
                object.insert("change".into(), json!("range removed"));
            }
        }
        Value::Object(object)
    }
}
