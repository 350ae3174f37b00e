//! The review of an open transaction in a page: its changes, in the lines of `kvfs txn diff`, and
//! its commit or abort. The page sends the state that it has shown, and no other state is
//! committed.

use serde_json::{Value, json};

use crate::support::mounts::mounted::{Commit, Mounted, fields};
use crate::support::review::changes::{Changes, Detail, Style, Wanted};
use crate::support::terminal::output::{Exit, Failure, Outcome};
use crate::support::terminal::text;

/// The limit of lines that a page gets. The answer states the total.
const MOST_LINES: usize = 5_000;
/// The limit of contents that a page gets, in bytes.
const MOST_CONTENTS: usize = 512 << 10;

/// Returns the changes of a transaction.
pub fn of(mounted: &mut Mounted, id: u64) -> Outcome<Value> {
    let changes = Changes::of(mounted, id, Wanted::default())?;
    let status = fields(mounted.txn(&["STATUS", &id.to_string()])?)?;
    let text = changes.text(Detail::default(), Style::default());
    let text = String::from_utf8_lossy(&text);
    let mut lines: Vec<&str> = text.lines().collect();
    let summary = lines.pop().unwrap_or_default();
    let all = lines.len();
    lines.truncate(MOST_LINES);
    Ok(json!({
        "status": status, "state": changes.state, "summary": text::show_line(summary),
        "lines": lines.into_iter().map(text::show_line).collect::<Vec<_>>(), "lines_in_all": all,
        "view": mounted.view(id).to_string_lossy(),
    }))
}

/// Returns the contents that differ, as a patch, up to a limit.
pub fn patch(mounted: &mut Mounted, id: u64) -> Outcome<Value> {
    let changes = Changes::of(mounted, id, Wanted::ALL)?;
    let mut bytes = Vec::new();
    // Name non-text files only, as on a terminal.
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

/// Commits the transaction if it is in the state that was shown.
pub fn commit(mounted: &mut Mounted, id: u64, body: &[u8]) -> Outcome<Value> {
    let body: Value = serde_json::from_slice(body).unwrap_or_default();
    let Some(shown) = body["state"].as_str() else {
        return Err(Failure::new(Exit::Usage, "say which state of it was looked at"));
    };
    mounted.commit(id, Commit { sync: true, state: Some(shown), ..Commit::default() })?;
    Ok(json!({"committed": id}))
}

/// Aborts the transaction.
pub fn abort(mounted: &mut Mounted, id: u64) -> Outcome<Value> {
    mounted.txn(&["ABORT", &id.to_string()])?;
    Ok(json!({"aborted": id}))
}
