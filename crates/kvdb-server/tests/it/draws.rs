//! Tests that random elements of collections are drawn equally often, and that no element is drawn
//! twice where they must be distinct.

use std::collections::{BTreeMap, BTreeSet};

use crate::served::{Raw, serve_db};
use kvdb::Kvdb;
use kvdb_server::ServerOptions;

const MEMBERS: usize = 20;

/// A connection to a store with the set `s` of a few members.
fn with_set(db: &Kvdb, test: impl FnOnce(&mut Raw)) {
    let served = serve_db(db.clone(), ServerOptions::default());
    let mut client = served.connect();
    let members: Vec<String> = (0..MEMBERS).map(|n| format!("m{n}")).collect();
    assert_eq!(
        client.run(&format!("SADD s {}", members.join(" "))),
        format!("(integer) {MEMBERS}")
    );
    test(&mut client);
}

/// The members that a reply names.
fn named(reply: &str) -> Vec<String> {
    reply.split('"').skip(1).step_by(2).map(String::from).collect()
}

/// Draws `wanted` members at a time until the expected count of each is a hundred.
fn is_fair(client: &mut Raw, command: &str, wanted: usize) {
    let mut times: BTreeMap<String, usize> = BTreeMap::new();
    for _ in 0..MEMBERS * 100 / wanted {
        let drawn = named(&client.run(command));
        assert_eq!(drawn.len(), wanted, "{command}");
        assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), wanted, "{command}: {drawn:?}");
        drawn.into_iter().for_each(|member| *times.entry(member).or_default() += 1);
    }
    assert_eq!(times.len(), MEMBERS, "{command}: {times:?}");
    // The deviation of a count is below ten.
    assert!(times.values().all(|times| (30..=170).contains(times)), "{command}: {times:?}");
}

#[test]
fn each_member_is_drawn_as_often_as_any_other() {
    let db = Kvdb::in_memory();
    with_set(&db, |client| {
        for _ in 0..2 {
            is_fair(client, "SRANDMEMBER s", 1);
            is_fair(client, "SRANDMEMBER s 3", 3);
            is_fair(client, "SRANDMEMBER s 15", 15);
            // Then once more, when the set is in a run.
            db.flush().expect("flushed");
        }
    });
}

#[test]
fn all_members_are_drawn_and_none_too_many() {
    with_set(&Kvdb::in_memory(), |client| {
        for (wanted, came) in [(0, 0), (10, 10), (11, 11), (20, 20), (21, 20)] {
            let drawn = named(&client.run(&format!("SRANDMEMBER s {wanted}")));
            assert_eq!(drawn.iter().collect::<BTreeSet<_>>().len(), came, "{wanted}: {drawn:?}");
            assert_eq!(drawn.len(), came, "{wanted}: {drawn:?}");
        }
        assert_eq!(named(&client.run("SRANDMEMBER s -50")).len(), 50);
    });
}

#[test]
fn fields_that_have_expired_are_not_drawn() {
    let db = Kvdb::in_memory();
    let served = serve_db(db, ServerOptions::default());
    let mut client = served.connect();
    assert_eq!(client.run("HSET h a 1 b 2 c 3 d 4"), "(integer) 4");
    client.run("HPEXPIRE h 1 FIELDS 2 a d");
    while client.run("HLEN h") != "(integer) 2" {}
    for _ in 0..50 {
        let drawn = named(&client.run("HRANDFIELD h"));
        assert!(["b", "c"].contains(&drawn[0].as_str()), "{drawn:?}");
    }
}
