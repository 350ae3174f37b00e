//! Listings of keys and values, which are read page by page.

use kvdb_server::Reply;
use serde_json::{Map, Value};

use crate::support::mounts::replies::{bulks, unexpected};
use crate::support::stores::connection::Connection;
use crate::support::terminal::list::List;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text;

pub(super) fn scan(connection: &mut Connection, pattern: &[u8], output: &Output) -> Outcome {
    let mut list = List::begin(output)?;
    let mut cursor = b"0".to_vec();
    loop {
        let reply = connection.call(&[b"SCAN", &cursor, b"MATCH", pattern, b"COUNT", b"1000"])?;
        let Reply::Array(mut parts) = reply else { return Err(unexpected(&reply)) };
        let (Some(keys), Some(Reply::Bulk(next))) = (parts.pop(), parts.pop()) else {
            return Err(Failure::new(
                Exit::Failed,
                "the store's daemon gave an unexpected reply to SCAN",
            ));
        };
        for key in bulks(keys)? {
            if !list.item(&text::show(&key), || tuple_json(&key, None))? {
                return Ok(());
            }
        }
        if next == b"0" {
            return list.end();
        }
        cursor = next;
    }
}

/// Lists a range page by page, so that memory stays bounded. Each page reads the state of the store
/// at one moment.
pub(super) fn range(
    connection: &mut Connection,
    mut start: Vec<u8>,
    mut end: Vec<u8>,
    reverse: bool,
    mut limit: u64,
    keys: bool,
    output: &Output,
) -> Outcome {
    // Pages start small, since values may be large, and grow while their bytes are few.
    let mut page = 16u64;
    let mut list = List::begin(output)?;
    while limit > 0 {
        let count = page.min(limit).to_string();
        let mut words: Vec<&[u8]> =
            vec![b"RANGE", &start, &end, b"EXACT", b"LIMIT", count.as_bytes()];
        words.extend(reverse.then_some(b"REV".as_slice()));
        words.extend(keys.then_some(b"NOVALUES".as_slice()));
        let items = bulks(connection.call(&words)?)?;
        let each = if keys { 1 } else { 2 };
        let found = (items.len() / each) as u64;
        let bytes: usize = items.iter().map(Vec::len).sum();
        for tuple in items.chunks(each) {
            let (key, value) = (&tuple[0], tuple.get(1));
            let line = match value {
                Some(value) => format!("{}\t{}", text::show(key), text::show(value)),
                None => text::show(key),
            };
            if !list.item(&line, || tuple_json(key, value.map(Vec::as_slice)))? {
                return Ok(());
            }
        }
        if found < page.min(limit) {
            break;
        }
        limit -= found;
        let last = &items[items.len() - each];
        if reverse {
            end = last.clone();
            // An empty end would mean no bound; no key is smaller than the empty one.
            if end.is_empty() {
                break;
            }
        } else {
            start = [last, b"\0".as_slice()].concat();
        }
        if bytes < 1 << 20 {
            page = (page * 4).min(4096);
        } else {
            page = (page / 4).max(1);
        }
    }
    list.end()
}

pub(super) fn tuple_json(key: &[u8], value: Option<&[u8]>) -> Value {
    let mut object = Map::new();
    text::put(&mut object, "key", key);
    if let Some(value) = value {
        text::put(&mut object, "value", value);
    }
    Value::Object(object)
}
