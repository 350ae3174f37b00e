//! Compares ranks in sorted sets and indexes in long lists with a model, inside and outside of
//! transactions, in snapshots and in clones.

use std::collections::BTreeSet;

use crate::served::{Raw, Served, serve};
use kvdb_server::{Limits, ServerOptions};

struct Numbers(u64);

impl Numbers {
    fn next(&mut self, below: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (self.0 >> 33) % below
    }
}

fn served() -> Served {
    let limits = Limits { walked: 16, ..Limits::default() };
    serve(ServerOptions { limits, ..ServerOptions::default() })
}

/// The members of a sorted set by score and name.
type Members = BTreeSet<(u64, String)>;

fn member(number: u64) -> String {
    format!("m{number:05}")
}

fn add(c: &mut Raw, members: &mut Members, number: u64, score: u64) {
    members.retain(|(_, name)| *name != member(number));
    members.insert((score, member(number)));
    c.run(&format!("ZADD z {score} {}", member(number)));
}

fn remove(c: &mut Raw, members: &mut Members, number: u64) {
    let before = members.len();
    members.retain(|(_, name)| *name != member(number));
    let removed = before - members.len();
    assert_eq!(c.run(&format!("ZREM z {}", member(number))), format!("(integer) {removed}"));
}

fn number(reply: &str) -> u64 {
    let digits = reply.trim_start_matches("(integer) ");
    digits.parse().unwrap_or_else(|_| panic!("{reply} is no number"))
}

fn quoted<'a>(names: impl Iterator<Item = &'a String>) -> String {
    let names: Vec<String> = names.map(|name| format!("\"{name}\"")).collect();
    format!("[{}]", names.join(" "))
}

fn check_members(c: &mut Raw, members: &Members, numbers: &mut Numbers) {
    let all: Vec<_> = members.iter().collect();
    for _ in 0..6 {
        let at = numbers.next(all.len() as u64) as usize;
        let name = &all[at].1;
        assert_eq!(number(&c.run(&format!("ZRANK z {name}"))), at as u64);
        let from_behind = (all.len() - 1 - at) as u64;
        assert_eq!(number(&c.run(&format!("ZREVRANK z {name}"))), from_behind);
        let (low, high) = (numbers.next(500), numbers.next(500));
        let between = all.iter().filter(|(score, _)| (low..=high).contains(score)).count();
        assert_eq!(number(&c.run(&format!("ZCOUNT z {low} {high}"))), between as u64);
        let last = (at + 3).min(all.len() - 1);
        let some = all[at..=last].iter().map(|(_, name)| name);
        assert_eq!(c.run(&format!("ZRANGE z {at} {last}")), quoted(some.clone()));
        let (from, to) = (all.len() - 1 - last, all.len() - 1 - at);
        assert_eq!(c.run(&format!("ZREVRANGE z {from} {to}")), quoted(some.rev()));
        let skip = numbers.next(all.len() as u64 / 2);
        let found = all.iter().filter(|(score, _)| *score >= low).skip(skip as usize).take(2);
        let said = c.run(&format!("ZRANGEBYSCORE z {low} +inf LIMIT {skip} 2"));
        assert_eq!(said, quoted(found.map(|(_, name)| name)));
        let found = all.iter().rev().filter(|(score, _)| *score <= high).skip(skip as usize);
        let said = c.run(&format!("ZREVRANGEBYSCORE z {high} -inf LIMIT {skip} 2"));
        assert_eq!(said, quoted(found.take(2).map(|(_, name)| name)));
    }
}

fn changes(c: &mut Raw, members: &mut Members, numbers: &mut Numbers, count: u64) {
    for _ in 0..count {
        let which = numbers.next(3000);
        match numbers.next(8) {
            0 => remove(c, members, which),
            1 => {
                let low = numbers.next(500);
                let before = members.len();
                members.retain(|(score, _)| *score != low);
                let removed = number(&c.run(&format!("ZREMRANGEBYSCORE z {low} {low}")));
                assert_eq!(removed as usize, before - members.len());
            }
            2 if members.len() > 1000 => {
                let at = numbers.next(members.len() as u64 - 10) as usize;
                let gone: Vec<_> = members.iter().skip(at).take(5).cloned().collect();
                gone.iter().for_each(|gone| _ = members.remove(gone));
                let said = c.run(&format!("ZREMRANGEBYRANK z {at} {}", at + 4));
                assert_eq!(number(&said), 5);
            }
            _ => add(c, members, which, numbers.next(500)),
        }
    }
}

fn filled(c: &mut Raw, numbers: &mut Numbers) -> Members {
    let mut members = Members::new();
    for number in 0..3000 {
        add(c, &mut members, number, numbers.next(500));
    }
    members
}

#[test]
fn ranks_of_a_sorted_set_follow_its_changes() {
    let (served, mut numbers) = (served(), Numbers(1));
    let mut c = served.connect();
    let mut members = filled(&mut c, &mut numbers);
    for _ in 0..40 {
        changes(&mut c, &mut members, &mut numbers, 30);
        check_members(&mut c, &members, &mut numbers);
    }
    c.run("DEL z");
    assert_eq!(c.run("ZRANK z m00001"), "(nil)");
    let members = filled(&mut c, &mut numbers);
    check_members(&mut c, &members, &mut numbers);
}

#[test]
fn a_transaction_has_ranks_of_its_own() {
    for isolation in ["SI", "SER"] {
        let (served, mut numbers) = (served(), Numbers(2));
        let (mut c, mut other) = (served.connect(), served.connect());
        let mut members = filled(&mut c, &mut numbers);
        check_members(&mut other, &members, &mut numbers);
        let outside = members.clone();
        let id = number(&c.run(&format!("TXN BEGIN {isolation}")));
        assert_eq!(c.run(&format!("TXN JOIN {id}")), "OK");
        for _ in 0..10 {
            changes(&mut c, &mut members, &mut numbers, 10);
            check_members(&mut c, &members, &mut numbers);
            check_members(&mut other, &outside, &mut numbers);
        }
        assert_eq!(c.run(&format!("TXN COMMIT {id}")), "OK");
        check_members(&mut other, &members, &mut numbers);
    }
}

#[test]
fn snapshots_and_clones_have_ranks_of_their_own() {
    let (served, mut numbers) = (served(), Numbers(3));
    let mut c = served.connect();
    let mut members = filled(&mut c, &mut numbers);
    check_members(&mut c, &members, &mut numbers);
    assert_eq!(c.run("SNAPSHOT CREATE s"), "OK");
    assert_eq!(c.run("CLONE CREATE s work"), "OK");
    let kept = members.clone();
    changes(&mut c, &mut members, &mut numbers, 100);
    let (mut at_snapshot, mut in_clone) = (served.connect(), served.connect());
    assert_eq!(at_snapshot.run("SNAPSHOT USE s"), "OK");
    assert_eq!(in_clone.run("CLONE USE work"), "OK");
    let mut cloned = kept.clone();
    for _ in 0..5 {
        changes(&mut in_clone, &mut cloned, &mut numbers, 30);
        check_members(&mut at_snapshot, &kept, &mut numbers);
        check_members(&mut in_clone, &cloned, &mut numbers);
        check_members(&mut c, &members, &mut numbers);
    }
}

#[test]
fn exec_sees_the_ranks_of_what_it_has_changed() {
    let (served, mut numbers) = (served(), Numbers(4));
    let mut c = served.connect();
    let mut members = filled(&mut c, &mut numbers);
    check_members(&mut c, &members, &mut numbers);
    for round in 0..20 {
        let name = member(round);
        c.run("MULTI");
        c.run(&format!("ZADD z {} {name}", round * 7));
        c.run(&format!("ZRANK z {name}"));
        members.retain(|(_, other)| *other != name);
        members.insert((round * 7, name.clone()));
        let rank = members.iter().position(|(_, other)| *other == name).expect("it is there");
        let said = c.run("EXEC");
        assert!(said.ends_with(&format!("(integer) {rank}]")), "{said}");
        check_members(&mut c, &members, &mut numbers);
    }
}

fn check_elements(c: &mut Raw, list: &[String], numbers: &mut Numbers) {
    assert_eq!(number(&c.run("LLEN l")), list.len() as u64);
    for _ in 0..5 {
        let at = numbers.next(list.len() as u64) as usize;
        let from_behind = at as i64 - list.len() as i64;
        for index in [at as i64, from_behind] {
            assert_eq!(c.run(&format!("LINDEX l {index}")), format!("\"{}\"", list[at]));
        }
        let last = (at + 4).min(list.len() - 1);
        assert_eq!(c.run(&format!("LRANGE l {at} {last}")), quoted(list[at..=last].iter()));
    }
}

#[test]
fn places_in_a_list_are_found_whatever_was_taken_from_its_middle() {
    let (served, mut numbers) = (served(), Numbers(5));
    let mut c = served.connect();
    let mut list: Vec<String> = (0..2000).map(|i| format!("e{}", i % 700)).collect();
    list.iter().for_each(|value| _ = c.run(&format!("RPUSH l {value}")));
    check_elements(&mut c, &list, &mut numbers);
    for round in 0..60 {
        let at = numbers.next(list.len() as u64) as usize;
        match numbers.next(9) {
            0 => {
                let value = list[at].clone();
                let before = list.len();
                list.retain(|other| *other != value);
                let removed = number(&c.run(&format!("LREM l 0 {value}")));
                assert_eq!(removed as usize, before - list.len());
            }
            1 => {
                c.run(&format!("LSET l {at} s{round}"));
                list[at] = format!("s{round}");
            }
            2 => {
                let first = list.iter().position(|other| *other == list[at]).expect("it is there");
                c.run(&format!("LINSERT l AFTER {} i{round}", list[at]));
                list.insert(first + 1, format!("i{round}"));
            }
            3 => {
                let first = list.iter().position(|other| *other == list[at]).expect("it is there");
                c.run(&format!("LINSERT l BEFORE {} j{round}", list[at]));
                list.insert(first, format!("j{round}"));
            }
            4 => assert_eq!(c.run("LPOP l"), format!("\"{}\"", list.remove(0))),
            5 => assert_eq!(c.run("RPOP l"), format!("\"{}\"", list.pop().expect("an element"))),
            6 => {
                c.run(&format!("LPUSH l p{round}"));
                list.insert(0, format!("p{round}"));
            }
            7 => {
                c.run(&format!("RPUSH l q{round}"));
                list.push(format!("q{round}"));
            }
            _ => {
                c.run("LTRIM l 2 -3");
                list = list[2..list.len() - 2].to_vec();
            }
        }
        check_elements(&mut c, &list, &mut numbers);
    }
}
