//! Sentences about clones: what each was made of, and what it has taken of its limits.

use kvdb::{BranchInfo, Kvdb};
use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::mounted::fields;
use crate::output::{Exit, Failure, Outcome};
use crate::sizes::human_size;
use crate::text::show;

/// The command of the socket that lists clones.
pub const LIST: [&str; 2] = ["CLONE", "LIST"];

/// The clones as the reply to [`LIST`] has them.
pub fn of_reply(reply: Reply) -> Outcome<Vec<Map<String, Value>>> {
    match reply {
        Reply::Array(all) => all.into_iter().map(fields).collect(),
        _ => Err(Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")),
    }
}

/// The clones of a store that is not mounted, where files are not counted.
pub fn of_store(db: &Kvdb) -> Vec<Map<String, Value>> {
    let described = |info: BranchInfo| {
        let of_bytes = info.limit;
        let value = json!({
            "name": info.name,
            "snapshot": info.snapshot,
            "limit": of_bytes.map(|limit| limit.bytes),
            "taken": of_bytes.map(|limit| limit.taken),
            "limit_of_files": info.limit_of_files,
            "files": null,
        });
        match value {
            Value::Object(object) => object,
            _ => Map::new(),
        }
    };
    db.branches().into_iter().map(described).collect()
}

/// Returns what a clone has taken of its limits; empty: it has none.
pub fn limits(info: &Map<String, Value>) -> String {
    let number = |name: &str| info.get(name).and_then(Value::as_u64);
    let bytes = match (number("taken"), number("limit")) {
        (Some(taken), Some(most)) => format!("{} of {}", human_size(taken), human_size(most)),
        _ => String::new(),
    };
    // They are counted where the store is mounted.
    let files = match (number("files"), number("limit_of_files")) {
        (Some(files), Some(most)) => format!("{files} of {most} files"),
        (None, Some(most)) => format!("at most {most} files"),
        (_, None) => String::new(),
    };
    let all: Vec<String> = [bytes, files].into_iter().filter(|one| !one.is_empty()).collect();
    all.join("  ")
}

/// A clone in a line: its name, what it was made of, and its limits.
pub fn line(info: &Map<String, Value>) -> String {
    let text =
        |name: &str| info.get(name).and_then(Value::as_str).map(|text| show(text.as_bytes()));
    let of = text("snapshot").map(|snapshot| format!("  of snapshot {snapshot}"));
    let limits = Some(limits(info)).filter(|all| !all.is_empty());
    let limits = limits.map(|all| format!("  {all}"));
    let name = text("name").unwrap_or_default();
    format!("{name}{}{}\n", of.unwrap_or_default(), limits.unwrap_or_default())
}
