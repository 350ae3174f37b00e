//! Runs random commands on keys of every type and compares them with a model. Keys have deadlines
//! on a clock that the test advances. The commands run in transactions that commit or are rolled
//! back, in `EXEC`, and across flushes, snapshots and power cuts. After each history the dictionary
//! of types must be consistent: each collection has as many elements as its counter says, each
//! deadline has its entry in the order, and no tuple is orphaned. In two thirds of the histories
//! strings of more than three bytes are stored in pages, at once or after the first change of a
//! part. `KVFS_SEEDS=n` runs n seeds, `KVFS_SEED_BASE=n` sets the first seed.

#[path = "types_model/sorting.rs"]
mod sorting;

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use crate::served::{Served, serve_db, show};
use env::{Env, Random, Simulated};
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvdb_server::{Client, Limits, Reply, ServerOptions};
use zones::CrashDevice;

#[derive(Clone, Debug, PartialEq)]
enum Value {
    String(String),
    Hash(BTreeMap<String, String>),
    Set(BTreeSet<String>),
    Sorted(BTreeMap<String, i64>),
    List(VecDeque<String>),
}

impl Value {
    fn name(&self) -> &'static str {
        match self {
            Value::String(_) => "string",
            Value::Hash(_) => "hash",
            Value::Set(_) => "set",
            Value::Sorted(_) => "zset",
            Value::List(_) => "list",
        }
    }
    fn is_empty(&self) -> bool {
        !matches!(self, Value::String(_)) && self.len() == 0
    }
    /// Elements of a collection.
    fn len(&self) -> i64 {
        let len = match self {
            Value::String(_) => 0,
            Value::Hash(fields) => fields.len(),
            Value::Set(members) => members.len(),
            Value::Sorted(members) => members.len(),
            Value::List(elements) => elements.len(),
        };
        len as i64
    }
}

/// Value and deadline by key.
type Model = BTreeMap<String, (Value, Option<u64>)>;

const WRONGTYPE: &str = "(error) WRONGTYPE Operation against a key holding the wrong kind of value";

/// The value of a key in the form on which the command works. It is created if it does not exist.
macro_rules! entry {
    ($model:expr, $key:expr, $kind:ident) => {
        match &mut $model
            .entry($key.clone())
            .or_insert_with(|| (Value::$kind(Default::default()), None))
            .0
        {
            Value::$kind(value) => value,
            _ => return WRONGTYPE.into(),
        }
    };
}

/// The reply of a command, which changes the model.
fn apply(model: &mut Model, words: &[String], now: u64) -> String {
    model.retain(|_, (_, deadline)| deadline.is_none_or(|at| at >= now));
    let reply = apply_alive(model, words, now);
    // A collection without elements does not exist.
    model.retain(|_, (value, _)| !value.is_empty());
    reply
}

fn apply_alive(model: &mut Model, words: &[String], now: u64) -> String {
    let integer = |n: i64| format!("(integer) {n}");
    let bulk = |s: Option<&String>| s.map_or("(nil)".into(), |s| format!("\"{s}\""));
    let list = |all: Vec<String>| format!("[{}]", all.join(" "));
    let key = words.get(1).cloned().unwrap_or_default();
    let word = |i: usize| words[i].clone();
    let new_string = |model: &mut Model, value: String, deadline| {
        model.insert(key.clone(), (Value::String(value), deadline));
    };
    match words[0].as_str() {
        "SET" => {
            let deadline = words.get(4).map(|ms| now + ms.parse::<u64>().expect("millis"));
            new_string(model, word(2), deadline);
            "OK".into()
        }
        "GET" => match model.get(&key) {
            None => bulk(None),
            Some((Value::String(value), _)) => bulk(Some(value)),
            Some(_) => WRONGTYPE.into(),
        },
        "APPEND" => {
            let value = entry!(model, key, String);
            value.push_str(&words[2]);
            integer(value.len() as i64)
        }
        "DEL" => {
            integer(words[1..].iter().filter(|key| model.remove(*key).is_some()).count() as i64)
        }
        "TYPE" => model.get(&key).map_or("none", |(value, _)| value.name()).into(),
        "PEXPIRE" => match model.get_mut(&key) {
            None => integer(0),
            Some((_, deadline)) => {
                *deadline = Some(now + words[2].parse::<u64>().expect("millis"));
                integer(1)
            }
        },
        "PERSIST" => {
            let old = model.get_mut(&key).and_then(|(_, deadline)| deadline.take());
            integer(i64::from(old.is_some()))
        }
        "PTTL" => integer(match model.get(&key) {
            None => -2,
            Some((_, None)) => -1,
            Some((_, Some(at))) => (at - now) as i64,
        }),
        "RENAME" => match model.get(&key).cloned() {
            None => "(error) ERR no such key".into(),
            Some(value) => {
                model.remove(&key);
                model.insert(word(2), value);
                "OK".into()
            }
        },
        "COPY" => match model.get(&key).cloned() {
            Some(_) if key == words[2] => {
                "(error) ERR source and destination objects are the same".into()
            }
            None if key == words[2] => {
                "(error) ERR source and destination objects are the same".into()
            }
            None => integer(0),
            Some(value) => {
                model.insert(word(2), value);
                integer(1)
            }
        },
        "KEYS" => list(model.keys().map(|key| format!("\"{key}\"")).collect()),
        "DBSIZE" => integer(model.len() as i64),
        "DELPREFIX" => {
            model.retain(|other, _| !other.starts_with(&key));
            "OK".into()
        }
        "HSET" => {
            let fields = entry!(model, key, Hash);
            let old = fields.len();
            for pair in words[2..].chunks(2) {
                fields.insert(pair[0].clone(), pair[1].clone());
            }
            integer((fields.len() - old) as i64)
        }
        "HDEL" => {
            let fields = entry!(model, key, Hash);
            integer(words[2..].iter().filter(|f| fields.remove(*f).is_some()).count() as i64)
        }
        "HINCRBY" => {
            let by: i64 = words[3].parse().expect("a number");
            let fields = entry!(model, key, Hash);
            match fields.get(&words[2]).map_or(Ok(0), |old| old.parse::<i64>()) {
                Err(_) => "(error) ERR hash value is not an integer".into(),
                Ok(old) => {
                    fields.insert(word(2), (old + by).to_string());
                    integer(old + by)
                }
            }
        }
        "HGETALL" => {
            let fields = entry!(model, key, Hash);
            list(
                fields.iter().flat_map(|(f, v)| [format!("\"{f}\""), format!("\"{v}\"")]).collect(),
            )
        }
        "HLEN" => integer(entry!(model, key, Hash).len() as i64),
        "SADD" => {
            let members = entry!(model, key, Set);
            integer(words[2..].iter().filter(|m| members.insert((*m).clone())).count() as i64)
        }
        "SREM" => {
            let members = entry!(model, key, Set);
            integer(words[2..].iter().filter(|m| members.remove(*m)).count() as i64)
        }
        "SMEMBERS" => {
            list(entry!(model, key, Set).iter().map(|member| format!("\"{member}\"")).collect())
        }
        "SCARD" => integer(entry!(model, key, Set).len() as i64),
        "ZADD" => {
            let members = entry!(model, key, Sorted);
            let old = members.len();
            members.insert(word(3), words[2].parse().expect("a score"));
            integer((members.len() - old) as i64)
        }
        "ZREM" => {
            let members = entry!(model, key, Sorted);
            integer(words[2..].iter().filter(|m| members.remove(*m).is_some()).count() as i64)
        }
        "ZCARD" => integer(entry!(model, key, Sorted).len() as i64),
        "ZRANGE" => {
            let mut all: Vec<_> =
                entry!(model, key, Sorted).iter().map(|(m, s)| (*s, m.clone())).collect();
            all.sort();
            list(all.iter().flat_map(|(s, m)| [format!("\"{m}\""), format!("\"{s}\"")]).collect())
        }
        "LPUSH" | "RPUSH" => {
            let elements = entry!(model, key, List);
            for element in &words[2..] {
                match words[0].as_str() {
                    "LPUSH" => elements.push_front(element.clone()),
                    _ => elements.push_back(element.clone()),
                }
            }
            integer(elements.len() as i64)
        }
        "LPOP" => bulk(entry!(model, key, List).pop_front().as_ref()),
        "RPOP" => bulk(entry!(model, key, List).pop_back().as_ref()),
        "BLPOP" | "BZPOPMAX" => {
            for key in &words[1..words.len() - 1] {
                match (model.get_mut(key), words[0].as_str()) {
                    (None, _) => {}
                    (Some((Value::List(elements), _)), "BLPOP") => {
                        let first = elements.pop_front();
                        return list(vec![format!("\"{key}\""), bulk(first.as_ref())]);
                    }
                    (Some((Value::Sorted(members), _)), "BZPOPMAX") => {
                        let last = members.iter().max_by_key(|(m, s)| (**s, (*m).clone()));
                        let (m, s) = last.map(|(m, s)| (m.clone(), *s)).expect("it has one");
                        members.remove(&m);
                        return format!("[\"{key}\" \"{m}\" \"{s}\"]");
                    }
                    _ => return WRONGTYPE.into(),
                }
            }
            bulk(None)
        }
        "BLMOVE" => {
            let (Value::List(source), _) = (match model.get(&key) {
                None => return bulk(None),
                Some(found) => found,
            }) else {
                return WRONGTYPE.into();
            };
            let first = source.front().cloned().expect("it has one");
            if !matches!(model.get(&words[2]), None | Some((Value::List(_), _))) {
                return WRONGTYPE.into();
            }
            entry!(model, key, List).pop_front();
            entry!(model, words[2], List).push_back(first.clone());
            bulk(Some(&first))
        }
        "ZMPOP" => {
            for key in &words[2..4] {
                let members = match model.get_mut(key) {
                    None => continue,
                    Some((Value::Sorted(members), _)) => members,
                    Some(_) => return WRONGTYPE.into(),
                };
                let mut all: Vec<_> = members.iter().map(|(m, s)| (*s, m.clone())).collect();
                all.sort();
                all.truncate(2);
                all.iter().for_each(|(_, m)| {
                    members.remove(m);
                });
                let all = all.iter().map(|(s, m)| format!("[\"{m}\" \"{s}\"]")).collect();
                return format!("[\"{key}\" {}]", list(all));
            }
            bulk(None)
        }
        "LINSERT" => {
            let elements = entry!(model, key, List);
            if elements.is_empty() {
                return integer(0);
            }
            match elements.iter().position(|element| *element == words[3]) {
                None => integer(-1),
                Some(at) => {
                    let at = if words[2] == "AFTER" { at + 1 } else { at };
                    elements.insert(at, word(4));
                    integer(elements.len() as i64)
                }
            }
        }
        "LREM" => {
            let elements = entry!(model, key, List);
            let old = elements.len();
            elements.retain(|element| *element != words[3]);
            integer((old - elements.len()) as i64)
        }
        "LTRIM" => {
            let elements = entry!(model, key, List);
            let from: usize = words[2].parse().expect("an index");
            let to: usize = words[3].parse().expect("an index");
            *elements =
                elements.iter().skip(from).take((to + 1).saturating_sub(from)).cloned().collect();
            "OK".into()
        }
        "LRANGE" => {
            list(entry!(model, key, List).iter().map(|element| format!("\"{element}\"")).collect())
        }
        "SORT" | "SORT_RO" => sorting::sort(model, words),
        other => panic!("the model does not know {other}"),
    }
}

fn command(r: &mut Random) -> Vec<String> {
    let mut text = String::new();
    let kind = r.below(38);
    let key = |r: &mut Random| format!("k{}", r.below(8));
    // Some elements have the names of keys, which `SORT` looks up.
    let name = |r: &mut Random| format!("{}{}", if r.one_in(4) { "k" } else { "e" }, r.below(6));
    let (k, other) = (key(r), key(r));
    let (a, b) = (name(r), name(r));
    let n = r.below(20) as i64 - 10;
    text.push_str(&match kind {
        0 => format!("SET {k} {a}"),
        1 => format!("SET {k} {a} PX {}", r.below(50) + 1),
        2 => format!("GET {k}"),
        3 => format!("APPEND {k} {a}"),
        4 | 5 => format!("DEL {k} {other}"),
        6 => format!("TYPE {k}"),
        7 | 8 => format!("PEXPIRE {k} {}", r.below(60) + 1),
        9 => format!("PERSIST {k}"),
        10 => format!("PTTL {k}"),
        11 => format!("RENAME {k} {other}"),
        12 => format!("COPY {k} {other} REPLACE"),
        13 => "KEYS *".into(),
        14 => "DBSIZE".into(),
        15 if r.one_in(4) => format!("DELPREFIX {}", if r.one_in(2) { "k" } else { "k1" }),
        15 | 16 => format!("HSET {k} {a} {n} {b} {n}"),
        17 => format!("HDEL {k} {a} {b}"),
        18 => format!("HINCRBY {k} {a} {n}"),
        19 => format!("HGETALL {k}"),
        20 => format!("HLEN {k}"),
        21 => format!("SADD {k} {a} {b}"),
        22 => format!("SREM {k} {a} {b}"),
        23 => format!("SMEMBERS {k}"),
        24 => format!("ZADD {k} {n} {a}"),
        25 => format!("ZREM {k} {a}"),
        26 => format!("ZRANGE {k} 0 -1 WITHSCORES"),
        27 => format!("{} {k} {a} {b}", if r.one_in(2) { "LPUSH" } else { "RPUSH" }),
        28 => format!("{} {k}", if r.one_in(2) { "LPOP" } else { "RPOP" }),
        29 => format!("LRANGE {k} 0 -1"),
        30 => format!("LINSERT {k} {} {a} {b}", if r.one_in(2) { "BEFORE" } else { "AFTER" }),
        // The wait for elements is short, since there may be none.
        32 => format!("BLPOP {k} {other} 0.001"),
        33 => format!("BLMOVE {k} {other} LEFT RIGHT 0.001"),
        34 if r.one_in(2) => format!("ZMPOP 2 {k} {other} MIN COUNT 2"),
        34 => format!("BZPOPMAX {k} {other} 0.001"),
        35 | 36 => sorting::command(r, &k, &other),
        31 => format!("LREM {k} 0 {a}"),
        _ => format!("LTRIM {k} {} {}", r.below(2), r.below(4)),
    });
    text.split(' ').map(String::from).collect()
}

/// The numbers of a list's elements, and the bounds at both ends.
type Numbers = (BTreeSet<u64>, [Option<u64>; 2]);

/// Checks the dictionary of types, and returns the number of its tuples.
fn check(db: &Kvdb) -> usize {
    let Some(types) = db.dictionary(":types:0") else { return 0 };
    let strings = db.dictionary("0").expect("made before");
    let view = db.view();
    let all = view.scan(types, b"", b"", 1 << 20).expect("read");
    let (mut ids, mut deadlines) = (BTreeMap::new(), BTreeSet::new());
    let (mut keys, mut owners) = (BTreeMap::new(), BTreeMap::new());
    let mut pages: BTreeSet<Vec<u8>> = BTreeSet::new();
    let mut counted: BTreeMap<Vec<u8>, (i64, i64, i64)> = BTreeMap::new();
    let mut numbers: BTreeMap<Vec<u8>, Numbers> = BTreeMap::new();
    let number = |bytes: &[u8]| u64::from_be_bytes(bytes.try_into().expect("8 bytes"));
    for (key, value) in &all {
        match key[0] {
            b'k' => {
                let deadline = u64::from_be_bytes(value[2..10].try_into().expect("8 bytes"));
                if value[1] == 0 {
                    assert!(deadline > 0, "a string has a head for its deadline alone");
                    assert!(view.get(strings, &key[1..]).expect("read").is_some());
                } else {
                    let id = value[10..18].to_vec();
                    if value[1] == 5 {
                        assert!(pages.insert(id), "two keys have the same pages");
                    } else {
                        let old = ids.insert(id.clone(), value[1]);
                        assert_eq!(old, None, "two keys have one collection");
                        keys.insert(id, key[1..].to_vec());
                    }
                    assert_eq!(view.get(strings, &key[1..]).expect("read"), None);
                }
                if deadline > 0 {
                    deadlines.insert([&deadline.to_be_bytes(), &key[1..]].concat());
                }
            }
            b'e' => {
                let entry = counted.entry(key[1..9].to_vec()).or_default();
                match key[9] {
                    0 => entry.0 = String::from_utf8_lossy(value).parse().expect("a length"),
                    1 => {
                        entry.1 += 1;
                        if ids.get(&key[1..9]) == Some(&4) {
                            numbers
                                .entry(key[1..9].to_vec())
                                .or_default()
                                .0
                                .insert(number(&key[10..]));
                        }
                    }
                    2 => entry.2 += 1,
                    3 => drop(owners.insert(key[1..9].to_vec(), value.to_vec())),
                    4 => {
                        let bounds = &mut numbers.entry(key[1..9].to_vec()).or_default().1;
                        bounds[usize::from(key[10])] = Some(number(value));
                    }
                    part => panic!("part {part} of a collection"),
                }
            }
            // Heads come first.
            b'p' => assert!(pages.contains(&key[1..9]), "a page is left over"),
            b't' => {}
            other => panic!("a tuple of kind {other}"),
        }
    }
    for (id, (count, elements, ordered)) in &counted {
        let kind = ids.get(id).unwrap_or_else(|| panic!("the elements of {id:?} are left over"));
        assert_eq!(count, elements, "the length of {id:?}");
        assert_eq!(*ordered, if *kind == 3 { *elements } else { 0 }, "the order of {id:?}");
    }
    for (id, (numbers, bounds)) in &numbers {
        let [Some(left), Some(right)] = *bounds else { panic!("bounds {bounds:?} of {id:?}") };
        assert_eq!(ids.get(id), Some(&4), "only lists have bounds");
        assert!(
            numbers.iter().all(|n| (left..=right).contains(n)),
            "beyond {bounds:?}: {numbers:?}"
        );
    }
    assert_eq!(ids.len(), counted.len(), "a collection without elements");
    assert_eq!(keys, owners, "the keys of collections");
    let order: BTreeSet<Vec<u8>> =
        all.iter().filter(|(key, _)| key[0] == b't').map(|(key, _)| key[1..].to_vec()).collect();
    for deadline in &deadlines {
        assert!(order.contains(deadline), "a deadline is not in its order");
    }
    all.len()
}

/// The description of a key in a review.
#[derive(Clone, Debug, Default)]
struct Told {
    string: bool,
    types: Option<(Option<String>, Option<String>)>,
    /// Added, removed, changed.
    elements: Option<[i64; 3]>,
    deadline: Option<(Option<u64>, Option<u64>)>,
}

fn text(reply: &Reply) -> Option<String> {
    match reply {
        Reply::Bulk(text) => Some(String::from_utf8_lossy(text).into_owned()),
        _ => None,
    }
}

fn number<T: TryFrom<i64>>(reply: &Reply) -> Option<T> {
    match reply {
        Reply::Integer(n) => T::try_from(*n).ok(),
        _ => None,
    }
}

struct World {
    clock: Arc<Simulated>,
    device: Arc<CrashDevice>,
    db: Kvdb,
    served: Served,
    client: Client,
    limits: Limits,
    model: Model,
}

fn open_options() -> OpenOptions {
    OpenOptions { memory: 4 << 20, zero_journal: false, ..OpenOptions::default() }
}

fn serve(db: &Kvdb, limits: &Limits) -> (Served, Client) {
    let limits = limits.clone();
    let served = serve_db(db.clone(), ServerOptions { limits, ..ServerOptions::default() });
    let mut client = Client::connect(&served.path).expect("connected");
    // Expired keys are removed only at steps of the history.
    let done = client.call(&[b"DEBUG", b"SET-ACTIVE-EXPIRE", b"0"]).expect("a reply");
    assert_eq!(show(&done), "OK");
    (served, client)
}

impl World {
    fn now(&self) -> u64 {
        self.clock.wall().as_millis() as u64
    }
    fn call(&mut self, words: &[String]) -> String {
        let bytes: Vec<&[u8]> = words.iter().map(|word| word.as_bytes()).collect();
        let reply = self.client.call(&bytes).expect("a reply");
        // Empty answers of all forms count as equal.
        if reply == Reply::Array(vec![]) { "[]".into() } else { show(&reply) }
    }
    fn say(&mut self, text: &str) -> String {
        let words: Vec<String> = text.split(' ').map(String::from).collect();
        self.call(&words)
    }
    /// Runs a command on both.
    fn both(&mut self, words: &[String]) {
        let now = self.now();
        let got = self.call(words);
        let want = apply(&mut self.model, words, now);
        assert_eq!(got, want, "{words:?}");
    }
    /// Puts the content of a key under another key, or the same one.
    fn restore(&mut self, r: &mut Random) {
        let [from, to] = [r.below(8), r.below(8)].map(|n| format!("k{n}"));
        let (now, ms) = (self.now(), r.below(3) * 20);
        self.model.retain(|_, (_, deadline)| deadline.is_none_or(|at| at >= now));
        let dumped = self.client.call(&[b"DUMP", from.as_bytes()]).expect("a reply");
        let (payload, value) = match (&dumped, self.model.get(&from)) {
            (Reply::Null, None) => return,
            (Reply::Bulk(payload), Some((value, _))) => (payload, value.clone()),
            (reply, model) => panic!("DUMP {from}: {} {model:?}", show(reply)),
        };
        let ttl = ms.to_string();
        let mut words: Vec<&[u8]> = vec![b"RESTORE", to.as_bytes(), ttl.as_bytes(), payload];
        let replace = r.one_in(2);
        words.extend(replace.then_some(&b"REPLACE"[..]));
        let done = show(&self.client.call(&words).expect("a reply"));
        if !replace && self.model.contains_key(&to) {
            assert_eq!(done, "(error) BUSYKEY Target key name already exists.");
            return;
        }
        assert_eq!(done, "OK", "RESTORE {to} {ttl}");
        self.model.insert(to, (value, (ms > 0).then_some(now + ms)));
    }
    fn exec(&mut self, r: &mut Random) {
        assert_eq!(self.say("MULTI"), "OK");
        let now = self.now();
        let mut want = Vec::new();
        for _ in 0..r.below(6) + 1 {
            let words = command(r);
            assert_eq!(self.call(&words), "QUEUED");
            want.push(apply(&mut self.model, &words, now));
        }
        assert_eq!(self.say("EXEC"), format!("[{}]", want.join(" ")));
    }
    fn transaction(&mut self, r: &mut Random) {
        // Expired keys that are still stored are in the review, and not in the model.
        let reviewed = r.one_in(2);
        while reviewed && self.say("DEBUG SWEEP") != "(integer) 0" {}
        let now = self.now();
        self.model.retain(|_, (_, deadline)| deadline.is_none_or(|at| at >= now));
        let isolation = if r.one_in(2) { "SI" } else { "SER" };
        let id = self.say(&format!("TXN BEGIN {isolation}"));
        let id = id.trim_start_matches("(integer) ").to_string();
        let before = self.model.clone();
        assert_eq!(self.say(&format!("TXN JOIN {id}")), "OK");
        for part in 0..2 {
            for _ in 0..r.below(8) {
                match r.below(7) {
                    0 => self.exec(r),
                    1 => self.restore(r),
                    _ => self.both(&command(r)),
                }
            }
            if part == 0 && r.one_in(2) {
                assert_eq!(self.say("TXN SAVEPOINT s"), "OK");
                let here = self.model.clone();
                for _ in 0..r.below(6) {
                    self.both(&command(r));
                }
                assert_eq!(self.say("TXN ROLLBACK s"), "OK");
                self.model = here;
            }
        }
        if reviewed {
            self.reviewed("TXN CHANGES BEFORE FIELDS", &before);
            for _ in 0..r.below(4) {
                let key = format!("k{}", r.below(8));
                assert_eq!(self.say(&format!("TXN REVERT KEY {key}")), "OK");
                match before.get(&key) {
                    Some(old) => drop(self.model.insert(key, old.clone())),
                    None => drop(self.model.remove(&key)),
                }
                self.reviewed("TXN CHANGES BEFORE FIELDS", &before);
            }
        }
        if r.one_in(3) {
            assert_eq!(self.say("TXN ABORT"), "OK");
            self.model = before;
        } else {
            assert_eq!(self.say("TXN COMMIT"), "OK");
        }
        assert_eq!(self.say("TXN LEAVE"), "OK");
    }
    fn snapshot(&mut self, r: &mut Random) {
        while self.say("DEBUG SWEEP") != "(integer) 0" {}
        assert_eq!(self.say("SNAPSHOT CREATE s"), "OK");
        let then = self.now();
        self.model.retain(|_, (_, deadline)| deadline.is_none_or(|at| at >= then));
        let before = self.model.clone();
        for _ in 0..r.below(10) {
            self.both(&command(r));
        }
        self.reviewed("SNAPSHOT CHANGES s FIELDS", &before);
        self.clock.advance(Duration::from_millis(r.below(40)));
        // The snapshot still has what it had, at the time that it had.
        for _ in 0..5 {
            let words = command(r);
            if ![
                "GET", "TYPE", "PTTL", "KEYS", "DBSIZE", "HGETALL", "HLEN", "SMEMBERS", "ZRANGE",
                "LRANGE", "SORT_RO",
            ]
            .contains(&words[0].as_str())
            {
                continue;
            }
            let want = apply(&mut before.clone(), &words, then);
            assert_eq!(self.say(&format!("SNAPSHOT USE s {}", words.join(" "))), want, "{words:?}");
        }
        if r.one_in(2) {
            assert_eq!(self.say("SNAPSHOT ROLLBACK s"), "OK");
            self.model = before;
        }
        assert_eq!(self.say("SNAPSHOT DROP s"), "OK");
    }
    /// Compares the review with the differences of the model from its earlier state.
    fn reviewed(&mut self, command: &str, before: &Model) {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let reply = self.client.call(&words).expect("a reply");
        let Reply::Array(rows) = &reply else { panic!("{}", show(&reply)) };
        let of_transaction = command.starts_with("TXN");
        let mut told: BTreeMap<String, Told> = BTreeMap::new();
        for row in rows {
            let Reply::Array(row) = row else { panic!("{}", show(row)) };
            let (what, key) = match of_transaction {
                true => (text(&row[1]), text(&row[2])),
                false => (text(&row[2]), text(&row[1])),
            };
            if what.as_deref() == Some("delete-range") {
                continue;
            }
            let told = told.entry(key.expect("a key")).or_default();
            match what.as_deref() {
                Some("type") => {
                    told.types = Some((text(&row[3]), text(&row[4])));
                    let counts = [&row[5], &row[6], &row[7]].map(number);
                    told.elements = Some(counts.map(|n| n.expect("a number")));
                    let Reply::Array(fields) = &row[8] else { panic!("{}", show(&row[8])) };
                    let counted = |side: fn(bool, bool) -> bool| {
                        let of = |field: &&Reply| {
                            let Reply::Array(field) = field else { panic!("{}", show(field)) };
                            side(field[1] != Reply::Null, field[2] != Reply::Null)
                        };
                        fields.iter().filter(of).count() as i64
                    };
                    let listed =
                        [counted(|b, a| !b && a), counted(|b, a| b && !a), counted(|b, a| b && a)];
                    assert_eq!(listed, told.elements.expect("set above"), "{}", show(&reply));
                }
                Some("deadline") => told.deadline = Some((number(&row[3]), number(&row[4]))),
                _ => told.string = true,
            }
        }
        let keys: BTreeSet<&String> = before.keys().chain(self.model.keys()).collect();
        for key in keys {
            let (old, new) = (before.get(key), self.model.get(key));
            let told = told.get(key).cloned().unwrap_or_default();
            let all = || format!("{key}: {old:?} {new:?} in {}", show(&reply));
            let differs = old.map(|old| &old.0) != new.map(|new| &new.0);
            let name = |side: Option<&(Value, Option<u64>)>| side.map(|s| s.0.name().to_string());
            let is_string = |side: Option<&(Value, Option<u64>)>| {
                side.is_none_or(|s| matches!(s.0, Value::String(_)))
            };
            if !is_string(old) || !is_string(new) {
                assert!(!differs || told.types.is_some(), "a collection: {}", all());
            } else {
                assert_eq!(told.types, None, "{}", all());
                let by_range = new.is_none() && show(&reply).contains("delete-range");
                assert!(!differs || told.string || by_range, "a string: {}", all());
            }
            if let (Some(types), Some(elements)) = (told.types, told.elements) {
                assert_eq!(types, (name(old), name(new)), "{}", all());
                let len = |side: Option<&(Value, _)>| side.map_or(0, |side| side.0.len());
                assert_eq!(elements[0] - elements[1], len(new) - len(old), "{}", all());
            }
            let deadline = |side: Option<&(Value, Option<u64>)>| side.and_then(|side| side.1);
            let moved = new.is_some() && deadline(old) != deadline(new);
            let want = moved.then(|| (deadline(old), deadline(new)));
            assert_eq!(told.deadline, want, "a deadline: {}", all());
        }
    }
    /// Cuts the power; some of the last commands may be lost, and their keys are looked up again.
    fn cut(&mut self, r: &mut Random) {
        if r.one_in(2) {
            assert_eq!(self.say("SYNC"), "OK");
            let kept = self.model.clone();
            self.reopen(r);
            self.model = kept;
        } else {
            self.reopen(r);
            self.model.clear();
            assert_eq!(self.say("FLUSHALL"), "OK");
        }
    }
    fn reopen(&mut self, r: &mut Random) {
        let image = self.device.crash(r.number());
        self.device = Arc::new(CrashDevice::over(image));
        self.db =
            Kvdb::open(self.device.clone(), self.clock.clone(), open_options()).expect("opens").0;
        (self.served, self.client) = serve(&self.db, &self.limits);
        check(&self.db);
    }
}

fn history(seed: u64) {
    let mut r = Random::new(seed);
    let clock = Arc::new(Simulated::new(seed));
    let device = Arc::new(CrashDevice::new());
    let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
    let db = Kvdb::create(device.clone(), clock.clone(), options).expect("a store");
    let (tuple, patched) =
        [(3, 16 << 10), (256 << 10, 3), (256 << 10, 16 << 10)][r.below(3) as usize];
    let limits = Limits { tuple, patched, ..Limits::default() };
    let (served, client) = serve(&db, &limits);
    let mut world = World { clock, device, db, served, client, limits, model: Model::new() };
    for _ in 0..r.below(40) + 20 {
        match r.below(20) {
            0 => world.clock.advance(Duration::from_millis(r.below(30))),
            1 => world.exec(&mut r),
            2 => world.transaction(&mut r),
            3 => drop(world.say("DEBUG SWEEP 3")),
            4 => world.db.flush().expect("flushed"),
            5 if r.one_in(3) => world.snapshot(&mut r),
            6 if r.one_in(3) => world.cut(&mut r),
            7 => drop(check(&world.db)),
            8 => world.restore(&mut r),
            _ => (0..4).for_each(|_| world.both(&command(&mut r))),
        }
    }
    check(&world.db);
    // In the end everything expires, or is deleted, and nothing is left.
    world.clock.advance(Duration::from_secs(1));
    while world.say("DEBUG SWEEP") != "(integer) 0" {}
    world.both(&["KEYS".into(), "*".into()]);
    let keys: Vec<String> = world.model.keys().cloned().collect();
    for key in keys {
        world.both(&["DEL".into(), key]);
    }
    while world.say("DEBUG SWEEP") != "(integer) 0" {}
    assert_eq!(check(&world.db), 0, "left over");
}

#[test]
fn keys_of_every_type_do_as_the_model() {
    let number = |name: &str| std::env::var(name).ok().and_then(|value| value.parse::<u64>().ok());
    let base = number("KVFS_SEED_BASE").unwrap_or(0);
    for seed in base..base + number("KVFS_SEEDS").unwrap_or(150) {
        let done = std::panic::catch_unwind(|| history(seed));
        if let Err(panic) = done {
            eprintln!("KVFS_SEEDS=1 KVFS_SEED_BASE={seed} shows it again");
            std::panic::resume_unwind(panic);
        }
    }
}
