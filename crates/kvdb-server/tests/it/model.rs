//! Runs random commands and compares them with an ordered map: every reply, and every key at the
//! end. Flushes in between move written data from memory into runs.

use std::collections::BTreeMap;

use kvdb::Kvdb;
use kvdb_server::{Client, Reply};
use proptest::prelude::*;

type Model = BTreeMap<Vec<u8>, Vec<u8>>;

#[derive(Clone, Debug)]
enum Step {
    Set { key: Vec<u8>, value: Vec<u8>, nx: bool, xx: bool, get: bool },
    Get(Vec<u8>),
    GetDel(Vec<u8>),
    Append(Vec<u8>, Vec<u8>),
    SetRange(Vec<u8>, usize, Vec<u8>),
    GetRange(Vec<u8>, i64, i64),
    IncrBy(Vec<u8>, i64),
    MSet(Vec<(Vec<u8>, Vec<u8>)>, bool),
    MGet(Vec<Vec<u8>>),
    Del(Vec<Vec<u8>>),
    Exists(Vec<Vec<u8>>),
    Range { start: Vec<u8>, end: Vec<u8>, backward: bool, limit: usize },
    DelRange(Vec<u8>, Vec<u8>),
    Scan { prefix: Vec<u8>, count: usize },
    FlushDb,
    DbSize,
    Flush,
}

fn key() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => (0u8..12).prop_map(|n| format!("k{n}").into_bytes()),
        2 => prop::collection::vec(prop::sample::select(vec![0u8, b'a', b'k', 0xff]), 0..3),
    ]
}

fn value() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        3 => (-20i64..20).prop_map(|n| n.to_string().into_bytes()),
        3 => prop::collection::vec(any::<u8>(), 0..20),
        1 => (2000usize..9000, any::<u8>()).prop_map(|(len, b)| vec![b; len]),
    ]
}

fn step() -> impl Strategy<Value = Step> {
    let keys = || prop::collection::vec(key(), 1..5);
    prop_oneof![
        6 => (key(), value(), any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(key, value, nx, xx, get)| Step::Set {
            key,
            value,
            nx: nx && !xx,
            xx: xx && !nx,
            get
        }),
        3 => key().prop_map(Step::Get),
        1 => key().prop_map(Step::GetDel),
        2 => (key(), value()).prop_map(|(k, v)| Step::Append(k, v)),
        2 => (key(), 0usize..5000, value()).prop_map(|(k, at, v)| Step::SetRange(k, at, v)),
        1 => (key(), -50i64..50, -50i64..50).prop_map(|(k, a, b)| Step::GetRange(k, a, b)),
        3 => (key(), -5i64..5).prop_map(|(k, n)| Step::IncrBy(k, n)),
        2 => (prop::collection::vec((key(), value()), 1..5), any::<bool>()).prop_map(|(p, nx)| Step::MSet(p, nx)),
        1 => keys().prop_map(Step::MGet),
        2 => keys().prop_map(Step::Del),
        1 => keys().prop_map(Step::Exists),
        3 => (key(), key(), any::<bool>(), 0usize..8).prop_map(|(start, end, backward, limit)| Step::Range { start, end, backward, limit }),
        1 => (key(), key()).prop_map(|(a, b)| Step::DelRange(a, b)),
        1 => (prop_oneof![Just(vec![]), Just(b"k".to_vec()), Just(b"k1".to_vec())], 1usize..5)
            .prop_map(|(prefix, count)| Step::Scan { prefix, count }),
        1 => Just(Step::DbSize),
        1 => Just(Step::Flush),
        1 => prop::bool::weighted(0.2).prop_map(|rarely| if rarely { Step::FlushDb } else { Step::DbSize }),
    ]
}

fn bulk(value: Option<&Vec<u8>>) -> Reply {
    value.map_or(Reply::Null, |v| Reply::Bulk(v.clone()))
}

fn ok() -> Reply {
    Reply::Status("OK".into())
}

/// The keys of `[start, end)`; an empty end is none.
fn within(model: &Model, start: &[u8], end: &[u8]) -> Vec<Vec<u8>> {
    model
        .keys()
        .filter(|k| k.as_slice() >= start && (end.is_empty() || k.as_slice() < end))
        .cloned()
        .collect()
}

struct Run {
    db: Kvdb,
    client: Client,
    model: Model,
}

impl Run {
    fn call(&mut self, words: &[&[u8]]) -> Reply {
        self.client.call(words).expect("a reply")
    }

    fn keys_and_values(&self, keys: &[Vec<u8>]) -> Reply {
        Reply::Array(
            keys.iter()
                .flat_map(|k| [Reply::Bulk(k.clone()), Reply::Bulk(self.model[k].clone())])
                .collect(),
        )
    }

    fn step(&mut self, step: &Step) {
        let (got, want) = match step {
            Step::Set { key, value, nx, xx, get } => {
                let mut words: Vec<&[u8]> = vec![b"SET", key, value];
                words.extend(nx.then_some(b"NX".as_slice()));
                words.extend(xx.then_some(b"XX".as_slice()));
                words.extend(get.then_some(b"GET".as_slice()));
                let got = self.call(&words);
                let old = self.model.get(key).cloned();
                let done = if *nx { old.is_none() } else { !*xx || old.is_some() };
                if done {
                    self.model.insert(key.clone(), value.clone());
                }
                (
                    got,
                    if *get {
                        bulk(old.as_ref())
                    } else if done {
                        ok()
                    } else {
                        Reply::Null
                    },
                )
            }
            Step::Get(key) => (self.call(&[b"GET", key]), bulk(self.model.get(key))),
            Step::GetDel(key) => {
                (self.call(&[b"GETDEL", key]), bulk(self.model.remove(key).as_ref()))
            }
            Step::Append(key, tail) => {
                let got = self.call(&[b"APPEND", key, tail]);
                let value = self.model.entry(key.clone()).or_default();
                value.extend_from_slice(tail);
                (got, Reply::Integer(value.len() as i64))
            }
            Step::SetRange(key, at, patch) => {
                let got = self.call(&[b"SETRANGE", key, at.to_string().as_bytes(), patch]);
                if !patch.is_empty() {
                    let value = self.model.entry(key.clone()).or_default();
                    value.resize(value.len().max(at + patch.len()), 0);
                    value[*at..at + patch.len()].copy_from_slice(patch);
                }
                (got, Reply::Integer(self.model.get(key).map_or(0, Vec::len) as i64))
            }
            Step::GetRange(key, from, to) => {
                let got = self.call(&[
                    b"GETRANGE",
                    key,
                    from.to_string().as_bytes(),
                    to.to_string().as_bytes(),
                ]);
                let value = self.model.get(key).cloned().unwrap_or_default();
                let len = value.len() as i64;
                let part = if *from < 0 && *to < 0 && from > to {
                    Vec::new()
                } else {
                    let place = |i: i64| if i < 0 { (i + len).max(0) } else { i };
                    let taken = (place(*to) - place(*from) + 1).max(0) as usize;
                    value.into_iter().skip(place(*from) as usize).take(taken).collect()
                };
                (got, Reply::Bulk(part))
            }
            Step::IncrBy(key, by) => {
                let got = self.call(&[b"INCRBY", key, by.to_string().as_bytes()]);
                let old = match self.model.get(key) {
                    None => Some(0),
                    // The values that the steps make. Except for these, each value that parses has
                    // a single form.
                    Some(v) => {
                        std::str::from_utf8(v).ok().filter(|t| !t.starts_with('+')).and_then(|t| {
                            let n = t.parse::<i64>().ok()?;
                            (n.to_string() == t).then_some(n)
                        })
                    }
                };
                match old.and_then(|old| old.checked_add(*by)) {
                    Some(sum) => {
                        self.model.insert(key.clone(), sum.to_string().into_bytes());
                        (got, Reply::Integer(sum))
                    }
                    None if old.is_some() => {
                        (got, Reply::Error("ERR increment or decrement would overflow".into()))
                    }
                    None => {
                        (got, Reply::Error("ERR value is not an integer or out of range".into()))
                    }
                }
            }
            Step::MSet(pairs, nx) => {
                let mut words: Vec<&[u8]> = vec![if *nx { b"MSETNX" } else { b"MSET" }];
                pairs.iter().for_each(|(k, v)| words.extend([k.as_slice(), v.as_slice()]));
                let got = self.call(&words);
                let done = !nx || pairs.iter().all(|(k, _)| !self.model.contains_key(k));
                if done {
                    self.model.extend(pairs.iter().cloned());
                }
                (got, if *nx { Reply::Integer(i64::from(done)) } else { ok() })
            }
            Step::MGet(keys) => {
                let words: Vec<&[u8]> = std::iter::once(b"MGET".as_slice())
                    .chain(keys.iter().map(Vec::as_slice))
                    .collect();
                (
                    self.call(&words),
                    Reply::Array(keys.iter().map(|k| bulk(self.model.get(k))).collect()),
                )
            }
            Step::Del(keys) => {
                let words: Vec<&[u8]> = std::iter::once(b"DEL".as_slice())
                    .chain(keys.iter().map(Vec::as_slice))
                    .collect();
                let got = self.call(&words);
                (
                    got,
                    Reply::Integer(
                        keys.iter().filter(|k| self.model.remove(*k).is_some()).count() as i64
                    ),
                )
            }
            Step::Exists(keys) => {
                let words: Vec<&[u8]> = std::iter::once(b"EXISTS".as_slice())
                    .chain(keys.iter().map(Vec::as_slice))
                    .collect();
                (
                    self.call(&words),
                    Reply::Integer(
                        keys.iter().filter(|k| self.model.contains_key(*k)).count() as i64
                    ),
                )
            }
            Step::Range { start, end, backward, limit } => {
                let limit_text = limit.to_string();
                let mut words: Vec<&[u8]> =
                    vec![b"RANGE", start, end, b"EXACT", b"LIMIT", limit_text.as_bytes()];
                words.extend(backward.then_some(b"REV".as_slice()));
                let got = self.call(&words);
                let mut keys = within(&self.model, start, end);
                if *backward {
                    keys.reverse();
                }
                keys.truncate(*limit);
                (got, self.keys_and_values(&keys))
            }
            Step::DelRange(start, end) => {
                let got = self.call(&[b"DELRANGE", start, end, b"EXACT"]);
                for key in within(&self.model, start, end) {
                    self.model.remove(&key);
                }
                (got, ok())
            }
            Step::Scan { prefix, count } => {
                let (pattern, count) = ([prefix.as_slice(), b"*"].concat(), count.to_string());
                let (mut cursor, mut found) = (b"0".to_vec(), Vec::new());
                loop {
                    let page = self.call(&[
                        b"SCAN",
                        &cursor,
                        b"MATCH",
                        &pattern,
                        b"COUNT",
                        count.as_bytes(),
                    ]);
                    let Reply::Array(page) = page else { panic!("{page:?} is no page") };
                    let [Reply::Bulk(next), Reply::Array(keys)] = &page[..] else {
                        panic!("{page:?} is no page")
                    };
                    found.extend(keys.iter().cloned());
                    if next == b"0" {
                        break;
                    }
                    cursor = next.clone();
                }
                let want = self
                    .model
                    .keys()
                    .filter(|k| k.starts_with(prefix))
                    .cloned()
                    .map(Reply::Bulk)
                    .collect();
                assert_eq!(self.call(&[b"KEYS", &pattern]), Reply::Array(found.clone()));
                (Reply::Array(found), Reply::Array(want))
            }
            Step::FlushDb => {
                self.model.clear();
                (self.call(&[b"FLUSHDB"]), ok())
            }
            Step::DbSize => (self.call(&[b"DBSIZE"]), Reply::Integer(self.model.len() as i64)),
            Step::Flush => {
                self.db.flush().expect("flushed");
                return;
            }
        };
        assert_eq!(got, want, "{step:?}");
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 500, ..ProptestConfig::default() })]
    #[test]
    fn commands_do_what_they_do_to_an_ordered_map(steps in prop::collection::vec(step(), 1..80)) {
        let db = Kvdb::in_memory();
        let mut run = Run { client: Client::local(db.clone()), db, model: Model::new() };
        steps.iter().for_each(|step| run.step(step));
        let all = run.call(&[b"RANGE", b"", b""]);
        let keys: Vec<Vec<u8>> = run.model.keys().cloned().collect();
        prop_assert_eq!(all, run.keys_and_values(&keys));
    }
}
