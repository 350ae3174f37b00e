//! Tests of the protocol of heads under faults and schedules. Several writers update one object,
//! answers are lost, requests arrive late, and reads are damaged. No update is lost, and none is
//! applied twice. Schedules exist only in builds with debug assertions.
#![cfg(debug_assertions)]

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use env::{Scheduled, schedule, thread};
use objects::{
    Condition, Created, FaultyObjects, Injected, Key, MemoryObjects, Objects, ObjectsError, Part,
    Patience, Rates, Swapped, Tag, Verdict, create, get_patiently, swap,
};

const SEEDS: u64 = 200;
const WRITERS: u64 = 3;
const UPDATES: u64 = 4;

fn rates() -> Rates {
    Rates {
        lost_request: 12,
        lost_answer: 5,
        late_request: 8,
        conflict: 12,
        too_many: 15,
        slow_down: 15,
        truncated: 12,
        flipped: 8,
        delay: 3,
        longest_delay: Duration::from_secs(1),
        ..Rates::default()
    }
}

fn head() -> Key {
    Key::new("m/store/head").expect("a key")
}

/// A head: the updates that were applied, each with the nonce of its attempt, and a checksum.
#[derive(Clone, Debug, Default)]
struct Head(Vec<(u64, u64)>);

impl Head {
    fn bytes(&self) -> Bytes {
        let text: String = self.0.iter().map(|(id, nonce)| format!("{id} {nonce}\n")).collect();
        format!("{}\n{text}", Tag::of(text.as_bytes())).into()
    }

    /// `None` if the bytes are damaged.
    fn parse(bytes: &[u8]) -> Option<Head> {
        let (checksum, text) = std::str::from_utf8(bytes).ok()?.split_once('\n')?;
        if Tag::of(text.as_bytes()).as_str() != checksum {
            return None;
        }
        let pair = |line: &str| {
            let (id, nonce) = line.split_once(' ')?;
            Some((id.parse().ok()?, nonce.parse().ok()?))
        };
        text.lines().map(pair).collect::<Option<_>>().map(Head)
    }

    fn read(objects: &dyn Objects) -> (Head, Tag) {
        loop {
            // An error passes, or the seed has a fault that never ends.
            if let Ok(object) = get_patiently(objects, &head(), Part::Whole, Patience::default())
                && let Some(head) = Head::parse(&object.bytes)
            {
                return (head, object.tag);
            }
        }
    }
}

/// Applies one update by the protocol.
fn update(objects: &dyn Objects, id: u64) {
    loop {
        let (mut next, tag) = Head::read(objects);
        let nonce = schedule::random().expect("it is simulated");
        next.0.push((id, nonce));
        let mine = |bytes: &[u8]| match Head::parse(bytes) {
            None => Verdict::Damaged,
            Some(head) if head.0.contains(&(id, nonce)) => Verdict::Mine,
            Some(_) => Verdict::Other,
        };
        loop {
            match swap(objects, &head(), &tag, next.bytes(), Patience::default(), mine) {
                Ok(Swapped::Done(_)) => return,
                Ok(Swapped::Overtaken(_)) => break,
                // The same attempt continues.
                Err(ObjectsError::Unsure { .. } | ObjectsError::Busy { .. }) => {}
                Err(e) => panic!("{e}"),
            }
        }
    }
}

/// The way of a writer who takes an unknown outcome for a failure.
fn update_carelessly(objects: &dyn Objects, id: u64) {
    loop {
        let (mut next, tag) = Head::read(objects);
        next.0.push((id, schedule::random().expect("it is simulated")));
        if objects.put(&head(), next.bytes(), Condition::Matches(tag)).is_ok() {
            return;
        }
    }
}

/// Runs writers under a seed; returns how often each update was applied, and the faults.
fn run(seed: u64, update: fn(&dyn Objects, u64)) -> (BTreeMap<u64, u64>, Vec<Injected>) {
    let body = move || {
        let memory = Arc::new(MemoryObjects::with_env(Arc::new(Scheduled)));
        memory.put(&head(), Head::default().bytes(), Condition::Absent).expect("there is none");
        let objects = Arc::new(FaultyObjects::new(memory.clone(), seed, rates()));
        let writer = |writer: u64| {
            let objects = objects.clone();
            thread::spawn(move || {
                (0..UPDATES).for_each(|n| update(&*objects, writer * UPDATES + n));
            })
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        writers.into_iter().for_each(|writer| writer.join().expect("it succeeds"));
        objects.deliver();
        let mut applied = BTreeMap::new();
        for (id, _) in Head::read(&*memory).0.0 {
            *applied.entry(id).or_default() += 1;
        }
        (applied, objects.trace().into_iter().map(|event| event.injected).collect())
    };
    schedule::run(seed, body).unwrap_or_else(|e| panic!("seed {seed}: {e}")).value
}

#[test]
fn no_update_is_lost_or_applied_twice() {
    let once: BTreeMap<u64, u64> = (0..WRITERS * UPDATES).map(|id| (id, 1)).collect();
    let mut faults: BTreeMap<String, u64> = BTreeMap::new();
    for seed in 0..SEEDS {
        let (applied, trace) = run(seed, update);
        assert_eq!(applied, once, "seed {seed}");
        for injected in trace {
            *faults.entry(format!("{injected:?}")).or_default() += 1;
        }
    }
    for fault in ["LostAnswer", "LateRequest", "Arrived", "Conflict", "Flipped", "Truncated"] {
        assert!(faults.get(fault).is_some_and(|n| *n >= SEEDS), "{fault}: {faults:?}");
    }
}

#[test]
fn a_careless_writer_applies_updates_twice() {
    // The negative control: the faults are such that the protocol is needed.
    let twice = (0..SEEDS / 4)
        .filter(|seed| run(*seed, update_carelessly).0.values().any(|times| *times > 1))
        .count();
    assert!(twice > 0, "no seed has shown it");
}

#[test]
fn a_seed_reproduces_its_run() {
    let (a, b) = (run(7, update), run(7, update));
    assert_eq!(a, b);
    assert_ne!(a.1, run(8, update).1);
}

#[test]
fn one_of_several_creates_an_object() {
    for seed in 0..SEEDS {
        let body = move || {
            let memory = Arc::new(MemoryObjects::with_env(Arc::new(Scheduled)));
            let objects = Arc::new(FaultyObjects::new(memory.clone(), seed, rates()));
            let writer = |me: u64| {
                let objects = objects.clone();
                thread::spawn(move || {
                    let mine = Bytes::from(format!("the nonce of writer {me}"));
                    loop {
                        match create(&*objects, &head(), mine.clone(), Patience::default()) {
                            Ok(Created::Done(_)) => return Some(mine),
                            Ok(Created::Taken(object)) => {
                                assert_ne!(object.bytes, mine);
                                return None;
                            }
                            Err(ObjectsError::Unsure { .. } | ObjectsError::Busy { .. }) => {}
                            Err(e) => panic!("{e}"),
                        }
                    }
                })
            };
            let writers: Vec<_> = (0..WRITERS).map(writer).collect();
            let won: Vec<Bytes> =
                writers.into_iter().filter_map(|w| w.join().expect("it succeeds")).collect();
            objects.deliver();
            (won, memory.get(&head(), Part::Whole).expect("one has created it").bytes)
        };
        let run = schedule::run(seed, body).unwrap_or_else(|e| panic!("seed {seed}: {e}"));
        let (won, there) = run.value;
        assert_eq!(won, [there], "seed {seed}");
    }
}

#[test]
fn an_outage_that_ends_is_survived() {
    let body = || {
        let memory = Arc::new(MemoryObjects::with_env(Arc::new(Scheduled)));
        memory.put(&head(), Head::default().bytes(), Condition::Absent).expect("there is none");
        let objects = Arc::new(FaultyObjects::new(memory, 1, Rates::default()));
        objects.set_outage(true);
        let writer = {
            let objects = objects.clone();
            thread::spawn(move || update(&*objects, 5))
        };
        thread::sleep(Duration::from_secs(600));
        objects.set_outage(false);
        writer.join().expect("it succeeds");
        let ids: Vec<u64> = Head::read(&*objects).0.0.iter().map(|(id, _)| *id).collect();
        (ids, schedule::now())
    };
    let (ids, now) = schedule::run(3, body).expect("it ends").value;
    assert_eq!(ids, [5]);
    assert!(now >= Duration::from_secs(600) && now < Duration::from_secs(620), "{now:?}");
}

#[test]
fn a_folder_can_be_used_in_a_schedule() {
    // Two have opened the folder, as two processes: waiting for a file must not stop the schedule.
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().to_path_buf();
    let body = move || {
        let open = || objects::DirectoryObjects::open(&path).expect("it exists");
        open().put(&head(), Head::default().bytes(), Condition::Always).expect("a put");
        let writer = |id: u64| {
            let objects = open();
            thread::spawn(move || update(&objects, id))
        };
        let writers: Vec<_> = (0..WRITERS).map(writer).collect();
        writers.into_iter().for_each(|writer| writer.join().expect("it succeeds"));
        Head::read(&open()).0.0.len() as u64
    };
    for seed in 0..5 {
        let run = schedule::run(seed, body.clone());
        assert_eq!(run.expect("it ends").value, WRITERS, "seed {seed}");
    }
}
