//! Tests concurrent connections in one transaction: one connection repeatedly replaces keys, and
//! two connections read them. Each command must read one state of the transaction, even if it
//! takes several steps: the head of a key, the length of a collection, then its elements or
//! pages.

use std::sync::Arc;

use env::{Random, schedule, thread};

use super::{ATTEMPTS, ask, seeds, shared_with};
use crate::client::Client;
use crate::limits::Limits;
use crate::reply::Reply;
use crate::session::Shared;

const READERS: u64 = 2;

/// Returns the number of elements of a collection in a generation.
fn size(generation: u64) -> usize {
    1 + generation as usize % 4
}

/// Returns the string of a generation, which has more than one page.
fn text(generation: u64) -> Vec<u8> {
    vec![b'a' + generation as u8; 5000 + size(generation)]
}

fn join(shared: &Arc<Shared>, id: &str) -> Client {
    let mut client = Client::of(shared.clone());
    assert_eq!(ask(&mut client, &["TXN", "JOIN", id]), Reply::Status("OK".into()));
    client
}

/// Replaces one of the keys.
fn write(client: &mut Client, what: u64, generation: u64) {
    let value = generation.to_string();
    let fields: Vec<String> = (0..size(generation)).map(|i| i.to_string()).collect();
    let mut command = match what {
        0 => {
            let done = client.call(&[b"SET", b"text", &text(generation)]).expect("a reply");
            return assert_eq!(done, Reply::Status("OK".into()));
        }
        1 => vec!["HSET", "hash"],
        _ => vec!["RPUSH", "list"],
    };
    let key = command[1];
    for field in &fields {
        command.extend((what == 1).then_some(field.as_str()));
        command.push(&value);
    }
    ask(client, &["MULTI"]);
    ask(client, &["DEL", key]);
    ask(client, &command);
    let Reply::Array(done) = ask(client, &["EXEC"]) else { panic!("{command:?} was not done") };
    assert_eq!(done[1], Reply::Integer(size(generation) as i64), "{command:?}");
}

/// Reads one of the keys. All of its parts must belong to one generation.
fn read(client: &mut Client, what: u64) {
    let command = match what {
        0 => &["GET", "text"][..],
        1 => &["HVALS", "hash"],
        _ => &["LRANGE", "list", "0", "-1"],
    };
    match ask(client, command) {
        Reply::Bulk(bytes) => {
            let generation = u64::from(bytes[0].wrapping_sub(b'a'));
            assert!(bytes == text(generation), "a string of generation {generation} and others");
        }
        Reply::Array(values) => {
            let Some(Reply::Bulk(first)) = values.first() else {
                panic!("{command:?}: {values:?}")
            };
            let generation = std::str::from_utf8(first).ok().and_then(|text| text.parse().ok());
            let generation = generation.unwrap_or_else(|| panic!("{command:?}: {values:?}"));
            let whole = values.iter().all(|value| *value == values[0]);
            assert!(whole && values.len() == size(generation), "{command:?}: {values:?}");
        }
        other => panic!("{command:?}: {other:?}"),
    }
}

fn work_in_one(seed: u64) {
    let shared = shared_with(Limits { tuple: 10, ..Limits::default() });
    let mut client = Client::of(shared.clone());
    let isolation = if seed.is_multiple_of(2) { "SI" } else { "SER" };
    let Reply::Integer(id) = ask(&mut client, &["TXN", "BEGIN", isolation]) else {
        panic!("no transaction")
    };
    let id = id.to_string();
    let mut writer = join(&shared, &id);
    (0..3).for_each(|what| write(&mut writer, what, 0));
    let readers: Vec<_> = (0..READERS)
        .map(|number| {
            let mut reader = join(&shared, &id);
            let mut random = Random::new(seed.wrapping_mul(READERS).wrapping_add(number));
            thread::Builder::new().name(format!("reader {number}")).spawn(move || {
                (0..2 * ATTEMPTS).for_each(|_| read(&mut reader, random.below(3)));
            })
        })
        .collect();
    let mut random = Random::new(!seed);
    for generation in 1..=2 * ATTEMPTS {
        write(&mut writer, random.below(3), generation);
    }
    readers.into_iter().for_each(|reader| reader.expect("a thread").join().expect("a reader"));
    assert_eq!(ask(&mut client, &["TXN", "COMMIT", &id]), Reply::Status("OK".into()));
    (0..3).for_each(|what| read(&mut client, what));
}

#[test]
fn a_command_sees_one_state_of_a_transaction_that_others_work_in_whatever_the_schedule() {
    for seed in seeds(200) {
        schedule::run(seed, move || work_in_one(seed))
            .unwrap_or_else(|e| panic!("KVFS_SEED={seed}: {e}"));
    }
}
