//! `kvfs check ADDRESS`: checks that all objects that the stores and forks of a place refer to
//! exist.

use std::path::Path;

use env::Machine;
use kvdb::{Amount, Survey};
use serde_json::{Value, json};

use crate::support::terminal::failures;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::show;

fn told(of: Amount) -> String {
    format!("{} in {} objects", human_size(of.bytes), of.objects)
}

fn amount(of: Amount) -> Value {
    json!({"objects": of.objects, "bytes": of.bytes})
}

/// Surveys the place.
pub fn run(word: &Path, output: &Output) -> Outcome {
    let (name, place) = places::place(word)?;
    let bar = output.progress("checking", None, false);
    let found = place.survey(&Machine::default());
    bar.finish_and_clear();
    let found = found.map_err(|e| failures::of_database(format!("cannot check {name}"), e))?;
    let Survey { stores, forks, missing, needed, current, dead, unreferenced, unknown } = &found;
    let mut text: String = missing.iter().map(|object| format!("{object}\n")).collect();
    let state = match missing.len() {
        0 => "all objects are there".to_string(),
        count => format!("{count} objects are missing or too short"),
    };
    text += &format!(
        "{}: {state}; {stores} stores and {forks} forks refer to {}",
        show(name.as_bytes()),
        told(*needed)
    );
    for (what, of) in [
        ("of publications that may be under way", current),
        ("to be deleted", dead),
        ("unreferenced, which no kvfs gc has found yet", unreferenced),
        ("not of this program", unknown),
    ] {
        if of.objects > 0 {
            text += &format!("; {what}: {}", told(*of));
        }
    }
    let lost: Vec<Value> = missing
        .iter()
        .map(|m| json!({"key": m.key.as_str(), "bytes": m.len, "needed_by": m.needed_by}))
        .collect();
    let value = json!({
        "clean": missing.is_empty(), "place": name, "missing": lost, "stores": stores,
        "forks": forks, "needed": amount(*needed), "current": amount(*current),
        "dead": amount(*dead), "unreferenced": amount(*unreferenced), "unknown": amount(*unknown),
    });
    output.print(text, value)?;
    if missing.is_empty() {
        return Ok(());
    }
    let what = format!("{} objects are missing or too short in {name}", missing.len());
    Err(Failure::new(Exit::Damaged, what).hint(
        "publish what is damaged under another name, from where it is kept: kvfs push STORE \
         ADDRESS; then take this one back: kvfs unpublish ADDRESS",
    ))
}
