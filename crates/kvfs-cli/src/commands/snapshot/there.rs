//! The snapshots of a store that a server has.

use kvdb_wire::Listed;
use serde_json::json;

use super::Action;
use crate::support::stores::served_names::There;
use crate::support::stores::snapshots::time;
use crate::support::terminal::output::{Outcome, Output};
use crate::support::terminal::text::show;

/// Runs a command on the snapshots of a store that a server has.
pub(super) fn snapshot(there: &There, action: &Action, output: &Output) -> Outcome {
    match action {
        Action::Create { name, of, .. } => {
            there.make_snapshot(of, name)?;
            output.print("", json!({"created": name}))
        }
        Action::Drop { name, .. } => {
            there.drop_snapshot(name)?;
            output.print("", json!({"dropped": name}))
        }
        Action::List { .. } => {
            let all = there.snapshots()?;
            let seconds = |nanoseconds: u64| nanoseconds / 1_000_000_000;
            let mut text = String::new();
            if !all.is_empty() {
                text = format!("{:20}  NAME\n", "CREATED (UTC)");
            }
            for one in &all {
                let (created, name) = (time(seconds(one.created)), show(one.name.as_bytes()));
                let clone = match &*one.of {
                    "" => String::new(),
                    clone => format!("  of clone {}", show(clone.as_bytes())),
                };
                text.push_str(&format!("{created:20}  {name}{clone}\n"));
            }
            let value = |one: &Listed| {
                let created = seconds(one.created);
                json!({"name": one.name, "clone": one.of, "created": created})
            };
            output.print(text, all.iter().map(value).collect::<Vec<_>>())
        }
        Action::Auto { .. } => Err(there.refused("keeping snapshots by rules")),
        Action::Rollback { .. } => Err(there.refused("a rollback")),
    }
}
