//! Tests of the encoding of replies, of replies that are held back, and of failed syncs.

use super::*;
use env::sync::Mutex;

struct Memory(Arc<Mutex<Vec<u8>>>);
impl Sink for Memory {
    fn send(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.0.lock().extend_from_slice(bytes);
        Ok(())
    }
}
fn output() -> (Output, Arc<Mutex<Vec<u8>>>) {
    let sent = Arc::new(Mutex::new(Vec::new()));
    (
        Output::new(
            Kvdb::in_memory(),
            Box::new(Memory(sent.clone())),
            100,
            Arc::new(Budget::new(1000)),
        ),
        sent,
    )
}

#[test]
fn both_protocols() {
    let (mut out, sent) = output();
    for resp3 in [false, true] {
        out.resp3 = resp3;
        out.integer(i64::MIN);
        out.integer(0);
        out.map(1);
        out.bulk(b"a\r\n");
        out.null();
        out.error("ERR two\r\nlines");
        assert!(out.flush());
    }
    let want = b":-9223372036854775808\r\n:0\r\n*2\r\n$3\r\na\r\n\r\n$-1\r\n-ERR two  lines\r\n\
        :-9223372036854775808\r\n:0\r\n%1\r\n$3\r\na\r\n\r\n_\r\n-ERR two  lines\r\n";
    assert_eq!(sent.lock().as_slice(), want.as_slice());
}

#[test]
fn numbers_are_written_in_their_shortest_form() {
    for (number, text) in [
        (0.0, "0"),
        (-0.0, "0"),
        (3.0, "3"),
        (0.1, "0.1"),
        (-1.5, "-1.5"),
        (1e20, "100000000000000000000"),
        (1e21, "1e+21"),
        (1.5e300, "1.5e+300"),
        (1e-7, "1e-7"),
        (f64::INFINITY, "inf"),
        (f64::NEG_INFINITY, "-inf"),
    ] {
        assert_eq!(number_text(number), text);
    }
}

#[test]
fn a_failed_sync_denies_the_writes_and_only_them() {
    let (mut out, _) = output();
    out.bulk(b"read");
    for _ in 0..2 {
        out.begin_reply(true);
        out.ok();
        out.end_reply(true);
        out.begin_reply(true);
        out.integer(7);
        out.end_reply(false);
    }
    out.deny("IOERR sync failed");
    let want = b"$4\r\nread\r\n-IOERR sync failed\r\n:7\r\n-IOERR sync failed\r\n:7\r\n";
    assert_eq!(out.bytes, want);
}

#[test]
fn long_replies_leave_in_pieces() {
    let (mut out, sent) = output();
    out.bulk(&[b'x'; 50]);
    out.send_if_large();
    assert!(sent.lock().is_empty());
    out.bulk(&[b'x'; 50]);
    out.send_if_large();
    assert_eq!(sent.lock().len(), 114);
}

#[test]
fn a_text_that_cannot_be_read_to_its_end_is_an_error_or_the_end() {
    let lost = || Failure::Corrupt("it was lost".into());
    let (mut out, sent) = output();
    out.integer(1);
    out.begin_bulk(60);
    assert!(out.add_to_bulk(&[b'x'; 30]));
    assert!(matches!(out.end_bulk(Err(lost())), Err(Failure::Corrupt(_))));
    assert_eq!(out.bytes, b":1\r\n", "nothing has left, so it is taken back");
    out.begin_bulk(60);
    assert!(out.add_to_bulk(&[b'x'; 30]));
    assert!(out.end_bulk(Ok(())).is_err(), "there was less than its header says");
    // After a part has been sent, an error cannot follow.
    out.begin_bulk(200);
    assert!(out.add_to_bulk(&[b'x'; 150]));
    assert!(out.end_bulk(Err(lost())).is_ok() && out.is_broken());
    let left = sent.lock().len();
    assert!(left >= 150 && !out.flush());
    assert_eq!(sent.lock().len(), left, "nothing leaves any more");
    let (mut out, sent) = output();
    out.begin_bulk(3);
    assert!(out.add_to_bulk(b"a") && out.add_to_bulk(b"bc"));
    assert!(out.end_bulk(Ok(())).is_ok() && out.flush());
    assert_eq!(sent.lock().as_slice(), b"$3\r\nabc\r\n");
}

#[test]
fn what_is_kept_is_counted_until_it_has_left() {
    let (mut out, sent) = output();
    out.keep();
    out.bulk(&[b'x'; 500]);
    out.send_if_large();
    assert!(sent.lock().is_empty() && out.budget.used() >= 400);
    out.rewind(0);
    assert_eq!(out.budget.used(), 0);
    out.bulk(&[b'x'; 500]);
    out.send_if_large();
    out.release();
    assert!(out.budget.used() >= 400, "it has not left yet");
    out.send_if_large();
    assert_eq!((sent.lock().len(), out.budget.used()), (508, 0));
    // If two outputs together exceed the budget, the second one is overfull.
    let mut other =
        Output::new(Kvdb::in_memory(), Box::new(Memory(sent.clone())), 100, out.budget.clone());
    for (out, fits) in [(&mut out, true), (&mut other, false)] {
        out.keep();
        out.bulk(&[b'x'; 800]);
        out.send_if_large();
        assert_eq!(out.is_overfull(), !fits);
    }
    other.rewind(0);
    assert!(!other.is_overfull() && !other.is_broken());
    drop((out, other));
}

#[test]
fn a_whole_reply_among_others_that_are_held_back_does_not_let_them_go() {
    let (mut out, sent) = output();
    out.keep();
    out.bulk(b"first");
    out.whole(|out| {
        out.bulk(&[b'x'; 200]);
        Ok(())
    })
    .expect("written");
    out.send_if_large();
    assert!(sent.lock().is_empty());
    out.release();
    out.send_if_large();
    assert!(!sent.lock().is_empty());
}

#[test]
fn a_header_goes_in_front() {
    let (mut out, _) = output();
    out.ok();
    let at = out.position();
    (0..12).for_each(|i| out.integer(i));
    out.insert_array_header(at, 12);
    assert!(
        out.bytes.starts_with(b"+OK\r\n*12\r\n:0\r\n:1\r\n") && out.bytes.ends_with(b":11\r\n")
    );
}
