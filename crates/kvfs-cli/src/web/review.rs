//! The review of an open transaction in a page: what it would change, in the lines of `kvfs txn
//! diff`, and its end. It is compared with what was shown before it is committed: one that has
//! changed since is not. What a program changes between that look and the commit goes with it.

use serde_json::{Value, json};
use sha1::{Digest, Sha1};

use crate::changes::{Changes, Detail, Style};
use crate::mounted::Mounted;
use crate::output::{Exit, Failure, Outcome};
use crate::text;
use crate::txn::fields;

/// Lines that a page is given at most. How many are left out is said.
const MOST_LINES: usize = 5_000;
/// Bytes of contents that it is given at most.
const MOST_CONTENTS: usize = 512 << 10;

/// A transaction as it is now.
struct Seen {
    changes: Changes,
    status: serde_json::Map<String, Value>,
    /// Another one when anything is changed in it: its changes are counted, and what they come to
    /// is compared.
    state: String,
}

fn look(mounted: &mut Mounted, id: u64) -> Outcome<Seen> {
    // First what programs have written to files and is not in the transaction yet: it is brought
    // there when the files are listed.
    let changes = Changes::of(mounted, id, false)?;
    let status = fields(mounted.txn(&["STATUS", &id.to_string()])?)?;
    let digest = Sha1::digest(changes.json(Detail::WITH_TIMES).to_string());
    let digest: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    let state = format!("{}-{digest}", status["changes"]);
    Ok(Seen { changes, status, state })
}

/// What it would change.
pub fn of(mounted: &mut Mounted, id: u64) -> Outcome<Value> {
    let seen = look(mounted, id)?;
    let text = seen.changes.text(Detail::default(), Style::default());
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text.lines().collect();
    let summary = lines.pop().unwrap_or_default();
    let all = lines.len();
    lines.truncate(MOST_LINES);
    Ok(json!({
        "status": seen.status, "state": seen.state, "summary": text::show_line(summary),
        "lines": lines.into_iter().map(text::show_line).collect::<Vec<_>>(), "lines_in_all": all,
        "view": mounted.view(id).to_string_lossy(),
    }))
}

/// The contents that differ, as a patch, up to a limit.
pub fn patch(mounted: &mut Mounted, id: u64) -> Outcome<Value> {
    let changes = Changes::of(mounted, id, true)?;
    let mut bytes = Vec::new();
    // On a terminal what is no text is only named; a page is one in this.
    let style = Style { terminal: true, colour: false };
    changes.pieces(Detail::default().with_patch(), style, &mut |piece| {
        bytes.extend_from_slice(piece);
        Ok(bytes.len() <= MOST_CONTENTS)
    })?;
    let whole = bytes.len() <= MOST_CONTENTS;
    bytes.truncate(MOST_CONTENTS);
    let text = String::from_utf8_lossy(&bytes);
    Ok(json!({
        "lines": text.lines().map(text::show_line).collect::<Vec<_>>(), "whole": whole,
    }))
}

/// Commits it, if it is as it was shown.
pub fn commit(mounted: &mut Mounted, id: u64, body: &[u8]) -> Outcome<Value> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let Some(shown) = body["state"].as_str() else {
        return Err(Failure::new(Exit::Usage, "say which state of it was looked at"));
    };
    if look(mounted, id)?.state != shown {
        let what =
            format!("transaction {id} has changed since it was shown, and was not committed");
        return Err(Failure::new(Exit::Conflict, what).hint("look at it again"));
    }
    mounted.txn(&["COMMIT", &id.to_string(), "SYNC"])?;
    Ok(json!({"committed": id}))
}

/// Ends it without a trace.
pub fn abort(mounted: &mut Mounted, id: u64) -> Outcome<Value> {
    mounted.txn(&["ABORT", &id.to_string()])?;
    Ok(json!({"aborted": id}))
}
