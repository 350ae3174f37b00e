//! Tests of a store that is served to other machines. Connections are encrypted, clients present a
//! token or a certificate, and each may do only what that allows.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use crate::served_place::{Place, Serving, awaits, kvfs, said, succeeds};

/// Tokens and their permissions.
const TOKENS: [(&str, &str); 4] = [
    ("reader-0123456789abcdef", "read=mon*"),
    ("writer-0123456789abcdef", "write"),
    ("guest-0123456789abcdef", "write=attempt read=base"),
    ("admin-0123456789abcdef", "admin"),
];

/// A place with a certificate for `localhost`, and files with tokens.
fn place() -> Option<Place> {
    let place = Place::new()?;
    let made = rcgen::generate_simple_self_signed(["localhost".to_string()]).expect("made");
    std::fs::write(place.path("cert.pem"), made.cert.pem()).expect("written");
    std::fs::write(place.path("key.pem"), made.signing_key.serialize_pem()).expect("written");
    let mut list = String::from("# who may do what\n");
    for (token, words) in TOKENS {
        let file = place.path(token.split('-').next().expect("a name"));
        std::fs::write(&file, format!("{token}\n")).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
        let script = "tr -d '\\n' <\"$0\" | sha256sum | cut -c 1-64";
        let output = succeeds(Command::new("sh").args(["-c", script]).arg(&file));
        let hash = String::from_utf8(output.stdout).expect("digits");
        list.push_str(&format!("{} {words}\n", hash.trim()));
    }
    std::fs::write(place.path("tokens"), list).expect("written");
    std::fs::set_permissions(place.path("tokens"), PermissionsExt::from_mode(0o644)).expect("set");
    let store = place.path("store");
    for snapshot in ["monday", "base"] {
        succeeds(kvfs().args(["snapshot", "create"]).arg(&store).arg(snapshot));
    }
    succeeds(kvfs().args(["clone", "create"]).arg(&store).args(["base", "attempt"]));
    Some(place)
}

fn serve_command(place: &Place, port: u16) -> Command {
    let mut command = kvfs();
    command.args(["serve", "--write", "--listen"]).arg(format!("tls:127.0.0.1:{port}"));
    for (name, file) in [("--cert", "cert.pem"), ("--key", "key.pem"), ("--tokens", "tokens")] {
        command.arg(name).arg(place.path(file));
    }
    command.arg(place.path("store"));
    command
}

/// The server and its port. Port 0 means any free port.
fn serve(place: &Place, port: u16) -> (Serving, u16) {
    begin(serve_command(place, port))
}

fn begin(mut command: Command) -> (Serving, u16) {
    let mut child = command.stdout(Stdio::piped()).spawn().expect("kvfs runs");
    let mut line = String::new();
    let out = child.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut line).expect("text");
    let port = line.trim().rsplit(':').next().and_then(|port| port.parse().ok());
    (Serving(child), port.unwrap_or_else(|| panic!("{line:?}")))
}

/// A mount by the token of this name.
fn mount(place: &Place, port: u16, token: &str, words: &[&str]) -> Command {
    let mut command = kvfs();
    command.arg("mount").arg(format!("kvfs://localhost:{port}")).arg(place.path("one"));
    command.arg("--token-file").arg(place.path(token)).arg("--ca").arg(place.path("cert.pem"));
    command.args(words);
    command
}

#[track_caller]
fn refused(mut command: Command, what: &str) -> String {
    let output = command.output().expect("kvfs runs");
    assert!(!output.status.success(), "{command:?}");
    assert!(said(&output).contains(what), "{}", said(&output));
    said(&output)
}

#[test]
fn files_are_written_over_tls_by_a_client_with_a_token() {
    let Some(place) = place() else { return };
    let (serving, port) = serve(&place, 0);
    let log = place.path("log");
    let mut command = mount(&place, port, "writer", &["--txn", "--json"]);
    let output = succeeds(command.arg("--log").arg(&log).env("RUST_LOG", "trace"));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let mnt = place.path("one");
    let large = std::fs::read(mnt.join("a/b/large")).expect("read");
    assert_eq!(large, vec![7; 1 << 20]);
    std::fs::write(mnt.join("made"), "over the network").expect("written");
    std::fs::write(mnt.join("large"), vec![9; 20 << 20]).expect("written");
    // The token is in no list of processes and in no log.
    let secret = TOKENS[1].0.as_bytes();
    let command = std::fs::read(format!("/proc/{}/cmdline", told["pid"])).expect("it is there");
    let logged = std::fs::read(&log).expect("a log");
    for text in [&command, &logged, &output.stdout, &output.stderr] {
        assert!(!text.windows(secret.len()).any(|part| part == secret));
    }
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    place.has("/made", Some("over the network"));
}

#[test]
fn a_token_of_the_environment_is_not_in_that_of_the_daemon() {
    let Some(place) = place() else { return };
    let (serving, port) = serve(&place, 0);
    let mut command = kvfs();
    command.arg("mount").arg(format!("kvfs://localhost:{port}")).arg(place.path("one"));
    command.args(["--txn", "--json", "--ca"]).arg(place.path("cert.pem"));
    // A variable of another kind stays, so that the environment was read.
    let output = succeeds(command.env("KVFS_TOKEN", TOKENS[1].0).env("STAYS", "it-stays"));
    let told: serde_json::Value = serde_json::from_slice(&output.stdout).expect("JSON");
    let environment = std::fs::read(format!("/proc/{}/environ", told["pid"])).expect("it is there");
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("it-stays"), "{environment}");
    assert!(!environment.contains(TOKENS[1].0) && !environment.contains("KVFS_TOKEN"));
    std::fs::write(place.path("one").join("made"), "by that token").expect("written");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    let mut run = kvfs();
    run.env("KVFS_TOKEN", TOKENS[1].0).env("KVFS_CA", place.path("cert.pem"));
    run.arg("run").arg(format!("kvfs://localhost:{port}"));
    succeeds(run.args(["--", "sh", "-ec", "test -z \"$KVFS_TOKEN\" && cp made copy"]));
    serving.ends_when_asked();
    place.has("/copy", Some("by that token"));
}

#[test]
fn a_program_that_runs_by_a_token_does_not_find_it_in_the_process_that_runs_it() {
    let Some(place) = place() else { return };
    let (serving, port) = serve(&place, 0);
    let shown = place.path("shown");
    let mut run = kvfs();
    // A variable of another kind stays, so that the environment was read.
    run.env("KVFS_TOKEN", TOKENS[1].0).env("STAYS", "it-stays");
    run.env("KVFS_CA", place.path("cert.pem")).env("SHOWN", &shown);
    run.arg("run").arg(format!("kvfs://localhost:{port}"));
    // The run is the parent of the program.
    let script = "cat /proc/$PPID/environ /proc/self/environ >\"$SHOWN\"; echo ran >copy";
    succeeds(run.args(["--", "sh", "-ec", script]));
    let shown = std::fs::read(&shown).expect("it was read");
    let shown = String::from_utf8_lossy(&shown);
    assert_eq!(shown.matches("STAYS=it-stays").count(), 2, "{shown:?}");
    assert!(!shown.contains(TOKENS[1].0));
    serving.ends_when_asked();
    place.has("/copy", Some("ran\n"));
}

#[test]
fn a_mount_in_the_foreground_does_not_show_the_token_that_it_was_begun_with() {
    let Some(place) = place() else { return };
    let (_serving, port) = serve(&place, 0);
    let mut command = kvfs();
    command.arg("mount").arg(format!("kvfs://localhost:{port}")).arg(place.path("one"));
    command.args(["--txn", "--foreground", "--json", "--ca"]).arg(place.path("cert.pem"));
    command.env("KVFS_TOKEN", TOKENS[1].0).env("STAYS", "it-stays");
    let mut mount = command.stdout(Stdio::piped()).spawn().expect("kvfs runs");
    let mut line = String::new();
    let out = mount.stdout.as_mut().expect("a pipe");
    // The server writes a line as soon as it answers.
    BufReader::new(out).read_line(&mut line).expect("text");
    let environment = std::fs::read(format!("/proc/{}/environ", mount.id())).expect("it is there");
    let written = std::fs::write(place.path("one").join("made"), "by that token");
    let ended = place.end("commit", "one");
    let _ = kvfs().arg("umount").arg(place.path("one")).output();
    mount.wait().expect("it has ended");
    let environment = String::from_utf8_lossy(&environment);
    assert!(environment.contains("STAYS=it-stays"), "{line:?}");
    assert!(!environment.contains(TOKENS[1].0));
    written.expect("written");
    assert!(ended.status.success(), "{}", said(&ended));
}

#[test]
fn each_token_lets_do_what_its_line_says_and_nothing_else() {
    let Some(place) = place() else { return };
    let (_serving, port) = serve(&place, 0);
    let try_all = |token: &str| -> Vec<&str> {
        let ways: [(&str, &[&str]); 4] = [
            ("monday", &["--snapshot", "monday"]),
            ("base", &["--snapshot", "base"]),
            ("main", &["--txn"]),
            ("attempt", &["--txn", "-o", "clone=attempt"]),
        ];
        let mut may = Vec::new();
        for (name, words) in ways {
            let output = mount(&place, port, token, words).output().expect("kvfs runs");
            match output.status.success() {
                true => {
                    may.push(name);
                    succeeds(kvfs().arg("umount").arg(place.path("one")));
                }
                false => assert_eq!(output.status.code(), Some(7), "{}", said(&output)),
            }
        }
        may
    };
    assert_eq!(try_all("reader"), ["monday"]);
    assert_eq!(try_all("writer"), ["main"]);
    assert_eq!(try_all("guest"), ["base", "attempt"]);
    assert_eq!(try_all("admin"), ["monday", "base", "main", "attempt"]);
    // The names of snapshots are shown to no client that may not read them.
    let none = refused(mount(&place, port, "writer", &["--snapshot", "none"]), "does not let");
    assert!(!none.contains("has no snapshot"), "{none}");
}

#[test]
fn a_token_lets_make_snapshots_of_what_it_may_write_and_that_of_an_administrator_drop_them() {
    let Some(place) = place() else { return };
    let (_serving, port) = serve(&place, 0);
    let snapshot = |token: &str, words: &[&str]| {
        let mut command = kvfs();
        command.env("KVFS_TOKEN_FILE", place.path(token)).env("KVFS_CA", place.path("cert.pem"));
        command.args(["snapshot", words[0]]).arg(format!("kvfs://localhost:{port}"));
        command.args(&words[1..]).output().expect("kvfs runs")
    };
    for (token, words, code) in [
        ("reader", &["create", "n"][..], 7),
        ("guest", &["create", "n"], 7),
        ("writer", &["create", "--of", "attempt", "n"], 7),
        ("writer", &["create", "written"], 0),
        ("guest", &["create", "--of", "attempt", "tried"], 0),
        ("writer", &["drop", "written"], 7),
        ("guest", &["drop", "tried"], 7),
        ("admin", &["drop", "written"], 0),
        ("admin", &["drop", "written"], 3),
    ] {
        let output = snapshot(token, words);
        assert_eq!(output.status.code(), Some(code), "{token} {words:?}: {}", said(&output));
    }
    for (token, names) in [
        ("reader", &["monday"][..]),
        ("writer", &["monday", "base"]),
        ("guest", &["base", "tried  of clone attempt"]),
        ("admin", &["monday", "base", "tried  of clone attempt"]),
    ] {
        let listed = said(&snapshot(token, &["list"]));
        let found: Vec<&str> = listed.lines().skip(1).filter_map(|line| line.get(22..)).collect();
        assert_eq!(found, names, "{token}: {listed}");
    }
}

#[test]
fn a_token_lets_make_and_drop_clones_that_it_may_write_of_snapshots_that_it_may_read() {
    let Some(place) = place() else { return };
    let (_serving, port) = serve(&place, 0);
    let clone = |token: &str, words: &[&str]| {
        let mut command = kvfs();
        command.env("KVFS_TOKEN_FILE", place.path(token)).env("KVFS_CA", place.path("cert.pem"));
        command.args(["clone", words[0]]).arg(format!("kvfs://localhost:{port}"));
        command.args(&words[1..]).output().expect("kvfs runs")
    };
    for (token, words, code) in [
        ("reader", &["create", "monday", "attempt"][..], 7),
        ("writer", &["create", "base", "attempt"], 7),
        ("guest", &["create", "base", "other"], 7),
        ("guest", &["drop", "attempt"], 0),
        ("guest", &["create", "monday", "attempt"], 7),
        ("guest", &["create", "--limit", "1G", "base", "attempt"], 2),
        ("guest", &["create", "base", "attempt"], 0),
        ("guest", &["create", "base", "attempt"], 1),
        ("admin", &["create", "none", "other"], 3),
        ("admin", &["create", "monday", "other"], 0),
        ("guest", &["drop", "other"], 7),
    ] {
        let output = clone(token, words);
        assert_eq!(output.status.code(), Some(code), "{token} {words:?}: {}", said(&output));
    }
    assert_eq!(said(&clone("guest", &["list"])), "attempt  of snapshot base\n");
    let all = said(&clone("admin", &["list"]));
    assert_eq!(all, "attempt  of snapshot base\nother  of snapshot monday\n");
    succeeds(&mut mount(&place, port, "guest", &["--txn", "-o", "clone=attempt"]));
    std::fs::write(place.path("one").join("made"), "in the clone").expect("written");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
}

#[test]
fn a_client_without_a_token_or_with_a_wrong_one_is_refused() {
    let Some(place) = place() else { return };
    let (_serving, port) = serve(&place, 0);
    let mut command = kvfs();
    command.arg("mount").arg(format!("kvfs://localhost:{port}")).arg(place.path("one"));
    refused(
        {
            command.arg("--txn");
            command
        },
        "wants a token",
    );
    let with = |token: &str| {
        let file = place.path("wrong");
        std::fs::write(&file, token).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
        mount(&place, port, "wrong", &["--txn"])
    };
    for wrong in ["none-0123456789abcdef", "writer-0123456789abcde", "writer-0123456789abcdef0"] {
        let why = refused(with(wrong), "the token is none of this server");
        assert!(!why.contains(wrong), "{why}");
    }
    refused(with(""), "has no token in its first line");
    let open = place.path("writer");
    std::fs::set_permissions(&open, PermissionsExt::from_mode(0o644)).expect("set");
    refused(mount(&place, port, "writer", &["--txn"]), "every user may use the file");
}

#[test]
fn a_server_with_another_name_or_an_unknown_certificate_is_not_believed() {
    let Some(place) = place() else { return };
    let (_serving, port) = serve(&place, 0);
    let mut command = kvfs();
    command.arg("mount").arg(format!("kvfs://127.0.0.1:{port}")).arg(place.path("one"));
    command.arg("--token-file").arg(place.path("writer"));
    command.arg("--ca").arg(place.path("cert.pem")).arg("--txn");
    refused(command, "certificate");
    let mut command = kvfs();
    command.arg("mount").arg(format!("kvfs://localhost:{port}")).arg(place.path("one"));
    refused(
        {
            command.arg("--token-file").arg(place.path("writer")).arg("--txn");
            command
        },
        "certificate",
    );
    let mut plain = kvfs();
    plain
        .arg("mount")
        .arg(format!("kvfs+tcp:localhost:{port}"))
        .arg(place.path("one"))
        .arg("--txn");
    refused(plain, "plain TCP");
}

/// The first bytes of a handshake, which is never finished.
const BEGINNING: [u8; 9] = [22, 3, 1, 0, 200, 1, 0, 0, 196];

#[test]
fn clients_that_are_cut_or_stall_in_the_handshake_keep_out_no_one_for_long() {
    let Some(place) = place() else { return };
    let (_serving, port) = serve(&place, 0);
    succeeds(&mut mount(&place, port, "writer", &["--txn"]));
    let connect = || TcpStream::connect(("127.0.0.1", port)).expect("it accepts");
    for bytes in [&b""[..], &BEGINNING, b"GET / HTTP/1.1\r\n\r\n", &[0xff; 300]] {
        connect().write_all(bytes).expect("sent");
    }
    // A flood of stalling clients, of which the server accepts a limited number.
    let mut stalled: Vec<TcpStream> = (0..200).map(|_| connect()).collect();
    for stream in &mut stalled {
        // Some are closed already.
        let _ = stream.write_all(&BEGINNING);
    }
    let is_closed = |stream: &mut TcpStream| {
        stream.set_read_timeout(Some(Duration::from_millis(10))).expect("set");
        match stream.read(&mut [0; 9]) {
            Ok(read) => read == 0,
            Err(e) => e.kind() != std::io::ErrorKind::WouldBlock,
        }
    };
    let closed = stalled.iter_mut().filter_map(|stream| is_closed(stream).then_some(())).count();
    assert!(closed >= 100, "{closed}");
    // Connected clients continue.
    std::fs::write(place.path("one").join("made"), "in the flood").expect("written");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    // The others are cut off after a while.
    awaits("a client gets in", || {
        mount(&place, port, "writer", &["--txn"]).output().expect("kvfs runs").status.success()
    });
    assert_eq!(std::fs::read(place.path("one").join("made")).expect("read"), b"in the flood");
    drop(stalled);
}

#[test]
fn a_mount_goes_on_over_a_server_of_the_network_that_is_killed() {
    let Some(place) = place() else { return };
    let (serving, port) = serve(&place, 0);
    succeeds(&mut mount(&place, port, "writer", &["--txn", "--durable"]));
    let write = |name: &str| {
        let mut file = std::fs::File::create(place.path("one").join(name)).expect("made");
        file.write_all(name.as_bytes()).expect("written");
        file.sync_all().expect("synced");
    };
    write("first");
    drop(serving);
    let (serving, _) = serve(&place, port);
    write("second");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    let mut run = kvfs();
    run.env("KVFS_TOKEN_FILE", place.path("admin")).env("KVFS_CA", place.path("cert.pem"));
    run.arg("run").arg(format!("kvfs://localhost:{port}"));
    succeeds(run.args(["--", "sh", "-ec", "cat first second >both"]));
    serving.ends_when_asked();
    place.has("/both", Some("firstsecond"));
}

#[test]
fn what_would_let_anyone_in_is_refused() {
    let Some(place) = place() else { return };
    let listen = |address: &str, words: &[(&str, &str)]| {
        let mut command = kvfs();
        command.arg("serve").arg(place.path("store")).args(["--listen", address]);
        for (name, file) in words {
            command.arg(name).arg(place.path(file));
        }
        command
    };
    let pair = [("--cert", "cert.pem"), ("--key", "key.pem")];
    let all = [&pair[..], &[("--tokens", "tokens")]].concat();
    refused(listen("tcp:127.0.0.1:0", &all), "plain TCP");
    refused(listen("tls:127.0.0.1:0", &pair), "needs --cert, --key and --tokens");
    refused(listen("unix:socket", &pair), "are for tls:");
    let tokens = |text: &str, mode: u32| -> PathBuf {
        let file = place.path("tokens");
        std::fs::write(&file, text).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(mode)).expect("set");
        file
    };
    tokens("secret admin\n", 0o600);
    let why = refused(listen("tls:127.0.0.1:0", &all), "line 1");
    assert!(!why.contains("secret"), "{why}");
    tokens("# nobody\n", 0o600);
    refused(listen("tls:127.0.0.1:0", &all), "has no token");
    tokens(&format!("{} admin\n", "0".repeat(64)), 0o666);
    refused(listen("tls:127.0.0.1:0", &all), "can be written by others");
}

/// Makes an authority, whose certificate is in a file, and certificates that it has signed, in
/// files such as `laptop.pem`, with their keys in `laptop.key`.
fn certify(place: &Place, authority: &str, names: &[&str]) {
    use rcgen::{BasicConstraints, CertificateParams, IsCa, Issuer, KeyPair};
    let key = KeyPair::generate().expect("made");
    let mut params = CertificateParams::new(Vec::<String>::new()).expect("made");
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let made = params.self_signed(&key).expect("signed");
    std::fs::write(place.path(authority), made.pem()).expect("written");
    let issuer = Issuer::new(params, key);
    for name in names {
        let key = KeyPair::generate().expect("made");
        let params = CertificateParams::new([name.to_string()]).expect("made");
        let made = params.signed_by(&key, &issuer).expect("signed");
        std::fs::write(place.path(&format!("{name}.pem")), made.pem()).expect("written");
        std::fs::write(place.path(&format!("{name}.der")), made.der()).expect("written");
        let file = place.path(&format!("{name}.key"));
        std::fs::write(&file, key.serialize_pem()).expect("written");
        std::fs::set_permissions(&file, PermissionsExt::from_mode(0o600)).expect("set");
    }
}

/// A line of the list of tokens that states the permissions of a certificate.
fn line_of(place: &Place, name: &str, words: &str) -> String {
    let file = place.path(&format!("{name}.der"));
    let output = succeeds(Command::new("sha256sum").arg(file));
    let digits = String::from_utf8(output.stdout).expect("digits");
    format!("cert:{} {words}\n", &digits[..64])
}

/// The command of a server that asks for certificates.
fn asking(place: &Place, list: &str) -> Command {
    std::fs::write(place.path("tokens"), list).expect("written");
    let mut command = serve_command(place, 0);
    command.arg("--client-ca").arg(place.path("clients.pem"));
    command
}

/// A mount by the certificate of this name.
fn mount_certified(place: &Place, port: u16, name: &str, words: &[&str]) -> Command {
    let mut command = kvfs();
    command.arg("mount").arg(format!("kvfs://localhost:{port}")).arg(place.path("one"));
    command.arg("--ca").arg(place.path("cert.pem"));
    command.arg("--cert").arg(place.path(&format!("{name}.pem")));
    command.arg("--cert-key").arg(place.path(&format!("{name}.key"))).args(words);
    command
}

fn text_of(file: &Path) -> String {
    std::fs::read_to_string(file).expect("text")
}

#[test]
fn a_certificate_lets_do_what_its_line_says_and_needs_no_token() {
    let Some(place) = place() else { return };
    certify(&place, "clients.pem", &["laptop", "unlisted"]);
    certify(&place, "others.pem", &["foreign"]);
    let lines = [line_of(&place, "laptop", "write"), line_of(&place, "foreign", "admin")].concat();
    let (serving, port) = begin(asking(&place, &(text_of(&place.path("tokens")) + &lines)));
    succeeds(&mut mount_certified(&place, port, "laptop", &["--txn"]));
    std::fs::write(place.path("one").join("made"), "by a laptop").expect("written");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    refused(mount_certified(&place, port, "laptop", &["--snapshot", "monday"]), "does not let");
    // A certificate without a line permits nothing, and does not affect a token.
    let unlisted = mount_certified(&place, port, "unlisted", &["--txn"]);
    refused(unlisted, "the token is none of this server");
    let token = place.path("reader");
    let token = ["--token-file", token.to_str().expect("text"), "--snapshot", "monday"];
    succeeds(&mut mount_certified(&place, port, "unlisted", &token));
    succeeds(kvfs().arg("umount").arg(place.path("one")));
    succeeds(&mut mount(&place, port, "writer", &["--txn"]));
    succeeds(kvfs().arg("umount").arg(place.path("one")));
    // Another authority has signed this one, whatever its line says.
    refused(mount_certified(&place, port, "foreign", &["--txn"]), "cannot read");
    serving.ends_when_asked();
    place.has("/made", Some("by a laptop"));
}

#[test]
fn where_the_list_has_no_token_a_client_without_a_certificate_is_cut_off() {
    let Some(place) = place() else { return };
    certify(&place, "clients.pem", &["laptop"]);
    let (serving, port) = begin(asking(&place, &line_of(&place, "laptop", "write")));
    refused(mount(&place, port, "writer", &["--txn"]), "cannot read");
    let mut run = kvfs();
    // The files are found from the directory of the command, and the program has none of them.
    run.current_dir(place.path(".")).env("KVFS_CA", "cert.pem");
    run.env("KVFS_CERT", "laptop.pem").env("KVFS_CERT_KEY", "laptop.key");
    run.arg("run").arg(format!("kvfs://localhost:{port}"));
    let script = "test -z \"$KVFS_CERT$KVFS_CERT_KEY\" && echo ran >ran";
    succeeds(run.args(["--", "sh", "-ec", script]));
    serving.ends_when_asked();
    place.has("/ran", Some("ran\n"));
}

#[test]
fn certificates_of_clients_their_keys_and_their_authority_go_together() {
    let Some(place) = place() else { return };
    certify(&place, "clients.pem", &["laptop"]);
    let tokens = text_of(&place.path("tokens"));
    refused(asking(&place, &tokens), "has no certificate of a client");
    std::fs::write(place.path("tokens"), line_of(&place, "laptop", "write")).expect("written");
    refused(serve_command(&place, 0), "which authority has signed them");
    let mut half = mount(&place, 1, "writer", &["--txn"]);
    half.arg("--cert").arg(place.path("laptop.pem"));
    refused(half, "go together");
    let key = place.path("laptop.key");
    std::fs::set_permissions(key, PermissionsExt::from_mode(0o644)).expect("set");
    refused(mount_certified(&place, 1, "laptop", &["--txn"]), "every user may use the file");
    let mut local = kvfs();
    local.arg("serve").arg(place.path("store")).args(["--listen", "unix:socket"]);
    local.arg("--client-ca").arg(place.path("clients.pem"));
    refused(local, "are for tls:");
}
