//! `TXN BEGIN`, and transactions that end with the connection that began them.

use std::time::Duration;

use kvdb::{Isolation, TransactionId, TransactionOptions};

use super::number;
use crate::commands::{is, snapshot};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

fn seconds(arg: Option<&[u8]>) -> Result<Duration, Failure> {
    let text =
        arg.and_then(|arg| std::str::from_utf8(arg).ok()).and_then(|arg| arg.parse::<f64>().ok());
    let duration = text.and_then(|seconds| Duration::try_from_secs_f64(seconds).ok());
    duration.ok_or_else(|| Failure::request("not a number of seconds"))
}

/// `TXN BEGIN [OF clone] [WITHIN id] [SI|SER] [LABEL text] [IDLE seconds] [TIMEOUT seconds] [LIMIT
/// bytes] [FILES n] [NOCHECK] [DURABLE] [UNDOABLE] [INPLACE] [ATTACHED]` begins a transaction and
/// replies with its number. If the connection works in a clone, the transaction belongs to that
/// clone.
pub(super) fn begin(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let mut options = TransactionOptions {
        detached: true,
        user: s.identity.user(),
        branch: s.place.branch().unwrap_or_default().into(),
        ..TransactionOptions::default()
    };
    let mut attached = false;
    let mut words = args.from(2);
    while let Some(word) = words.next() {
        match word {
            o if is(o, "of") => {
                options.branch = snapshot::name(words.next().ok_or(Failure::SYNTAX)?)?.into();
            }
            o if is(o, "within") && options.within.is_none() => {
                options.within = Some(number(words.next().ok_or(Failure::SYNTAX)?)?);
            }
            o if is(o, "si") => options.isolation = Isolation::Snapshot,
            o if is(o, "ser") => options.isolation = Isolation::Serializable,
            o if is(o, "label") => {
                let label = words.next().ok_or(Failure::SYNTAX)?;
                options.label =
                    String::from_utf8_lossy(&label[..label.len().min(256)]).into_owned();
            }
            o if is(o, "idle") => options.idle_limit = Some(seconds(words.next())?),
            o if is(o, "timeout") => options.lock_timeout = seconds(words.next())?,
            o if is(o, "limit") => {
                let bytes = words.next().and_then(integer).and_then(|n| u64::try_from(n).ok());
                options.limit = Some(bytes.ok_or(Failure::NOT_AN_INTEGER)?);
            }
            o if is(o, "files") => {
                let files = words.next().and_then(integer).and_then(|n| u64::try_from(n).ok());
                options.limit_of_files = Some(files.ok_or(Failure::NOT_AN_INTEGER)?);
            }
            o if is(o, "nocheck") => options.check_conflicts = false,
            o if is(o, "durable") => options.durable = true,
            o if is(o, "undoable") => options.undoable = true,
            o if is(o, "inplace") => options.in_place = true,
            o if is(o, "attached") => attached = true,
            _ => return Err(Failure::SYNTAX),
        }
    }
    let id = s.shared.owner.transactions().begin(options)?;
    s.shared.seals.begun(s.id, id);
    if let Some(confined) = s.identity.confined() {
        s.shared.seals.begun_within(confined, id);
    }
    if attached {
        attach(s, id);
    }
    out.integer(id.0 as i64);
    Ok(())
}

/// Lets a transaction end with the connection.
pub fn attach(s: &mut Session, id: TransactionId) {
    if s.attached.len() >= 64 && s.attached.len().is_power_of_two() {
        // Other connections may have ended some of the attached transactions.
        let db = s.shared.db.clone();
        s.attached.retain(|attached| db.transaction(*attached).is_ok());
    }
    s.attached.push(id);
}
