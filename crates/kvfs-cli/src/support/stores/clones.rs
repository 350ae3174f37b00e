//! Describes clones: the snapshot that each was made from, and how much of its limits it uses.

use std::collections::{HashMap, HashSet};

use kvdb::{BranchInfo, Kvdb};
use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::support::mounts::mounted::fields;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::show;

/// The socket command that lists clones.
pub const LIST: [&str; 2] = ["CLONE", "LIST"];

/// Parses the clones from the reply to [`LIST`].
pub fn of_reply(reply: Reply) -> Outcome<Vec<Map<String, Value>>> {
    match reply {
        Reply::Array(all) => all.into_iter().map(fields).collect(),
        _ => Err(Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")),
    }
}

/// Returns the clones of a store that is not mounted. Their files are not counted then.
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
            "parent": info.parent,
        });
        match value {
            Value::Object(object) => object,
            _ => Map::new(),
        }
    };
    db.branches().into_iter().map(described).collect()
}

/// Returns the names of the clones that were made of snapshots of a clone, or of clones of it, to
/// any depth.
pub fn names_below(all: &[Map<String, Value>], clone: &str) -> HashSet<String> {
    let text = |info: &Map<String, Value>, name: &str| {
        info.get(name).and_then(Value::as_str).map(String::from)
    };
    let parents: HashMap<String, String> =
        all.iter().filter_map(|info| Some((text(info, "name")?, text(info, "parent")?))).collect();
    let is_below = |name: &&String| {
        // A line of parents is at most as long as the list.
        let above = std::iter::successors(parents.get(*name), |above| parents.get(*above));
        above.take(parents.len()).any(|above| above == clone)
    };
    parents.keys().filter(is_below).cloned().collect()
}

/// Returns how much of its limits a clone uses, or an empty string if it has none.
pub fn limits(info: &Map<String, Value>) -> String {
    let number = |name: &str| info.get(name).and_then(Value::as_u64);
    let bytes = match (number("taken"), number("limit")) {
        (Some(taken), Some(most)) => format!("{} of {}", human_size(taken), human_size(most)),
        _ => String::new(),
    };
    // Files are only counted while the store is mounted.
    let files = match (number("files"), number("limit_of_files")) {
        (Some(files), Some(most)) => format!("{files} of {most} files"),
        (None, Some(most)) => format!("at most {most} files"),
        (_, None) => String::new(),
    };
    let all: Vec<String> = [bytes, files].into_iter().filter(|one| !one.is_empty()).collect();
    all.join("  ")
}

/// Formats a clone as a line: its name, its snapshot, and its limits.
pub fn line(info: &Map<String, Value>) -> String {
    let text =
        |name: &str| info.get(name).and_then(Value::as_str).map(|text| show(text.as_bytes()));
    let of = text("snapshot").map(|snapshot| format!("  of snapshot {snapshot}"));
    let limits = Some(limits(info)).filter(|all| !all.is_empty());
    let limits = limits.map(|all| format!("  {all}"));
    let name = text("name").unwrap_or_default();
    format!("{name}{}{}\n", of.unwrap_or_default(), limits.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn clones_of_clones_are_below_them() {
        let clone = |(name, parent): (&str, Option<&str>)| {
            let fields = [("name", json!(name)), ("parent", json!(parent))];
            fields.into_iter().map(|(field, value)| (field.to_owned(), value)).collect()
        };
        let parents =
            [("a", Some("")), ("b", Some("a")), ("c", Some("b")), ("d", None), ("e", Some("gone"))];
        let all: Vec<Map<String, Value>> = parents.into_iter().map(clone).collect();
        let below = |name: &str| {
            let mut names: Vec<String> = names_below(&all, name).into_iter().collect();
            names.sort();
            names.concat()
        };
        assert_eq!(["a", "b", "c", "gone"].map(below), ["bc", "c", "", "e"]);
    }
}
