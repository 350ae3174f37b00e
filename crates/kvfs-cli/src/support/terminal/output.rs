//! Output for the user: results as text or JSON, errors with a hint, progress bars, and the exit
//! codes.
//!
//! Every command returns an `Outcome`; nothing else in this crate prints an error or picks an exit
//! code.

use std::fmt::Display;
use std::io::{self, IsTerminal, Write};
use std::process::ExitCode;

use indicatif::{ProgressBar, ProgressStyle};

use crate::support::terminal::text::{show_json, show_line, show_message};

/// Shown below `kvfs --help`: the codes are part of the interface.
pub const EXIT_CODES: &str = "\
Exit codes:
  0  done
  1  failed
  2  wrong usage
  3  no such store, mount, file or key
  4  the store or mount point is in use
  5  damage was found
  6  no space left
  7  not permitted
  8  a transaction was given up because of others: try again
  32 mount failed (when called by mount(8))";

/// The reason for which a command ends; the numbers are stable.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Exit {
    Failed = 1,
    Usage = 2,
    NotFound = 3,
    Busy = 4,
    Damaged = 5,
    NoSpace = 6,
    NotPermitted = 7,
    /// Another transaction has changed the same data: the command may be retried.
    Conflict = 8,
}

impl Exit {
    /// The code of a conflict for commands that exit with another program's codes: that of
    /// sysexits.h for "try again later".
    pub const TRY_AGAIN: u8 = 75;

    /// Returns the name of the code in JSON.
    pub fn name(self) -> &'static str {
        match self {
            Exit::Failed => "failed",
            Exit::Usage => "usage",
            Exit::NotFound => "not_found",
            Exit::Busy => "busy",
            Exit::Damaged => "damaged",
            Exit::NoSpace => "no_space",
            Exit::NotPermitted => "not_permitted",
            Exit::Conflict => "conflict",
        }
    }

    fn from_number(n: i32) -> Exit {
        [
            Exit::Usage,
            Exit::NotFound,
            Exit::Busy,
            Exit::Damaged,
            Exit::NoSpace,
            Exit::NotPermitted,
            Exit::Conflict,
        ]
        .into_iter()
        .find(|e| *e as i32 == n)
        .unwrap_or(Exit::Failed)
    }

    /// Returns the code for an I/O error.
    pub fn of(error: &io::Error) -> Exit {
        match error.kind() {
            io::ErrorKind::NotFound => Exit::NotFound,
            io::ErrorKind::PermissionDenied => Exit::NotPermitted,
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => Exit::NoSpace,
            io::ErrorKind::ResourceBusy => Exit::Busy,
            _ => Exit::Failed,
        }
    }
}

/// An error for the user: what failed, and, if there is one, a remedy.
#[derive(Debug)]
pub struct Failure {
    pub exit: Exit,
    pub message: String,
    pub hint: Option<String>,
}

pub type Outcome<T = ()> = Result<T, Failure>;

impl Failure {
    pub fn new(exit: Exit, message: impl Into<String>) -> Failure {
        Failure { exit, message: message.into(), hint: None }
    }

    /// Converts an I/O error. `doing` describes the failed operation: "cannot open /a/b".
    pub fn io(doing: impl Display, error: &io::Error) -> Failure {
        Failure::new(Exit::of(error), format!("{doing}: {error}"))
    }

    /// Appends to the message.
    pub fn with(mut self, more: &str) -> Failure {
        self.message = format!("{}; {more}", self.message);
        self
    }

    /// Adds a hint about the remedy.
    pub fn hint(mut self, hint: impl Into<String>) -> Failure {
        self.hint = Some(hint.into());
        self
    }

    /// Formats the failure as one line for a pipe between two kvfs processes; `from_line` parses
    /// it.
    pub fn to_line(&self) -> String {
        serde_json::json!({"exit": self.exit as i32, "message": self.message, "hint": self.hint})
            .to_string()
    }

    pub fn from_line(line: &str) -> Option<Failure> {
        let v: serde_json::Value = serde_json::from_str(line).ok()?;
        let exit = Exit::from_number(v["exit"].as_i64()? as i32);
        Some(Failure {
            exit,
            message: v["message"].as_str()?.into(),
            hint: v["hint"].as_str().map(Into::into),
        })
    }
}

impl From<anyhow::Error> for Failure {
    fn from(error: anyhow::Error) -> Failure {
        let exit = error.downcast_ref::<io::Error>().map_or(Exit::Failed, Exit::of);
        Failure::new(exit, format!("{error:#}"))
    }
}

/// The destination and format of results.
pub struct Output {
    json: bool,
    quiet: bool,
    /// True if remarks are suppressed, too.
    silent: bool,
}

impl Output {
    pub fn new(json: bool) -> Output {
        Output { json, quiet: false, silent: false }
    }

    /// Returns an output that suppresses results, but prints remarks and errors.
    pub fn quiet() -> Output {
        Output { json: false, quiet: true, silent: false }
    }

    /// Returns an output that prints nothing, for work whose results are used elsewhere.
    pub fn silent() -> Output {
        Output { json: false, quiet: true, silent: true }
    }

    pub fn is_json(&self) -> bool {
        self.json
    }

    /// Prints a result: `text` for people, `value` for `--json`. A closed pipe is not an error.
    pub fn print(&self, text: impl Display, value: impl serde::Serialize) -> Outcome {
        if self.quiet {
            return Ok(());
        }
        let mut out = io::stdout().lock();
        let written = if self.json {
            let line = show_json(&value).map_err(|e| Failure::new(Exit::Failed, e.to_string()))?;
            writeln!(out, "{line}")
        } else {
            // Escape control characters, so that names cannot control the terminal.
            let text = show_line(&text.to_string());
            let end = if text.is_empty() || text.ends_with('\n') { "" } else { "\n" };
            write!(out, "{text}{end}")
        };
        taken(written.and_then(|()| out.flush())).map(drop)
    }

    /// Prints raw bytes (the content of a file, a tar stream) to standard output. Returns `false`
    /// if the reader has closed the pipe.
    pub fn print_bytes(&self, bytes: &[u8]) -> Outcome<bool> {
        let mut out = io::stdout().lock();
        // Flush now: an error at the exit of the process would be lost.
        taken(out.write_all(bytes).and_then(|()| out.flush()))
    }

    /// Prints a remark that is not part of the result, for people only.
    pub fn note(&self, text: impl Display) {
        if !self.json && !self.silent {
            eprintln!("kvfs: {}", show_message(&text.to_string()));
        }
    }

    /// Prints a remark that programs need as well: with `--json` it is a line on standard error.
    pub fn note_with(&self, text: impl Display, value: impl serde::Serialize) {
        if self.json {
            eprintln!("{}", show_json(&value).unwrap_or_default());
        } else {
            self.note(text);
        }
    }

    /// Returns a progress bar on standard error for `length` units of work, `None` if unknown; it
    /// is hidden unless standard error is a terminal. With `bytes` the units are bytes.
    pub fn progress(&self, label: &str, length: Option<u64>, bytes: bool) -> ProgressBar {
        if self.json || !io::stderr().is_terminal() {
            return ProgressBar::hidden();
        }
        let bar = match length {
            Some(n) => ProgressBar::new(n),
            None => ProgressBar::new_spinner(),
        };
        let template = match (length.is_some(), bytes) {
            (true, true) => "{msg} {wide_bar} {bytes}/{total_bytes} {bytes_per_sec} {eta}",
            (true, false) => "{msg} {wide_bar} {pos}/{len} {per_sec} {eta}",
            (false, true) => "{spinner} {msg} {bytes} {bytes_per_sec}",
            (false, false) => "{spinner} {msg} {pos} {per_sec}",
        };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style);
        }
        bar.with_message(label.to_string())
    }

    /// Prints the error, if any, and returns the exit code.
    pub fn finish(&self, outcome: Outcome) -> ExitCode {
        match outcome {
            Ok(()) => ExitCode::SUCCESS,
            Err(failure) => {
                self.print_error(&failure);
                ExitCode::from(failure.exit as u8)
            }
        }
    }

    pub fn print_error(&self, failure: &Failure) {
        if self.json {
            let error = serde_json::json!({"error": {
                "code": failure.exit.name(), "exit": failure.exit as i32, "message": failure.message, "hint": failure.hint,
            }});
            eprintln!("{}", show_json(&error).unwrap_or_default());
        } else {
            // The message may contain names chosen by others, which must not control the terminal.
            eprintln!("kvfs: {}", show_message(&failure.message));
            if let Some(hint) = &failure.hint {
                eprintln!("  {}", show_message(hint));
            }
        }
    }
}

/// Returns whether standard output is still read. A closed pipe is not a failure.
pub fn taken(written: io::Result<()>) -> Outcome<bool> {
    match written {
        Ok(()) => Ok(true),
        Err(e) if e.kind() == io::ErrorKind::BrokenPipe => Ok(false),
        Err(e) => Err(Failure::io("cannot write to standard output", &e)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_failure_survives_the_pipe() {
        let f = Failure::new(Exit::Busy, "the store /a is in use\nby 7").hint("unmount it");
        let g = Failure::from_line(&f.to_line()).expect("one line of JSON");
        assert_eq!((g.exit, g.message, g.hint), (f.exit, f.message, f.hint));
        assert!(!Failure::new(Exit::Busy, "a\nb").to_line().contains('\n'));
    }

    #[test]
    fn io_errors_map_to_stable_codes() {
        let code = |e: i32| Exit::of(&io::Error::from_raw_os_error(e));
        assert_eq!(code(2), Exit::NotFound);
        assert_eq!(code(13), Exit::NotPermitted);
        assert_eq!(code(16), Exit::Busy);
        assert_eq!(code(28), Exit::NoSpace);
        assert_eq!(code(5), Exit::Failed);
    }
}
