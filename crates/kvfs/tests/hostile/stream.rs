//! Hostile streams with valid checksums: frames in the form of `docs/format.md`, with arbitrary
//! numbers, names and order.

use std::sync::Arc;

use env::Env;
use kvdb::Kvdb;

use crate::content::{Random, entry, name_key};
use crate::exercise;

fn varint(out: &mut Vec<u8>, mut n: u64) {
    while n >= 0x80 {
        out.push(n as u8 | 0x80);
        n >>= 7;
    }
    out.push(n as u8);
}

fn put(out: &mut Vec<u8>, bytes: &[u8]) {
    varint(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

fn odd(random: &mut Random, or: u64) -> u64 {
    match random.below(12) {
        0 => *random.pick(&[0, 1, 2, 255, 1 << 20, u64::from(u32::MAX), 1 << 48, u64::MAX]),
        _ => or,
    }
}

fn frame(out: &mut Vec<u8>, random: &mut Random, kind: u8, payload: &[u8]) {
    let begin = out.len();
    out.push(kind);
    let len = if random.one_in(60) { random.next() as u32 } else { payload.len() as u32 };
    out.extend_from_slice(&len.to_le_bytes());
    out.extend_from_slice(payload);
    let crc = zones::crc32c(&out[begin..]);
    out.extend_from_slice(&crc.to_le_bytes());
}

fn name(random: &mut Random) -> Vec<u8> {
    let all: [&[u8]; 10] = [
        b"s",
        b"",
        b".receive-00",
        b".progress",
        b"nmap",
        b"\xff\xfe",
        b"a/b",
        b"..",
        &[b'n'; 129],
        &[b'n'; 5000],
    ];
    if random.one_in(3) { random.pick(&all).to_vec() } else { b"snapshot".to_vec() }
}

fn header(random: &mut Random, dictionaries: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    varint(&mut out, odd(random, 1));
    out.extend_from_slice(&[1; 16]);
    // Label: name, branch, id, time, sequence number.
    put(&mut out, &name(random));
    put(&mut out, if random.one_in(6) { b"branch" } else { b"" });
    out.extend_from_slice(&[random.next() as u8; 16]);
    varint(&mut out, odd(random, 1_700_000_000_000_000_000));
    varint(&mut out, odd(random, 9));
    match random.one_in(8) {
        true => {
            out.push(1);
            out.extend_from_slice(&[9; 16]);
            put(&mut out, b"base");
        }
        false => out.push(0),
    }
    varint(&mut out, odd(random, 0));
    varint(&mut out, odd(random, dictionaries.len() as u64));
    for (n, dictionary) in dictionaries.iter().enumerate() {
        varint(&mut out, odd(random, n as u64 + 1));
        put(
            &mut out,
            &if random.one_in(12) { name(random) } else { dictionary.as_bytes().to_vec() },
        );
        varint(&mut out, odd(random, 512));
        varint(&mut out, odd(random, 4096));
        out.push(if random.one_in(10) { random.next() as u8 } else { 1 });
        out.push(if random.one_in(10) { random.next() as u8 } else { 0 });
        varint(&mut out, odd(random, 100));
    }
    out
}

/// A stream of a file system, or of something similar to one.
pub fn make(random: &mut Random) -> Vec<u8> {
    let dictionaries = match random.below(4) {
        0 => vec!["0", "more"],
        1 => vec!["imap", "nmap"],
        _ => vec!["dmap", "imap", "nmap"],
    };
    let mut out = b"KVFSsend".to_vec();
    let head = header(random, &dictionaries);
    frame(&mut out, random, 1, &head);
    let (mut chunks, mut tuples) = (0, 0);
    for n in 0..random.below(25) as u64 {
        let dictionary = (n as usize * dictionaries.len() / 25) as u64;
        let mut payload = Vec::new();
        varint(&mut payload, odd(random, chunks));
        varint(&mut payload, odd(random, dictionary));
        let count = random.below(30) as u64;
        varint(&mut payload, odd(random, count));
        for i in 0..count {
            payload.push(if random.one_in(20) { random.next() as u8 } else { 1 });
            let ino = n * 30 + i;
            let (key, value) = match dictionaries[dictionary as usize] {
                "nmap" => (
                    name_key(1, format!("{ino:06}").as_bytes()),
                    entry(random.below(8) as u8, 2 + ino),
                ),
                "imap" => (
                    (1 + ino).to_be_bytes().to_vec(),
                    crate::content::Node::sound(random.below(8) as u8, 1).encode(),
                ),
                _ => (
                    [ino.to_be_bytes(), [0; 8]].concat(),
                    vec![1; *random.pick(&[0, 10, 4096, 4097, 60_000])],
                ),
            };
            let key =
                if random.one_in(25) { vec![random.next() as u8; random.below(40)] } else { key };
            match random.one_in(80) {
                // A length that exceeds the data.
                true => varint(&mut payload, odd(random, 1 << 30)),
                false => put(&mut payload, &key),
            }
            put(&mut payload, &value);
        }
        let kind = if random.one_in(30) { random.below(5) as u8 } else { 2 };
        frame(&mut out, random, kind, &payload);
        (chunks, tuples) = (chunks + 1, tuples + count);
    }
    let mut end = Vec::new();
    varint(&mut end, odd(random, chunks));
    varint(&mut end, odd(random, tuples));
    frame(&mut out, random, 3, &end);
    if random.one_in(10) {
        out.truncate(random.below(out.len()));
    }
    if random.one_in(10) {
        let at = random.below(out.len());
        out[at] ^= 1 << random.below(8);
    }
    out
}

pub fn receive(random: &mut Random, db: &Kvdb, env: &Arc<dyn Env>, bytes: &[u8]) {
    if !exercise::received(db, env, bytes, &[1, 2, 3, 50]) {
        // The part that was received stays and does no harm: a sound stream is accepted afterwards.
        let _ = db.receiving();
        if random.one_in(2) {
            db.receiving()
                .unwrap_or_default()
                .iter()
                .for_each(|received| drop(db.forget_received(received)));
        }
        let (other, _, env) = crate::store(3);
        let fs = kvfs::Fs::open(other.clone(), env, crate::options()).expect("a file system");
        crate::content::sound(&fs);
        fs.shutdown().expect("closed");
        other.snapshot("good").expect("a snapshot");
        let mut good = Vec::new();
        other.send("good", None, &mut good, None).expect("sent");
        let options = kvdb::ReceiveOptions { replace: true, ..Default::default() };
        db.receive(&good[..], &options).expect("a sound stream is received");
        assert!(kvfs::verify(db).expect("readable").is_clean());
    }
}
