//! Runs the contract, races and the probe on a real server. scripts/remote_servers.sh starts one,
//! and passes its address in KVFS_S3_ENDPOINT and KVFS_S3_BUCKET:
//!
//! ```sh
//! scripts/remote_servers.sh cargo test -p objects-s3 --test it servers:: -- --ignored --nocapture
//! ```

use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Barrier, Mutex};
use std::time::{Duration, Instant};

use crate::contract::{Folder, RULES};
use crate::relay::Relay;
use bytes::Bytes;
use env::{Env, Machine};
use objects::{
    Condition, Created, Key, MemoryObjects, Objects, ObjectsError, Part, Patience, Swapped, Tag,
    Verdict,
};
use objects_s3::{Environment, S3Config, S3Objects, probe};

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is set by scripts/remote_servers.sh"))
}

/// The server, below a prefix that no other test has.
fn server(test: &str) -> S3Objects {
    config(test, &variable("KVFS_S3_BUCKET"), &Environment::of_process())
}

fn config(test: &str, bucket: &str, environment: &Environment) -> S3Objects {
    S3Objects::new(&settings(test, bucket), environment).expect("it is a place")
}

fn settings(test: &str, bucket: &str) -> S3Config {
    S3Config {
        endpoint: Some(variable("KVFS_S3_ENDPOINT")),
        prefix: format!("{test}-{:08x}", Machine::default().random() as u32),
        ..S3Config::new(bucket)
    }
}

/// One place, reached directly and through another endpoint.
fn two(test: &str, endpoint: String) -> (S3Objects, S3Objects) {
    let straight = settings(test, &variable("KVFS_S3_BUCKET"));
    let other = S3Config { endpoint: Some(endpoint), ..straight.clone() };
    let open = |config| S3Objects::new(config, &Environment::of_process()).expect("it is a place");
    (open(&straight), open(&other))
}

fn folder<'a>(objects: &'a dyn Objects, name: &str) -> Folder<'a> {
    Folder { objects, name: name.into() }
}

#[test]
fn the_rules_are_those_of_the_reference() {
    let memory = MemoryObjects::new().with_pages_of(3);
    for (name, rule) in RULES {
        rule(&folder(&memory, name));
    }
}

#[test]
#[ignore = "it needs a server: scripts/remote_servers.sh"]
fn a_server_keeps_the_contract() {
    let objects = server("contract").with_pages_of(3);
    let mut failed = Vec::new();
    for (name, rule) in RULES {
        let ran = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
            rule(&folder(&objects, name));
        }));
        println!("{name}: {}", if ran.is_ok() { "ok" } else { "FAILED" });
        if ran.is_err() {
            failed.push(name);
        }
    }
    assert!(failed.is_empty(), "{failed:?}");
}

#[test]
#[ignore = "it needs a server: scripts/remote_servers.sh"]
fn one_writer_wins_each_race() {
    let objects = server("races");
    for round in 0..40_u32 {
        for swap in [false, true] {
            let key = Key::new(format!("{swap}/{round}")).expect("a key");
            let bytes = |writer: u8| Bytes::from(vec![writer; 64 << 10]);
            let condition = match swap {
                false => Condition::Absent,
                true => {
                    let tag = objects.put(&key, bytes(99), Condition::Absent);
                    Condition::Matches(tag.expect("there is none"))
                }
            };
            let (start, winners) = (Barrier::new(16), Mutex::new(Vec::new()));
            std::thread::scope(|scope| {
                for writer in 0..16 {
                    let (objects, key, condition) = (&objects, &key, &condition);
                    let (start, winners) = (&start, &winners);
                    scope.spawn(move || {
                        start.wait();
                        match objects.put(key, bytes(writer), condition.clone()) {
                            Ok(_) => winners.lock().expect("no panic").push(writer),
                            Err(ObjectsError::ConditionFailed { .. }) => {}
                            Err(error) => panic!("round {round}: {error}"),
                        }
                    });
                }
            });
            let winners = winners.into_inner().expect("no panic");
            assert_eq!(winners.len(), 1, "round {round}: {winners:?} have won");
            let there = objects.get(&key, Part::Whole).expect("one has put it").bytes;
            assert!(there == bytes(winners[0]), "round {round}");
        }
    }
}

#[test]
#[ignore = "it needs a server: scripts/remote_servers.sh"]
fn many_reads_go_on_at_once_and_no_swap_is_lost() {
    let objects = Arc::new(server("many"));
    let zone = Key::new("zone").expect("a key");
    objects.put(&zone, Bytes::from(vec![7; 8 << 20]), Condition::Absent).expect("there is none");
    let sum = Key::new("sum").expect("a key");
    objects.put(&sum, "0 start".into(), Condition::Absent).expect("there is none");
    let start = Instant::now();
    std::thread::scope(|scope| {
        for reader in 0..64_u64 {
            let (objects, zone) = (&objects, &zone);
            scope.spawn(move || {
                for n in 0..8 {
                    let start = ((reader + n) % 32) << 18;
                    let part = Part::Range(start..start + (256 << 10));
                    let read = objects.get(zone, part).expect("it exists");
                    assert_eq!((read.bytes.len(), read.len), (256 << 10, 8 << 20));
                }
            });
        }
    });
    println!("64 readers have read 128 MiB in parts of 256 KiB within {:?}", start.elapsed());
    let overtaken = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (objects, sum, overtaken) = (&objects, &sum, &overtaken);
            scope.spawn(move || {
                let mut done = 0;
                while done < 25 {
                    let old = objects.get(sum, Part::Whole).expect("it exists");
                    let text = String::from_utf8_lossy(&old.bytes).to_string();
                    let number: u32 = text.split(' ').next().unwrap_or("").parse().expect("one");
                    // The writer's name and count are the nonce.
                    let new = format!("{} {writer}.{done}", number + 1);
                    match objects.put(sum, new.into(), Condition::Matches(old.tag)) {
                        Ok(_) => done += 1,
                        Err(ObjectsError::ConditionFailed { .. }) => {
                            overtaken.fetch_add(1, Ordering::Relaxed);
                        }
                        Err(error) => panic!("{error}"),
                    }
                }
            });
        }
    });
    let last = objects.get(&sum, Part::Whole).expect("it exists").bytes;
    assert!(last.starts_with(b"100 "), "{last:?}");
    println!("{} swaps were overtaken", overtaken.into_inner());
}

/// Four writers add lines to a head, and create objects, while one of seven answers is lost. Each
/// line and each object exists once, and none is attributed to another writer.
#[test]
#[ignore = "it needs a server: scripts/remote_servers.sh"]
fn lost_answers_are_resolved_by_the_protocols() {
    let endpoint = variable("KVFS_S3_ENDPOINT");
    let relay = Relay::start(endpoint.strip_prefix("http://").expect("a URL"), 7);
    let (straight, objects) = two("lost", relay.url.clone());
    let head = Key::new("head").expect("a key");
    straight.put(&head, "start\n".into(), Condition::Absent).expect("there is none");
    let patience = Patience { first: Duration::from_millis(1), ..Patience::default() };
    let created = AtomicU32::new(0);
    std::thread::scope(|scope| {
        for writer in 0..4 {
            let (objects, head, created) = (&objects, &head, &created);
            scope.spawn(move || {
                for n in 0..25 {
                    let name = Key::new(format!("object/{n}")).expect("a key");
                    let mine = Bytes::from(format!("of {writer}"));
                    match objects::create(objects, &name, mine, patience).expect("it is resolved") {
                        Created::Done(_) => created.fetch_add(1, Ordering::SeqCst),
                        Created::Taken(_) => 0,
                    };
                    let line = format!("{writer}.{n}\n");
                    loop {
                        let old = objects::get_patiently(objects, head, Part::Whole, patience);
                        let old = old.expect("it exists");
                        let bytes = [&old.bytes, line.as_bytes()].concat();
                        // The head has all lines, so it tells whether it came after this attempt.
                        let judge =
                            |bytes: &[u8]| match String::from_utf8_lossy(bytes).contains(&line) {
                                true => Verdict::Mine,
                                false => Verdict::Other,
                            };
                        let outcome =
                            objects::swap(objects, head, &old.tag, bytes.into(), patience, judge);
                        if let Swapped::Done(_) = outcome.expect("it is resolved") {
                            break;
                        }
                    }
                }
            });
        }
    });
    let bytes = straight.get(&head, Part::Whole).expect("it exists").bytes;
    let text = String::from_utf8_lossy(&bytes).to_string();
    let mut lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 101, "a line is there twice, or lost");
    lines.sort_unstable();
    lines.dedup();
    assert_eq!(lines.len(), 101, "a line is there twice, and another was lost");
    assert_eq!(created.into_inner(), 25, "each object was created once");
    println!("{} answers were lost", relay.lost());
    assert!(relay.lost() > 50);
}

#[test]
#[ignore = "it needs a server: scripts/remote_servers.sh"]
fn wrong_keys_and_missing_buckets_are_told() {
    let environment = Environment::of([
        ("AWS_ACCESS_KEY_ID", "wrong"),
        ("AWS_SECRET_ACCESS_KEY", "not-the-secret"),
    ]);
    let key = Key::new("a").expect("a key");
    let wrong = config("wrong", &variable("KVFS_S3_BUCKET"), &environment);
    let missing = config("missing", "no-such-bucket", &Environment::of_process());
    let calls = |objects: &S3Objects| {
        [
            objects.get(&key, Part::Whole).err(),
            objects.get(&key, Part::Range(0..1)).err(),
            objects.put(&key, "x".into(), Condition::Always).err(),
            objects.put(&key, "x".into(), Condition::Absent).err(),
            objects.put(&key, "x".into(), Condition::Matches(Tag::new("\"x\""))).err(),
            objects.delete(&key).err(),
            objects.list("", "").err(),
        ]
    };
    for error in calls(&wrong) {
        assert!(matches!(error, Some(ObjectsError::Denied { .. })), "{error:?}");
    }
    for error in calls(&missing) {
        assert!(matches!(error, Some(ObjectsError::NoBucket { .. })), "{error:?}");
    }
}

#[test]
#[ignore = "it needs a server: scripts/remote_servers.sh"]
fn the_probe_knows_this_server_twenty_times_of_twenty() {
    let objects = server("probe");
    // The one server that is known not to keep conditions.
    let careless = std::env::var("KVFS_S3_SERVER").is_ok_and(|server| server == "s3s-fs");
    for time in 1..=20 {
        let found = probe(&objects, "").expect("it runs");
        if time == 1 {
            println!("{found:?}\n{}", found.verdict());
        }
        assert_eq!(objects.list("", "").expect("a list").entries, [], "it is left empty");
        assert_eq!(found.is_fine(), !careless, "probe {time}: {}", found.verdict());
    }
}
