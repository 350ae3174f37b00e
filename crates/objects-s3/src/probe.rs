//! Finds out which of the rules that heads depend on a server keeps, by races on the server itself.
//!
//! A probe is a filter and not a proof: a server that fails it cannot be used, and one that passes
//! may still fail under another load.

use std::ops::Range;
use std::sync::Barrier;
use std::time::{Duration, Instant};

use bytes::Bytes;
use env::sync::Mutex;
use env::{Env, Machine, thread};
use objects::{
    Condition, Key, Object, Objects, ObjectsError, Part, Patience, Result, Tag, get_patiently,
};

/// The number of races for each condition.
const RACES: u32 = 20;
/// The number of writers in a race.
const THREADS: u8 = 8;
/// The bytes of each object, each of which identifies the writer.
const SIZE: usize = 64 << 10;

/// The findings of a probe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Probe {
    /// The place, as returned by [`Objects::place`].
    pub place: String,
    /// Races to create an object.
    pub creates: Races,
    /// Races to replace an object whose tag all writers know.
    pub swaps: Races,
    /// A range in an object returns the bytes that exist, and the length of the whole object.
    pub ranges: bool,
    /// A range beyond the end is refused, with the length.
    pub refusals: bool,
    /// A list has all objects that were put, in the order of keys, and continues after a key.
    pub lists: bool,
    /// The median time of a GET of 64 KiB.
    pub get: Duration,
    /// The median time of a PUT of 64 KiB.
    pub put: Duration,
}

/// The outcomes of races of eight writers each, of which exactly one has to win.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Races {
    /// The number of races.
    pub races: u32,
    /// Races in which more than one writer got the answer that it has won.
    pub several: u32,
    /// Races in which no writer has won.
    pub none: u32,
    /// Races after which the object has other bytes than the winner's.
    pub torn: u32,
    /// Races without a result: no writer has won, and some got no answer or were refused for now.
    pub undecided: u32,
}

impl Races {
    fn is_fine(&self) -> bool {
        self.several + self.none + self.torn == 0 && self.undecided * 2 <= self.races
    }

    fn sentence(&self, what: &str) -> Option<String> {
        let Races { races, several, none, torn, undecided } = *self;
        (!self.is_fine()).then(|| {
            format!(
                "of {races} races to {what} an object, {several} had more than one winner, {none} \
                 had none, {torn} left other bytes than the winner's, and {undecided} had no \
                 outcome"
            )
        })
    }
}

impl Probe {
    /// Returns whether stores can be written at the place.
    pub fn is_fine(&self) -> bool {
        let rules = self.ranges && self.refusals && self.lists;
        self.creates.is_fine() && self.swaps.is_fine() && rules
    }

    /// Returns a sentence for the user: what is wrong and what can be done, or that everything is
    /// well.
    pub fn verdict(&self) -> String {
        let rule = |holds: bool, wrong: &str| (!holds).then(|| wrong.to_string());
        let wrong: Vec<String> = [
            self.creates.sentence("create"),
            self.swaps.sentence("replace"),
            rule(self.ranges, "ranges of an object are not what was asked for"),
            rule(self.refusals, "ranges beyond the end are not refused with the object's length"),
            rule(self.lists, "lists are not complete, or not in the order of keys"),
        ]
        .into_iter()
        .flatten()
        .collect();
        if wrong.is_empty() {
            return format!(
                "{} keeps the conditions of puts: {} races, one winner each (GET {:.1} ms, PUT \
                 {:.1} ms)",
                self.place,
                self.creates.races + self.swaps.races,
                self.get.as_secs_f64() * 1e3,
                self.put.as_secs_f64() * 1e3
            );
        }
        format!(
            "{} cannot have a store that is written: {}; use a server that keeps conditional puts \
             (If-None-Match, If-Match)",
            self.place,
            wrong.join("; ")
        )
    }
}

/// Finds out whether the place keeps conditions under races, and ranges and lists, with some 500
/// requests. All objects are below `prefix`, in a folder that no other probe uses, and are deleted
/// before it returns, even after an error. An error is that of a request and not about these rules:
/// no connection, no permission, no bucket.
pub fn probe(objects: &dyn Objects, prefix: &str) -> Result<Probe> {
    let nonce = Machine::default().random();
    let folder = match prefix.trim_end_matches('/') {
        "" => format!("probe-{nonce:016x}"),
        prefix => format!("{prefix}/probe-{nonce:016x}"),
    };
    let names = |kind: &str| -> Result<Vec<Key>> {
        let name = |race| Ok(Key::new(format!("{folder}/{kind}/{race:02}"))?);
        (0..RACES).map(name).collect()
    };
    let (created, swapped) = (names("create")?, names("swap")?);
    let outcome = races(objects, &created, &swapped)
        .and_then(|found| rules(objects, &folder, &swapped, found));
    let cleaned = clean(objects, created.iter().chain(&swapped));
    let found = outcome?;
    cleaned.map(|()| found)
}

fn races(objects: &dyn Objects, created: &[Key], swapped: &[Key]) -> Result<Probe> {
    let mut creates = Races::default();
    for key in created {
        race(objects, key, &Condition::Absent, &mut creates)?;
    }
    let (mut swaps, mut times) = (Races::default(), Vec::new());
    for key in swapped {
        let start = Instant::now();
        let tag = first(objects, key)?;
        times.push(start.elapsed());
        race(objects, key, &Condition::Matches(tag), &mut swaps)?;
    }
    Ok(Probe {
        place: objects.place(),
        creates,
        swaps,
        ranges: false,
        refusals: false,
        lists: false,
        get: Duration::ZERO,
        put: median(times),
    })
}

/// Returns the bytes of a writer.
fn bytes(writer: u8) -> Bytes {
    Bytes::from(vec![writer; SIZE])
}

/// Puts the object that the writers of a race replace.
fn first(objects: &dyn Objects, key: &Key) -> Result<Tag> {
    match objects.put(key, bytes(THREADS), Condition::Always) {
        // No other caller puts this object, so repeating the put is safe.
        Err(error) if error.may_be_retried() => objects.put(key, bytes(THREADS), Condition::Always),
        outcome => outcome,
    }
}

/// Lets all writers put at once, and counts the winners.
fn race(objects: &dyn Objects, key: &Key, condition: &Condition, races: &mut Races) -> Result<()> {
    let start = Barrier::new(usize::from(THREADS));
    let outcomes = Mutex::new(Vec::new());
    thread::scope(|scope| {
        for writer in 0..THREADS {
            let (start, outcomes) = (&start, &outcomes);
            scope.spawn(move || {
                let bytes = bytes(writer);
                start.wait();
                let outcome = objects.put(key, bytes, condition.clone());
                outcomes.lock().push((writer, outcome));
            });
        }
    });
    let (mut winners, mut unsure, mut refused) = (Vec::new(), Vec::new(), false);
    for (writer, outcome) in outcomes.into_inner() {
        match outcome {
            Ok(_) => winners.push(writer),
            Err(ObjectsError::ConditionFailed { .. }) => {}
            Err(ObjectsError::Unsure { .. }) => unsure.push(writer),
            Err(error) if error.may_be_retried() => refused = true,
            Err(error) => return Err(error),
        }
    }
    races.races += 1;
    let there = match get_patiently(objects, key, Part::Whole, Patience::default()) {
        Ok(object) => object.bytes,
        Err(ObjectsError::NotFound { .. }) => Bytes::new(),
        Err(error) => return Err(error),
    };
    // A writer that was not told its outcome has won if its bytes are in the object.
    refused |= !unsure.is_empty();
    winners.extend(unsure.into_iter().filter(|writer| there == bytes(*writer)));
    races.several += u32::from(winners.len() > 1);
    races.none += u32::from(winners.is_empty() && !refused);
    races.undecided += u32::from(winners.is_empty() && refused);
    races.torn += u32::from(!winners.is_empty() && !winners.iter().any(|w| there == bytes(*w)));
    Ok(())
}

/// Checks ranges and lists on the objects that the races have left.
fn rules(objects: &dyn Objects, folder: &str, there: &[Key], found: Probe) -> Result<Probe> {
    let patience = Patience::default();
    let (mut ranges, mut refusals, mut times) = (true, true, Vec::new());
    for key in there {
        let start = Instant::now();
        let whole = get_patiently(objects, key, Part::Whole, patience)?;
        times.push(start.elapsed());
        if times.len() > 3 {
            continue;
        }
        ranges = ranges
            && gives(objects, key, 1000..1100, &whole)?
            && gives(objects, key, whole.len.saturating_sub(1)..u64::MAX, &whole)?;
        let beyond = objects.get(key, Part::Range(whole.len..whole.len + 1));
        refusals &= matches!(
            beyond, Err(ObjectsError::OutOfRange { len, .. }) if len == whole.len
        );
    }
    // Reads the names of a list that begins after the fifth, and ends with the last.
    let (mut names, mut after) = (Vec::new(), there[4].to_string());
    loop {
        let page = list(objects, &format!("{folder}/"), &after)?;
        names.extend(page.entries.into_iter().map(|listed| listed.key));
        match names.last() {
            Some(last) if page.more => after = last.to_string(),
            _ => break,
        }
    }
    let lists = names == there[5..];
    Ok(Probe { ranges, refusals, lists, get: median(times), ..found })
}

/// Returns whether the range returns that part of the object.
fn gives(objects: &dyn Objects, key: &Key, range: Range<u64>, whole: &Object) -> Result<bool> {
    let part = Part::Range(range);
    let Ok(within) = part.within(key, whole.len) else { return Ok(false) };
    // The bounds fit, since they are within the length of bytes in memory.
    let bytes = whole.bytes.slice(within.start as usize..within.end as usize);
    match persist(|| objects.get(key, part.clone())) {
        Ok(found) => Ok(found == Object { bytes, ..whole.clone() }),
        Err(
            ObjectsError::Unsure { .. }
            | ObjectsError::OutOfRange { .. }
            | ObjectsError::NotFound { .. },
        ) => Ok(false),
        Err(error) => Err(error),
    }
}

fn list(objects: &dyn Objects, prefix: &str, after: &str) -> Result<objects::Page> {
    persist(|| objects.list(prefix, after))
}

/// Deletes all objects of the probe. The first error is returned, after all deletions were tried.
fn clean<'a>(objects: &dyn Objects, keys: impl Iterator<Item = &'a Key>) -> Result<()> {
    let mut outcome = Ok(());
    for key in keys {
        outcome = outcome.and(persist(|| objects.delete(key)));
    }
    outcome
}

/// Repeats a request that may be repeated blindly, as no other writer knows its key.
fn persist<T>(request: impl Fn() -> Result<T>) -> Result<T> {
    let mut sleep = Duration::from_millis(50);
    for _ in 0..7 {
        match request() {
            Err(error) if error.may_be_retried() => thread::sleep(sleep),
            outcome => return outcome,
        }
        sleep *= 2;
    }
    request()
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort_unstable();
    times.get(times.len() / 2).copied().unwrap_or_default()
}
