//! `kvfs snapshot create`, `list` and `drop` with the address of a server, which has the store.

use kvdb_wire::Listed;
use serde_json::json;

use super::{Action, time};
use crate::output::{Outcome, Output};
use crate::served_names::There;
use crate::text::show;

/// Runs a command on the snapshots of a store that a server has.
pub(super) fn run(there: &There, action: &Action, output: &Output) -> Outcome {
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
