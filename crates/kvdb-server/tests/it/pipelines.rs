//! Tests of clients that send a whole pipeline before they read the first reply, as most libraries
//! do.

use std::io::{BufReader, Read, Write};
use std::net::{Shutdown, TcpStream};
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use crate::served::{Served, serve};
use kvdb_server::{Limits, Reply, ServerOptions, read_reply};

/// A write without progress for this long has hung.
const PATIENCE: Duration = Duration::from_secs(20);

fn unix(served: &Served) -> UnixStream {
    let stream = UnixStream::connect(&served.path).expect("the server listens");
    stream.set_write_timeout(Some(PATIENCE)).expect("set");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream
}

fn tcp(served: &Served) -> TcpStream {
    let address = served.server.tcp_address().expect("it listens");
    let mut stream = TcpStream::connect(address).expect("it accepts");
    stream.set_write_timeout(Some(PATIENCE)).expect("set");
    stream.set_read_timeout(Some(PATIENCE)).expect("set");
    stream.write_all(&request(&[b"AUTH", b"secret"])).expect("sent");
    let mut ok = [0; 5];
    stream.read_exact(&mut ok).expect("a reply");
    assert_eq!(&ok, b"+OK\r\n");
    stream
}

fn over_tcp(limits: Limits) -> ServerOptions {
    ServerOptions {
        tcp: Some("127.0.0.1:0".parse().expect("an address")),
        password: Some("secret".into()),
        limits,
        ..ServerOptions::default()
    }
}

fn request(args: &[&[u8]]) -> Vec<u8> {
    let mut request = format!("*{}\r\n", args.len()).into_bytes();
    for arg in args {
        request.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        request.extend_from_slice(arg);
        request.extend_from_slice(b"\r\n");
    }
    request
}

/// Sends `count` requests, and only then reads as many replies.
fn all_before_the_first_reply<S: Read + Write>(
    mut stream: S,
    count: usize,
    args: impl Fn(usize) -> Vec<Vec<u8>>,
    want: impl Fn(usize) -> Reply,
) -> S {
    let mut sent = Vec::new();
    for i in 0..count {
        let args = args(i);
        sent.extend(request(&args.iter().map(Vec::as_slice).collect::<Vec<_>>()));
    }
    stream.write_all(&sent).expect("the server reads on while its replies wait");
    let mut stream = BufReader::new(stream);
    for i in 0..count {
        assert_eq!(read_reply(&mut stream, 0).expect("a reply"), want(i), "reply {i}");
    }
    assert!(stream.buffer().is_empty(), "there are as many replies as requests");
    stream.into_inner()
}

fn set(len: usize) -> impl Fn(usize) -> Vec<Vec<u8>> {
    move |i| vec![b"SET".to_vec(), format!("k{}", i % 100).into_bytes(), vec![b'v'; len]]
}
fn get(i: usize) -> Vec<Vec<u8>> {
    vec![b"GET".to_vec(), format!("k{}", i % 100).into_bytes()]
}
fn ok(_: usize) -> Reply {
    Reply::Status("OK".into())
}

#[test]
fn a_thousand_long_sets_by_the_unix_socket() {
    let served = serve(ServerOptions::default());
    all_before_the_first_reply(unix(&served), 1000, set(20_000), ok);
}

#[test]
fn many_short_sets_by_the_unix_socket() {
    let served = serve(ServerOptions::default());
    all_before_the_first_reply(unix(&served), 40_000, set(10), ok);
}

#[test]
fn many_gets_by_the_unix_socket_and_then_the_same_connection_goes_on() {
    let served = serve(ServerOptions::default());
    let mut stream = all_before_the_first_reply(unix(&served), 100, set(1000), ok);
    for _ in 0..3 {
        let want = |_| Reply::Bulk(vec![b'v'; 1000]);
        stream = all_before_the_first_reply(stream, 8000, get, want);
    }
}

#[test]
fn many_gets_by_tcp() {
    let served = serve(over_tcp(Limits::default()));
    let stream = all_before_the_first_reply(tcp(&served), 100, set(10), ok);
    all_before_the_first_reply(stream, 300_000, get, |_| Reply::Bulk(vec![b'v'; 10]));
}

/// Replies that are larger than what is kept of them: requests are read ahead.
#[test]
fn replies_beyond_what_is_kept_of_them_wait_for_their_client() {
    let limits = Limits { unsent: 64 << 10, ..Limits::default() };
    let served = serve(over_tcp(limits));
    let stream = all_before_the_first_reply(unix(&served), 100, set(20_000), ok);
    let want = |_| Reply::Bulk(vec![b'v'; 20_000]);
    all_before_the_first_reply(stream, 10_000, get, want);
    all_before_the_first_reply(tcp(&served), 10_000, get, want);
}

#[test]
fn what_comes_behind_a_command_that_waits_is_read() {
    let served = serve(ServerOptions::default());
    let mut waits = unix(&served);
    waits.write_all(&request(&[b"BLPOP", b"queue", b"0"])).expect("sent");
    let sets: Vec<u8> = (0..1000).flat_map(|_| request(&[b"SET", b"k", &[b'v'; 2000]])).collect();
    waits.write_all(&sets).expect("it is read though the command before it waits");
    all_before_the_first_reply(
        unix(&served),
        1,
        |_| vec![b"RPUSH".to_vec(), b"queue".to_vec(), b"x".to_vec()],
        |_| Reply::Integer(1),
    );
    let mut waits = BufReader::new(waits);
    let popped = Reply::Array(vec![Reply::Bulk(b"queue".to_vec()), Reply::Bulk(b"x".to_vec())]);
    assert_eq!(read_reply(&mut waits, 0).expect("a reply"), popped);
    for i in 0..1000 {
        assert_eq!(read_reply(&mut waits, 0).expect("a reply"), ok(i));
    }
}

#[test]
fn the_last_replies_come_though_the_connection_ends_behind_them() {
    let served = serve(ServerOptions::default());
    all_before_the_first_reply(unix(&served), 100, set(1000), ok);
    for ends in ["QUIT", "a wrong request", "half a connection"] {
        let mut stream = unix(&served);
        let gets: Vec<u8> = (0..5000)
            .flat_map(|i| {
                let args = get(i);
                request(&[&args[0], &args[1]])
            })
            .collect();
        stream.write_all(&gets).expect("sent");
        match ends {
            "QUIT" => stream.write_all(b"QUIT\r\n").expect("sent"),
            "a wrong request" => stream.write_all(b"*x\r\n").expect("sent"),
            _ => stream.shutdown(Shutdown::Write).expect("shut"),
        }
        let mut stream = BufReader::new(stream);
        for i in 0..5000 {
            let reply = read_reply(&mut stream, 0).unwrap_or_else(|e| panic!("{ends}, {i}: {e}"));
            assert_eq!(reply, Reply::Bulk(vec![b'v'; 1000]));
        }
    }
}

#[test]
fn a_client_that_never_reads_is_closed_and_holds_up_no_other_one() {
    let limits = Limits {
        unsent: 64 << 10,
        ahead: 64 << 10,
        stall: Duration::from_millis(300),
        ..Limits::default()
    };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    all_before_the_first_reply(unix(&served), 100, set(1000), ok);
    let mut stream = unix(&served);
    let begun = Instant::now();
    let one = request(&[b"GET", b"k1"]).repeat(1000);
    let closed = (0..10_000).any(|_| stream.write_all(&one).is_err());
    assert!(closed && begun.elapsed() < PATIENCE, "after {:?}", begun.elapsed());
    // The disconnected client holds no memory that others need for their replies.
    all_before_the_first_reply(unix(&served), 2000, get, |_| Reply::Bulk(vec![b'v'; 1000]));
}

#[test]
fn a_client_that_takes_nothing_and_sends_nothing_is_closed_in_the_end() {
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    all_before_the_first_reply(unix(&served), 100, set(1000), ok);
    let mut stream = unix(&served);
    stream.write_all(&request(&[b"GET", b"k1"]).repeat(2000)).expect("sent");
    // The client notices the end of its connection when it sends again.
    let until = Instant::now() + PATIENCE;
    while stream.write_all(&request(&[b"PING"])).is_ok() {
        assert!(Instant::now() < until, "it is not closed");
        std::thread::sleep(Duration::from_millis(700));
    }
}
