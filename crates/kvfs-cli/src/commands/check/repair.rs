//! `kvfs check --repair`: removes unreadable data, and makes the rest a valid store again.

use std::path::Path;
use std::sync::Arc;

use env::Machine;
use kvdb::{Kvdb, OpenOptions};
use kvfs::{Losses, Repaired};
use serde_json::{Value, json};
use zones::FileDevice;

use super::{Found, examine};
use crate::support::stores::losses::Loss;
use crate::support::stores::tree;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::prompt::Terminal;
use crate::support::terminal::text::Shown;
use crate::support::terminal::{failures, text};

pub fn run(path: &Path, yes: bool, losses: Losses, found: Found, output: &Output) -> Outcome {
    let gives_up = losses == Losses::Accept && found.has_losses();
    if found.faults.is_empty() && !gives_up {
        return found.tell(path, output);
    }
    if !found.opened {
        match found.tell(path, output) {
            Err(failure) if failure.exit != Exit::Damaged => return Err(failure),
            _ => {}
        }
        return Err(Failure::new(
            Exit::Damaged,
            format!("{} cannot be opened, so it cannot be repaired", path.shown()),
        )
        .hint("bring out what is readable, and make a new store: kvfs salvage STORE DIRECTORY"));
    }
    if !yes && !ask(&found, losses)? {
        return Err(Failure::new(Exit::Damaged, format!("{} was not changed", path.shown())));
    }
    let device = FileDevice::open(path, false)
        .map_err(|e| failures::of_database(format!("cannot open {}", path.shown()), e.into()))?;
    let remote = places::zones_of(&device)?;
    let options = OpenOptions { threads: false, remote, ..OpenOptions::default() };
    let failed = |e| failures::of_database(format!("cannot repair {}", path.shown()), e);
    let (db, _) =
        Kvdb::open(Arc::new(device), Arc::new(Machine::default()), options).map_err(failed)?;
    let repaired = kvfs::repair(&db, &Machine::default(), losses);
    let repaired = repaired.map_err(|e| {
        tree::failure(format!("cannot repair {}: it is as it was", path.shown()), e)
    })?;
    let removed: Vec<Value> =
        repaired.store.removed.iter().map(|fault| removed(&db, fault)).collect();
    db.close().map_err(failed)?;
    drop(db);
    let after = examine(path, output)?;
    tell(path, &repaired, removed, after, output)
}

/// Describes an unreadable block, and the file or keys that it belonged to.
fn removed(db: &Kvdb, fault: &kvdb::ScrubFault) -> Value {
    let Some(keys) = &fault.keys else { return json!({"place": fault.place, "what": fault.what}) };
    let mut object = serde_json::Map::new();
    object.insert("place".into(), fault.place.clone().into());
    object.insert("what".into(), fault.what.clone().into());
    object.insert("dictionary".into(), keys.dictionary.clone().into());
    text::put(&mut object, "start", &keys.start);
    text::put(&mut object, "end", &keys.end);
    let shown = || match keys.end.split_last() {
        Some((0, key)) if key == keys.start => format!("key {}", text::show(&keys.start)),
        _ => format!("keys from {} up to {}", text::show(&keys.start), text::show(&keys.end)),
    };
    let concerns =
        kvfs::describe_keys(db, &keys.dictionary, &keys.start, &keys.end).unwrap_or_else(shown);
    object.insert("concerns".into(), concerns.into());
    Value::Object(object)
}

fn tell(
    path: &Path,
    repaired: &Repaired,
    removed: Vec<Value>,
    after: Found,
    output: &Output,
) -> Outcome {
    let mut lines = String::new();
    for fault in &removed {
        let part = |name: &str| fault[name].as_str().unwrap_or_default();
        lines += &format!("lost: {} ({})\n", part("concerns"), part("what"));
    }
    for finding in &repaired.mended {
        let place = if finding.ino == 0 {
            "file system".to_string()
        } else {
            format!("inode {}", finding.ino)
        };
        lines += &format!("{place}: {}\n", finding.what);
    }
    let clean = after.faults.is_empty();
    let lost = after.has_losses();
    lines += &format!(
        "{}: {}; {} places taken out, {} findings mended",
        path.shown(),
        match (clean, lost) {
            (true, false) => "repaired, and clean now".to_string(),
            (true, true) => "repaired; what is lost is noted, and reading it fails".to_string(),
            (false, _) => format!("{} faults are left", after.faults.len()),
        },
        removed.len(),
        repaired.mended.len()
    );
    let mended: Vec<Value> =
        repaired.mended.iter().map(|f| json!({"inode": f.ino, "what": f.what})).collect();
    let left: Vec<Value> =
        after.faults.iter().map(|(place, what)| json!({"place": place, "what": what})).collect();
    let noted: Vec<Value> = after.losses.iter().map(Loss::to_json).collect();
    let value = json!({
        "clean": clean && !lost, "removed": removed, "mended": mended, "faults": left,
        "lost": noted,
    });
    output.print(lines, text::with_paths(value, &[("store", Some(path))]))?;
    match (clean, lost) {
        (true, false) => Ok(()),
        (true, true) => {
            let what = format!("something is lost in {}: see the list", path.shown());
            Err(Failure::new(Exit::Damaged, what).hint(
                "bring it back from a backup; what stays lost is given up by: \
                 kvfs check --repair --accept-losses",
            ))
        }
        (false, _) => Err(Failure::new(
            Exit::Damaged,
            format!("{} faults are left in {}", after.faults.len(), path.shown()),
        )),
    }
}

/// Shows the damage and asks on the terminal, wherever standard input and output are redirected to.
fn ask(found: &Found, losses: Losses) -> Outcome<bool> {
    let mut terminal = Terminal::open("decide beforehand: --yes")
        .map_err(|failure| Failure { exit: Exit::Usage, ..failure })?;
    for (place, what) in found.faults.iter().take(50) {
        terminal.say(&format!("{place}: {what}"))?;
    }
    if found.faults.len() > 50 {
        terminal.say(&format!("and {} more", found.faults.len() - 50))?;
    }
    for what in found.concerns.iter().take(50) {
        terminal.say(&format!("damaged: {what}"))?;
    }
    for loss in found.losses.iter().take(50) {
        terminal.say(loss.line().trim_end())?;
    }
    let what = match losses {
        Losses::Keep => "What cannot be read is taken out and lost then.",
        Losses::Accept => "What is lost is given up: lost bytes of files read as zeros.",
    };
    let answer = terminal.ask(&format!("{what} Repair? [y]es, [n]o: "))?;
    Ok(matches!(answer.as_deref(), Some("y" | "yes")))
}
