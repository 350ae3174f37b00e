//! Tests of `kvfs web`: which clients get an answer, the content of the answers, and that the
//! committed changes are the ones that were shown.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::unix::ffi::OsStrExt;
use std::process::{Child, Stdio};
use std::time::Duration;

use crate::place::{Place, fails, kill, kvfs, succeeds};
use rustix::process::Signal;
use serde_json::{Value, json};

/// A page that is served; gone when dropped.
struct Page {
    server: Child,
    address: String,
    token: String,
}

impl Drop for Page {
    fn drop(&mut self) {
        let _ = self.server.kill();
        let _ = self.server.wait();
    }
}

struct Answer {
    status: u16,
    head: String,
    body: String,
}

impl Answer {
    #[track_caller]
    fn json(&self) -> Value {
        assert!(self.head.contains("\r\nContent-Type: application/json\r\n"), "{}", self.head);
        serde_json::from_str(&self.body).expect("JSON")
    }

    #[track_caller]
    fn ok(&self) -> Value {
        assert_eq!(self.status, 200, "{}", self.body);
        self.json()
    }

    #[track_caller]
    fn refused(&self, status: u16, words: &str) {
        assert_eq!(self.status, status, "{}", self.body);
        let said = self.json()["error"]["message"].as_str().expect("a message").to_string();
        assert!(said.contains(words), "{said}");
    }
}

impl Page {
    fn of(place: &Place, words: &[&str]) -> Page {
        let mut command = kvfs(&["web", "--json"]);
        command.arg(place.mnt()).args(words).stdin(Stdio::null()).stdout(Stdio::piped());
        let mut server = command.spawn().expect("kvfs runs");
        let mut line = String::new();
        let out = server.stdout.take().expect("a pipe");
        BufReader::new(out).read_line(&mut line).expect("it says where it is");
        let said: Value = serde_json::from_str(&line).expect("JSON");
        let text = |name: &str| said[name].as_str().expect("a text").to_string();
        let page = Page { server, address: text("address"), token: text("token") };
        assert_eq!(text("url"), format!("http://{}/#{}", page.address, page.token));
        assert!(page.token.len() >= 32 && page.token.bytes().all(|c| c.is_ascii_hexdigit()));
        page
    }

    /// Sends a request exactly as given.
    fn send(&self, request: &str) -> Answer {
        let mut client = TcpStream::connect(&self.address).expect("it listens");
        client.set_read_timeout(Some(Duration::from_secs(60))).expect("a limit");
        client.write_all(request.as_bytes()).expect("sent");
        let mut all = String::new();
        client.read_to_string(&mut all).expect("an answer");
        let (head, body) = all.split_once("\r\n\r\n").expect("a head");
        let status = head.split(' ').nth(1).and_then(|n| n.parse().ok()).expect("a status");
        Answer { status, head: format!("{head}\r\n"), body: body.into() }
    }

    /// A question of the page itself, with other headers in addition.
    fn ask_with(&self, method: &str, path: &str, more: &str, body: &str) -> Answer {
        let (address, token, length) = (&self.address, &self.token, body.len());
        self.send(&format!(
            "{method} {path} HTTP/1.1\r\nHost: {address}\r\nX-KVFS-Token: {token}\r\n\
             Content-Length: {length}\r\n{more}\r\n{body}"
        ))
    }

    fn get(&self, path: &str) -> Answer {
        self.ask_with("GET", path, "", "")
    }

    fn post(&self, path: &str, body: &Value) -> Answer {
        let more = format!(
            "Content-Type: application/json\r\nOrigin: http://{}\r\nSec-Fetch-Site: same-origin\r\n",
            self.address
        );
        self.ask_with("POST", path, &more, &body.to_string())
    }
}

fn begin(place: &Place) -> String {
    succeeds(kvfs(&["txn", "begin", "--label", "spring"]).arg(place.mnt())).trim().into()
}

#[test]
fn the_page_is_anyones_and_loads_and_runs_nothing_from_elsewhere() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let page = Page::of(&place, &[]);
    for (path, kind) in
        [("/", "text/html"), ("/page.js", "text/javascript"), ("/page.css", "text/css")]
    {
        let answer = page.send(&format!("GET {path} HTTP/1.1\r\nHost: {}\r\n\r\n", page.address));
        assert_eq!(answer.status, 200, "{path}");
        assert!(answer.head.contains(&format!("Content-Type: {kind}")), "{}", answer.head);
        for header in [
            "Content-Security-Policy: default-src 'none'; script-src 'self';",
            "frame-ancestors 'none'",
            "X-Content-Type-Options: nosniff",
            "Cache-Control: no-store",
            "Referrer-Policy: no-referrer",
        ] {
            assert!(answer.head.contains(header), "{path}: {header}");
        }
        assert!(!answer.body.contains(&page.token), "the token is not in what anyone can get");
        assert!(!answer.body.contains("://"), "{path} names nothing elsewhere");
        // Ways by which a string could become HTML, a script or a style.
        for way in [
            "innerHTML",
            "outerHTML",
            "insertAdjacent",
            "document.write",
            "eval(",
            "Function(",
            " onclick",
            "<style",
            " style=",
            "srcdoc",
            "javascript:",
        ] {
            assert!(!answer.body.contains(way), "{path} has {way}");
        }
    }
    let head = page.send(&format!("HEAD / HTTP/1.1\r\nHost: {}\r\n\r\n", page.address));
    assert_eq!((head.status, head.body.as_str()), (200, ""));
    assert_eq!(page.get("/other").status, 404);
    assert_eq!(page.post("/", &json!({})).status, 405);
}

#[test]
fn questions_take_the_token_and_the_address_of_the_page() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let page = Page::of(&place, &[]);
    assert_eq!(page.get("/api/state").ok()["read_only"], false);
    let (address, token) = (&page.address, &page.token);
    let port = address.rsplit(':').next().expect("a port");

    let wrong = format!("{}{}", &token[1..], &token[..1]);
    for header in [
        String::new(),
        "X-KVFS-Token: \r\n".into(),
        format!("X-KVFS-Token: {wrong}\r\n"),
        format!("X-KVFS-Token: {token}\r\nX-KVFS-Token: {token}\r\n"),
        format!("X-KVFS-Token: {token}0\r\n"),
        format!("Cookie: token={token}\r\n"),
    ] {
        let request =
            format!("GET /api/state?token={token} HTTP/1.1\r\nHost: {address}\r\n{header}\r\n");
        let answer = page.send(&request);
        assert_eq!(answer.status, 401, "{header}");
        assert!(!answer.body.contains(token), "{}", answer.body);
    }
    // A host name that an attacker points to this machine.
    for host in [
        "evil.example",
        &format!("evil.example:{port}"),
        "127.0.0.1",
        "127.0.0.1:1",
        &format!("127.0.0.1:{port}.evil.example"),
        "",
        &format!("{address}\r\nHost: {address}"),
    ] {
        for path in ["/", "/api/state"] {
            let request =
                format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nX-KVFS-Token: {token}\r\n\r\n");
            assert_eq!(page.send(&request).status, 421, "{host} {path}");
        }
    }
    let request = format!("GET /api/state HTTP/1.0\r\nX-KVFS-Token: {token}\r\n\r\n");
    assert_eq!(page.send(&request).status, 421);
    let request = format!(
        "GET /api/state HTTP/1.1\r\nHost: localhost:{port}\r\nX-KVFS-Token: {token}\r\n\r\n"
    );
    assert_eq!(page.send(&request).status, 200);
    // A request from another page, even with the token.
    for header in [
        "Origin: http://evil.example",
        "Origin: null",
        "Origin: http://127.0.0.1:1",
        &format!("Origin: https://{address}"),
        "Sec-Fetch-Site: cross-site",
        "Sec-Fetch-Site: same-site",
        &format!("Origin: http://{address}\r\nOrigin: null"),
    ] {
        let more = format!("Content-Type: application/json\r\n{header}\r\n");
        assert_eq!(page.ask_with("GET", "/api/state", &more, "").status, 403, "{header}");
        let abort = page.ask_with("POST", "/api/transactions/1/abort", &more, "{}");
        assert_eq!(abort.status, 403, "{header}");
    }
    // A form of another page could send these types.
    for kind in
        ["", "Content-Type: text/plain\r\n", "Content-Type: application/x-www-form-urlencoded\r\n"]
    {
        let abort = page.ask_with("POST", "/api/transactions/1/abort", kind, "{}");
        assert_eq!(abort.status, 415, "{kind}");
    }
    assert_eq!(page.ask_with("OPTIONS", "/api/state", "", "").status, 405);
    assert_eq!(page.ask_with("DELETE", "/api/state", "", "").status, 405);
    page.get("/api/none").refused(404, "no such question");
}

#[test]
fn it_shows_what_the_store_is_and_does() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let page = Page::of(&place, &[]);
    let before = page.get("/api/state").ok();
    fs::write(place.mnt().join("file"), vec![b'x'; 9 << 20]).expect("written");
    fs::File::open(place.mnt().join("file")).and_then(|file| file.sync_all()).expect("synced");
    succeeds(kvfs(&["snapshot", "create"]).arg(place.mnt()).arg("now"));
    let id = begin(&place);
    let after = page.get("/api/state").ok();
    assert_eq!(after["mount_point"], place.mnt().to_str().expect("UTF-8"));
    let writes = |state: &Value| state["store"]["requests"]["WRITE"].as_u64().unwrap_or(0);
    assert!(writes(&after) > writes(&before));
    let micros = after["store"]["request_micros"].as_object().expect("times");
    assert!(micros["WRITE"].as_u64() > Some(0) && micros["FSYNC"].as_u64() > Some(0), "{micros:?}");
    let transactions = after["transactions"].as_array().expect("a list");
    assert_eq!(transactions.len(), 1);
    assert_eq!(transactions[0]["id"].to_string(), id);
    assert_eq!(transactions[0]["label"], "spring");
    let zones = &after["zones"];
    let cells = zones["cells"].as_array().expect("cells");
    assert_eq!(Some(cells.len() as u64), zones["zones"].as_u64());
    let live: u64 = cells.iter().filter(|c| c[4] == "pages").filter_map(|c| c[3].as_u64()).sum();
    assert!(live >= 9 << 20, "{zones}");
    assert!(cells.iter().any(|cell| cell[5] == 0), "one is the newest: {zones}");
    let snapshots = page.get("/api/snapshots").ok();
    assert_eq!(snapshots["snapshots"][0]["name"], "now");
    assert_eq!(snapshots["clones"], json!([]));
}

#[test]
fn what_is_committed_is_what_was_shown() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let page = Page::of(&place, &[]);
    let id = begin(&place);
    let inside = place.mnt().join(".kvfs/txn").join(&id);
    fs::write(inside.join("note"), "one").expect("written");
    let way = format!("/api/transactions/{id}");
    let shown = page.get(&way).ok();
    let words = |line: &Value| -> Vec<String> {
        line.as_str().expect("a line").split_whitespace().map(String::from).collect()
    };
    assert_eq!(words(&shown["lines"][0]), ["A", "note", "3", "B"]);
    assert!(shown["summary"].as_str().expect("text").starts_with("1 file added"), "{shown}");
    assert_eq!(
        (shown["lines_in_all"].as_u64(), &shown["status"]["label"]),
        (Some(1), &json!("spring"))
    );
    assert_eq!(page.get(&way).ok()["state"], shown["state"], "to look changes nothing");

    // Its size, the list and its summary do not change.
    fs::write(inside.join("note"), "two").expect("written");
    let commit = format!("{way}/commit");
    page.post(&commit, &json!({"state": shown["state"]})).refused(409, "has changed since");
    assert!(!place.mnt().join("note").exists());
    for body in [json!({}), json!(7), json!({"state": 7})] {
        page.post(&commit, &body).refused(400, "which state");
    }
    page.ask_with("POST", &commit, "Content-Type: application/json\r\n", "{")
        .refused(400, "which state");

    let patch = page.get(&format!("{way}/patch")).ok();
    let lines = patch["lines"].as_array().expect("lines");
    assert!(lines.contains(&json!("+two")) && patch["whole"] == true, "{patch}");
    // A key that is set again to a value of the same length is another state, too.
    let key = |value: &str| {
        succeeds(kvfs(&["kv", "put"]).arg(&inside).args(["key", value]));
        page.get(&way).ok()["state"].clone()
    };
    let first = key("aaaa");
    let second = key("bbbb");
    assert_ne!(first, second);
    page.post(&commit, &json!({"state": first})).refused(409, "has changed since");
    assert_eq!(page.post(&commit, &json!({"state": second})).ok()["committed"].to_string(), id);
    assert_eq!(fs::read_to_string(place.mnt().join("note")).expect("there"), "two");
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(place.mnt()).arg("key")), "bbbb");
    page.get(&way).refused(404, "transaction");
    page.post(&commit, &json!({"state": second})).refused(404, "transaction");
}

#[test]
fn aborted_is_without_a_trace_and_conflicts_are_told() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let page = Page::of(&place, &[]);
    let id = begin(&place);
    fs::write(place.mnt().join(".kvfs/txn").join(&id).join("note"), "one").expect("written");
    assert_eq!(
        page.post(&format!("/api/transactions/{id}/abort"), &json!({})).ok()["aborted"].to_string(),
        id
    );
    assert!(!place.mnt().join("note").exists());
    page.post(&format!("/api/transactions/{id}/abort"), &json!({})).refused(404, "transaction");

    let id = begin(&place);
    fs::write(place.mnt().join(".kvfs/txn").join(&id).join("note"), "inside").expect("written");
    fs::write(place.mnt().join("note"), "outside").expect("written");
    let shown = page.get(&format!("/api/transactions/{id}")).ok();
    page.post(&format!("/api/transactions/{id}/commit"), &json!({"state": shown["state"]}))
        .refused(409, "others have changed");
    assert_eq!(fs::read_to_string(place.mnt().join("note")).expect("there"), "outside");

    for (wrong, status) in [
        ("0", 404),
        ("999", 404),
        ("x", 400),
        ("-1", 400),
        ("", 400),
        ("1%20", 400),
        ("99999999999999999999999", 400),
    ] {
        page.get(&format!("/api/transactions/{wrong}")).refused(status, "transaction");
        page.post(&format!("/api/transactions/{wrong}/abort"), &json!({}))
            .refused(status, "transaction");
    }
}

#[test]
fn names_that_hide_others_are_escaped_and_none_is_lost() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let page = Page::of(&place, &[]);
    let id = begin(&place);
    let inside = place.mnt().join(".kvfs/txn").join(&id);
    let names: [&[u8]; 4] =
        [b"<img src=x onerror=alert(1)>", "a\u{202e}b".as_bytes(), b"new\nline", b"\xff"];
    for name in names {
        fs::write(inside.join(std::ffi::OsStr::from_bytes(name)), "x").expect("written");
    }
    let shown = page.get(&format!("/api/transactions/{id}")).ok();
    let lines = shown["lines"].to_string();
    assert_eq!(shown["lines"].as_array().expect("lines").len(), names.len());
    for part in
        ["<img src=x onerror=alert(1)>", "a\\\\xe2\\\\x80\\\\xaeb", "new\\\\nline", "\\\\xff"]
    {
        assert!(lines.contains(part), "{part}: {lines}");
    }
}

#[test]
fn with_read_only_nothing_is_ended() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let page = Page::of(&place, &["--read-only"]);
    let id = begin(&place);
    assert_eq!(page.get("/api/state").ok()["read_only"], true);
    let shown = page.get(&format!("/api/transactions/{id}")).ok();
    for (how, body) in [("commit", json!({"state": shown["state"]})), ("abort", json!({}))] {
        page.post(&format!("/api/transactions/{id}/{how}"), &body).refused(403, "--read-only");
    }
    succeeds(kvfs(&["txn", "status"]).arg(place.mnt()).arg(&id));
}

#[test]
fn it_outlives_the_mount_and_ends_by_a_signal() {
    let Some(place) = Place::new() else { return };
    place.mounted();
    let mut page = Page::of(&place, &[]);
    page.get("/api/state").ok();
    succeeds(&mut place.umount());
    let gone = page.get("/api/state");
    assert_eq!(gone.status, 404, "{}", gone.body);
    assert!(gone.json()["error"]["message"].as_str().expect("text").contains("no store"));
    place.mounted();
    page.get("/api/state").ok();
    kill(page.server.id() as i32, Signal::INT);
    assert!(page.server.wait().expect("it ends").success());
    assert!(TcpStream::connect(&page.address).is_err());
}

#[test]
fn what_cannot_be_shown_is_told_at_the_start() {
    let Some(place) = Place::new() else { return };
    let said = fails(3, kvfs(&["web"]).arg(place.mnt()).stdin(Stdio::null()));
    assert!(said.contains("no store with a socket is mounted"), "{said}");
    place.mounted();
    let inside = place.mnt().join(".kvfs/snapshot");
    fails(2, kvfs(&["web"]).arg(inside).stdin(Stdio::null()));
    for wrong in ["0.0.0.0:8080", "8080", "localhost:80", "127.0.0.1:99999"] {
        fails(2, kvfs(&["web", "--address", wrong]).arg(place.mnt()).stdin(Stdio::null()));
    }
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = taken.local_addr().expect("its address").to_string();
    let said =
        fails(1, kvfs(&["web", "--address", &address]).arg(place.mnt()).stdin(Stdio::null()));
    assert!(said.contains("cannot listen on"), "{said}");
}
