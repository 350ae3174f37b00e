//! Tests of encrypted connections over TCP. They accept the same commands, and a client without TLS
//! gets no answer.

use std::io::{BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::channel;
use std::time::{Duration, Instant};

use crate::served::{Served, serve, show};
use kvdb_server::{Limits, Reply, Server, ServerOptions, Tls, read_reply};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

/// A certificate of its own for `localhost`, and the options of a server with it.
fn encrypted(directory: &Path, limits: Limits) -> (CertificateDer<'static>, ServerOptions) {
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("made");
    let (cert, key) = (directory.join("cert.pem"), directory.join("key.pem"));
    std::fs::write(&cert, made.cert.pem()).expect("written");
    std::fs::write(&key, made.signing_key.serialize_pem()).expect("written");
    let options = ServerOptions {
        tcp: Some("127.0.0.1:0".parse().expect("an address")),
        password: Some("secret".into()),
        tls: Some(Tls::from_files(&cert, &key).expect("they belong together")),
        limits,
        ..ServerOptions::default()
    };
    (made.cert.der().clone(), options)
}

type Encrypted = BufReader<StreamOwned<ClientConnection, TcpStream>>;

fn tcp(served: &Served) -> TcpStream {
    let address = served.server.tcp_address().expect("it listens");
    let stream = TcpStream::connect(address).expect("it accepts");
    stream.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    stream
}

fn connect(served: &Served, trusted: &CertificateDer<'static>) -> Encrypted {
    over(tcp(served), trusted)
}

fn over(stream: TcpStream, trusted: &CertificateDer<'static>) -> Encrypted {
    let mut roots = RootCertStore::empty();
    roots.add(trusted.clone()).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the default")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(config), name).expect("made");
    BufReader::new(StreamOwned::new(client, stream))
}

fn run(client: &mut Encrypted, command: &str) -> String {
    client.get_mut().write_all(format!("{command}\r\n").as_bytes()).expect("sent");
    show(&read_reply(client, 0).expect("a reply"))
}

#[test]
fn commands_over_tls_need_the_password_and_do_the_same() {
    let directory = tempfile::tempdir().expect("a directory");
    let (trusted, options) = encrypted(directory.path(), Limits::default());
    let served = serve(options);
    let mut client = connect(&served, &trusted);
    assert!(run(&mut client, "GET k").contains("NOAUTH"));
    assert_eq!(run(&mut client, "AUTH secret"), "OK");
    assert_eq!(run(&mut client, "SET k v"), "OK");
    assert_eq!(served.connect().run("GET k"), "\"v\"");
    // Whole pipelines in both directions, which exceed every buffer in between.
    let long = vec![b'x'; 3 << 20];
    let head = format!("*3\r\n$3\r\nSET\r\n$1\r\nl\r\n${}\r\n", long.len());
    let set = [head.as_bytes(), &long[..], b"\r\n"].concat();
    client.get_mut().write_all(&set).expect("sent");
    client.get_mut().write_all(&b"GET l\r\n".repeat(20)).expect("sent");
    assert_eq!(read_reply(&mut client, 0).expect("a reply"), Reply::Status("OK".into()));
    for _ in 0..20 {
        assert!(read_reply(&mut client, 0).expect("a reply") == Reply::Bulk(long.clone()));
    }
    // The replies to what was sent come also where the client sends no more.
    client.get_mut().write_all(&b"INCR n\r\n".repeat(1000)).expect("sent");
    client.get_mut().conn.send_close_notify();
    client.get_mut().flush().expect("sent");
    client.get_mut().sock.shutdown(Shutdown::Write).expect("shut");
    for n in 1..=1000 {
        assert_eq!(read_reply(&mut client, 0).expect("a reply"), Reply::Integer(n));
    }
    assert_eq!(client.read(&mut [0]).expect("an orderly end"), 0);
}

#[test]
fn what_is_not_tls_gets_nothing() {
    let directory = tempfile::tempdir().expect("a directory");
    let (trusted, options) = encrypted(directory.path(), Limits::default());
    let (another, _) = encrypted(tempfile::tempdir().expect("another").path(), Limits::default());
    let served = serve(options);
    let mut plain = tcp(&served);
    plain.write_all(b"AUTH secret\r\nGET k\r\nPING\r\n").expect("sent");
    let mut said = Vec::new();
    match plain.read_to_end(&mut said) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), ErrorKind::ConnectionReset),
    }
    assert!(!said.windows(2).any(|two| two == b"\r\n"), "{}", said.escape_ascii());
    // A silent client does not delay others either.
    let silent = tcp(&served);
    let mut client = connect(&served, &another);
    assert!(client.get_mut().write_all(b"PING\r\n").is_err(), "the certificate is not known");
    let mut client = connect(&served, &trusted);
    assert_eq!(run(&mut client, "AUTH secret"), "OK");
    assert_eq!(run(&mut client, "PING"), "PONG");
    drop(silent);
}

#[test]
fn a_client_that_takes_no_replies_is_given_up_and_a_server_that_stops_ends_all() {
    let directory = tempfile::tempdir().expect("a directory");
    let limits = Limits { write_timeout: Duration::from_millis(300), ..Limits::default() };
    let (trusted, options) = encrypted(directory.path(), limits);
    let served = serve(options);
    let mut slow = connect(&served, &trusted);
    assert_eq!(run(&mut slow, "AUTH secret"), "OK");
    assert_eq!(run(&mut slow, "SETRANGE l 4000000 x"), "(integer) 4000001");
    slow.get_mut().write_all(&b"GET l\r\n".repeat(10)).expect("sent");
    let mut other = connect(&served, &trusted);
    assert_eq!(run(&mut other, "AUTH secret"), "OK");
    let mut watcher = served.connect();
    let until = Instant::now() + Duration::from_secs(30);
    while watcher.run("CLIENT LIST").matches("id=").count() > 2 {
        assert!(Instant::now() < until, "the slow client is still there");
        assert_eq!(run(&mut other, "PING"), "PONG");
    }
    let Served { server, .. } = served;
    Server::stop(server);
    assert_eq!(other.read(&mut [0]).expect("an orderly end"), 0);
}

#[test]
fn the_end_of_a_client_is_seen_before_what_it_has_sent_is_read_and_none_of_that_is_lost() {
    let directory = tempfile::tempdir().expect("a directory");
    let (trusted, options) = encrypted(directory.path(), Limits::default());
    let tls = options.tls.expect("it is encrypted");
    let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
    let stream = TcpStream::connect(listener.local_addr().expect("bound")).expect("it accepts");
    stream.set_write_timeout(Some(Duration::from_secs(30))).expect("set");
    let (served, serves) = channel();
    let relays = std::thread::spawn(move || {
        let (client, _) = listener.accept().expect("a client");
        let stall = Duration::from_secs(30);
        tls.serve(client, stall, |relayed, _| served.send(relayed).expect("it is waited for"))
    });
    let mut client = over(stream, &trusted);
    // More than the buffers of the sockets have.
    let sent: Vec<u8> = (0..6 << 20).map(|n: u32| (n % 251) as u8).collect();
    client.get_mut().write_all(&sent).expect("it is taken, and not read");
    client.get_mut().flush().expect("sent");
    let relayed = serves.recv().expect("it is served");
    assert!(!relayed.far_ended.load(Ordering::Relaxed));
    client.get_mut().conn.send_close_notify();
    client.get_mut().flush().expect("sent");
    client.get_mut().sock.shutdown(Shutdown::Write).expect("shut");
    let until = Instant::now() + Duration::from_secs(30);
    while !relayed.far_ended.load(Ordering::Relaxed) {
        assert!(Instant::now() < until, "its end is not seen");
        std::thread::yield_now();
    }
    relayed.socket.set_read_timeout(Some(Duration::from_secs(30))).expect("set");
    let mut got = Vec::new();
    (&relayed.socket).read_to_end(&mut got).expect("all of it");
    assert!(got == sent);
    drop(relayed);
    relays.join().expect("no panic").expect("it was served");
}

#[test]
fn files_that_are_no_certificates_are_named() {
    let directory = tempfile::tempdir().expect("a directory");
    let at = |name: &str| directory.path().join(name);
    encrypted(directory.path(), Limits::default());
    std::fs::write(at("empty"), "").expect("written");
    std::fs::write(at("garbage"), b"-----BEGIN CERTIFICATE-----\n????\n").expect("written");
    let other = rcgen::KeyPair::generate().expect("a key").serialize_pem();
    std::fs::write(at("other.pem"), other).expect("written");
    for (cert, key, named) in [
        ("missing", "key.pem", "missing"),
        ("empty", "key.pem", "empty"),
        ("garbage", "key.pem", "garbage"),
        ("cert.pem", "missing", "missing"),
        ("cert.pem", "cert.pem", "cert.pem"),
        ("cert.pem", "other.pem", "other.pem"),
    ] {
        let error = Tls::from_files(&at(cert), &at(key)).expect_err("no pair").to_string();
        assert!(error.starts_with("cannot use") && error.contains(named), "{error}");
    }
}
