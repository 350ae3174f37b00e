//! Tests of the addresses of servers and of the credentials of their clients.

use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use kvdb_wire::{ClientOptions, VsockAddress};
use places::{Credentials, Error, ServedDirectory, Server};

fn network(host: &str, port: u16) -> Server {
    Server::Network { host: host.into(), port }
}

fn parsed(word: &str) -> Server {
    Server::parse(Path::new(word)).expect("an address").expect("a server")
}

#[test]
fn an_address_is_a_socket_or_a_host_with_its_port() {
    assert_eq!(parsed("kvfs+unix:/run/my.sock"), Server::Unix("/run/my.sock".into()));
    assert_eq!(parsed("kvfs+unix:///run/my.sock"), Server::Unix("/run/my.sock".into()));
    let here = std::env::current_dir().expect("a directory");
    assert_eq!(parsed("kvfs+unix:my.sock"), Server::Unix(here.join("my.sock")));
    assert_eq!(parsed("kvfs://files.example.org:7411"), network("files.example.org", 7411));
    assert_eq!(parsed("kvfs://[::1]:7411"), network("::1", 7411));
    for word in ["kvfs+unix:/run/my.sock", "kvfs://files.example.org:7411", "kvfs://[::1]:7411"] {
        assert_eq!(parsed(word).to_string(), word);
        assert_eq!(parsed(word).address(), word);
    }
}

#[test]
fn an_address_of_a_virtual_machine_or_its_host_is_a_number_with_its_port() {
    let host = Server::Vsock(VsockAddress { cid: 2, port: 7411 });
    assert_eq!(parsed("kvfs+vsock://2:7411"), host);
    assert_eq!(parsed("kvfs+vsock:2:7411"), host);
    assert_eq!(host.to_string(), "kvfs+vsock://2:7411");
    assert_eq!(host.address(), "kvfs+vsock://2:7411");
}

#[test]
fn other_words_are_paths_and_half_addresses_are_refused() {
    for word in ["my.kvfs", "/srv/my.kvfs", "dir:/srv/work", "s3://bucket/work", "kvfs+unix"] {
        assert_eq!(Server::parse(Path::new(word)).expect("a path"), None, "{word}");
    }
    for word in [
        "kvfs://",
        "kvfs://host",
        "kvfs://:7411",
        "kvfs://host:70000",
        "kvfs+tcp:host:7411",
        "kvfs+vsock:",
        "kvfs+vsock://2",
        "kvfs+vsock://host:7411",
        "kvfs+vsock://4294967295:7411",
    ] {
        let refused = Server::parse(Path::new(word));
        assert!(matches!(refused, Err(Error::NoServer { .. })), "{word}: {refused:?}");
    }
}

fn directory(word: &str) -> (Server, PathBuf) {
    let parsed = ServedDirectory::parse(Path::new(word)).expect("an address").expect("a server");
    // The address of a directory denotes the same directory.
    let again = ServedDirectory::parse(Path::new(&parsed.address())).expect("an address");
    assert_eq!(again, Some(parsed.clone()), "{parsed}");
    (parsed.server.clone(), parsed.path().to_owned())
}

#[test]
fn a_path_after_the_address_of_a_server_denotes_a_directory_of_its_store() {
    let socket = || Server::Unix("/run/my.sock".into());
    let vsock = || Server::Vsock(VsockAddress { cid: 2, port: 741 });
    for (word, server, path) in [
        ("kvfs://host:7411/a/b", network("host", 7411), "a/b"),
        ("kvfs://[::1]:7411/a", network("::1", 7411), "a"),
        ("kvfs://host:7411//a/./b/", network("host", 7411), "a/b"),
        ("kvfs://host:7411/a:/b", network("host", 7411), "a:/b"),
        ("kvfs://host:7411/", network("host", 7411), ""),
        ("kvfs://host:7411", network("host", 7411), ""),
        ("kvfs+vsock://2:741/a/b", vsock(), "a/b"),
        ("kvfs+vsock:2:741/a", vsock(), "a"),
        ("kvfs+unix:/run/my.sock:/a/b", socket(), "a/b"),
        ("kvfs+unix:///run/my.sock:/a:/b", socket(), "a:/b"),
        ("kvfs+unix:/run/my.sock:/", socket(), ""),
        ("kvfs+unix:/run/my.sock", socket(), ""),
    ] {
        assert_eq!(directory(word), (server, path.into()), "{word}");
    }
    for word in ["my.kvfs", "/srv/a:/b", "dir:/srv/work", "s3://bucket/work"] {
        let parsed = ServedDirectory::parse(Path::new(word)).expect("a path");
        assert_eq!(parsed, None, "{word}");
    }
    for word in ["kvfs://host:7411/..", "kvfs://host:7411/a/../b", "kvfs+unix:s:/..", "kvfs:///a"] {
        let refused = ServedDirectory::parse(Path::new(word));
        assert!(matches!(refused, Err(Error::NoServer { .. })), "{word}: {refused:?}");
    }
    // Where a server alone is meant, a path is refused, and not left out silently.
    for word in ["kvfs://host:7411/a", "kvfs+vsock://2:741/a", "kvfs+unix:/run/my.sock:/a"] {
        let refused = Server::parse(Path::new(word));
        assert!(matches!(refused, Err(Error::NoServer { .. })), "{word}: {refused:?}");
    }
    assert_eq!(parsed("kvfs://host:7411/"), network("host", 7411));
}

/// The reason why a connection over the network is refused before it is made.
fn refused(credentials: Credentials) -> Error {
    let options = ClientOptions::default();
    // No server can listen there: nothing but the credentials is looked at.
    match network("localhost", 1).connect(&credentials, options) {
        Ok(_) => panic!("a server listens there"),
        Err(e) => e,
    }
}

#[test]
fn a_client_of_the_network_needs_a_token_that_others_cannot_read_or_a_certificate() {
    assert!(matches!(refused(Credentials::default()), Error::NoCredentials));
    let cert = Some(PathBuf::from("laptop.pem"));
    let half = Credentials { cert: cert.clone(), ..Credentials::default() };
    assert!(matches!(refused(half), Error::HalfCertificate));

    let directory = tempfile::tempdir().expect("a temporary directory");
    let file = directory.path().join("token");
    fs::write(&file, "\n").expect("written");
    let by_file = || Credentials { token_file: Some(file.clone()), ..Credentials::default() };
    fs::set_permissions(&file, Permissions::from_mode(0o644)).expect("set");
    assert!(matches!(refused(by_file()), Error::NotPrivate { .. }));
    fs::set_permissions(&file, Permissions::from_mode(0o600)).expect("set");
    assert!(matches!(refused(by_file()), Error::NoLine { .. }));
    fs::remove_file(&file).expect("removed");
    assert!(matches!(refused(by_file()), Error::Unreadable { .. }));

    // So is a token for another machine of this host.
    let vsock = Server::Vsock(VsockAddress { cid: 1, port: 7411 });
    let refused_there = vsock.connect(&by_file(), ClientOptions::default()).err();
    assert!(matches!(refused_there, Some(Error::Unreadable { .. })), "{refused_there:?}");

    let key = directory.path().join("laptop.key");
    fs::write(&key, "").expect("written");
    fs::set_permissions(&key, Permissions::from_mode(0o644)).expect("set");
    let open_key = Credentials { cert, cert_key: Some(key), ..Credentials::default() };
    assert!(matches!(refused(open_key), Error::NotPrivate { .. }));
}
