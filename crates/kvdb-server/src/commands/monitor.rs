//! `MONITOR`: shows a client the commands of all clients after they have run. Commands that may
//! wait, and commands that call scripts and functions, are shown before they run. Commands
//! between `MULTI` and `EXEC`, and commands of a script, are shown once the transaction has
//! committed, up to the size of a mailbox. Commands in a transaction that the client has joined
//! are shown at once.

use std::fmt::Write;

use bytes::Bytes;

use super::row::{Secret, Shown};
use super::{Command, is};
use crate::failure::Outcome;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// Length at which a line is cut off.
const MOST: usize = 1 << 20;

pub fn monitor(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    s.monitors = true;
    s.shared.monitors.add(&s.connection);
    out.ok();
    Ok(())
}

/// Stops a connection from monitoring.
pub fn end(s: &mut Session) {
    if std::mem::take(&mut s.monitors) {
        s.shared.monitors.remove(s.id);
    }
}

/// Shows a command to the clients that monitor, or keeps it until the transaction to which it
/// belongs has committed.
pub fn show(s: &mut Session, command: &Command, args: Arguments<'_>) {
    if command.shown == Shown::Never {
        return;
    }
    if !s.exec.is_running() {
        return s.shared.monitors.show(&line(s, command, args));
    }
    // If more were kept than fits into a mailbox, every monitoring client would be disconnected.
    if s.exec.has_room_for_line(s.shared.limits.mailbox) {
        let line = line(s, command, args);
        s.exec.keep_line(line);
    }
}

/// Shows the commands of a transaction that has committed.
pub fn show_kept(s: &mut Session) {
    for line in s.exec.take_lines() {
        s.shared.monitors.show(&line);
    }
}

fn line(s: &Session, command: &Command, args: Arguments<'_>) -> Bytes {
    let now = s.db().wall_clock();
    let mut text =
        format!("{}.{:06} [{} ", now.as_secs(), now.subsec_micros(), s.dictionary.name());
    text.push_str(if s.in_script { "lua" } else { &s.connection.address });
    text.push(']');
    let mut secret = false;
    for (i, word) in (0..args.len()).map(|i| (i, args.at(i))) {
        if text.len() > MOST {
            text.push_str(" ...");
            break;
        }
        text.push_str(" \"");
        if secret {
            text.push_str("(redacted)");
        } else {
            escape(&word[..word.len().min(MOST)], &mut text);
        }
        text.push('"');
        secret |= match command.secret {
            Secret::None => false,
            Secret::All => i == 0,
            Secret::AfterAuth => i > 0 && is(word, "auth"),
            Secret::IfNamed(name) => i > 1 && is(word, name),
        };
    }
    text.into()
}

/// Writes bytes in the escaped form of Redis.
fn escape(bytes: &[u8], to: &mut String) {
    for byte in bytes {
        match byte {
            b'\\' | b'"' => {
                to.push('\\');
                to.push(char::from(*byte));
            }
            b'\n' => to.push_str("\\n"),
            b'\r' => to.push_str("\\r"),
            b'\t' => to.push_str("\\t"),
            0x07 => to.push_str("\\a"),
            0x08 => to.push_str("\\b"),
            b' '..=b'~' => to.push(char::from(*byte)),
            _ => {
                let _ = write!(to, "\\x{byte:02x}");
            }
        }
    }
}
