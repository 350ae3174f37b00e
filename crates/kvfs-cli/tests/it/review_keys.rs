//! Tests of reviews of keys that are not plain strings (hashes, sets, sorted sets, lists,
//! deadlines), and of reverting one of them.

use std::process::{Command, Output, Stdio};

use crate::asked::Asked;
use crate::mounted::Mount;
use kvdb_server::{Client, Reply};
use serde_json::{Value, json};

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let Output { status, stdout, stderr } = crate::place::output(command);
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    String::from_utf8_lossy(&stdout).into_owned()
}

fn lines(text: &str) -> Vec<String> {
    text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect()
}

#[track_caller]
fn say(client: &mut Client, command: &str) -> Reply {
    let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
    let reply = client.call(&words).expect("a reply");
    assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
    reply
}

fn client(mount: &Mount) -> Client {
    let mut client =
        Client::connect(&mount.root().with_file_name("store.sock")).expect("connected");
    for command in [
        "HSET hash a 1 b 2 c 3",
        "PEXPIREAT hash 4102444800000",
        "SADD set a b",
        "ZADD zset 1 a",
        "RPUSH list x y",
        "SET string old",
        "SET stays 1",
        "SNAPSHOT CREATE before",
    ] {
        say(&mut client, command);
    }
    client
}

const CHANGES: [&str; 8] = [
    "HSET hash a 9 new value",
    "HDEL hash c",
    "PERSIST hash",
    "DEL set string",
    "SADD string member",
    "ZADD zset 2.5 a",
    "LPOP list",
    "PEXPIREAT stays 4102444800000",
];

#[test]
fn every_key_has_a_line_in_a_review() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let mut client = client(&mount);
    let Reply::Integer(id) = say(&mut client, "TXN BEGIN") else { panic!("a number") };
    say(&mut client, &format!("TXN JOIN {id}"));
    CHANGES.iter().for_each(|command| drop(say(&mut client, command)));
    let id = id.to_string();
    let want: Vec<String> = [
        "M key 0:hash hash: 1 field added, 1 removed, 1 changed; \
         no longer expires (2100-01-01 00:00:00 UTC)",
        "M key 0:list list: 1 element removed",
        "D key 0:set set of 2 members",
        "M key 0:stays expires 2100-01-01 00:00:00 UTC",
        "M key 0:string string of 3 B → set of 1 member",
        "M key 0:zset sorted set: 1 member changed",
        "6 keys changed",
    ]
    .map(String::from)
    .to_vec();
    let said = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
    assert_eq!(lines(&said), want);
    let said = succeeds(kvfs(&["txn", "diff", "--fields"]).arg(&root).arg(&id));
    for line in ["M a 1 B", "D c 1 B", "A new 5 B", "D x 1 B", "M a score 1 → score 2.5", "D b"] {
        assert!(lines(&said).contains(&line.to_string()), "{line} in {said}");
    }
    let said = succeeds(kvfs(&["--json", "txn", "diff", "--fields"]).arg(&root).arg(&id));
    let said: Value = serde_json::from_str(&said).expect("JSON");
    let of = |key: &str| {
        let keys = said["keys"].as_array().expect("a list");
        keys.iter().find(|one| one["key"] == key).unwrap_or_else(|| panic!("{key} in {said}"))
    };
    assert_eq!(of("hash")["elements"], json!({"added": 1, "removed": 1, "changed": 1}));
    assert_eq!(of("hash")["deadline"], json!({"before": 4_102_444_800_000u64, "after": null}));
    assert_eq!(of("hash")["fields"][0], json!({"name": "a", "before": 1, "after": 1}));
    assert_eq!(of("zset")["fields"], json!([{"name": "a", "before": "1", "after": "2.5"}]));
    assert_eq!(
        (&of("string")["type"], &of("string")["type_before"]),
        (&json!("set"), &json!("string"))
    );
    assert_eq!(of("set")["change"], "removed");
    let patch = succeeds(kvfs(&["txn", "diff", "--patch"]).arg(&root).arg(&id));
    assert!(patch.lines().all(|line| line.starts_with('#')), "{patch}");
    assert!(patch.contains("score 2.5"), "{patch}");
    // The same review of the committed changes.
    say(&mut client, "TXN COMMIT");
    let said = succeeds(kvfs(&["diff"]).arg(&root).arg("before"));
    let sorted = |mut lines: Vec<String>| {
        lines.sort();
        lines
    };
    assert_eq!(sorted(lines(&said)), sorted(want.clone()));
    // The same holds for the store when it is not mounted.
    drop(client);
    succeeds(kvfs(&["umount"]).arg(&root));
    let said = succeeds(kvfs(&["diff"]).arg(root.with_file_name("store")).arg("before"));
    assert_eq!(sorted(lines(&said)), sorted(want));
}

#[test]
fn a_key_that_is_left_out_keeps_its_elements_and_its_deadline() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let mut client = client(&mount);
    let kvfs = env!("CARGO_BIN_EXE_kvfs");
    let script = format!("{kvfs} kv del . hash; {kvfs} kv del . set; {kvfs} kv put . zset string");
    let program =
        format!("{kvfs} run --ask {} -- sh -ec 'cd $KVFS_MOUNT; {script}'", root.display());
    let mut asked = Asked::start(&program).expect("script(1)");
    // hash, set, zset: no, yes, no.
    asked.answers(&["s", "n", "y", "n", "y"]);
    let (said, _) = asked.ends();
    assert!(said.contains("hash of 3 fields"), "{said}");
    assert!(said.contains("sorted set of 1 member → string of 6 B"), "{said}");
    let hash = ["a", "1", "b", "2", "c", "3"].map(|part| Reply::Bulk(part.into()));
    assert_eq!(say(&mut client, "HGETALL hash"), Reply::Array(hash.to_vec()), "{said}");
    assert_eq!(say(&mut client, "PEXPIRETIME hash"), Reply::Integer(4_102_444_800_000), "{said}");
    assert_eq!(say(&mut client, "ZSCORE zset a"), Reply::Bulk("1".into()), "{said}");
    assert_eq!(say(&mut client, "EXISTS set"), Reply::Integer(0), "{said}");
}

#[test]
fn keys_are_reverted_by_the_names_that_a_list_shows() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let mut client = client(&mount);
    let Reply::Integer(id) = say(&mut client, "TXN BEGIN") else { panic!("a number") };
    say(&mut client, &format!("TXN JOIN {id}"));
    CHANGES.iter().for_each(|command| drop(say(&mut client, command)));
    let id = id.to_string();
    let revert = |words: &[&str]| {
        let mut command = kvfs(&["txn", "revert"]);
        command.arg(&root).arg(&id).args(words);
        crate::place::output(&mut command)
    };
    // A list is looked up as a whole before anything is reverted.
    let said = revert(&["--key", "0:hash", "--key", "0:none"]);
    assert_eq!(said.status.code(), Some(3), "{}", String::from_utf8_lossy(&said.stderr));
    assert!(String::from_utf8_lossy(&said.stderr).contains("no key 0:none was changed"));
    let keys = ["0:hash", "0:list", "0:set", "0:zset"];
    let words: Vec<&str> = keys.iter().flat_map(|key| ["--key", key]).collect();
    assert!(revert(&words).status.success());
    let said = succeeds(kvfs(&["txn", "diff"]).arg(&root).arg(&id));
    let left = [
        "M key 0:stays expires 2100-01-01 00:00:00 UTC",
        "M key 0:string string of 3 B → set of 1 member",
        "2 keys changed",
    ];
    assert_eq!(lines(&said), left);
    assert_eq!(revert(&[]).status.code(), Some(2), "neither a path nor a key");
}
