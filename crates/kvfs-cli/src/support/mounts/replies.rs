//! Replies of the store's daemon: as the values that a command expects, as text, and as JSON.

use kvdb_server::Reply;
use serde_json::{Map, Value, json};

use crate::support::mounts::mounted::refused;
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text;

pub fn unexpected(reply: &Reply) -> Failure {
    Failure::new(
        Exit::Failed,
        format!("the store's daemon gave an unexpected reply: {}", reply_json(reply)),
    )
}

pub fn integer(reply: Reply) -> Outcome<i64> {
    if let Reply::Integer(n) = reply { Ok(n) } else { Err(unexpected(&reply)) }
}

pub fn bulks(reply: Reply) -> Outcome<Vec<Vec<u8>>> {
    let Reply::Array(items) = reply else { return Err(unexpected(&reply)) };
    let bulk = |item| match item {
        Reply::Bulk(bytes) => Ok(bytes),
        Reply::Error(text) => Err(refused(&text)),
        other => Err(unexpected(&other)),
    };
    items.into_iter().map(bulk).collect()
}

pub fn reply_text(reply: &Reply, depth: usize) -> String {
    let indent = "  ".repeat(depth);
    match reply {
        Reply::Null => format!("{indent}(nil)\n"),
        Reply::Status(s) => format!("{indent}{s}\n"),
        Reply::Error(e) => format!("{indent}(error) {e}\n"),
        Reply::Integer(i) => format!("{indent}{i}\n"),
        // Text of several lines, like that of INFO, is shown as lines.
        Reply::Bulk(b) => match std::str::from_utf8(b) {
            Ok(s) if !s.chars().any(|c| c.is_control() && !matches!(c, '\n' | '\r' | '\t')) => {
                format!("{indent}{}\n", s.replace("\r\n", "\n"))
            }
            _ => format!("{indent}{}\n", text::show(b)),
        },
        Reply::Array(items) => items
            .iter()
            .map(|item| match item {
                // An element of an array is shown on one line.
                Reply::Bulk(b) => format!("{indent}{}\n", text::show(b)),
                item => reply_text(item, depth + usize::from(matches!(item, Reply::Array(_)))),
            })
            .collect(),
    }
}

pub fn reply_json(reply: &Reply) -> Value {
    match reply {
        Reply::Null => Value::Null,
        Reply::Status(s) => s.as_str().into(),
        Reply::Error(e) => json!({"error": e}),
        Reply::Integer(i) => (*i).into(),
        Reply::Bulk(b) => match std::str::from_utf8(b) {
            Ok(s) => s.into(),
            Err(_) => {
                let mut object = Map::new();
                text::put(&mut object, "value", b);
                Value::Object(object)
            }
        },
        Reply::Array(items) => items.iter().map(reply_json).collect(),
    }
}
