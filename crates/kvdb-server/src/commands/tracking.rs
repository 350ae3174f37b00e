//! `CLIENT TRACKING`, `CACHING`, `TRACKINGINFO`, `GETREDIR`: clients that cache values are
//! notified when a client or another program changes the values. A thread follows the commits to
//! the store while there are such clients.

use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::time::Duration;

use bytes::Bytes;
use kvdb::CommitPosition;

use super::feed::{Changed, each_changed};
use super::{Command, is};
use crate::dictionaries::Place;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::{Session, Shared, Tracks};
use crate::tracking::Tracker;

/// Number of changes that are read from the list at once.
const AT_ONCE: usize = 4096;
/// Limit on the number of prefixes of a client, because the prefixes of a request are compared
/// with each other.
const MOST_PREFIXES: usize = 1024;
/// Interval at which the thread that follows commits checks whether it is still needed.
const LOOK: Duration = Duration::from_millis(50);

/// Executes `CLIENT TRACKING ON|OFF [REDIRECT id] [PREFIX prefix ...] [BCAST] [OPTIN] [OPTOUT]
/// [NOLOOP]`.
pub fn tracking(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let on = match args.at(2) {
        o if is(o, "on") => true,
        o if is(o, "off") => false,
        _ => return Err(Failure::SYNTAX),
    };
    let wanted = parse(s, args)?;
    if !on {
        end(s);
    } else {
        begin(s, wanted)?;
    }
    out.ok();
    Ok(())
}

fn parse(s: &Session, args: Arguments<'_>) -> Result<Tracks, Failure> {
    let mut wanted = Tracks::default();
    let mut options = args.from(3);
    while let Some(option) = options.next() {
        match option {
            o if is(o, "bcast") => wanted.all = true,
            o if is(o, "optin") => wanted.opt_in = true,
            o if is(o, "optout") => wanted.opt_out = true,
            o if is(o, "noloop") => wanted.no_loop = true,
            o if is(o, "redirect") && options.len() >= 1 => {
                if wanted.redirect.is_some() {
                    return Err(Failure::request(
                        "A client can only redirect to a single other client",
                    ));
                }
                let id = options.next().and_then(integer).and_then(|id| u64::try_from(id).ok());
                let id = id.ok_or(Failure::NOT_AN_INTEGER)?;
                if s.shared.clients.get(id).is_none() {
                    return Err(Failure::request(
                        "The client ID you want redirect to does not exist",
                    ));
                }
                wanted.redirect = Some(id);
            }
            o if is(o, "prefix") && options.len() >= 1 => {
                let prefix = options.next().unwrap_or_default();
                s.check_key(prefix)?;
                let had = s.tracks.as_ref().map_or(0, |tracks| tracks.prefixes.len());
                if had + wanted.prefixes.len() >= MOST_PREFIXES {
                    return Err(Failure::Limit(format!(
                        "a client hears of {MOST_PREFIXES} prefixes at most"
                    )));
                }
                wanted.prefixes.push(Bytes::copy_from_slice(prefix));
            }
            _ => return Err(Failure::SYNTAX),
        }
    }
    Ok(wanted)
}

fn begin(s: &mut Session, mut wanted: Tracks) -> Outcome {
    if !wanted.all && !wanted.prefixes.is_empty() {
        return Err(Failure::request("PREFIX option requires BCAST mode to be enabled"));
    }
    if let Some(now) = &s.tracks {
        if now.all != wanted.all {
            return Err(Failure::request(
                "You can't switch BCAST mode on/off before disabling tracking for this client, and then re-enabling it with a different mode.",
            ));
        }
        let switches = now.opt_in && wanted.opt_out || now.opt_out && wanted.opt_in;
        if switches {
            return Err(Failure::request(
                "You can't switch OPTIN/OPTOUT mode before disabling tracking for this client, and then re-enabling it with a different mode.",
            ));
        }
    }
    if wanted.all && (wanted.opt_in || wanted.opt_out) {
        return Err(Failure::request("OPTIN and OPTOUT are not compatible with BCAST"));
    }
    if wanted.opt_in && wanted.opt_out {
        return Err(Failure::request("You can't specify both OPTIN mode and OPTOUT mode"));
    }
    if !matches!(s.place, Place::Store) {
        return Err(Failure::request(
            "keys of a clone or a snapshot are not tracked: follow them by CHANGES SINCE",
        ));
    }
    let before = s.tracks.take();
    let outcome = merge(before.as_ref(), &mut wanted);
    s.tracks = before;
    outcome?;
    start(s, wanted)
}

/// Adds the prefixes that a client has already requested. The prefixes of a client must not
/// overlap, so that it is notified of a key once.
fn merge(before: Option<&Tracks>, wanted: &mut Tracks) -> Outcome {
    let overlap = |a: &Bytes, b: &Bytes| a.starts_with(b) || b.starts_with(a);
    let error = |a: &Bytes, which: &str, b: &Bytes| {
        Failure::request(format!(
            "Prefix '{}' overlaps with {which} prefix '{}'. Prefixes for a single client must not overlap.",
            String::from_utf8_lossy(a),
            String::from_utf8_lossy(b)
        ))
    };
    let old = before.map(|before| before.prefixes.clone()).unwrap_or_default();
    for (i, prefix) in wanted.prefixes.iter().enumerate() {
        if let Some(other) = old.iter().find(|other| *other != prefix && overlap(prefix, other)) {
            return Err(error(prefix, "an existing", other));
        }
        let others = &wanted.prefixes[i + 1..];
        if let Some(other) = others.iter().find(|other| overlap(prefix, other)) {
            return Err(error(prefix, "another provided", other));
        }
    }
    for prefix in old {
        if !wanted.prefixes.contains(&prefix) {
            wanted.prefixes.push(prefix);
        }
    }
    if wanted.all && wanted.prefixes.is_empty() {
        wanted.prefixes.push(Bytes::new());
    }
    if let Some(before) = before {
        wanted.opt_in |= before.opt_in;
        wanted.opt_out |= before.opt_out;
        wanted.redirect = wanted.redirect.or(before.redirect);
    }
    Ok(())
}

fn start(s: &mut Session, wanted: Tracks) -> Outcome {
    // Every commit is listed from here on, so none is missed before the thread runs.
    let at = newest(&s.shared)?;
    let tracker = Tracker {
        connection: s.connection.clone(),
        redirect: wanted.redirect,
        prefixes: wanted.all.then(|| wanted.prefixes.clone()),
        no_loop: wanted.no_loop,
    };
    let shared = s.shared.clone();
    let follow = || {
        let thread = std::thread::Builder::new().name("resp-tracking".into());
        thread.spawn(move || follow(&shared, at))
    };
    let begun = s.shared.tracking.begin(tracker, follow);
    begun.map_err(|error| Failure::Io(format!("no thread could be started: {error}")))?;
    s.tracks = Some(wanted);
    Ok(())
}

/// Ends the tracking of a connection.
pub fn end(s: &mut Session) {
    if s.tracks.take().is_some() {
        s.shared.tracking.end(s.id);
    }
}

fn newest(shared: &Shared) -> Result<CommitPosition, Failure> {
    let files = shared.owner.transactions().followed("");
    Ok(shared.db.follow_branch("", shared.limits.feed, &files)?)
}

/// Notifies clients of the keys that are committed, until no client is interested in them.
fn follow(shared: &Arc<Shared>, mut at: CommitPosition) {
    let (tracking, clients) = (&shared.tracking, &shared.clients);
    while !shared.stopping.load(Relaxed) {
        if tracking.is_over() {
            return;
        }
        let told = match shared.db.commits_since(at, AT_ONCE) {
            Some(recent) => {
                at = recent.up_to;
                each_changed(shared, &recent.commits, |dictionary, changed, author| match changed {
                    Changed::Key(key) => tracking.key(dictionary, &key, author, clients),
                    Changed::Range(start, end) => {
                        tracking.range(dictionary, (&start, &end), author, clients);
                    }
                    Changed::Unlisted => tracking.all(clients),
                })
            }
            // The changes are not known, for example after a rollback.
            None => newest(shared).map(|newest| {
                at = newest;
                tracking.all(clients);
            }),
        };
        if let Err(error) = told {
            tracing::warn!("what was committed cannot be read, so clients keep nothing: {error}");
            tracking.all(clients);
        }
        shared.db.wait_for_commits(at, LOOK);
    }
}

/// Records the keys that a command is about to read.
pub fn note(s: &Session, command: &Command, args: Arguments<'_>) {
    let Some(tracks) = &s.tracks else { return };
    let wanted = match (tracks.opt_in, tracks.opt_out) {
        (true, _) => tracks.caching == Some(true),
        (_, true) => tracks.caching != Some(false),
        _ => true,
    };
    // The list of commits contains neither changes in a transaction, nor its end, nor changes in
    // a clone.
    let is_followed = !s.is_joined() && matches!(s.place, Place::Store);
    if !wanted || !command.tracked || tracks.all && is_followed {
        return;
    }
    let keys = command.keys_of(args);
    if keys.is_empty() {
        return;
    }
    let (name, clients) = (s.dictionary.name(), &s.shared.clients);
    if is_followed {
        s.shared.tracking.note(s.id, name, keys.iter().copied(), clients);
    }
    // A transaction of `EXEC` or of a script reads the state at its beginning, and a later commit
    // may have been reported before the key was recorded.
    let is_old = |at| s.db().commits_since(at, 1).is_none_or(|recent| !recent.commits.is_empty());
    if !is_followed || tracks.since.is_some_and(is_old) {
        s.shared.tracking.refuse(s.id, &keys, clients);
    }
}

/// Records the position in the list of commits at which a transaction of `EXEC` or of a script
/// begins.
pub fn begin_reading(s: &mut Session) -> Outcome {
    if s.tracks.is_some() && !s.is_joined() {
        let since = newest(&s.shared)?;
        s.tracks.iter_mut().for_each(|tracks| tracks.since = Some(since));
    }
    Ok(())
}

/// Discards the position that [`begin_reading`] has recorded, after the end of the transaction.
pub fn end_reading(s: &mut Session) {
    s.tracks.iter_mut().for_each(|tracks| tracks.since = None);
}

/// `CLIENT CACHING YES|NO`: selects whether the keys of the next command are tracked.
pub fn caching(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let wrong = "CLIENT CACHING can be called only when the client is in tracking mode with OPTIN or OPTOUT mode enabled";
    let tracks = s.tracks.as_mut().filter(|tracks| tracks.opt_in || tracks.opt_out);
    let tracks = tracks.ok_or(Failure::request(wrong))?;
    tracks.caching = match args.at(2) {
        o if is(o, "yes") && tracks.opt_in => Some(true),
        o if is(o, "no") && tracks.opt_out => Some(false),
        o if is(o, "yes") => {
            return Err(Failure::request(
                "CLIENT CACHING YES is only valid when tracking is enabled in OPTIN mode.",
            ));
        }
        o if is(o, "no") => {
            return Err(Failure::request(
                "CLIENT CACHING NO is only valid when tracking is enabled in OPTOUT mode.",
            ));
        }
        _ => return Err(Failure::SYNTAX),
    };
    out.ok();
    Ok(())
}

/// Returns the number with which `CLIENT GETREDIR` replies.
pub fn redirect(s: &Session) -> i64 {
    s.tracks.as_ref().map_or(-1, |tracks| tracks.redirect.unwrap_or(0) as i64)
}

/// Executes `CLIENT TRACKINGINFO`.
pub fn info(s: &Session, out: &mut Output) {
    let none = Tracks::default();
    let tracks = s.tracks.as_ref().unwrap_or(&none);
    let broken = tracks.redirect.is_some_and(|id| s.shared.clients.get(id).is_none());
    let flags = [
        ("off", s.tracks.is_none()),
        ("on", s.tracks.is_some()),
        ("bcast", tracks.all),
        ("optin", tracks.opt_in),
        ("caching-yes", tracks.caching == Some(true)),
        ("optout", tracks.opt_out),
        ("caching-no", tracks.caching == Some(false)),
        ("noloop", tracks.no_loop),
        ("broken_redirect", broken),
    ];
    let flags: Vec<&str> = flags.iter().filter(|(_, set)| *set).map(|(name, _)| *name).collect();
    out.map(3);
    out.bulk(b"flags");
    out.set(flags.len());
    flags.iter().for_each(|flag| out.bulk(flag.as_bytes()));
    out.bulk(b"redirect");
    out.integer(redirect(s));
    out.bulk(b"prefixes");
    let prefixes: Vec<&Bytes> = tracks.prefixes.iter().filter(|one| !one.is_empty()).collect();
    out.array(prefixes.len());
    prefixes.into_iter().for_each(|prefix| out.bulk(prefix));
}
