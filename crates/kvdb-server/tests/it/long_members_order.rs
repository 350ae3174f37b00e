//! Tests of the order of long members. Names that share the prefix that fits into a key are listed
//! and scanned in the right order, and random commands on names of every length agree with a model.

use std::collections::{BTreeMap, BTreeSet};

use crate::long_members::{IN_KEY, World, brief, bulk, bulks, like, name};
use crate::served::show;
use env::Random;
use kvdb_server::Reply;

fn members_of(reply: &Reply) -> Vec<Vec<u8>> {
    let Reply::Array(all) = reply else { panic!("{} is no array", brief(reply)) };
    let member = |reply: &Reply| match reply {
        Reply::Bulk(member) => member.clone(),
        other => panic!("{} is no member", brief(other)),
    };
    all.iter().map(member).collect()
}

/// Members of one score, in no order. The keys of the last ones are equal.
fn equals() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> =
        [b'a', b'm', b'z'].map(|first| vec![first; IN_KEY - 1]).into_iter().collect();
    all.extend([b'a', b'm', b'z'].map(|first| vec![first; IN_KEY]));
    all.extend([b'b', b'n', b'y'].map(|first| like(first, "x")));
    all.extend(["short", "m", "n"].map(|name| name.as_bytes().to_vec()));
    all.extend(["", "1", "12", "2", "3", "9"].map(|end| like(b'm', &format!("5{end}"))));
    all
}

#[test]
fn members_of_one_score_are_in_their_order_as_far_as_keys_tell_them_apart() {
    let mut w = World::new();
    let mut all = equals();
    for member in &all {
        w.number("ZADD z 0 %", &[member], 1);
    }
    all.sort();
    let found = members_of(&w.run("ZRANGE z 0 -1", &[]));
    let in_key = |members: &[Vec<u8>]| {
        let begins = members.iter().map(|member| member[..member.len().min(IN_KEY)].to_vec());
        begins.collect::<Vec<_>>()
    };
    assert!(in_key(&found) == in_key(&all), "the order of names");
    let mut sorted = found.clone();
    sorted.sort();
    assert!(sorted == all, "each of them once");
    for (rank, member) in found.iter().enumerate() {
        w.number("ZRANK z %", &[member], rank as i64);
        w.expect(&format!("ZRANGE z {rank} {rank}"), &[], &bulks(&[member]));
    }
    let reversed: Vec<&[u8]> = found.iter().rev().map(Vec::as_slice).collect();
    w.expect("ZREVRANGEBYSCORE z 0 0", &[], &bulks(&reversed));
}

#[test]
fn a_range_by_names_has_the_members_between_long_bounds() {
    let mut w = World::new();
    let all = equals();
    let members = |bounds: (&str, &[u8], &str, &[u8])| {
        let inside = |member: &[u8]| {
            let (low, high) = (member.cmp(bounds.1), member.cmp(bounds.3));
            (low.is_gt() || low.is_eq() && bounds.0 == "[")
                && (high.is_lt() || high.is_eq() && bounds.2 == "[")
        };
        let mut found: Vec<Vec<u8>> = all.iter().filter(|member| inside(member)).cloned().collect();
        found.sort();
        found
    };
    for member in &all {
        w.number("ZADD z 0 %", &[member], 1);
    }
    let bounds = [like(b'm', "5"), like(b'm', "51"), like(b'm', "53"), like(b'm', "6")];
    let others = [b"a".to_vec(), vec![b'm'; IN_KEY], like(b'b', "w"), like(b'z', "z")];
    for low in bounds.iter().chain(&others) {
        for high in bounds.iter().chain(&others) {
            for (l, h) in [("[", "["), ("(", "("), ("[", "(")] {
                let want = members((l, &low[..], h, &high[..]));
                let words = [[l.as_bytes(), &low[..]].concat(), [h.as_bytes(), &high[..]].concat()];
                let (from, to) = (&words[0][..], &words[1][..]);
                for (command, names) in
                    [("ZRANGEBYLEX z % %", [from, to]), ("ZREVRANGEBYLEX z % %", [to, from])]
                {
                    let mut found = members_of(&w.run(command, &names));
                    found.sort();
                    assert!(found == want, "{command}: {} of {}", found.len(), want.len());
                }
                w.number("ZLEXCOUNT z % %", &[from, to], want.len() as i64);
                let part = members_of(&w.run("ZRANGEBYLEX z % % LIMIT 1 2", &[from, to]));
                assert_eq!(part.len(), want.len().saturating_sub(1).min(2));
            }
        }
    }
    let low = [&b"["[..], &bounds[0][..]].concat();
    let high = [&b"("[..], &bounds[2][..]].concat();
    let count = members(("[", &bounds[0][..], "(", &bounds[2][..])).len() as i64;
    w.number("ZREMRANGEBYLEX z % %", &[&low, &high], count);
    w.number("ZLEXCOUNT z % %", &[&low, &high], 0);
    w.number("ZCARD z", &[], all.len() as i64 - count);
}

#[test]
fn a_scan_meets_long_names_page_by_page() {
    let mut w = World::new();
    let names: Vec<Vec<u8>> = (0..30).map(|i| name(IN_KEY - 5 + i, i as u64)).collect();
    let alike: Vec<Vec<u8>> = (0..10).map(|i| like(b'l', &format!("{i}"))).collect();
    let mut all: Vec<&Vec<u8>> = names.iter().chain(&alike).collect();
    all.sort();
    for name in &all {
        w.number("SADD s %", &[name], 1);
    }
    let (mut cursor, mut found) = ("0".to_owned(), Vec::new());
    loop {
        let Reply::Array(page) = w.run(&format!("SSCAN s {cursor} COUNT 7"), &[]) else {
            panic!("no page")
        };
        let Reply::Bulk(next) = &page[0] else { panic!("{}", brief(&page[0])) };
        found.extend(members_of(&page[1]));
        cursor = String::from_utf8(next.clone()).expect("digits");
        if cursor == "0" {
            break;
        }
    }
    found.sort();
    assert!(found.iter().eq(all), "each member once");
}

#[test]
fn a_pattern_that_takes_too_long_on_a_long_name_is_refused() {
    let mut w = World::new();
    let long = vec![b'a'; 100_000];
    w.number("SADD s %", &[&long], 1);
    let hostile = [b"*", &long[..50_000], b"b*"].concat();
    let reply = show(&w.run("SSCAN s 0 MATCH %", &[&hostile]));
    let refused = "(error) LIMIT comparing a pattern of 50003 bytes with a name of 100000 bytes";
    assert!(reply.starts_with(refused), "{}", &reply[..reply.len().min(200)]);
    let page = Reply::Array(vec![bulk(b"0"), bulks(&[&long])]);
    for pattern in [&b"*aaa*"[..], b"*a", &[&long[..90_000], b"*"].concat(), &long] {
        w.expect("SSCAN s 0 MATCH %", &[pattern], &page);
    }
    let nothing = Reply::Array(vec![bulk(b"0"), bulks(&[])]);
    w.expect("SSCAN s 0 MATCH %", &[b"*aaaab*"], &nothing);
}

/// A hash, a set and a sorted set.
#[derive(Clone, Default)]
struct Model {
    hash: BTreeMap<Vec<u8>, Vec<u8>>,
    set: BTreeSet<Vec<u8>>,
    scores: BTreeMap<Vec<u8>, i64>,
}

fn text(number: i64) -> Reply {
    bulk(number.to_string().as_bytes())
}

/// Runs a random command, and compares its reply.
fn step(w: &mut World, r: &mut Random, names: &[Vec<u8>], model: &mut Model) {
    let name = r.pick(names).expect("there are names");
    let (is_there, score) = (model.set.contains(name), model.scores.get(name).copied());
    let number = r.below(5) as i64;
    match r.below(12) {
        0 | 1 => {
            let value = vec![b'v'; r.below(40) as usize];
            let new = model.hash.insert(name.clone(), value.clone()).is_none();
            w.number("HSET h % %", &[name, &value], i64::from(new));
        }
        2 => {
            let value = model.hash.get(name).map_or(Reply::Null, |value| bulk(value));
            w.expect("HGET h %", &[name], &value);
        }
        3 => {
            let gone = model.hash.remove(name).is_some();
            w.number("HDEL h %", &[name], i64::from(gone));
        }
        4 | 5 => {
            model.set.insert(name.clone());
            w.number("SADD s %", &[name], i64::from(!is_there));
        }
        6 => w.number("SISMEMBER s %", &[name], i64::from(is_there)),
        7 => {
            model.set.remove(name);
            w.number("SREM s %", &[name], i64::from(is_there));
        }
        8 | 9 => {
            model.scores.insert(name.clone(), number);
            w.number(&format!("ZADD z {number} %"), &[name], i64::from(score.is_none()));
        }
        10 => w.expect("ZSCORE z %", &[name], &score.map_or(Reply::Null, text)),
        _ if number == 0 => {
            let count = model.scores.values().filter(|score| **score == 3).count() as i64;
            model.scores.retain(|_, score| *score != 3);
            w.number("ZREMRANGEBYSCORE z 3 3", &[], count);
        }
        _ => {
            model.scores.remove(name);
            w.number("ZREM z %", &[name], i64::from(score.is_some()));
        }
    }
}

/// Compares everything that is stored.
fn compare(w: &mut World, model: &Model) {
    let pairs = |reply: &Reply| -> BTreeMap<Vec<u8>, Vec<u8>> {
        let all = members_of(reply);
        all.chunks(2).map(|pair| (pair[0].clone(), pair[1].clone())).collect()
    };
    assert!(pairs(&w.run("HGETALL h", &[])) == model.hash, "the fields");
    w.number("HLEN h", &[], model.hash.len() as i64);
    let members: BTreeSet<Vec<u8>> = members_of(&w.run("SMEMBERS s", &[])).into_iter().collect();
    assert!(members == model.set, "the members");
    w.number("SCARD s", &[], model.set.len() as i64);
    let scores = model.scores.iter();
    let scores = scores.map(|(name, score)| (name.clone(), score.to_string().into_bytes()));
    let ranked = w.run("ZRANGE z 0 -1 WITHSCORES", &[]);
    assert!(pairs(&ranked) == scores.collect::<BTreeMap<_, _>>(), "the scores");
    w.number("ZCARD z", &[], model.scores.len() as i64);
    let ranked = members_of(&ranked);
    let order: Vec<&Vec<u8>> = ranked.iter().skip(1).step_by(2).collect();
    assert!(order.is_sorted(), "scores of one digit ascend");
    let low = model.scores.values().filter(|score| **score < 2).count() as i64;
    w.number("ZCOUNT z -inf (2", &[], low);
}

#[test]
fn names_of_every_length_are_as_a_model_says() {
    for seed in 0..3 {
        let mut w = World::new();
        let mut r = Random::new(seed);
        let mut names: Vec<Vec<u8>> =
            [5, 100, IN_KEY - 1, IN_KEY, IN_KEY + 1, IN_KEY + 32, 40_000, 70_000]
                .into_iter()
                .map(|len| name(len, seed))
                .collect();
        names.extend(["", "a", "b", "bb", "c"].map(|end| like(b'n', end)));
        let (mut model, mut within) = (Model::default(), None);
        for _ in 0..40 {
            for _ in 0..20 {
                step(&mut w, &mut r, &names, &mut model);
            }
            compare(&mut w, &model);
            within = match within {
                None if r.one_in(2) => {
                    let Reply::Integer(id) = w.run("TXN BEGIN", &[]) else { panic!("no number") };
                    w.ok(&format!("TXN JOIN {id}"), &[]);
                    Some(model.clone())
                }
                None => {
                    w.served.db.flush().expect("flushed");
                    None
                }
                Some(_) if r.one_in(2) => {
                    w.ok("TXN COMMIT", &[]);
                    w.run("TXN LEAVE", &[]);
                    None
                }
                Some(before) => {
                    w.ok("TXN ABORT", &[]);
                    w.run("TXN LEAVE", &[]);
                    model = before;
                    None
                }
            };
        }
        if within.is_some() {
            w.ok("TXN COMMIT", &[]);
            w.run("TXN LEAVE", &[]);
        }
        compare(&mut w, &model);
        w.run("DEL h s z", &[]);
        w.is_empty();
    }
}
