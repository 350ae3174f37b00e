//! Tests of `kvfs mount --metrics`: the page that Prometheus reads, and the answers to other
//! clients.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Stdio;
use std::time::{Duration, Instant};

use crate::place::{Place, fails, kvfs, succeeds};

/// Mounts. Returns the address of the figures.
fn mounted(p: &Place, words: &[&str]) -> String {
    let said = succeeds(p.mount(words).arg("--json").stdin(Stdio::null()));
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    said["metrics"].as_str().expect("an address").to_string()
}

fn ask(address: &str, request: &str) -> String {
    let mut client = TcpStream::connect(address).expect("it listens");
    client.set_read_timeout(Some(Duration::from_secs(30))).expect("a limit");
    client.write_all(request.as_bytes()).expect("sent");
    let mut answer = String::new();
    client.read_to_string(&mut answer).expect("an answer");
    answer
}

/// Samples by their names with labels, after a check of the form of all.
#[track_caller]
fn samples(address: &str) -> BTreeMap<String, f64> {
    let answer = ask(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let (head, body) = answer.split_once("\r\n\r\n").expect("a head");
    assert!(head.starts_with("HTTP/1.1 200 OK"), "{head}");
    assert!(head.contains("text/plain; version=0.0.4"), "{head}");
    assert!(head.contains(&format!("Content-Length: {}", body.len())), "{head}");
    let (mut kinds, mut helped, mut all) = (BTreeMap::new(), BTreeSet::new(), BTreeMap::new());
    for line in body.lines() {
        let words: Vec<&str> = line.splitn(4, ' ').collect();
        match words[..] {
            ["#", "HELP", name, help] => {
                assert!(help.ends_with('.') && helped.insert(name), "{line}");
            }
            ["#", "TYPE", name, kind] => {
                assert!(helped.contains(name), "{line}");
                assert_eq!(kind == "counter", name.ends_with("_total"), "{line}");
                assert!(kinds.insert(name, kind).is_none(), "{line}");
            }
            _ => {
                let (name, value) = line.rsplit_once(' ').expect("a value");
                let family = name.split('{').next().expect("a name");
                assert!(family.starts_with("kvfs_") && kinds.contains_key(family), "{line}");
                let value: f64 = value.parse().unwrap_or_else(|_| panic!("{line}"));
                assert!(all.insert(name.to_string(), value).is_none(), "{line} twice");
            }
        }
    }
    all
}

#[test]
fn figures_have_names_and_help_and_follow_what_is_done() {
    let Some(p) = Place::new() else { return };
    let address = mounted(&p, &["--metrics", "127.0.0.1:0"]);
    let before = samples(&address);
    assert_eq!(before["kvfs_failed"], 0.0);
    assert_eq!(before["kvfs_snapshots"], 0.0);
    fs::write(p.mnt().join("file"), vec![b'x'; 1 << 20]).expect("written");
    fs::File::open(p.mnt().join("file")).and_then(|file| file.sync_all()).expect("synced");
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("now"));
    succeeds(kvfs(&["txn", "begin"]).arg(p.mnt()));
    let after = samples(&address);
    assert_eq!(after["kvfs_snapshots"], 1.0);
    assert_eq!(after["kvfs_transactions_open"], 1.0);
    let grown = |name: &str| after[name] - before[name];
    assert!(grown("kvfs_file_written_bytes_total") >= (1 << 20) as f64);
    assert!(grown("kvfs_device_written_bytes_total{purpose=\"pages\"}") >= (1 << 20) as f64);
    assert!(grown("kvfs_commits_total") >= 1.0);
    assert!(after["kvfs_fuse_requests_total{kind=\"write\"}"] >= 1.0);
    for (name, value) in &before {
        if name.split('{').next().is_some_and(|family| family.ends_with("_total")) {
            assert!(after[name] >= *value, "{name} went back");
        }
    }
}

#[test]
fn requests_over_a_wire_are_counted_where_the_store_is_served() {
    let Some(p) = Place::new() else { return };
    let socket = p.mnt().with_file_name("wire.sock");
    let serve = format!("serve=unix:{},serve_write", socket.display());
    let address = mounted(&p, &["--metrics", "127.0.0.1:0", "-o", &serve]);
    let at = format!("kvfs+unix:{}", socket.display());
    succeeds(kvfs(&["snapshot", "create", &at, "now"]).stdin(Stdio::null()));
    counts_the_wire(&samples(&address));
    succeeds(&mut p.umount());
}

/// Checks that a snapshot which was made over a wire is counted.
#[track_caller]
fn counts_the_wire(all: &BTreeMap<String, f64>) {
    for request in ["hello", "snapshot"] {
        for family in ["requests", "asked_bytes", "answered_bytes"] {
            let name = format!("kvfs_wire_{family}_total{{request=\"{request}\"}}");
            assert!(all.get(&name).is_some_and(|value| *value >= 1.0), "{name} in {all:?}");
        }
    }
}

#[test]
fn a_store_that_is_served_without_a_mount_has_figures_too() {
    let directory = tempfile::tempdir().expect("a temporary directory");
    let (store, socket) = (directory.path().join("store"), directory.path().join("socket"));
    succeeds(kvfs(&["create"]).arg(&store).stdin(Stdio::null()));
    let mut serve = kvfs(&["--json", "serve", "--write", "--metrics", "127.0.0.1:0"]);
    serve.arg(&store).arg("--listen").arg(format!("unix:{}", socket.display()));
    let serve = serve.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut server = serve.spawn().expect("kvfs runs");
    let (mut said, mut listens) = (String::new(), String::new());
    let errors = server.stderr.as_mut().expect("a pipe");
    BufReader::new(errors).read_line(&mut said).expect("text");
    let out = server.stdout.as_mut().expect("a pipe");
    BufReader::new(out).read_line(&mut listens).expect("text");
    assert!(listens.contains("socket"), "{listens}");
    let said: serde_json::Value = serde_json::from_str(&said).expect("JSON");
    let address = said["metrics"].as_str().expect("an address");
    assert!(!samples(address).contains_key("kvfs_wire_requests_total{request=\"snapshot\"}"));
    let at = format!("kvfs+unix:{}", socket.display());
    succeeds(kvfs(&["snapshot", "create", &at, "now"]).stdin(Stdio::null()));
    let after = samples(address);
    counts_the_wire(&after);
    assert_eq!(after["kvfs_snapshots"], 1.0);
    assert_eq!(after["kvfs_transactions_open"], 0.0);
    server.kill().and_then(|()| server.wait()).expect("it is ours");
}

#[test]
fn other_questions_are_answered_and_none_holds_the_mount() {
    let Some(p) = Place::new() else { return };
    let address = mounted(&p, &["-o", "metrics=127.0.0.1:0"]);
    assert!(ask(&address, "GET / HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 404"));
    assert!(ask(&address, "POST /metrics HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(ask(&address, "\u{1}\u{2}\r\n\r\n").starts_with("HTTP/1.1 405"));
    assert!(ask(&address, "GET /metrics?x=1 HTTP/1.0\r\n\r\n").contains("kvfs_commits_total"));
    let head = ask(&address, "HEAD /metrics HTTP/1.1\r\n\r\n");
    assert!(head.starts_with("HTTP/1.1 200") && head.ends_with("\r\n\r\n"), "{head}");
    // A client that disconnects, one that never completes its request, and a silent one.
    drop(TcpStream::connect(&address).expect("it listens"));
    let mut endless = TcpStream::connect(&address).expect("it listens");
    endless.write_all(b"GET /metrics HTTP/1.1\r\n").expect("sent");
    let silent = TcpStream::connect(&address).expect("it listens");
    let begun = Instant::now();
    samples(&address);
    assert!(begun.elapsed() < Duration::from_secs(25), "{:?}", begun.elapsed());
    succeeds(&mut p.umount());
    assert!(TcpStream::connect(&address).is_err(), "it goes with the mount");
    drop((endless, silent));
}

#[test]
fn a_page_of_another_site_does_not_read_them() {
    let Some(p) = Place::new() else { return };
    let address = mounted(&p, &["-o", "metrics=127.0.0.1:0"]);
    let by = |host: &str| ask(&address, &format!("GET /metrics HTTP/1.1\r\n{host}\r\n\r\n"));
    for host in ["localhost", "LocalHost:1", &address, "127.0.0.1", "[::1]:9100", "[::1]"] {
        assert!(by(&format!("Host: {host}")).starts_with("HTTP/1.1 200"), "{host}");
    }
    // The name leads here, as its owner wants it to.
    for host in
        ["example.org", "example.org:9100", "127.0.0.1.example.org", "", ":80", "[::1", "::1]x"]
    {
        let answer = by(&format!("Host: {host}"));
        assert!(answer.starts_with("HTTP/1.1 421"), "{host}: {answer}");
        assert!(!answer.contains("kvfs_commits_total"), "{host}");
    }
    assert!(by("Host: localhost\r\nHost: example.org").starts_with("HTTP/1.1 421"));
    succeeds(&mut p.umount());
}

#[test]
fn an_address_that_cannot_be_had_is_refused_before_anything_is_mounted() {
    let Some(p) = Place::new() else { return };
    for wrong in ["0.0.0.0:9100", "9100", "somewhere:80"] {
        fails(2, p.mount(&["--metrics", wrong]).stdin(Stdio::null()));
        fails(2, p.mount(&["-o", &format!("metrics={wrong}")]).stdin(Stdio::null()));
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let said = fails(1, p.mount(&["--metrics", &address]).stdin(Stdio::null()));
    assert!(said.contains("cannot listen on"), "{said}");
    assert!(p.entry().is_none());
    p.mounted();
}

#[test]
fn the_board_for_grafana_asks_for_figures_that_there_are() {
    let Some(p) = Place::new() else { return };
    let board = concat!(env!("CARGO_MANIFEST_DIR"), "/../../packaging/grafana.json");
    let board: serde_json::Value =
        serde_json::from_str(&fs::read_to_string(board).expect("a board")).expect("JSON");
    let address = mounted(&p, &["--metrics", "127.0.0.1:0"]);
    fs::write(p.mnt().join("file"), [7; 5000]).expect("write");
    let page = ask(&address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n");
    let families: BTreeSet<&str> =
        page.lines().filter_map(|l| l.strip_prefix("# HELP ")?.split(' ').next()).collect();
    let part = |c: char| c.is_ascii_alphanumeric() || c == '_';
    let (mut asked, mut places) = (BTreeSet::new(), BTreeSet::new());
    for panel in board["panels"].as_array().expect("panels") {
        let grid = &panel["gridPos"];
        assert!(grid["x"].as_u64().zip(grid["w"].as_u64()).is_some_and(|(x, w)| x + w <= 24));
        assert!(places.insert((grid["y"].as_u64(), grid["x"].as_u64())), "two panels in a place");
        let targets = panel["targets"].as_array();
        assert!(
            targets.is_some() || panel["type"] == "row",
            "{}: it shows nothing",
            panel["title"]
        );
        for target in targets.into_iter().flatten() {
            let expr = target["expr"].as_str().expect("an expression");
            let words = expr.split(|c| !part(c)).filter(|word| word.starts_with("kvfs_"));
            asked.extend(words.map(str::to_string));
            // A label that is grouped by, and those of the legend, are labels of the figure.
            let by = expr.split("by (").skip(1).filter_map(|rest| rest.split(')').next());
            let legend = target["legendFormat"].as_str().unwrap_or_default();
            let shown = legend.strip_prefix("{{").and_then(|l| l.strip_suffix("}}"));
            for label in by.chain(shown) {
                assert!(page.contains(&format!("{label}=\"")), "{expr}: no label {label}");
            }
        }
    }
    assert!(asked.len() > 20, "{asked:?}");
    let unknown: Vec<_> = asked.iter().filter(|name| !families.contains(name.as_str())).collect();
    assert!(unknown.is_empty(), "figures that there are not: {unknown:?}");
    succeeds(&mut p.umount());
}
