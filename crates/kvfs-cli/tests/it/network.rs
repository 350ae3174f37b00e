//! Tests of `-o listen=ADDRESS`, which serves the keys of a mounted store over TCP, with a password
//! and with TLS.

use crate::place;
use std::fs::{self, Permissions};
use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use crate::place::{Place, fails, kvfs, succeeds};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};

fn write(path: PathBuf, text: &str, mode: u32) -> String {
    fs::write(&path, text).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
    path.to_str().expect("text").into()
}

/// Mounts with these options. Returns the address at which keys are served.
fn mounted(p: &Place, options: &str) -> String {
    let said = succeeds(p.mount(&["-o", options, "--json"]).stdin(Stdio::null()));
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    said["listen"].as_str().expect("an address").to_string()
}

fn connect(address: &str) -> TcpStream {
    let client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
    client
}

/// All replies to commands of which the last ends the connection.
fn say(client: &mut (impl Read + Write), commands: &str) -> String {
    client.write_all(commands.as_bytes()).expect("sent");
    let mut said = String::new();
    client.read_to_string(&mut said).expect("replies and an end");
    said
}

#[test]
fn keys_are_served_over_tcp_to_those_who_know_the_password() {
    let Some(p) = Place::new() else { return };
    let password = write(p.dir.path().join("password"), "open sesame\nnot this\n", 0o600);
    let address = mounted(&p, &format!("listen=127.0.0.1:0,password_file={password}"));
    let said = say(&mut connect(&address), "SET k 1\r\nAUTH 'not this'\r\nGET k\r\nQUIT\r\n");
    assert_eq!(said.matches("-NOAUTH").count(), 2, "{said}");
    assert!(said.contains("-WRONGPASS"), "{said}");
    let said = say(&mut connect(&address), "AUTH 'open sesame'\r\nSET k 1\r\nINCR k\r\nQUIT\r\n");
    assert_eq!(said, "+OK\r\n+OK\r\n:2\r\n+OK\r\n");
    // A client may not make the server open files of this machine either.
    let said = say(&mut connect(&address), "AUTH 'open sesame'\r\nTXN MERGE x FORK /x\r\nQUIT\r\n");
    assert!(said.contains("Unix socket alone"), "{said}");
    // The store's own socket requires no password.
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(p.mnt()).arg("k").stdin(Stdio::null())), "2");
    succeeds(&mut p.umount());
    assert!(TcpStream::connect(&address).is_err(), "it still listens");
}

#[test]
fn what_other_machines_can_read_is_told() {
    let Some(p) = Place::new() else { return };
    let password = write(p.dir.path().join("password"), "open sesame", 0o600);
    let stat = || succeeds(kvfs(&["stat"]).arg(p.mnt()).stdin(Stdio::null()));
    for (ip, is_told) in [("127.0.0.1", false), ("0.0.0.0", true), ("[::1]", false)] {
        let options = format!("listen={ip}:0,password_file={password}");
        let ended = p.mount(&["-o", &options]).stdin(Stdio::null()).output().expect("kvfs runs");
        assert!(ended.status.success(), "{ip}: {}", place::text(&ended.stderr));
        let said = place::text(&ended.stderr);
        assert_eq!(said.contains("in the clear"), is_told, "{ip}: {said}");
        assert_eq!(said.is_empty(), !is_told, "{ip}: {said}");
        // The address, and the socket.
        let shown = stat();
        assert!(shown.contains(&format!("keys at       {ip}:")), "{shown}");
        assert!(shown.contains("s.kvfs.sock"), "{shown}");
        succeeds(&mut p.umount());
    }
}

#[test]
fn with_a_certificate_it_is_encrypted() {
    let Some(p) = Place::new() else { return };
    let at = |name: &str| p.dir.path().join(name);
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("made");
    let cert = write(at("cert.pem"), &made.cert.pem(), 0o644);
    let key = write(at("key.pem"), &made.signing_key.serialize_pem(), 0o600);
    let password = write(at("password"), "secret", 0o640);
    // The options are those of a file for --config.
    let config = format!(
        "store = {}\ndirectory = {}\nlisten = 127.0.0.1:0\npassword_file = {password}\n\
         tls_cert = {cert}\ntls_key = {key}\n",
        p.store().display(),
        p.mnt().display()
    );
    let config = write(at("store.conf"), &config, 0o644);
    let mut mount = kvfs(&["mount", "--json", "--config", &config]);
    let said: serde_json::Value =
        serde_json::from_str(&succeeds(mount.stdin(Stdio::null()))).expect("JSON");
    let address = said["listen"].as_str().expect("an address");

    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(made.cert.der().to_vec())).expect("a certificate");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let client = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("the default")
        .with_root_certificates(roots)
        .with_no_client_auth();
    let name = ServerName::try_from("localhost").expect("a name");
    let client = ClientConnection::new(Arc::new(client), name).expect("made");
    let mut client = StreamOwned::new(client, connect(address));
    let said = say(&mut client, "AUTH secret\r\nSET k v\r\nGET k\r\nQUIT\r\n");
    assert_eq!(said, "+OK\r\n+OK\r\n$1\r\nv\r\n+OK\r\n");
    let mut plain = connect(address);
    plain.write_all(b"AUTH secret\r\nGET k\r\nQUIT\r\n").expect("sent");
    let mut said = Vec::new();
    let _ = plain.read_to_end(&mut said);
    assert!(!said.contains(&b'+') && !said.contains(&b'v'), "{}", said.escape_ascii());
    succeeds(&mut p.umount());
}

#[test]
fn what_does_not_fit_together_mounts_nothing() {
    let Some(p) = Place::new() else { return };
    let at = |name: &str| p.dir.path().join(name);
    let good = write(at("good"), "secret", 0o600);
    let open = write(at("open"), "secret", 0o604);
    let empty = write(at("empty"), "\nsecond", 0o600);
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let taken = taken.local_addr().map(|address| address.to_string()).expect("its address");
    let free = "listen=127.0.0.1:0";
    for (options, code, names) in [
        (free.to_string(), 2, "needs password_file"),
        (format!("password_file={good}"), 2, "listen=ADDRESS"),
        (format!("listen=6379,password_file={good}"), 2, "127.0.0.1:6379"),
        (format!("{free},password_file={open}"), 2, "chmod o="),
        (format!("{free},password_file={empty}"), 2, "no password in its first line"),
        (format!("{free},password_file={}", at("missing").display()), 3, "missing"),
        (format!("{free},password_file={good},tls_cert={good}"), 2, "go together"),
        (format!("{free},password_file={good},tls_cert={good},tls_key={good}"), 2, "cannot use"),
        (format!("listen={taken},password_file={good}"), 1, &taken),
    ] {
        let said = fails(code, p.mount(&["-o", &options]).stdin(Stdio::null()));
        assert!(said.contains(names), "{options}: {said}");
        assert!(p.entry().is_none(), "{options}");
    }
    p.mounted();
    assert!(Path::new(&p.mnt()).is_dir());
}
