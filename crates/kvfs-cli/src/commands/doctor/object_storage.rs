//! `kvfs doctor ADDRESS`: checks whether a place in object storage can hold stores, and checks the
//! store of that name. The objects made for the check are deleted again.

use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use kvdb::RemoteStore;
use objects::{Condition, DirectoryObjects, Key, Objects, ObjectsError, Part};
use places::Address;

use super::{Finding, Verdict, bad, good};
use crate::support::stores::snapshots;
use crate::support::terminal::text::Shown;

/// The largest clock skew at which servers accept signatures.
const MOST_SKEW: Duration = Duration::from_secs(15 * 60);
/// The smallest clock skew that is worth a warning.
const SOME_SKEW: Duration = Duration::from_secs(30);
/// The prefix of the temporary folder for the check in a shared folder. No object has such a name.
const TRIED_IN: &str = "~doctor-";

pub(super) fn findings(address: &Address) -> Vec<Finding> {
    match address.place.strip_prefix("dir:") {
        Some(folder) => in_folder(address, Path::new(folder)),
        None => in_bucket(address),
    }
}

/// Returns the finding for an error of the place, with a remedy.
fn failed(what: &'static str, error: &ObjectsError) -> Finding {
    let mend = match error {
        ObjectsError::NoBucket { .. } => "make it, or check the address",
        ObjectsError::Denied { .. } => "use credentials that may read, put, delete and list there",
        ObjectsError::Io { .. } => "check the network, the endpoint and the folder",
        ObjectsError::Invalid(_) => "change what it names",
        _ => "try it again later; if it stays so, ask who runs the server",
    };
    bad(what, Verdict::Error, error.to_string(), mend)
}

fn now() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

/// Judges the clock of the place, with second granularity, which was read between two times of this
/// machine.
fn clock(theirs: Duration, before: Duration, after: Duration, signs: bool) -> Finding {
    let (what, second) = ("clock", Duration::from_secs(1));
    let (ahead, late) = (theirs.saturating_sub(after), before.saturating_sub(theirs + second));
    let off = ahead.max(late);
    if off <= SOME_SKEW {
        return good(what, "that of the place agrees with this machine's");
    }
    let side = if ahead > late { "ahead of" } else { "after" };
    let found = format!("that of the place is {} s {side} this machine's", off.as_secs());
    match signs && off > MOST_SKEW {
        true => bad(
            what,
            Verdict::Error,
            format!("{found}: requests are refused"),
            "set the clock that is wrong, here by: timedatectl set-ntp true",
        ),
        false => bad(what, Verdict::Warning, found, "set the clock that is wrong"),
    }
}

/// Returns the modification time that the place assigns to a new object.
fn time_of_object(objects: &dyn Objects) -> Result<Option<Duration>, ObjectsError> {
    let key = Key::new("clock")?;
    objects.put(&key, Bytes::from_static(b"tick"), Condition::Absent)?;
    let listed = objects.list("clock", "")?;
    Ok(listed.entries.first().map(|listed| listed.modified))
}

fn in_folder(address: &Address, folder: &Path) -> Vec<Finding> {
    let mut all = Vec::new();
    if !folder.is_dir() {
        let found = format!("{} is no folder", folder.shown());
        let mend = "mount it, or make it; kvfs push makes it, too";
        return vec![bad("place", Verdict::Error, found, mend)];
    }
    // Use a folder of its own, since it is removed with everything in it.
    let mut name = tempfile::Builder::new();
    match name.prefix(TRIED_IN).tempdir_in(folder) {
        Ok(own) => {
            all.push(good("place", format!("{} is there, and writable", folder.shown())));
            match DirectoryObjects::create(own.path()) {
                Ok(objects) => try_folder(&objects, &mut all),
                Err(error) => all.push(failed("locks", &error)),
            }
            if let Err(e) = own.close() {
                all.push(bad(
                    "place",
                    Verdict::Warning,
                    format!("the folder in which it was tried cannot be removed: {e}"),
                    format!("rm -r {}/{TRIED_IN}*", folder.shown()),
                ));
            }
        }
        Err(e) => all.push(bad(
            "place",
            Verdict::Warning,
            format!("nothing can be made in {}: {e}", folder.shown()),
            "stores there are only read; to publish, get the right to write in that folder",
        )),
    }
    // Open the folder only if it has objects, so that it is left unchanged otherwise.
    match folder.join("m").is_dir() {
        true => all.push(match DirectoryObjects::open(folder) {
            Ok(objects) => store(Arc::new(objects), address),
            Err(error) => failed("store", &error),
        }),
        false => all.push(no_store(address)),
    }
    all
}

fn try_folder(objects: &DirectoryObjects, all: &mut Vec<Finding>) {
    all.push(good("locks", "the file system has them"));
    let before = now();
    let time = time_of_object(objects);
    let after = now();
    match time {
        Ok(Some(time)) => all.push(clock(time, before, after, false)),
        Ok(None) => all.push(bad(
            "clock",
            Verdict::Note,
            "the place does not tell it",
            "compare it with this machine's by hand",
        )),
        Err(error) => all.push(failed("clock", &error)),
    }
    try_rules(objects, all);
}

#[cfg(feature = "s3")]
fn try_rules(objects: &dyn Objects, all: &mut Vec<Finding>) {
    let wrong = "a store there can be damaged by two writers; use another server, one that keeps \
                 conditional puts";
    match objects_s3::probe(objects, "") {
        Ok(found) => {
            let ms = |time: Duration| time.as_secs_f64() * 1e3;
            all.push(good(
                "latency",
                format!(
                    "GET {:.1} ms, PUT {:.1} ms of 64 KiB, medians",
                    ms(found.get),
                    ms(found.put)
                ),
            ));
            all.push(match found.is_fine() {
                true => good("rules", found.verdict()),
                false => bad("rules", Verdict::Error, found.verdict(), wrong),
            });
        }
        Err(error @ ObjectsError::Denied { .. }) => all.push(bad(
            "rules",
            Verdict::Warning,
            format!("they cannot be tried: {error}"),
            "stores there are only read; to publish, use credentials that may put and delete",
        )),
        Err(error) => all.push(failed("rules", &error)),
    }
}

#[cfg(not(feature = "s3"))]
fn try_rules(_: &dyn Objects, all: &mut Vec<Finding>) {
    let found = "not tried: this program was built without the feature s3";
    all.push(bad("rules", Verdict::Note, found, "build it with the feature s3"));
}

#[cfg(not(feature = "s3"))]
fn in_bucket(address: &Address) -> Vec<Finding> {
    let found = format!("{address} is in a bucket, and this program was built without them");
    vec![bad("place", Verdict::Error, found, "build it with the feature s3")]
}

#[cfg(feature = "s3")]
fn in_bucket(address: &Address) -> Vec<Finding> {
    let environment = objects_s3::Environment::of_process();
    let objects = match objects_s3::S3Objects::from_address(&address.place, &environment) {
        Ok(objects) => objects,
        Err(error) => return vec![failed("place", &error)],
    };
    let reached = objects.reached();
    let mut all = vec![
        good("credentials", format!("of {}", reached.credentials)),
        good("endpoint", format!("{}, signed for the region {}", reached.server, reached.region)),
    ];
    let before = now();
    let time = objects.server_time();
    let after = now();
    match time {
        Ok(time) => {
            all.push(good("place", format!("{} is reached", objects.place())));
            all.push(match time {
                Some(time) => clock(time, before, after, true),
                None => bad(
                    "clock",
                    Verdict::Note,
                    "the server does not tell it",
                    "more than 15 minutes of difference would have it refuse requests",
                ),
            });
        }
        Err(error) => {
            all.push(failed("place", &error));
            return all;
        }
    }
    all.push(versioning(&objects));
    all.extend(lifecycle(&objects));
    try_rules(&objects, &mut all);
    all.push(store(Arc::new(objects), address));
    all
}

#[cfg(feature = "s3")]
fn versioning(objects: &objects_s3::S3Objects) -> Finding {
    use objects_s3::Said;
    let what = "versioning";
    match objects.versioning() {
        Ok(Said::Known(true)) => bad(
            what,
            Verdict::Note,
            "it is on: heads that were replaced are kept, and take room",
            "a rule that deletes versions which are not current, if that is not wanted",
        ),
        Ok(Said::Known(false)) => good(what, "it is off"),
        Ok(Said::NotAllowed) => bad(
            what,
            Verdict::Note,
            "these credentials may not ask for it",
            "nothing, or the right s3:GetBucketVersioning",
        ),
        Ok(Said::NotKnown) => bad(what, Verdict::Note, "the server does not tell it", "nothing"),
        Err(error) => failed(what, &error),
    }
}

#[cfg(feature = "s3")]
fn lifecycle(objects: &objects_s3::S3Objects) -> Vec<Finding> {
    use objects_s3::{Effect, Rule, Said};
    let what = "lifecycle";
    let finding = |rule: Rule| {
        let Rule { name, effect } = rule;
        match effect {
            Effect::Deletes => bad(
                what,
                Verdict::Error,
                format!("the rule {name} deletes objects there: stores lose what they are made of"),
                "remove the rule, or give it a prefix that has no stores",
            ),
            Effect::Moves(class) => bad(
                what,
                Verdict::Warning,
                format!("the rule {name} moves objects there to {class}"),
                "remove the rule, unless objects of that class are read at once",
            ),
        }
    };
    match objects.lifecycle() {
        Ok(Said::Known(rules)) if rules.is_empty() => {
            vec![good(what, "no rule deletes or moves objects there")]
        }
        Ok(Said::Known(rules)) => rules.into_iter().map(finding).collect(),
        Ok(Said::NotAllowed) => vec![bad(
            what,
            Verdict::Note,
            "these credentials may not ask for the rules of the bucket",
            "have its owner look for rules that delete objects, or the right \
             s3:GetLifecycleConfiguration",
        )],
        Ok(Said::NotKnown) => {
            vec![bad(what, Verdict::Note, "the server does not tell its rules", "nothing")]
        }
        Err(error) => vec![failed(what, &error)],
    }
}

fn no_store(address: &Address) -> Finding {
    let found = format!("there is none of the name {}", address.name);
    bad("store", Verdict::Note, found, format!("kvfs push STORE {address} publishes one"))
}

/// Reports the head of the store, and checks that the state that it names exists.
fn store(objects: Arc<dyn Objects>, address: &Address) -> Finding {
    let what = "store";
    let cannot = |e: kvdb::Error| {
        let mend = match e {
            kvdb::Error::Corrupt(_) => "publish the store again under another name",
            _ => "see what is said of the place; or a newer kvfs has published it",
        };
        bad(what, Verdict::Error, e.to_string(), mend)
    };
    let remote = match RemoteStore::new(objects.clone(), &address.name) {
        Ok(remote) => remote,
        Err(e) => return cannot(e),
    };
    let head = match remote.head() {
        Ok(Some(head)) => head,
        Ok(None) => return no_store(address),
        Err(e) => return cannot(e),
    };
    let Some(state) = head.state.filter(|_| head.generation > 0) else {
        let found = format!("its first publication has not ended (epoch {})", head.epoch);
        let mend = format!("kvfs push STORE {address} goes on with it");
        return bad(what, Verdict::Warning, found, mend);
    };
    let fine = || {
        good(
            what,
            format!(
                "generation {}, published {} UTC, epoch {}; its format is known here",
                head.generation,
                snapshots::time(head.published / 1_000_000_000),
                head.epoch
            ),
        )
    };
    // A small state is inlined in the head.
    let Some(state) = state.object else { return fine() };
    match objects.get(&state.key, Part::Range(0..1)) {
        Ok(there) if there.len == state.len => fine(),
        Ok(there) => bad(
            what,
            Verdict::Error,
            format!("its state {} has {} bytes, not {}", state.key, there.len, state.len),
            "publish the store again",
        ),
        Err(ObjectsError::NotFound { .. }) => bad(
            what,
            Verdict::Error,
            format!("its head names the state {}, which is gone", state.key),
            "look for what deletes objects there, and publish the store again",
        ),
        Err(error) => failed(what, &error),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_is_judged_by_how_far_it_is_off() {
        let at = Duration::from_secs;
        let verdict = |theirs, signs| clock(at(theirs), at(10_000), at(10_002), signs).verdict;
        for fine in [9_999, 10_000, 10_002, 10_030, 9_970] {
            assert_eq!(verdict(fine, true), Verdict::Ok, "{fine}");
        }
        assert_eq!(
            (verdict(10_060, true), verdict(9_940, true)),
            (Verdict::Warning, Verdict::Warning)
        );
        assert_eq!((verdict(11_000, true), verdict(9_000, true)), (Verdict::Error, Verdict::Error));
        assert_eq!(
            (verdict(11_000, false), verdict(0, false)),
            (Verdict::Warning, Verdict::Warning)
        );
    }
}
