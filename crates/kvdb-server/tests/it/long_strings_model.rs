//! Runs random commands on strings of every length and compares them with plain vectors of bytes.
//! The commands run in transactions that commit or are rolled back, in `EXEC`, and across flushes,
//! merges, snapshots and power cuts. After each history no page is orphaned, and no page extends
//! past the end of its string. `KVFS_SEEDS=n` runs n seeds, `KVFS_SEED_BASE=n` sets the first seed.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use crate::served::{Served, serve_db};
use env::{Random, Simulated};
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvdb_server::{Client, Limits, Reply, ServerOptions};
use zones::CrashDevice;

type Model = BTreeMap<String, Vec<u8>>;
type Words = Vec<Vec<u8>>;

const PAGE: u64 = 4096;

fn ok() -> Reply {
    Reply::Status("OK".into())
}

fn key(r: &mut Random) -> String {
    ["a", "b", "c"][r.below(3) as usize].into()
}

fn bytes(r: &mut Random) -> Vec<u8> {
    let len = match r.below(6) {
        0 | 1 => r.below(20),
        2 => r.below(1500),
        3 => 4090 + r.below(12),
        4 => r.below(9000),
        _ => r.below(30_000),
    };
    let first = r.below(256) as u8;
    (0..len).map(|i| first.wrapping_add((i % 251) as u8)).collect()
}

fn place(r: &mut Random) -> u64 {
    match r.below(4) {
        0 => r.below(10),
        1 => r.below(15) * PAGE + r.below(5),
        2 => r.below(9000),
        _ => r.below(60_000),
    }
}

/// Applies a command to the model. Returns the expected reply.
fn command(r: &mut Random, model: &mut Model) -> (Words, Reply) {
    let k = key(r);
    let name = k.clone().into_bytes();
    let value = model.get(&k).cloned();
    let len = value.as_ref().map_or(0, Vec::len);
    let count = |n: usize| Reply::Integer(n as i64);
    let bulk = |value: Option<Vec<u8>>| value.map_or(Reply::Null, Reply::Bulk);
    let word = |text: &str| text.as_bytes().to_vec();
    match r.below(14) {
        0 | 1 => {
            let new = bytes(r);
            model.insert(k, new.clone());
            (vec![word("SET"), name, new], ok())
        }
        2 | 3 => {
            let more = bytes(r);
            model.entry(k).or_default().extend_from_slice(&more);
            (vec![word("APPEND"), name, more.clone()], count(len + more.len()))
        }
        4..=6 => {
            let (at, patch) = (place(r), bytes(r));
            let end = at as usize + patch.len();
            if !patch.is_empty() {
                let value = model.entry(k).or_default();
                value.resize(len.max(end), 0);
                value[at as usize..end].copy_from_slice(&patch);
            }
            let new = if patch.is_empty() { len } else { len.max(end) };
            (vec![word("SETRANGE"), name, word(&at.to_string()), patch], count(new))
        }
        7 | 8 => {
            let (from, to) = (place(r) as usize, place(r) as usize);
            let end = (to + 1).min(len);
            let part = value.map_or(Vec::new(), |v| v.get(from..end).unwrap_or_default().to_vec());
            let words = [word("GETRANGE"), name, word(&from.to_string()), word(&to.to_string())];
            (words.into(), Reply::Bulk(part))
        }
        9 => (vec![word("GET"), name], bulk(value)),
        10 => (vec![word("STRLEN"), name], count(len)),
        11 => {
            let to = key(r);
            let done = value.is_some() && to != k;
            if done {
                model.insert(to.clone(), value.unwrap_or_default());
            }
            let reply = match to == k {
                true => Reply::Error("ERR source and destination objects are the same".into()),
                false => Reply::Integer(i64::from(done)),
            };
            (vec![word("COPY"), name, to.into_bytes(), word("REPLACE")], reply)
        }
        12 => {
            let to = key(r);
            let reply = match model.remove(&k) {
                None => Reply::Error("ERR no such key".into()),
                Some(value) => {
                    model.insert(to.clone(), value);
                    ok()
                }
            };
            (vec![word("RENAME"), name, to.into_bytes()], reply)
        }
        _ if r.one_in(2) => {
            model.remove(&k);
            (vec![word("DEL"), name], count(usize::from(value.is_some())))
        }
        _ => {
            let (at, bit) = (place(r) as usize, r.below(2) as u8);
            let value = model.entry(k).or_default();
            value.resize(len.max(at / 8 + 1), 0);
            let (byte, mask) = (&mut value[at / 8], 0x80 >> (at % 8));
            let old = i64::from(*byte & mask != 0);
            *byte = if bit == 1 { *byte | mask } else { *byte & !mask };
            let (at, bit) = (at.to_string(), bit.to_string());
            (vec![word("SETBIT"), name, word(&at), word(&bit)], Reply::Integer(old))
        }
    }
}

struct World {
    clock: Arc<Simulated>,
    device: Arc<CrashDevice>,
    served: Served,
    client: Client,
    limits: Limits,
    model: Model,
}

fn open_options() -> OpenOptions {
    OpenOptions { memory: 4 << 20, zero_journal: false, ..OpenOptions::default() }
}

fn serve(db: Kvdb, limits: &Limits) -> (Served, Client) {
    let served = serve_db(db, ServerOptions { limits: limits.clone(), ..Default::default() });
    let client = Client::connect(&served.path).expect("connected");
    (served, client)
}

impl World {
    fn call(&mut self, words: &Words) -> Reply {
        let words: Vec<&[u8]> = words.iter().map(Vec::as_slice).collect();
        self.client.call(&words).expect("a reply")
    }
    fn say(&mut self, text: &str) -> Reply {
        self.call(&text.split(' ').map(|word| word.as_bytes().to_vec()).collect())
    }
    fn tell(&mut self, text: &str) {
        assert_eq!(self.say(text), ok(), "{text}");
    }
    fn step(&mut self, r: &mut Random) {
        let (words, want) = command(r, &mut self.model);
        let got = self.call(&words);
        assert!(got == want, "{}: {}", shown(&words), differs(&got, &want));
    }
    fn exec(&mut self, r: &mut Random) {
        self.tell("MULTI");
        let mut all = Vec::new();
        for _ in 0..r.below(5) + 1 {
            let (words, want) = command(r, &mut self.model);
            assert_eq!(self.call(&words), Reply::Status("QUEUED".into()));
            all.push((words, want));
        }
        let Reply::Array(got) = self.say("EXEC") else { panic!("EXEC did nothing") };
        for (got, (words, want)) in got.iter().zip(all) {
            assert!(*got == want, "{}: {}", shown(&words), differs(got, &want));
        }
    }
    fn transaction(&mut self, r: &mut Random) {
        let how = ["SI", "SER", "DURABLE"][r.below(3) as usize];
        let Reply::Integer(id) = self.say(&format!("TXN BEGIN {how}")) else { panic!("none") };
        let before = self.model.clone();
        self.tell(&format!("TXN JOIN {id}"));
        for part in 0..2 {
            for _ in 0..r.below(6) {
                if r.one_in(5) { self.exec(r) } else { self.step(r) }
            }
            if part == 0 && r.one_in(2) {
                self.tell("TXN SAVEPOINT s");
                let here = self.model.clone();
                (0..r.below(5)).for_each(|_| self.step(r));
                self.tell("TXN ROLLBACK s");
                self.model = here;
            }
        }
        self.reviewed(&before);
        for _ in 0..r.below(4) {
            let key = key(r);
            self.tell(&format!("TXN REVERT KEY {key}"));
            match before.get(&key) {
                Some(old) => drop(self.model.insert(key, old.clone())),
                None => drop(self.model.remove(&key)),
            }
            self.reviewed(&before);
        }
        if r.one_in(3) {
            self.tell("TXN ABORT");
            self.model = before;
        } else {
            self.tell("TXN COMMIT");
        }
        self.tell("TXN LEAVE");
    }
    /// Checks the review: it lists each difference, and may also list keys to which the same bytes
    /// were put again.
    fn reviewed(&mut self, before: &Model) {
        let Reply::Array(listed) = self.say("TXN CHANGES BEFORE") else { panic!("no list") };
        let mut keys = BTreeMap::new();
        for change in listed {
            let Reply::Array(change) = change else { panic!("{change:?}") };
            let [Reply::Bulk(dictionary), Reply::Bulk(what), Reply::Bulk(key), sides @ ..] =
                &change[..]
            else {
                panic!("{change:?}")
            };
            assert_eq!(dictionary, b"0", "{change:?}");
            let sides = match (what.as_slice(), sides) {
                (b"put" | b"update", [new, old]) => [old.clone(), new.clone()],
                (b"delete", [old]) => [old.clone(), Reply::Null],
                _ => panic!("{change:?}"),
            };
            let key = String::from_utf8_lossy(key).into_owned();
            assert!(keys.insert(key, sides).is_none(), "listed twice: {change:?}");
        }
        self.compare(before, &keys);
    }
    fn compare(&self, before: &Model, listed: &BTreeMap<String, [Reply; 2]>) {
        for name in ["a", "b", "c"] {
            let [old, new] = [before.get(name), self.model.get(name)];
            let size = |value: Option<&Vec<u8>>| {
                value.map_or(Reply::Null, |value| Reply::Integer(value.len() as i64))
            };
            match listed.get(name) {
                Some(sizes) => assert_eq!(*sizes, [size(old), size(new)], "{name}"),
                None => assert!(old == new, "{name} is not listed"),
            }
        }
    }
    fn snapshot(&mut self, r: &mut Random) {
        self.tell("SNAPSHOT CREATE s");
        let before = self.model.clone();
        (0..r.below(8)).for_each(|_| self.step(r));
        for name in ["a", "b", "c"] {
            let want = before.get(name).cloned().map_or(Reply::Null, Reply::Bulk);
            let got = self.say(&format!("SNAPSHOT USE s GET {name}"));
            assert!(got == want, "{name} then: {}", differs(&got, &want));
        }
        let Reply::Array(listed) = self.say("SNAPSHOT CHANGES s") else { panic!("no list") };
        let mut keys = BTreeMap::new();
        for change in listed {
            let Reply::Array(change) = change else { panic!("{change:?}") };
            let [Reply::Bulk(dictionary), Reply::Bulk(key), old, new] = &change[..] else {
                panic!("{change:?}")
            };
            assert_eq!(dictionary, b"0", "{change:?}");
            let key = String::from_utf8_lossy(key).into_owned();
            assert!(keys.insert(key, [old.clone(), new.clone()]).is_none(), "listed twice");
        }
        self.compare(&before, &keys);
        if r.one_in(2) {
            self.tell("SNAPSHOT ROLLBACK s");
            self.model = before;
        }
        self.tell("SNAPSHOT DROP s");
    }
    fn cut(&mut self, r: &mut Random) {
        if r.one_in(2) {
            self.tell("SYNC");
        } else {
            // It is not known which steps survive the cut, but each that does is whole.
            self.tell("SYNC");
            let kept = self.model.clone();
            self.step(r);
            self.reopen(r);
            let after = std::mem::replace(&mut self.model, kept.clone());
            for name in ["a", "b", "c"] {
                let got = self.say(&format!("GET {name}"));
                let either = [&kept, &after]
                    .map(|model| model.get(name).cloned().map_or(Reply::Null, Reply::Bulk));
                assert!(either.contains(&got), "{name} is neither as before nor as after");
                match got {
                    Reply::Bulk(value) => drop(self.model.insert(name.into(), value)),
                    _ => drop(self.model.remove(name)),
                }
            }
            return;
        }
        self.reopen(r);
    }
    fn reopen(&mut self, r: &mut Random) {
        let image = self.device.crash(r.number());
        self.device = Arc::new(CrashDevice::over(image));
        let db = Kvdb::open(self.device.clone(), self.clock.clone(), open_options());
        (self.served, self.client) = serve(db.expect("opens").0, &self.limits);
        self.check();
    }
    /// No page is left over, and none reaches beyond the length of its string.
    fn check(&self) {
        let db = &self.served.db;
        let Some(types) = db.dictionary(":types:0") else { return };
        let strings = db.dictionary("0").expect("made before");
        let view = db.view();
        let mut lens: BTreeMap<Vec<u8>, u64> = BTreeMap::new();
        let mut with_pages = BTreeSet::new();
        for (key, value) in view.scan(types, b"", b"", 1 << 20).expect("read") {
            match key[0] {
                b'k' => {
                    assert_eq!((value[0], value[1], value.len()), (2, 5, 34), "the head");
                    assert_eq!(view.get(strings, &key[1..]).expect("read"), None, "two values");
                    let len = u64::from_be_bytes(value[18..26].try_into().expect("8 bytes"));
                    assert_eq!(lens.insert(value[10..18].to_vec(), len), None, "shared pages");
                }
                b'p' => {
                    // Heads come first.
                    let len = *lens.get(&key[1..9]).expect("no page is left over");
                    let number = u64::from_be_bytes(key[9..17].try_into().expect("8 bytes"));
                    assert!(value.len() as u64 <= PAGE);
                    assert!(number * PAGE + value.len() as u64 <= len, "beyond the string");
                    with_pages.insert(key[1..9].to_vec());
                }
                other => panic!("a tuple of kind {other}"),
            }
        }
        assert!(lens.keys().all(|id| with_pages.contains(id)), "a string without pages");
    }
}

fn shown(words: &Words) -> String {
    let short = |word: &Vec<u8>| match word.len() {
        0..=20 => word.escape_ascii().to_string(),
        len => format!("({len} bytes)"),
    };
    words.iter().map(short).collect::<Vec<_>>().join(" ")
}

fn differs(got: &Reply, want: &Reply) -> String {
    match (got, want) {
        (Reply::Bulk(got), Reply::Bulk(want)) => {
            let at = got.iter().zip(want).position(|(a, b)| a != b);
            format!("{} bytes for {}, different from {at:?} on", got.len(), want.len())
        }
        (got, want) => format!("{got:.80?} for {want:.80?}"),
    }
}

fn history(seed: u64) {
    let mut r = Random::new(seed);
    let clock = Arc::new(Simulated::new(seed));
    let device = Arc::new(CrashDevice::new());
    let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), clock.clone(), options).expect("a store");
    let tuple = [10, 4096, 5000, 20_000][r.below(4) as usize];
    let patched = [10, 5000, 16 << 10][r.below(3) as usize];
    let limits = Limits { tuple, patched, reply: 4096, ..Limits::default() };
    let (served, client) = serve(db, &limits);
    let mut world = World { clock, device, served, client, limits, model: Model::new() };
    for _ in 0..r.below(40) + 20 {
        match r.below(20) {
            0 => world.exec(&mut r),
            1 | 2 => world.transaction(&mut r),
            3 => world.served.db.flush().expect("flushed"),
            4 => {
                if let Some(types) = world.served.db.dictionary(":types:0") {
                    world.served.db.compact(types).expect("compacted");
                }
            }
            5 => world.snapshot(&mut r),
            6 if r.one_in(3) => world.cut(&mut r),
            7 => world.check(),
            _ => (0..3).for_each(|_| world.step(&mut r)),
        }
    }
    world.check();
    for name in ["a", "b", "c"] {
        let want = world.model.get(name).cloned().map_or(Reply::Null, Reply::Bulk);
        let got = world.say(&format!("GET {name}"));
        assert!(got == want, "{name} in the end: {}", differs(&got, &want));
        world.say(&format!("DEL {name}"));
    }
    let types = world.served.db.dictionary(":types:0");
    let left = types.map(|types| world.served.db.view().scan(types, b"", b"", 10).expect("read"));
    assert_eq!(left.unwrap_or_default(), [], "left over");
}

#[test]
fn strings_of_every_length_do_as_plain_bytes() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let base = number("KVFS_SEED_BASE").unwrap_or(0);
    for seed in base..base + number("KVFS_SEEDS").unwrap_or(60) {
        let done = std::panic::catch_unwind(|| history(seed));
        if let Err(panic) = done {
            eprintln!("KVFS_SEEDS=1 KVFS_SEED_BASE={seed} shows it again");
            std::panic::resume_unwind(panic);
        }
    }
}
