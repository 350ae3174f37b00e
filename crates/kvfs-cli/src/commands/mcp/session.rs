//! A client's session: dispatches its requests, and ends its transactions.

use std::collections::VecDeque;
use std::time::Duration;

use serde_json::{Value, json};

use super::arguments::{Arguments, Told};
use super::wire::{self, Line, Lines, Request};
use super::{Limits, tools};
use crate::support::mounts::mounted::Mounted;
use crate::support::terminal::output::{Failure, Outcome};

/// The supported versions of the protocol, the newest first.
const VERSIONS: [&str; 3] = ["2025-06-18", "2025-03-26", "2024-11-05"];

const INSTRUCTIONS: &str = "\
A store of files and keys. Everything that changes it happens in a transaction: `begin` one, then \
`run` commands and use `write_file`, `put_key` and others in it. No other program sees what they do \
to the store before `commit`; what a command does outside of the store is done at once. Look at \
`diff` before you commit, and `revert` what does not belong in it. `abort` leaves no trace. A \
conflict at `commit` means that others have changed the same since the transaction began: begin \
anew from what is there now. For work of several commits that others are not to see yet, make a \
`branch`, begin transactions in it, and `merge` it.";

/// The limit of messages queued while a command runs.
pub const MOST_WAITING: usize = 1024;

/// The state that tools use.
pub struct Session {
    pub mounted: Mounted,
    pub limits: Limits,
    without: Vec<String>,
    pub lines: Lines,
    /// Messages received while a command ran.
    pub waiting: VecDeque<Line>,
    /// The id of the current request.
    pub current: Value,
    /// Transactions begun in this session, not known to have ended.
    pub begun: Vec<u64>,
    /// Branches made in this session.
    pub branches: Vec<String>,
    initialized: bool,
}

impl Session {
    pub fn new(mounted: Mounted, limits: Limits, without: Vec<String>, lines: Lines) -> Session {
        Session {
            mounted,
            limits,
            without,
            lines,
            waiting: VecDeque::new(),
            current: Value::Null,
            begun: Vec::new(),
            branches: Vec::new(),
            initialized: false,
        }
    }

    /// Answers until the client disconnects. Its transactions are attached to the connection with
    /// the store's daemon, so that they end with this process, even if it is killed.
    pub fn serve(&mut self, mut send: impl FnMut(&[u8]) -> Outcome) -> Outcome {
        loop {
            let answer = match self.next() {
                Line::End => break,
                Line::Nothing => None,
                Line::TooLong => {
                    Some(wire::error(&Value::Null, wire::PARSE_ERROR, "the message is too long"))
                }
                Line::Text(line) if line.trim_ascii().is_empty() => None,
                Line::Text(line) => match Request::parse(&line) {
                    Ok(request) => self.answer(request),
                    Err(answer) => Some(answer),
                },
            };
            if let Some(answer) = answer {
                let mut line = answer.to_string().into_bytes();
                line.push(b'\n');
                send(&line)?;
            }
        }
        for id in std::mem::take(&mut self.begun) {
            // Some transactions may have ended already.
            let _ = self.mounted.txn(&["ABORT", &id.to_string()]);
        }
        Ok(())
    }

    /// Queues a message, or removes the queued request that it cancels, which is then neither run
    /// nor answered. Returns `true` if it cancels the current request.
    pub fn put_off(&mut self, line: Line) -> bool {
        if let Line::Text(text) = &line {
            let message: Value = serde_json::from_slice(text).unwrap_or_default();
            if message["method"] == "notifications/cancelled" {
                let id = &message["params"]["requestId"];
                if !id.is_null() {
                    self.waiting.retain(|line| !is_request(line, id));
                }
                return !id.is_null() && *id == self.current;
            }
        }
        self.waiting.push_back(line);
        false
    }

    /// Returns the next message. Messages received after a queued one are read first, since one of
    /// them may cancel it.
    fn next(&mut self) -> Line {
        while !self.waiting.is_empty() && self.waiting.len() < MOST_WAITING {
            match self.lines.within(Some(Duration::ZERO)) {
                Line::End | Line::Nothing => break,
                line => drop(self.put_off(line)),
            }
        }
        self.waiting.pop_front().unwrap_or_else(|| self.lines.next())
    }

    fn answer(&mut self, request: Request) -> Option<Value> {
        // Notifications have no answer, not even an error if they are unknown.
        let id = request.id?;
        let outcome = match request.method.as_str() {
            "initialize" => {
                self.initialized = true;
                Ok(initialized(&request.params))
            }
            "ping" => Ok(json!({})),
            "tools/list" if self.initialized => Ok(json!({"tools": tools::list(&self.without)})),
            "tools/call" if self.initialized => self.call(&id, &request.params),
            "tools/list" | "tools/call" => {
                Err((wire::INVALID_REQUEST, "begin with `initialize`".to_string()))
            }
            method => {
                Err((wire::METHOD_NOT_FOUND, format!("there is no method `{}`", cut(method))))
            }
        };
        Some(match outcome {
            Ok(result) => wire::result(&id, result),
            Err((code, message)) => wire::error(&id, code, &message),
        })
    }

    fn call(&mut self, id: &Value, params: &Value) -> Result<Value, (i64, String)> {
        let name = params["name"].as_str().unwrap_or_default();
        let tool = tools::find(name).filter(|tool| !self.without.iter().any(|n| n == tool.name));
        let Some(tool) = tool else {
            return Err((wire::INVALID_PARAMS, format!("Unknown tool: {}", cut(name))));
        };
        let none = json!({});
        let arguments = params.get("arguments").unwrap_or(&none);
        let arguments =
            Arguments::of(tool, arguments).map_err(|what| (wire::INVALID_PARAMS, what))?;
        self.current = id.clone();
        let outcome = (tool.run)(self, &arguments);
        self.current = Value::Null;
        let (text, failed) = match outcome {
            Ok(Told { text, failed }) => (text, failed),
            Err(Failure { message, hint, .. }) => {
                (hint.map_or_else(|| message.clone(), |hint| format!("{message}\n{hint}")), true)
            }
        };
        Ok(json!({"content": [{"type": "text", "text": text}], "isError": failed}))
    }
}

fn is_request(line: &Line, id: &Value) -> bool {
    let Line::Text(text) = line else { return false };
    serde_json::from_slice(text).is_ok_and(|message: Value| message["id"] == *id)
}

fn initialized(params: &Value) -> Value {
    let asked = params["protocolVersion"].as_str().unwrap_or_default();
    let version = VERSIONS.iter().find(|version| **version == asked).unwrap_or(&VERSIONS[0]);
    json!({
        "protocolVersion": version,
        "capabilities": {"tools": {"listChanged": false}},
        "serverInfo": {"name": "kvfs", "title": "KVFS", "version": env!("CARGO_PKG_VERSION")},
        "instructions": INSTRUCTIONS,
    })
}

/// Truncates a name that a client has sent, for a message.
fn cut(name: &str) -> String {
    name.chars().take(64).collect()
}
