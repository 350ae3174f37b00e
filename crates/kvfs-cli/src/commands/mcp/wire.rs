//! JSON-RPC 2.0 with one message per line, in both directions.

use std::io::{BufRead, BufReader, Read};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::Duration;

use serde_json::{Value, json};

/// The limit of a message, in bytes.
const LONGEST: u64 = 16 << 20;

pub const PARSE_ERROR: i64 = -32700;
pub const INVALID_REQUEST: i64 = -32600;
pub const METHOD_NOT_FOUND: i64 = -32601;
pub const INVALID_PARAMS: i64 = -32602;

/// Input from the client.
pub enum Line {
    Text(Vec<u8>),
    /// A message beyond the limit, which was skipped.
    TooLong,
    /// The client has disconnected (`End`), or there is no input at the moment (`Nothing`).
    End,
    Nothing,
}

/// The lines of standard input, read ahead by a thread, so that the end of the input is noticed
/// during other work.
pub struct Lines {
    receiver: Receiver<Line>,
    ended: bool,
}

impl Lines {
    pub fn of_standard_input() -> Lines {
        let (sender, receiver) = channel();
        std::thread::spawn(move || {
            let mut input = BufReader::new(std::io::stdin());
            while let Some(line) = next(&mut input) {
                if sender.send(line).is_err() {
                    return;
                }
            }
        });
        Lines { receiver, ended: false }
    }

    /// Waits for the next line.
    pub fn next(&mut self) -> Line {
        self.within(None)
    }

    /// Returns the next line if it arrives within this time.
    pub fn within(&mut self, time: Option<Duration>) -> Line {
        if self.ended {
            return Line::End;
        }
        let line = match time {
            None => self.receiver.recv().map_err(|_| RecvTimeoutError::Disconnected),
            Some(time) => self.receiver.recv_timeout(time),
        };
        match line {
            Ok(line) => line,
            Err(RecvTimeoutError::Timeout) => Line::Nothing,
            Err(RecvTimeoutError::Disconnected) => {
                self.ended = true;
                Line::End
            }
        }
    }
}

/// Reads the next line, or returns `None` at the end of the input. An unfinished last line counts.
fn next(input: &mut impl BufRead) -> Option<Line> {
    let mut line = Vec::new();
    let read = input.take(LONGEST + 1).read_until(b'\n', &mut line).ok()?;
    if read == 0 {
        return None;
    }
    if line.last() != Some(&b'\n') && line.len() as u64 > LONGEST {
        // Skip the rest of the line.
        while line.last() != Some(&b'\n') {
            line.clear();
            if input.take(LONGEST).read_until(b'\n', &mut line).ok()? == 0 {
                break;
            }
        }
        return Some(Line::TooLong);
    }
    Some(Line::Text(line))
}

/// A request of a client.
pub struct Request {
    /// The id, or `None` for a notification, which has no answer.
    pub id: Option<Value>,
    pub method: String,
    pub params: Value,
}

impl Request {
    /// Parses a request. The error is the answer to send instead.
    pub fn parse(line: &[u8]) -> Result<Request, Value> {
        let message: Value = serde_json::from_slice(line)
            .map_err(|e| error(&Value::Null, PARSE_ERROR, &format!("this is no JSON: {e}")))?;
        let id = message.get("id").cloned();
        let known = id.as_ref().filter(|id| id.is_string() || id.is_number());
        let invalid = |what: &str| error(known.unwrap_or(&Value::Null), INVALID_REQUEST, what);
        if !message.is_object() {
            return Err(invalid("a message is an object, one a line"));
        }
        if message["jsonrpc"] != "2.0" {
            return Err(invalid("`jsonrpc` must be \"2.0\""));
        }
        if id.is_some() && known.is_none() {
            return Err(invalid("`id` is a string or a number"));
        }
        let Some(method) = message["method"].as_str() else {
            return Err(invalid("`method` is missing"));
        };
        let params = message.get("params").cloned().unwrap_or_else(|| json!({}));
        if !params.is_object() {
            return Err(invalid("`params` is an object"));
        }
        Ok(Request { id, method: method.into(), params })
    }
}

pub fn result(id: &Value, result: Value) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "result": result})
}

pub fn error(id: &Value, code: i64, message: &str) -> Value {
    json!({"jsonrpc": "2.0", "id": id, "error": {"code": code, "message": message}})
}
