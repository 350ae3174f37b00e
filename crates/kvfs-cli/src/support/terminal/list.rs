//! The output of a command that lists something, item by item.

use std::io::{self, Write};

use serde_json::Value;

use crate::support::terminal::output::{Outcome, Output, taken};
use crate::support::terminal::text;

/// A listing of any length: lines for people, one array for `--json`. If it is dropped before its
/// end, it closes the array, so that the output before an error is valid JSON, too.
pub struct List<'a> {
    output: &'a Output,
    out: io::BufWriter<io::StdoutLock<'static>>,
    first: bool,
    ended: bool,
}

impl Drop for List<'_> {
    fn drop(&mut self) {
        if !self.ended && !self.first && self.output.is_json() {
            // The error that ended the listing is reported elsewhere; a closed pipe is not an
            // error.
            let _ = writeln!(self.out, "]").and_then(|()| self.out.flush());
        }
    }
}

impl<'a> List<'a> {
    pub fn begin(output: &'a Output) -> Outcome<Self> {
        let out = io::BufWriter::new(io::stdout().lock());
        Ok(List { output, out, first: true, ended: false })
    }

    /// Writes an item. Returns `false` if the reader has closed the pipe.
    pub fn item(&mut self, line: &str, value: impl FnOnce() -> Value) -> Outcome<bool> {
        let written = if self.output.is_json() {
            let before = if self.first { "[" } else { ",\n" };
            let value = text::show_json(&value()).map_err(io::Error::from);
            value.and_then(|value| write!(self.out, "{before}{value}"))
        } else {
            writeln!(self.out, "{line}")
        };
        self.first = false;
        taken(written)
    }

    /// Writes an item unescaped, for programs; not for JSON.
    pub fn raw(&mut self, item: &[u8], end: u8) -> Outcome<bool> {
        taken(self.out.write_all(item).and_then(|()| self.out.write_all(&[end])))
    }

    pub fn end(mut self) -> Outcome {
        self.ended = true;
        let written = match (self.output.is_json(), self.first) {
            (true, true) => writeln!(self.out, "[]"),
            (true, false) => writeln!(self.out, "]"),
            _ => Ok(()),
        };
        taken(written.and_then(|()| self.out.flush())).map(drop)
    }
}
