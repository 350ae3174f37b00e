//! `kvfs snapshot`: makes, lists and drops snapshots of a store. `there` does so on a server.

mod there;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use serde_json::{Value, json};

use crate::support::mounts::place::{self, View};
use crate::support::stores::connection::Connection;
use crate::support::stores::retention::Rules;
use crate::support::stores::served_names::There;
use crate::support::stores::snapshots::{
    list, must_be_of_named, must_show_what_it_is_of, time, with,
};
use crate::support::stores::store::Store;
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::sizes::human_size;
use crate::support::terminal::text::Shown;
use crate::support::terminal::text::show;

/// Make, list and drop snapshots of a store, and roll back to them.
#[derive(clap::Args)]
#[command(after_help = "\
Making or dropping a snapshot takes the time of a sync, whatever the size of the store. A \
snapshot has files and keys, and shares all data with the store. While the store is mounted, \
/mnt/.kvfs/snapshot/NAME is the file system of the snapshot.

  kvfs snapshot create /mnt before-upgrade
  kvfs diff /mnt before-upgrade                    # changes since then
  cp /mnt/.kvfs/snapshot/before-upgrade/config /mnt
  kvfs snapshot rollback /mnt before-upgrade       # everything

By the path of a clone (/mnt/.kvfs/clone/NAME) these commands make, list and drop the snapshots of \
that clone.

create, list and drop also take the address of a server (kvfs serve), kvfs+unix:SOCKET, \
kvfs+vsock://CID:PORT or kvfs://HOST:PORT; KVFS_TOKEN_FILE and KVFS_CA name files with the token and the trusted \
certificates. What a token may write it may make snapshots of, and one with admin drops them.")]
pub struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Subcommand)]
enum Action {
    /// Make a snapshot.
    Create {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), the file of a
        /// store that is not mounted, or the address of a server.
        target: PathBuf,
        /// Name of the new snapshot.
        name: String,
        /// Make the snapshot from this clone instead of the store.
        #[arg(long, value_name = "CLONE", default_value = "")]
        of: String,
    },
    /// List the snapshots, the oldest first.
    #[command(visible_alias = "ls")]
    List {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), the file of a
        /// store that is not mounted, or the address of a server.
        target: PathBuf,
    },
    /// Make a snapshot named by the current time, and drop earlier ones that the rules do not keep;
    /// for use by a timer.
    ///
    /// A rule such as 7d keeps the newest snapshot of each of the last seven days (h hours, d days
    /// in UTC, w weeks from Monday); snapshots that no rule keeps are dropped. Snapshots with other
    /// names are not touched, and the newest snapshot always stays. With cron, every hour:
    ///
    /// 0 * * * *  kvfs snapshot auto /mnt --keep 24h,7d,4w
    Auto {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
        /// store that is not mounted.
        target: PathBuf,
        /// Rules for the snapshots to keep, such as 24h,7d,4w.
        #[arg(long, value_name = "RULES")]
        keep: Rules,
        /// Prefix of the names of these snapshots (default: auto, or CLONE-auto for a clone).
        #[arg(long, value_name = "NAME")]
        prefix: Option<String>,
        /// Print the snapshots that would be made and dropped, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Drop a snapshot. Clones made from it stay.
    #[command(visible_alias = "rm")]
    Drop {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), the file of a
        /// store that is not mounted, or the address of a server.
        target: PathBuf,
        /// Name of the snapshot.
        name: String,
    },
    /// Roll the store or the clone back to a snapshot. Later changes are lost and open transactions
    /// are aborted; newer snapshots stay.
    Rollback {
        /// Directory a store is mounted on, a clone in it (/mnt/.kvfs/clone/NAME), or the file of a
        /// store that is not mounted.
        target: PathBuf,
        /// Snapshot to roll back to. A snapshot of a clone rolls that clone back.
        name: String,
    },
}

/// Returns the store, and the clone that a snapshot is to be made of, or an empty name for the
/// store itself.
fn made_of(target: &Path, of: &str) -> Outcome<(PathBuf, String)> {
    let Some(place) = place::of_target(target)? else { return Ok((target.into(), of.into())) };
    match &place.view {
        View::Mainline => Ok((target.into(), of.into())),
        View::Clone(name) if of.is_empty() || of == name => {
            Ok((place.mount.mount_point, name.clone()))
        }
        view => {
            let what = format!(
                "a snapshot is made of the store or of a clone, and {} leads into {view}",
                target.shown()
            );
            let hint = match place.bound {
                true => "do it from outside".into(),
                false => {
                    let at = place.mount.mount_point.shown();
                    format!("give the directory of the mount ({at})")
                }
            };
            Err(Failure::new(Exit::Usage, what).hint(hint))
        }
    }
}

impl Action {
    fn target(&self) -> &Path {
        match self {
            Action::Create { target, .. }
            | Action::List { target }
            | Action::Auto { target, .. }
            | Action::Drop { target, .. }
            | Action::Rollback { target, .. } => target,
        }
    }
}

/// Makes a snapshot of a clone, or of the store itself if `of` is empty.
fn create(target: &Path, name: &str, of: &str) -> Outcome {
    let mut words = vec!["SNAPSHOT", "CREATE", name];
    if !of.is_empty() {
        words.extend(["OF", of]);
    }
    with(target, true, &words).map(drop)
}

fn roll_back(target: &Path, name: &str) -> Outcome {
    let mut connection = Connection::of_branch(target, true)?;
    let ended = connection.store().map_or(Ok(()), Store::end_lease);
    let done = ended.and_then(|()| connection.call(&[b"SNAPSHOT", b"ROLLBACK", name.as_bytes()]));
    let closed = connection.close();
    done.and(closed)
}

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(there) = There::of(args.action.target())? {
        return there::snapshot(&there, &args.action, output);
    }
    match &args.action {
        Action::Create { target, name, of } => {
            let (target, of) = &made_of(target, of)?;
            create(target, name, of)?;
            output.print("", json!({"created": name}))
        }
        Action::Auto { target, keep, prefix, dry_run } => {
            let (target, of) = &made_of(target, "")?;
            let prefix = prefix.clone().unwrap_or_else(|| default_prefix(of));
            automatic((target, of), keep, &prefix, *dry_run, output)
        }
        Action::Drop { target, name } => {
            must_be_of_named(target, name)?;
            with(target, true, &["SNAPSHOT", "DROP", name])?;
            output.print("", json!({"dropped": name}))
        }
        Action::Rollback { target, name } => {
            must_be_of_named(target, name)?;
            must_show_what_it_is_of(target, name, |view| {
                let what =
                    format!("{} shows {view}, which would end with the rollback", target.shown());
                Failure::new(Exit::Usage, what).hint("do it from outside")
            })?;
            roll_back(target, name)?;
            output.print("", json!({"rolled_back_to": name}))
        }
        Action::List { target } => {
            let mut all = list(with(target, false, &["SNAPSHOT", "LIST"])?)?;
            if let Some(clone) = place::named_clone(target)? {
                all.retain(|info| info["clone"] == clone.as_str());
            }
            let line = |info: &serde_json::Map<String, Value>| {
                let size = |name: &str| human_size(info[name].as_u64().unwrap_or(0));
                let clone = info["clone"]
                    .as_str()
                    .filter(|clone| !clone.is_empty())
                    .map(|clone| format!("  of clone {}", show(clone.as_bytes())));
                let (name, created) = (
                    show(info["name"].as_str().unwrap_or("").as_bytes()),
                    time(info["created"].as_u64().unwrap_or(0)),
                );
                format!(
                    "{created}  {:>8}  {:>8}  {name}{}\n",
                    size("bytes"),
                    size("unique_bytes"),
                    clone.unwrap_or_default()
                )
            };
            let mut text: String = all.iter().map(line).collect();
            if !text.is_empty() {
                text.insert_str(
                    0,
                    &format!("{:20}  {:>8}  {:>8}  NAME\n", "CREATED (UTC)", "BYTES", "ALONE"),
                );
            }
            output.print(text, all)
        }
    }
}

/// Returns the prefix of the names of automatic snapshots. The names are those of the whole store,
/// and timers often run in the same second, so each clone has a prefix of its own.
fn default_prefix(clone: &str) -> String {
    if clone.is_empty() { "auto".into() } else { format!("{clone}-auto") }
}

/// Makes a snapshot of the current state of a branch, and drops those of its snapshots that the
/// rules do not keep.
fn automatic(
    (target, of): (&Path, &str),
    keep: &Rules,
    prefix: &str,
    dry_run: bool,
    output: &Output,
) -> Outcome {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let name = automatic_name(prefix, now);
    let mut all = list(with(target, false, &["SNAPSHOT", "LIST"])?)?;
    all.retain(|info| info["clone"] == of);
    let names = all.iter().filter_map(|info| info["name"].as_str());
    // Recognize automatic snapshots by name: snapshots that were received or made by hand are not
    // affected.
    let mut ours: Vec<(String, u64)> =
        names.filter_map(|name| Some((name.into(), automatic_time(prefix, name)?))).collect();
    let is_new = ours.iter().all(|(other, _)| *other != name);
    if is_new {
        if !dry_run {
            create(target, &name, of)?;
        }
        ours.push((name.clone(), now));
    }
    let times: Vec<u64> = ours.iter().map(|(_, time)| *time).collect();
    let kept = keep.keep(&times, now);
    let mut dropped = Vec::new();
    for ((name, _), _) in ours.iter().zip(kept).filter(|(_, kept)| !kept) {
        if !dry_run {
            with(target, true, &["SNAPSHOT", "DROP", name])?;
        }
        dropped.push(name);
    }
    let told = show(name.as_bytes());
    let mut text = if is_new { format!("made {told}\n") } else { format!("{told} is there\n") };
    let line = |name: &&String| format!("dropped {}\n", show(name.as_bytes()));
    dropped.iter().for_each(|name| text.push_str(&line(name)));
    if dry_run {
        text.push_str("nothing was changed\n");
    }
    output.print(text, json!({"created": name, "dropped": dropped, "dry_run": dry_run}))
}

/// Returns a name like "auto-2026-11-24T22:04:36Z".
fn automatic_name(prefix: &str, seconds: u64) -> String {
    format!("{prefix}-{}Z", time(seconds).replace(' ', "T"))
}

/// Returns the time of a snapshot from its name, or `None` if `automatic` has not made it.
fn automatic_time(prefix: &str, name: &str) -> Option<u64> {
    let digits = name.strip_prefix(prefix)?.strip_prefix('-')?.strip_suffix('Z')?;
    let number = |from: usize, len: usize| -> Option<u64> {
        let text = digits.get(from..from + len)?;
        if text.bytes().all(|byte| byte.is_ascii_digit()) { text.parse().ok() } else { None }
    };
    let (year, month, day) = (number(0, 4)?, number(5, 2)?, number(8, 2)?);
    let (hour, minute, second) = (number(11, 2)?, number(14, 2)?, number(17, 2)?);
    if year < 1970 || !(1..=12).contains(&month) || hour > 23 || minute > 59 || second > 59 {
        return None;
    }
    // Count days in years that begin in March, as in `time`.
    let (y, m) = if month > 2 { (year, month - 3) } else { (year - 1, month + 9) };
    let (era, of_era) = (y / 400, y % 400);
    let in_year = (153 * m + 2) / 5 + day.checked_sub(1)?;
    let day_of_era = of_era * 365 + of_era / 4 - of_era / 100 + in_year;
    let days = (era * 146_097 + day_of_era).checked_sub(719_468)?;
    let seconds = days * 86_400 + hour * 3600 + minute * 60 + second;
    // Reject names that would be formatted differently, such as the 30th of February.
    (automatic_name(prefix, seconds) == name).then_some(seconds)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_those_of_the_calendar() {
        for (seconds, want) in [
            (0, "1970-01-01 00:00:00"),
            (951_782_399, "2000-02-28 23:59:59"),
            (951_782_400, "2000-02-29 00:00:00"),
            (1_709_251_200, "2024-03-01 00:00:00"),
            (4_102_444_799, "2099-12-31 23:59:59"),
        ] {
            assert_eq!(time(seconds), want);
        }
    }

    #[test]
    fn names_by_time_are_read_as_they_are_written() {
        for seconds in [0, 951_782_399, 951_782_400, 1_709_251_200, 1_795_609_800, 4_102_444_799] {
            let name = automatic_name("auto", seconds);
            assert_eq!(automatic_time("auto", &name), Some(seconds), "{name}");
            assert_eq!(automatic_time("other", &name), None);
        }
        for other in [
            "auto",
            "auto-",
            "auto-monday",
            "auto-2026-02-30T00:00:00Z",
            "auto-2026-13-01T00:00:00Z",
            "auto-2026-11-24T24:00:00Z",
            "auto-2026-11-24T22:04:36",
            "auto-2026-11-24 22:04:36Z",
            "auto-1969-12-31T23:59:59Z",
            "auto-2026-00-00T00:00:00Z",
            "auto-+026-11-24T22:04:36Z",
            "auto-2026-11-24T22:04:36Zx",
            "auto-ääääääääääZ",
        ] {
            assert_eq!(automatic_time("auto", other), None, "{other}");
        }
    }
}
