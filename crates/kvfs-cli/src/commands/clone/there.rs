//! The clones of a store that a server has.

use kvdb_wire::Listed;
use serde_json::json;

use crate::commands::clone::Action;
use crate::support::stores::served_names::There;
use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::text::show;

/// Runs a command on the clones of a store that a server has.
pub(super) fn run(there: &There, action: &Action, output: &Output) -> Outcome {
    match action {
        Action::Create { limit: Some(_), .. } | Action::Limit { .. } => {
            Err(there.refused("limiting a clone"))
        }
        Action::Create { snapshot, name, limit: None, .. } => {
            there.make_clone(snapshot, name)?;
            output.print("", json!({"created": name}))
        }
        Action::Drop { name, .. } => {
            there.drop_clone(name)?;
            output.print("", json!({"dropped": name}))
        }
        Action::List { .. } => {
            let all = there.clones()?;
            let snapshot = |one: &Listed| (!one.of.is_empty()).then(|| one.of.clone());
            let mut text = String::new();
            for one in &all {
                let of = snapshot(one).map(|of| format!("  of snapshot {}", show(of.as_bytes())));
                let name = show(one.name.as_bytes());
                text.push_str(&format!("{name}{}\n", of.unwrap_or_default()));
            }
            let value = |one: &Listed| json!({"name": one.name, "snapshot": snapshot(one)});
            output.print(text, all.iter().map(value).collect::<Vec<_>>())
        }
    }
}
