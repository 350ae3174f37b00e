//! What a transaction would change, or what two snapshots differ in, for people and programs: files
//! by path, keys by dictionary.

mod file;

use std::fmt::Write as _;
use std::path::PathBuf;

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::mounted::Mounted;
use crate::output::{Exit, Failure, Outcome};
use crate::store::human_size;
use crate::text;
use file::{File, files};

/// How much is shown.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, clap::Args)]
pub struct Detail {
    /// One line for all: how much was added, changed, removed.
    #[arg(long, conflicts_with = "patch")]
    stat: bool,
    /// The lines that differ, of files that are text.
    #[arg(long, short = 'p')]
    patch: bool,
    /// Also what differs in nothing but the time of its last change.
    #[arg(long)]
    times: bool,
}

impl Detail {
    pub const PATCH: Detail = Detail { stat: false, patch: true, times: false };
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
    roots: Option<(PathBuf, PathBuf)>,
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
        roots: Option<(PathBuf, PathBuf)>,
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
    fn shown(&self, detail: Detail) -> Vec<&File> {
        self.files.iter().filter(|file| detail.times || !file.times_alone()).collect()
    }

    /// For people; `terminal`: what would act on a terminal is escaped.
    pub fn text(&self, detail: Detail, terminal: bool) -> String {
        let files = self.shown(detail);
        if files.is_empty() && self.keys.is_empty() {
            return "nothing is changed\n".into();
        }
        let mut out = String::new();
        if detail.patch {
            files.iter().for_each(|file| file.patch(self.roots.as_ref(), terminal, &mut out));
            self.keys.iter().for_each(|key| key.line(&mut out));
        } else if !detail.stat {
            files.iter().for_each(|file| file.line(&mut out));
            self.keys.iter().for_each(|key| key.line(&mut out));
        }
        out.push_str(&self.summary(&files));
        out
    }

    fn summary(&self, files: &[&File]) -> String {
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
        if !self.keys.is_empty() {
            let n = self.keys.len();
            parts.push(format!("{n} {} changed", if n == 1 { "key" } else { "keys" }));
        }
        format!("{}{}\n", parts.join(", "), File::balance(files))
    }

    pub fn json(&self, detail: Detail) -> Value {
        json!({
            "files": self.shown(detail).into_iter().map(|file| file.json(detail.times)).collect::<Vec<_>>(),
            "keys": self.keys.iter().map(Key::json).collect::<Vec<_>>(),
        })
    }
}

fn word(letter: char) -> &'static str {
    match letter {
        'A' => "added",
        'D' => "removed",
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
    fn line(&self, out: &mut String) {
        let name =
            |key: &[u8]| format!("{}:{}", text::show(self.dictionary.as_bytes()), text::show(key));
        let (letter, shown, size) = match &self.what {
            KeyChange::Put { key, before, after } => {
                (if before.is_some() { 'M' } else { 'A' }, name(key), sizes(*before, Some(*after)))
            }
            KeyChange::Delete { key, before } => ('D', name(key), sizes(*before, None)),
            KeyChange::DeleteRange { start, end } => {
                ('D', format!("{} … {}", name(start), text::show(end)), String::new())
            }
        };
        let _ = writeln!(
            out,
            "{}",
            format!("{letter}  {:40}  {size}", format!("key {shown}")).trim_end()
        );
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
