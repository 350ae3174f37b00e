//! `kvfs snapshot`, `kvfs clone`, `kvfs diff`: manage snapshots and clones of a store, and show
//! differences. `there` does so on a server.

mod there;

use std::path::{Path, PathBuf};

use clap::Subcommand;
use kvdb_server::Reply;
use serde_json::{Value, json};

use crate::changes::{Changes, Detail, Wanted};
use crate::clones;
use crate::failures;
use crate::kv::Connection;
use crate::mounted::{Mounted, fields};
use crate::output::{Exit, Failure, Outcome, Output};
use crate::place::{self, View};
use crate::retention::Rules;
use crate::served_names::There;
use crate::sizes::{self, Limit, human_size};
use crate::text::show;
use crate::transactions::{listed, listing};
use crate::tree;

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
        /// Directory a store is mounted on, the file of a store that is not mounted, or the address
        /// of a server.
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
        /// Directory a store is mounted on, the file of a store that is not mounted, or the address
        /// of a server.
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
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// Rules for the snapshots to keep, such as 24h,7d,4w.
        #[arg(long, value_name = "RULES")]
        keep: Rules,
        /// Prefix of the names of these snapshots.
        #[arg(long, value_name = "NAME", default_value = "auto")]
        prefix: String,
        /// Print the snapshots that would be made and dropped, and change nothing.
        #[arg(long)]
        dry_run: bool,
    },
    /// Drop a snapshot. Clones made from it stay.
    #[command(visible_alias = "rm")]
    Drop {
        /// Directory a store is mounted on, the file of a store that is not mounted, or the address
        /// of a server.
        target: PathBuf,
        /// Name of the snapshot.
        name: String,
    },
    /// Roll the store or the clone back to a snapshot. Later changes are lost and open transactions
    /// are aborted; newer snapshots stay.
    Rollback {
        /// Directory a store is mounted on, or a clone in it (/mnt/.kvfs/clone/NAME), or the file
        /// of a store that is not mounted.
        target: PathBuf,
        /// Snapshot to roll back to.
        name: String,
    },
}

/// Make, list and drop clones: writable branches of a snapshot.
#[derive(clap::Args)]
#[command(after_help = "\
A clone shares all data with the snapshot that it is made from, and changes independently \
afterwards. While the store is mounted, it is at /mnt/.kvfs/clone/NAME. A name may contain \
slashes, such as agents/7/try-2.

create, list and drop also take the address of a server (kvfs serve), as kvfs snapshot does. A \
token may make clones that it may write, of snapshots that it may read, and drop them; \
kvfs mount ADDRESS DIR --txn -o clone=NAME writes one.")]
pub struct CloneArgs {
    #[command(subcommand)]
    action: CloneAction,
}

#[derive(Subcommand)]
enum CloneAction {
    /// Make a clone of a snapshot.
    Create {
        /// Directory a store is mounted on, the file of a store that is not mounted, or the address
        /// of a server.
        target: PathBuf,
        /// Snapshot that the clone starts from.
        snapshot: String,
        /// Name of the new clone.
        name: String,
        /// Limit the space of the clone beyond its snapshot, files and keys together (10G, 512M),
        /// the number of files that its snapshot does not have (100000f), or both (10G,100000f).
        /// Beyond the limit, writes to the clone fail as on a full disk; others are not affected.
        /// Without this, only the size of the store limits it.
        #[arg(long, value_name = "LIMIT", value_parser = sizes::parse_limit)]
        limit: Option<Limit>,
    },
    /// Change the limit of a clone.
    Limit {
        /// Directory a store is mounted on, or the file of a store that is not mounted.
        target: PathBuf,
        /// Name of the clone.
        name: String,
        /// New limit: a size (10G, 512M), a number of files (100000f), both (10G,100000f), or
        /// "none". It replaces the whole previous limit.
        #[arg(value_parser = limit)]
        limit: Limit,
    },
    /// List the clones, by name.
    #[command(visible_alias = "ls")]
    List {
        /// Directory a store is mounted on, the file of a store that is not mounted, or the address
        /// of a server.
        target: PathBuf,
    },
    /// Drop a clone and everything in it. Its snapshots stay.
    #[command(visible_alias = "rm")]
    Drop {
        /// Directory a store is mounted on, the file of a store that is not mounted, or the address
        /// of a server.
        target: PathBuf,
        /// Name of the clone.
        name: String,
    },
}

fn limit(text: &str) -> Result<Limit, String> {
    match text {
        "none" => Ok(Limit::default()),
        limit => sizes::parse_limit(limit),
    }
}

/// Show the files and keys that differ between two snapshots, or between a snapshot and now.
#[derive(clap::Args)]
pub struct DiffArgs {
    /// Directory a store is mounted on, or the file of a store that is not mounted.
    target: PathBuf,
    /// Snapshot to compare.
    before: String,
    /// Snapshot to compare it with (default: the current state of the store).
    after: Option<String>,
    #[command(flatten)]
    detail: Detail,
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
                target.display()
            );
            let hint = match place.bound {
                true => "do it from outside".into(),
                false => {
                    let at = place.mount.mount_point.display();
                    format!("give the directory of the mount ({at})")
                }
            };
            Err(Failure::new(Exit::Usage, what).hint(hint))
        }
    }
}

/// Fails if a path shows another branch than that of the snapshot. A path that shows the store has
/// every snapshot.
fn must_show_what_it_is_of(
    target: &Path,
    snapshot: &str,
    refused: impl FnOnce(&View) -> Failure,
) -> Outcome {
    let Some(place) = place::of_target(target)? else { return Ok(()) };
    let clone = match &place.view {
        View::Mainline => return Ok(()),
        View::Clone(clone) => clone,
        view => return Err(refused(view)),
    };
    let of = all(target)?.into_iter().find(|info| info["name"] == snapshot);
    match of.is_none_or(|info| info["clone"] == clone.as_str()) {
        true => Ok(()),
        false => Err(refused(&place.view)),
    }
}

/// Runs one command on the store.
fn with(target: &Path, writes: bool, words: &[&str]) -> Outcome<Reply> {
    let mut connection = Connection::open(target, writes)?;
    let words: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
    let reply = connection.call(&words);
    let closed = connection.close();
    reply.and_then(|reply| closed.map(|()| reply))
}

/// Parses a list of maps.
fn list(reply: Reply) -> Outcome<Vec<serde_json::Map<String, Value>>> {
    match reply {
        Reply::Array(all) => all.into_iter().map(fields).collect(),
        _ => Err(Failure::new(Exit::Failed, "the store's daemon gave an unexpected reply")),
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

pub fn run(args: Args, output: &Output) -> Outcome {
    if let Some(there) = There::of(args.action.target())? {
        return there::snapshot(&there, &args.action, output);
    }
    match &args.action {
        Action::Create { target, name, of } => {
            let (target, of) = &made_of(target, of)?;
            let mut words = vec!["SNAPSHOT", "CREATE", name];
            if !of.is_empty() {
                words.extend(["OF", of]);
            }
            with(target, true, &words)?;
            output.print("", json!({"created": name}))
        }
        Action::Auto { target, keep, prefix, dry_run } => {
            let (target, of) = &made_of(target, "")?;
            if !of.is_empty() {
                return Err(Failure::new(Exit::Usage, "these are snapshots of the store itself"));
            }
            automatic(target, keep, prefix, *dry_run, output)
        }
        Action::Drop { target, name } => {
            with(target, true, &["SNAPSHOT", "DROP", name])?;
            output.print("", json!({"dropped": name}))
        }
        Action::Rollback { target, name } => {
            must_show_what_it_is_of(target, name, |view| {
                let what =
                    format!("{} shows {view}, which would end with the rollback", target.display());
                Failure::new(Exit::Usage, what).hint("do it from outside")
            })?;
            with(target, true, &["SNAPSHOT", "ROLLBACK", name])?;
            output.print("", json!({"rolled_back_to": name}))
        }
        Action::List { target } => {
            let all = list(with(target, false, &["SNAPSHOT", "LIST"])?)?;
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

/// Makes a snapshot of now, and drops those that the rules do not keep.
fn automatic(target: &Path, keep: &Rules, prefix: &str, dry_run: bool, output: &Output) -> Outcome {
    let now = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    let now = now.map_or(0, |since| since.as_secs());
    let name = automatic_name(prefix, now);
    let all = list(with(target, false, &["SNAPSHOT", "LIST"])?)?;
    let names = all.iter().filter_map(|info| info["name"].as_str());
    // Recognize automatic snapshots by name: snapshots that were received or made by hand are not
    // affected.
    let mut ours: Vec<(String, u64)> =
        names.filter_map(|name| Some((name.into(), automatic_time(prefix, name)?))).collect();
    let is_new = ours.iter().all(|(other, _)| *other != name);
    if is_new {
        if !dry_run {
            with(target, true, &["SNAPSHOT", "CREATE", &name])?;
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

impl CloneAction {
    fn target(&self) -> &Path {
        match self {
            CloneAction::Create { target, .. }
            | CloneAction::Limit { target, .. }
            | CloneAction::List { target }
            | CloneAction::Drop { target, .. } => target,
        }
    }
}

pub fn clone(args: CloneArgs, output: &Output) -> Outcome {
    if let Some(there) = There::of(args.action.target())? {
        return there::clone(&there, &args.action, output);
    }
    match &args.action {
        CloneAction::Create { target, snapshot, name, limit } => {
            let Limit { bytes, files } = limit.unwrap_or_default();
            let [limit, of_files] = [bytes, files].map(|most| most.map(|most| most.to_string()));
            let mut words = vec!["CLONE", "CREATE", snapshot, name];
            words.extend(limit.iter().flat_map(|bytes| ["LIMIT", bytes]));
            words.extend(of_files.iter().flat_map(|files| ["FILES", files]));
            with(target, true, &words)?;
            output.print("", json!({"created": name, "limit": bytes, "limit_of_files": files}))
        }
        CloneAction::Limit { target, name, limit: Limit { bytes, files } } => {
            let [limit, of_files] =
                [bytes, files].map(|most| most.map_or("NONE".into(), |most| most.to_string()));
            with(target, true, &["CLONE", "LIMIT", name, &limit, "FILES", &of_files])?;
            output.print("", json!({"clone": name, "limit": bytes, "limit_of_files": files}))
        }
        CloneAction::Drop { target, name } => {
            with(target, true, &["CLONE", "DROP", name])?;
            output.print("", json!({"dropped": name}))
        }
        CloneAction::List { target } => {
            let all = clones::of_reply(with(target, false, &clones::LIST)?)?;
            output.print(all.iter().map(clones::line).collect::<String>(), all)
        }
    }
}

/// Returns the listed snapshots, the oldest first.
pub fn all(target: &Path) -> Outcome<Vec<serde_json::Map<String, Value>>> {
    list(with(target, false, &["SNAPSHOT", "LIST"])?)
}

/// Returns the listed commits to a branch that can be undone, the oldest first.
pub fn commits(target: &Path, branch: &str) -> Outcome<Vec<serde_json::Map<String, Value>>> {
    let mut connection = Connection::open(target, false)?;
    let there = match branch {
        "" => Ok(Reply::Null),
        clone => connection.call(&[b"CLONE", b"USE", clone.as_bytes()]),
    };
    let reply = there.and_then(|_| connection.call(&[b"TXN", b"COMMITS"]));
    let closed = connection.close();
    list(reply.and_then(|reply| closed.map(|()| reply))?)
}

/// Returns the differences between two snapshots, or between one and now.
pub fn between(target: &Path, before: &str, after: Option<&str>) -> Outcome<Changes> {
    let mut connection = Connection::open(target, false)?;
    let changes = difference(&mut connection, target, before, after, Wanted::default());
    let closed = connection.close();
    changes.and_then(|changes| closed.map(|()| changes))
}

pub fn diff(args: DiffArgs, output: &Output) -> Outcome {
    let mut connection = Connection::open(&args.target, false)?;
    if args.after.is_none() {
        must_show_what_it_is_of(&args.target, &args.before, |view| {
            let what =
                format!("{} shows {view}, not the store as it is now", args.target.display());
            Failure::new(Exit::Usage, what)
                .hint("`kvfs txn diff` shows what a transaction would change")
        })?;
    }
    let (after, wanted) = (args.after.as_deref(), args.detail.wanted());
    let changes = difference(&mut connection, &args.target, &args.before, after, wanted);
    let closed = connection.close();
    let changes = changes?;
    closed?;
    changes.print(args.detail, output)
}

fn difference(
    connection: &mut Connection,
    target: &Path,
    before: &str,
    after: Option<&str>,
    wanted: Wanted,
) -> Outcome<Changes> {
    let words = |what: &'static str| {
        let mut words: Vec<&[u8]> = vec![b"SNAPSHOT", what.as_bytes(), before.as_bytes()];
        words.extend(after.map(str::as_bytes));
        words
    };
    let mut changes = words("CHANGES");
    changes.extend(wanted.fields.then_some(&b"FIELDS"[..]));
    let keys = connection.call(&changes)?;
    let Some(store) = connection.store() else {
        let roots = Mounted::find(target).ok().map(|mounted| {
            let root = |name: &str| View::Snapshot(name.into()).path(&mounted.mount_point);
            (root(before), after.map_or(mounted.mount_point.clone(), root))
        });
        let mut files = words("FILES");
        files.extend((!wanted.all).then_some(&b"COLLAPSED"[..]));
        return Changes::between(connection.call(&files)?, keys, roots);
    };
    let cannot = |e: kvdb::Error| failures::of_database("cannot compare", e);
    let before = store.db.open_snapshot(before).map_err(cannot)?;
    let after = match after {
        Some(name) => store.db.open_snapshot(name).map_err(cannot)?,
        None => store.db.view(),
    };
    Changes::between(files_between(&before, &after, wanted)?, keys, None)
}

/// Returns the changes of a commit that is kept.
pub fn of_commit(target: &Path, number: u64, wanted: Wanted) -> Outcome<Changes> {
    let mut connection = Connection::open(target, false)?;
    let changes = changes_of_commit(&mut connection, number, wanted);
    let closed = connection.close();
    changes.and_then(|changes| closed.map(|()| changes))
}

fn changes_of_commit(connection: &mut Connection, number: u64, wanted: Wanted) -> Outcome<Changes> {
    let name = number.to_string();
    let words = |what: &'static str, option: Option<&'static str>| {
        let words = [Some("TXN"), Some("COMMITS"), Some(&name), Some(what), option];
        words.into_iter().flatten().map(|word| word.as_bytes().to_vec()).collect::<Vec<_>>()
    };
    let mut call =
        |words: Vec<Vec<u8>>| connection.call(&words.iter().map(Vec::as_slice).collect::<Vec<_>>());
    let keys = call(words("CHANGES", wanted.fields.then_some("FIELDS")))?;
    let files = call(words("FILES", (!wanted.all).then_some("COLLAPSED")))?;
    let Some(store) = connection.store() else { return Changes::between(files, keys, None) };
    let cannot = |e: kvdb::Error| failures::of_database("cannot compare", e);
    let (before, after) = store.db.states_around(number).map_err(cannot)?;
    Changes::between(files_between(&before, &after, wanted)?, keys, None)
}

/// Returns the differences between the files of two states, in the format of the socket.
fn files_between(before: &kvdb::View, after: &kvdb::View, wanted: Wanted) -> Outcome<Reply> {
    let files = kvfs::difference_of_states(before, after, listing(!wanted.all))
        .map_err(|e| tree::failure("cannot compare the files", e))?;
    let size = |size: Option<u64>| {
        size.map_or(Reply::Null, |size| Reply::Integer(i64::try_from(size).unwrap_or(i64::MAX)))
    };
    let side = |side: Option<Vec<u8>>| side.map_or(Reply::Null, Reply::Bulk);
    let detail = |d: kvdb_server::FileDetail| {
        Reply::Array(vec![Reply::Bulk(d.what), side(d.before), side(d.after)])
    };
    let file = |f: kvdb_server::FileChange| {
        let details = Reply::Array(f.details.into_iter().map(detail).collect());
        Reply::Array(vec![
            Reply::Bulk(f.path),
            Reply::Bulk(f.kind.to_string().into()),
            size(f.before),
            size(f.after),
            details,
        ])
    };
    Ok(Reply::Array(listed(files).into_iter().map(file).collect()))
}

/// Formats seconds since 1970 in UTC, like "2024-05-17 09:30:00".
pub fn time(seconds: u64) -> String {
    let (days, rest) = (seconds / 86_400, seconds % 86_400);
    // Years begin in March here, so that the leap day is the last one (Howard Hinnant's algorithm).
    let z = days + 719_468;
    let (era, day) = (z / 146_097, z % 146_097);
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let in_year = day - (365 * year + year / 4 - year / 100);
    let shifted = (5 * in_year + 2) / 153;
    let (date, month) = (
        in_year - (153 * shifted + 2) / 5 + 1,
        if shifted < 10 { shifted + 3 } else { shifted - 9 },
    );
    let year = year + era * 400 + u64::from(month <= 2);
    format!(
        "{year:04}-{month:02}-{date:02} {:02}:{:02}:{:02}",
        rest / 3600,
        rest / 60 % 60,
        rest % 60
    )
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
