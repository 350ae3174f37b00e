//! Keys that differ, one line each: strings by their size; hashes, sets, sorted sets and lists by
//! their elements; deadlines.

use std::collections::HashMap;
use std::fmt::Write;

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use super::{bulk, lists, number, odd, sizes};
use crate::support::stores::tree::time_text;
use crate::support::terminal::output::{Failure, Outcome};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text;

/// One change of a key or a range of keys.
#[derive(Clone)]
pub struct Key {
    pub dictionary: String,
    pub what: KeyChange,
}

#[derive(Clone)]
pub enum KeyChange {
    One(Box<Differs>),
    /// All keys of a range were removed, whichever it had.
    Range {
        start: Vec<u8>,
        end: Vec<u8>,
    },
}

/// The differences of a key.
#[derive(Clone)]
pub struct Differs {
    pub key: Vec<u8>,
    /// The value before, or `None` if the key did not exist.
    before: Option<Held>,
    after: Option<Held>,
    elements: Elements,
    /// The changed elements, if they were requested.
    fields: Option<Vec<Field>>,
    /// The deadlines before and after, each `None` if the key does not expire.
    deadline: Option<(Option<u64>, Option<u64>)>,
}

/// The type of a key's value, and its size.
#[derive(Clone, PartialEq)]
struct Held {
    /// The type as `TYPE` names it.
    kind: String,
    /// The size of a string, if it differs.
    bytes: Option<u64>,
}

impl Held {
    fn string(bytes: u64) -> Held {
        Held { kind: "string".into(), bytes: Some(bytes) }
    }
    fn of(kind: Option<String>) -> Option<Held> {
        kind.map(|kind| Held { kind, bytes: None })
    }
}

#[derive(Clone, Copy, Default)]
struct Elements {
    added: u64,
    removed: u64,
    changed: u64,
}

/// An element with its value before and after: a number of bytes, or a score.
#[derive(Clone)]
struct Field {
    name: Vec<u8>,
    before: Option<Value>,
    after: Option<Value>,
}

/// Collects rows of a reply into one change for each key.
#[derive(Default)]
pub struct Gathered {
    keys: Vec<Key>,
    at: HashMap<(String, Vec<u8>), usize>,
}

impl Gathered {
    /// Parses the reply to `SNAPSHOT CHANGES`.
    pub fn between(reply: Reply) -> Outcome<Vec<Key>> {
        let mut gathered = Gathered::default();
        for mut row in lists(reply)? {
            let (dictionary, key) = (name(row.next())?, bulk(row.next())?);
            match row.next() {
                Some(Reply::Bulk(what)) => gathered.other(dictionary, key, &what, row)?,
                before => {
                    let (before, after) = (number(before)?, number(row.next())?);
                    gathered.string(dictionary, key, before, after);
                }
            }
        }
        Ok(gathered.sorted())
    }

    /// Parses the reply to `TXN CHANGES id BEFORE`.
    pub fn of_transaction(reply: Reply) -> Outcome<Vec<Key>> {
        let mut gathered = Gathered::default();
        for mut row in lists(reply)? {
            let (dictionary, what) = (name(row.next())?, bulk(row.next())?);
            let key = bulk(row.next())?;
            match what.as_slice() {
                b"put" | b"update" => {
                    let (after, before) = (number(row.next())?, number(row.next())?);
                    gathered.string(dictionary, key, before, Some(after.unwrap_or(0)));
                }
                b"delete" => {
                    // Deleting a key that did not exist changes nothing.
                    let before = number(row.next())?;
                    if before.is_some() {
                        gathered.string(dictionary, key, before, None);
                    }
                }
                b"delete-range" => {
                    let what = KeyChange::Range { start: key, end: bulk(row.next())? };
                    gathered.keys.push(Key { dictionary, what });
                }
                what => gathered.other(dictionary, key, what, row)?,
            }
        }
        Ok(gathered.sorted())
    }

    /// Sorts the changes by dictionary and key.
    fn sorted(mut self) -> Vec<Key> {
        let first = |key: &Key| match &key.what {
            KeyChange::One(differs) => differs.key.clone(),
            KeyChange::Range { start, .. } => start.clone(),
        };
        self.keys.sort_by_cached_key(|key| (key.dictionary.clone(), first(key)));
        self.keys
    }

    fn one(&mut self, dictionary: String, key: Vec<u8>) -> &mut Differs {
        let (keys, at) = (&mut self.keys, &mut self.at);
        let at = *at.entry((dictionary.clone(), key.clone())).or_insert_with(|| {
            let differs = Differs {
                key,
                before: None,
                after: None,
                elements: Elements::default(),
                fields: None,
                deadline: None,
            };
            keys.push(Key { dictionary, what: KeyChange::One(Box::new(differs)) });
            keys.len() - 1
        });
        match &mut keys[at].what {
            KeyChange::One(differs) => differs,
            // `at` refers to keys only, never to ranges.
            KeyChange::Range { .. } => unreachable!("a range is no key"),
        }
    }

    fn string(
        &mut self,
        dictionary: String,
        key: Vec<u8>,
        before: Option<u64>,
        after: Option<u64>,
    ) {
        let one = self.one(dictionary, key);
        (one.before, one.after) = (before.map(Held::string), after.map(Held::string));
    }

    /// Adds a row about a key that is not, or not only, a string.
    fn other(
        &mut self,
        dictionary: String,
        key: Vec<u8>,
        what: &[u8],
        mut row: std::vec::IntoIter<Reply>,
    ) -> Outcome {
        let one = self.one(dictionary, key);
        match what {
            b"type" => {
                // Do not overwrite a string that is known already, since that entry has its size.
                let (before, after) = (kind(row.next())?, kind(row.next())?);
                let sides = [(&mut one.before, before), (&mut one.after, after)];
                for (side, kind) in sides {
                    if kind.as_deref() != Some("string") || side.is_none() {
                        *side = Held::of(kind);
                    }
                }
                let mut count = || Ok::<u64, Failure>(number(row.next())?.unwrap_or(0));
                let (added, removed, changed) = (count()?, count()?, count()?);
                one.elements = Elements { added, removed, changed };
                if let Some(fields) = row.next() {
                    one.fields =
                        Some(lists(fields)?.into_iter().map(field).collect::<Outcome<_>>()?);
                }
            }
            b"deadline" => {
                let deadline = (number(row.next())?, number(row.next())?);
                let held = Held::of(kind(row.next())?);
                if one.before.is_none() && one.after.is_none() {
                    (one.before, one.after) = (held.clone(), held);
                }
                one.deadline = Some(deadline);
            }
            _ => return Err(odd()),
        }
        Ok(())
    }
}

fn name(reply: Option<Reply>) -> Outcome<String> {
    Ok(String::from_utf8_lossy(&bulk(reply)?).into_owned())
}

fn kind(reply: Option<Reply>) -> Outcome<Option<String>> {
    match reply {
        Some(Reply::Null) => Ok(None),
        reply => name(reply).map(Some),
    }
}

fn field(mut row: std::vec::IntoIter<Reply>) -> Outcome<Field> {
    let name = bulk(row.next())?;
    let mut side = || match row.next() {
        Some(Reply::Null) => Ok(None),
        Some(Reply::Integer(bytes)) => Ok(Some(json!(bytes))),
        Some(Reply::Bulk(score)) => Ok(Some(json!(String::from_utf8_lossy(&score)))),
        _ => Err(odd()),
    };
    Ok(Field { name, before: side()?, after: side()? })
}

/// Returns the word for an element of a collection, singular or plural.
fn element(kind: &str, many: bool) -> &'static str {
    match (kind, many) {
        ("hash", false) => "field",
        ("hash", true) => "fields",
        ("list" | "stream", false) => "element",
        ("list" | "stream", true) => "elements",
        (_, false) => "member",
        (_, true) => "members",
    }
}

fn shown_kind(kind: &str) -> &str {
    if kind == "zset" { "sorted set" } else { kind }
}

impl Differs {
    fn letter(&self) -> char {
        match (&self.before, &self.after) {
            (None, _) => 'A',
            (_, None) => 'D',
            _ => 'M',
        }
    }

    /// Describes the value of one side, with its size: "5 B", "hash of 3 fields".
    fn held(&self, held: &Held, after: bool) -> String {
        if held.kind == "string" {
            return held.bytes.map_or("string".into(), human_size);
        }
        let of = if after { self.elements.added } else { self.elements.removed };
        format!("{} of {of} {}", shown_kind(&held.kind), element(&held.kind, of != 1))
    }

    fn details(&self) -> String {
        let mut out = match (&self.before, &self.after) {
            (Some(before), Some(after)) if before.kind != after.kind => {
                // A size alone does not say that the value is a string.
                let side = |held: &Held, after| match held.kind.as_str() {
                    "string" => format!("string of {}", self.held(held, after)),
                    _ => self.held(held, after),
                };
                format!("{} → {}", side(before, false), side(after, true))
            }
            (Some(before), Some(after)) if after.kind == "string" => {
                match (before.bytes, after.bytes) {
                    (None, None) => String::new(),
                    (before, after) => sizes(before, after),
                }
            }
            (Some(_), Some(after)) => self.counted(&after.kind),
            (None, Some(held)) => self.held(held, true),
            (Some(held), None) => self.held(held, false),
            (None, None) => String::new(),
        };
        if let Some(deadline) = self.deadline {
            let moment = |ms: u64| {
                let secs = i64::try_from(ms / 1000).unwrap_or(i64::MAX);
                format!("{} UTC", time_text(kvfs::Timestamp { secs, nanos: 0 }))
            };
            let told = match deadline {
                (Some(before), Some(after)) => {
                    format!("expires {} → {}", moment(before), moment(after))
                }
                (None, Some(after)) => format!("expires {}", moment(after)),
                (Some(before), None) => format!("no longer expires ({})", moment(before)),
                (None, None) => String::new(),
            };
            out.push_str(if out.is_empty() { "" } else { "; " });
            out.push_str(&told);
        }
        out
    }

    /// Describes the changed elements, like "hash: 2 fields added, 1 removed".
    fn counted(&self, kind: &str) -> String {
        let Elements { added, removed, changed } = self.elements;
        let mut parts = Vec::new();
        for (count, what) in [(added, "added"), (removed, "removed"), (changed, "changed")] {
            let named = if parts.is_empty() { element(kind, count != 1) } else { "" };
            let space = if named.is_empty() { "" } else { " " };
            if count > 0 {
                parts.push(format!("{count}{space}{named} {what}"));
            }
        }
        let colon = if parts.is_empty() { "" } else { ": " };
        format!("{}{colon}{}", shown_kind(kind), parts.join(", "))
    }

    /// Writes a line for each element that was requested.
    fn field_lines(&self, put: &mut dyn FnMut(char, String)) {
        for field in self.fields.iter().flatten() {
            let letter = match (&field.before, &field.after) {
                (None, _) => 'A',
                (_, None) => 'D',
                _ => 'M',
            };
            let side = |value: &Value| match value {
                Value::String(score) => format!("score {score}"),
                bytes => human_size(bytes.as_u64().unwrap_or(0)),
            };
            let kind = self.after.as_ref().or(self.before.as_ref()).map(|held| held.kind.as_str());
            let told = match (&field.before, &field.after) {
                // A member of a set has no value.
                _ if kind == Some("set") => String::new(),
                (Some(before), Some(after)) if before != after => {
                    format!("{} → {}", side(before), side(after))
                }
                (_, Some(value)) | (Some(value), None) => side(value),
                (None, None) => String::new(),
            };
            let mut line = String::new();
            // Writing to a string does not fail.
            let _ = write!(line, "{letter}      {:36}  {told}", text::show(&field.name));
            put(letter, line.trim_end().into());
        }
    }

    fn json(&self, object: &mut Map<String, Value>) {
        text::put(object, "key", &self.key);
        let change = match self.letter() {
            'A' => "added",
            'D' => "removed",
            _ => "changed",
        };
        object.insert("change".into(), json!(change));
        let kind = |side: &Option<Held>| side.as_ref().map(|held| held.kind.clone());
        let bytes = |side: &Option<Held>| side.as_ref().and_then(|held| held.bytes);
        object.insert("before".into(), json!(bytes(&self.before)));
        object.insert("after".into(), json!(bytes(&self.after)));
        let (before, after) = (kind(&self.before), kind(&self.after));
        object.insert("type".into(), json!(after.as_ref().or(before.as_ref())));
        if before.is_some() && after.is_some() && before != after {
            object.insert("type_before".into(), json!(before));
        }
        let is_collection = |kind: &Option<String>| kind.as_ref().is_some_and(|k| k != "string");
        if is_collection(&before) || is_collection(&after) {
            let Elements { added, removed, changed } = self.elements;
            let counts = json!({"added": added, "removed": removed, "changed": changed});
            object.insert("elements".into(), counts);
        }
        if let Some(fields) = &self.fields {
            let fields = fields.iter().map(|field| {
                let mut object = Map::new();
                text::put(&mut object, "name", &field.name);
                object.insert("before".into(), json!(field.before));
                object.insert("after".into(), json!(field.after));
                Value::Object(object)
            });
            object.insert("fields".into(), fields.collect());
        }
        if let Some((before, after)) = self.deadline {
            object.insert("deadline".into(), json!({"before": before, "after": after}));
        }
    }
}

impl Key {
    pub fn letter(&self) -> char {
        match &self.what {
            KeyChange::One(differs) => differs.letter(),
            KeyChange::Range { .. } => 'D',
        }
    }

    /// Returns one line, without its line end.
    pub fn line(&self) -> String {
        let name =
            |key: &[u8]| format!("{}:{}", text::show(self.dictionary.as_bytes()), text::show(key));
        let (shown, details) = match &self.what {
            KeyChange::One(differs) => (name(&differs.key), differs.details()),
            KeyChange::Range { start, end } => {
                (format!("{} … {}", name(start), text::show(end)), String::new())
            }
        };
        let line = format!("{}  {:40}  {details}", self.letter(), format!("key {shown}"));
        line.trim_end().into()
    }

    /// Writes the line of the key and those of its elements.
    pub fn lines(&self, put: &mut dyn FnMut(char, String)) {
        put(self.letter(), self.line());
        if let KeyChange::One(differs) = &self.what {
            differs.field_lines(put);
        }
    }

    pub fn json(&self) -> Value {
        let mut object = Map::new();
        object.insert("dictionary".into(), json!(self.dictionary));
        match &self.what {
            KeyChange::One(differs) => differs.json(&mut object),
            KeyChange::Range { start, end } => {
                text::put(&mut object, "start", start);
                text::put(&mut object, "end", end);
                object.insert("change".into(), json!("range removed"));
            }
        }
        Value::Object(object)
    }
}
