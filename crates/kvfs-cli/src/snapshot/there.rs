//! `kvfs snapshot` and `kvfs clone` (`create`, `list`, `drop`) with the address of a server, which
//! has the store.

use kvdb_wire::Listed;
use serde_json::json;

use super::{Action, CloneAction, time};
use crate::output::{Outcome, Output};
use crate::served_names::There;
use crate::text::show;

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

/// Runs a command on the clones of a store that a server has.
pub(super) fn clone(there: &There, action: &CloneAction, output: &Output) -> Outcome {
    match action {
        CloneAction::Create { limit: Some(_), .. } | CloneAction::Limit { .. } => {
            Err(there.refused("limiting a clone"))
        }
        CloneAction::Create { snapshot, name, limit: None, .. } => {
            there.make_clone(snapshot, name)?;
            output.print("", json!({"created": name}))
        }
        CloneAction::Drop { name, .. } => {
            there.drop_clone(name)?;
            output.print("", json!({"dropped": name}))
        }
        CloneAction::List { .. } => {
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
