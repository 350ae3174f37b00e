//! The machine *foreign text*: another user has chosen names, labels, keys, values, targets,
//! attributes, and the names of snapshots, clones and dictionaries. They contain escape sequences,
//! newlines, invalid UTF-8, and characters that are invisible or reverse the direction of text. The
//! test runs every command, with text and with JSON. None of these names may control a terminal or
//! begin a line of its own.
//!
//! A command that is new fails here until it is walked, or it is said why it need not be.

use std::collections::BTreeMap;
use std::ffi::{OsStr, OsString};
use std::fs;
use std::io::{Read, Write};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::PathBuf;
use std::process::{Command, Output, Stdio};

use crate::mounted::Mount;

/// A hostile text.
const TEXT: &str = "e\u{1b}[2J\u{1b}]0;x\u{7}\nFORGED\r\u{202e}\u{200b}\u{7f}\u{9b}2Jz";
/// A hostile name of a dictionary, a snapshot or a clone, which has no control characters.
const NAME: &str = "e\u{202e}\u{200b}\u{2066}z";
/// Hostile bytes that are no text.
const BYTES: &[u8] = b"e\x1b[2J\nFORGED\r\xe2\x80\xae\x7f\xff\x9bz";

fn kvfs(words: &[OsString]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null());
    for name in ["KVFS_TXN", "KVFS_SOCKET", "KVFS_MOUNT"] {
        command.env_remove(name);
    }
    command
}

/// The commands below these words, as their help lists them.
fn listed(words: &[&str]) -> Vec<String> {
    let words: Vec<OsString> = words.iter().chain(&["--help"]).map(OsString::from).collect();
    let help = kvfs(&words).output().expect("it runs").stdout;
    let help = String::from_utf8(help).expect("text");
    let Some(at) = help.find("\nCommands:\n") else { return Vec::new() };
    let lines = help[at + "\nCommands:\n".len()..].lines().take_while(|line| !line.is_empty());
    let names = lines.filter(|line| line.starts_with("  ") && !line.starts_with("   "));
    names.filter_map(|line| line.split_whitespace().next()).map(String::from).collect()
}

/// Returns the part of an output that would act on a terminal, or looks like a line of ours.
fn bad(output: &[u8]) -> Option<String> {
    let text = match std::str::from_utf8(output) {
        Ok(text) => text,
        Err(_) => return Some("it is no text".into()),
    };
    let acts = |c: char| {
        c.is_control() && !matches!(c, '\n' | '\t')
            || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}')
    };
    if let Some(c) = text.chars().find(|c| acts(*c)) {
        return Some(format!("it has {}", c.escape_unicode()));
    }
    let forged = text.lines().any(|line| line.trim_start().starts_with("FORGED"));
    forged.then(|| "a name begins a line".into())
}

/// A store in which everything has a hostile name, in a directory that has one.
struct Hostile {
    mount: Mount,
    /// An open transaction.
    id: String,
}

impl Hostile {
    fn new() -> Option<Hostile> {
        let mount = Mount::below(OsStr::new(TEXT), false)?;
        let root = mount.root();
        let does = |words: &[&OsStr]| {
            let words: Vec<OsString> = words.iter().map(|word| word.to_os_string()).collect();
            let done = kvfs(&words).output().expect("it runs");
            assert!(done.status.success(), "{words:?}: {}", String::from_utf8_lossy(&done.stderr));
            String::from_utf8_lossy(&done.stdout).trim().to_string()
        };
        let (text, bytes) = (OsStr::new(TEXT), OsStr::from_bytes(BYTES));
        let word = OsStr::new;
        let file = root.join(bytes);
        fs::create_dir(root.join(text)).expect("a directory");
        fs::write(root.join(text).join(bytes), "old\n").expect("a file");
        fs::write(&file, "1").expect("a file");
        std::os::unix::fs::symlink(text, root.join("link")).expect("a link");
        let flags = rustix::fs::XattrFlags::empty();
        rustix::fs::setxattr(&file, "user.\u{1b}[2J\nFORGED", BYTES, flags).expect("an attribute");
        for dictionary in [NAME, "0"] {
            let put = [word("kv"), word("-d"), word(dictionary), word("put"), root.as_os_str()];
            does(&[&put[..], &[bytes, bytes]].concat());
        }
        does(&[word("snapshot"), word("create"), root.as_os_str(), word(NAME)]);
        does(&[word("clone"), word("create"), root.as_os_str(), word(NAME), word(NAME)]);
        // A commit that can be undone, and one on which it depends.
        let change = [
            word("--"),
            word("sh"),
            word("-c"),
            word(
                "cd \"$KVFS_MOUNT\"; echo 2 >> link2; for f in e*; do test -f \"$f\" && echo more >> \"$f\"; done; true",
            ),
        ];
        does(&[&[word("run"), word("--label"), text, root.as_os_str()], &change[..]].concat());
        let begun = does(&[word("txn"), word("begin"), word("--label"), text, root.as_os_str()]);
        let view = root.join(".kvfs/txn").join(&begun);
        fs::write(view.join(bytes), "another").expect("written");
        fs::rename(view.join(text), view.join("moved\nFORGED")).expect("moved");
        does(&[
            word("kv"),
            word("-d"),
            word(NAME),
            word("put"),
            view.as_os_str(),
            bytes,
            word("2"),
        ]);
        Some(Hostile { mount, id: begun })
    }
}

/// Returns the calls of each command, or `None` with a reason if it need not be walked.
fn walks(
    hostile: &Hostile,
    scratch: &std::path::Path,
) -> BTreeMap<&'static str, Option<Vec<Vec<OsString>>>> {
    let root = hostile.mount.root();
    let store = root.with_file_name("store");
    let view = root.join(".kvfs/txn").join(&hostile.id);
    let word = |word: &str| -> Vec<OsString> {
        word.split(' ')
            .map(|word| match word {
                "ROOT" => root.clone().into(),
                "STORE" => store.clone().into(),
                "VIEW" => view.clone().into(),
                "ID" => hostile.id.clone().into(),
                "TEXT" => TEXT.into(),
                "NAME" => NAME.into(),
                "BYTES" => OsString::from_vec(BYTES.to_vec()),
                "FILE" => root.join(OsStr::from_bytes(BYTES)).into(),
                "NONE" => root.join(OsStr::from_bytes(&[BYTES, b"none"].concat())).into(),
                "OUT" => scratch.join(OsStr::from_bytes(BYTES)).into(),
                "PLACE" => format!("dir:{}/{TEXT}/store", scratch.display()).into(),
                "NOWHERE" => format!("dir:/no/such/{TEXT}/store@{TEXT}").into(),
                "MISSING" => PathBuf::from("/no/such").join(OsStr::from_bytes(BYTES)).into(),
                word => word.into(),
            })
            .collect()
    };
    let calls = |all: &[&str]| Some(all.iter().map(|line| word(line)).collect());
    BTreeMap::from([
        ("bench", calls(&["bench FILE"])),
        ("cat", calls(&["cat ROOT NONE", "cat MISSING x"])),
        ("changes", calls(&["changes ROOT", "changes MISSING"])),
        ("check", calls(&["check ROOT", "check MISSING", "check PLACE", "check NOWHERE"])),
        ("clone create", calls(&["clone create ROOT NAME NAME"])),
        ("clone drop", calls(&["clone drop ROOT NONE", "clone drop ROOT nothing"])),
        ("clone list", calls(&["clone list ROOT"])),
        ("clone limit", calls(&["clone limit ROOT NAME 1G", "clone limit ROOT x\tNAME none"])),
        ("clone-tree", calls(&["clone-tree NONE OUT", "clone-tree FILE ROOT"])),
        ("compact", calls(&["compact ROOT --dict NAME", "compact MISSING"])),
        ("completions", None), // It shows nothing of a store.
        ("create", calls(&["create FILE", "create MISSING"])),
        ("defrag", calls(&["defrag --status ROOT", "defrag MISSING"])),
        ("dict create", calls(&["dict create ROOT NAME"])),
        ("dict drop", calls(&["dict drop ROOT NONE", "dict drop ROOT BYTES"])),
        ("dict info", calls(&["dict info ROOT NAME", "dict info ROOT NONE"])),
        ("dict list", calls(&["dict list ROOT"])),
        (
            "dict set",
            calls(&[
                "dict set ROOT NAME --compression lz4",
                "dict set ROOT NONE --compression lz4",
            ]),
        ),
        (
            "diff",
            calls(&[
                "diff ROOT NAME",
                "diff ROOT NAME -p",
                "diff ROOT NAME --stat",
                "diff ROOT NONE",
                "diff ROOT NAME --fields --times --no-renames",
            ]),
        ),
        ("doctor", calls(&["doctor", "doctor TEXT", "doctor PLACE", "doctor NOWHERE"])),
        ("du", calls(&["du ROOT", "du FILE", "du NONE"])),
        (
            "explore",
            calls(&[
                "explore 1 ROOT -- NONE",
                "explore 2 MISSING -- true",
                "explore 1 ROOT --label TEXT --judge false -- true",
            ]),
        ),
        ("export", calls(&["export NONE OUT", "export ROOT MISSING/x"])),
        ("find", calls(&["--json find ROOT", "find NONE"])), // In text a pipe gets names as they are.
        ("fsmonitor install", calls(&["fsmonitor install ROOT", "fsmonitor install MISSING"])),
        ("fsmonitor uninstall", calls(&["fsmonitor uninstall ROOT", "fsmonitor uninstall VIEW"])),
        ("fsmonitor 2", calls(&["--json fsmonitor 2 TEXT"])), // Text is bytes for git.
        ("history", calls(&["history ROOT", "history ROOT --changes"])),
        ("show", calls(&["show ROOT", "show ROOT --stat", "show ROOT --patch"])),
        ("list", calls(&["list"])),
        ("import", calls(&["import ROOT MISSING", "import ROOT FILE"])),
        ("kv count", calls(&["kv count ROOT"])),
        ("kv del", calls(&["kv del ROOT NONE"])),
        ("kv dicts", calls(&["kv dicts ROOT"])),
        (
            "kv call",
            calls(&[
                "kv call ROOT GET BYTES",
                "kv call ROOT KEYS *",
                "kv call ROOT TXN LIST",
                "kv call ROOT BYTES",
                "kv call ROOT TXN FILES ID",
                "kv call ROOT SNAPSHOT LIST",
                "kv call ROOT USE NAME",
                "kv call ROOT INFO",
            ]),
        ),
        ("kv get", calls(&["kv get ROOT BYTESnone", "--json kv get ROOT BYTES"])), // Text is the value itself.
        ("ls", calls(&["ls ROOT", "ls ROOT -l -R", "ls NONE", "ls STORE", "ls ROOT BYTES"])),
        ("man", None), // It shows nothing of a store.
        ("mcp", None), // Its answers are JSON for a program; what it shows of changes is walked in `mcp`.
        ("mount", calls(&["mount STORE MISSING", "mount MISSING ROOT"])),
        ("push", calls(&["push ROOT TEXT", "push MISSING PLACE", "push ROOT PLACE"])),
        ("pull", calls(&["pull TEXT OUT", "pull PLACE OUT", "pull NOWHERE OUT"])),
        ("fork", calls(&["fork TEXT OUT", "fork PLACE OUT --label TEXT", "fork NOWHERE OUT"])),
        ("forks", calls(&["forks TEXT", "forks PLACE", "forks PLACE --drop TEXT"])),
        ("gc", calls(&["gc TEXT", "gc PLACE", "gc NOWHERE", "--json gc PLACE --dry-run"])),
        ("unpublish", calls(&["unpublish NOWHERE --yes", "unpublish PLACE --yes"])),
        ("secret", calls(&["secret TEXT", "secret TEXT", "secret STORE"])),
        ("receive", calls(&["receive ROOT TEXT", "receive MISSING"])),
        (
            "restore",
            calls(&[
                "restore ROOT NAME --dry-run BYTES",
                "restore ROOT NAME NONE",
                "restore ROOT NONE x",
            ]),
        ),
        ("rm", calls(&["rm NONE", "rm MISSING"])),
        ("set", calls(&["set NONE --compress lz4", "set FILE MISSING --compress auto"])),
        (
            "run",
            calls(&["run ROOT -- NONE", "run MISSING -- true", "run ROOT --label TEXT -- false"]),
        ),
        ("salvage", calls(&["salvage STORE OUT", "salvage MISSING OUT"])),
        ("scrub", calls(&["scrub --status ROOT", "scrub MISSING"])),
        (
            "send",
            calls(&[
                "send ROOT NONE OUT",
                "send ROOT NONE",
                "send MISSING NAME",
                "send MISSING TEXT OUT",
            ]),
        ),
        ("snapshot auto", calls(&["snapshot auto ROOT --dry-run --keep hourly=1 --name TEXT"])),
        ("snapshot create", calls(&["snapshot create ROOT NAME", "snapshot create MISSING TEXT"])),
        ("snapshot drop", calls(&["snapshot drop ROOT NONE"])),
        ("snapshot list", calls(&["snapshot list ROOT"])),
        ("snapshot rollback", calls(&["snapshot rollback ROOT NONE"])),
        ("stat", calls(&["stat ROOT", "stat ROOT BYTES", "stat NONE", "stat ROOT NONE"])),
        ("top", calls(&["top --once ROOT", "top MISSING"])),
        ("txn abort", calls(&["txn abort ROOT 4711", "txn abort MISSING"])),
        ("txn begin", calls(&["txn begin MISSING"])),
        (
            "txn commit",
            calls(&["txn commit ROOT 4711", "txn commit ROOT ID --if TEXT", "txn commit NONE"]),
        ),
        (
            "txn diff",
            calls(&[
                "txn diff ROOT ID",
                "txn diff ROOT ID -p",
                "txn diff ROOT ID --fields",
                "txn diff ROOT ID --times",
                "txn diff ROOT ID --stat",
                "txn diff ROOT ID --all",
                "txn diff ROOT ID BYTES",
                "txn diff ROOT ID NONE",
            ]),
        ),
        ("txn exec", calls(&["txn exec ROOT ID -- NONE"])),
        ("txn list", calls(&["txn list ROOT"])),
        (
            "txn rebase",
            calls(&["txn rebase ROOT 4711", "txn rebase ROOT ID --ours moved\nFORGED/x"]),
        ),
        ("txn revert", calls(&["txn revert ROOT ID NONE", "txn revert ROOT ID moved\nFORGED/x"])),
        ("txn status", calls(&["txn status ROOT ID", "txn status VIEW"])),
        ("umount", calls(&["umount MISSING", "umount FILE"])),
        ("commit", calls(&["commit MISSING", "commit FILE"])),
        ("abort", calls(&["abort MISSING", "abort FILE"])),
        ("merge", calls(&["merge ROOT NAME --dry-run", "merge ROOT NONE"])),
        ("rebase", calls(&["rebase ROOT NAME --dry-run", "rebase ROOT NONE"])),
        ("undo", calls(&["undo ROOT --dry-run", "undo ROOT --commit 4711"])),
        ("serve", calls(&["serve MISSING --listen unix:NONE", "serve FILE --listen MISSING"])),
        ("web", calls(&["web MISSING"])),
    ])
}

#[test]
fn no_command_lets_foreign_text_act_on_a_terminal() {
    let Some(hostile) = Hostile::new() else { return };
    let scratch = tempfile::tempdir().expect("a temporary directory");
    let mut walks = walks(&hostile, scratch.path());
    let mut wrong = Vec::new();
    let mut commands = Vec::new();
    for command in listed(&[]).into_iter().filter(|command| command != "help") {
        let below = listed(&[&command]);
        match below.is_empty() {
            true => commands.push(command),
            false => {
                let below = below.into_iter().filter(|below| below != "help");
                commands.extend(below.map(|below| format!("{command} {below}")));
            }
        }
    }
    assert!(commands.len() > 40, "{commands:?}");
    for command in &commands {
        // A command of `KNOWN` is walked by other members of its family.
        if !walks.contains_key(command.as_str()) && !KNOWN.contains(&command.as_str()) {
            wrong.push(format!("kvfs {command} is new: what does it show of others' names?"));
        }
    }
    let all: Vec<_> = walks.iter_mut().filter_map(|(_, calls)| calls.take()).flatten().collect();
    for words in all {
        for json in [false, true] {
            let mut call = words.clone();
            if json && call[0] != "--json" {
                call.insert(0, "--json".into());
            }
            let begun = std::time::Instant::now();
            let done = kvfs(&call).output().expect("it runs");
            if begun.elapsed().as_secs() >= 2 {
                eprintln!("{call:?} took {:?}", begun.elapsed());
            }
            for (name, output) in [("output", &done.stdout), ("errors", &done.stderr)] {
                if let Some(why) = bad(output) {
                    let shown = output.escape_ascii().to_string();
                    let shown = &shown[..shown.len().min(600)];
                    wrong.push(format!("{call:?}, its {name}: {why}: {shown}"));
                }
                if json && name == "output" && !output.is_empty() {
                    let values = serde_json::Deserializer::from_slice(output);
                    let values = values.into_iter::<serde_json::Value>();
                    if values.into_iter().any(|value| value.is_err()) {
                        wrong.push(format!("{call:?}: no JSON"));
                    }
                }
            }
        }
    }
    assert!(wrong.is_empty(), "{}", wrong.join("\n\n"));
}

#[track_caller]
fn is_harmless(call: &[OsString], done: &Output, codes: &[i32]) {
    for output in [&done.stdout, &done.stderr] {
        assert_eq!(bad(output), None, "{call:?}: {}", output.escape_ascii());
    }
    let code = done.status.code();
    assert!(code.is_some_and(|code| codes.contains(&code)), "{call:?} ended with {code:?}");
}

/// Runs a command with text and with JSON. It must end with one of `codes`, and show nothing as it
/// is. Returns the text that it printed on both outputs.
#[track_caller]
fn walked(words: &[&OsStr], codes: &[i32]) -> String {
    let call: Vec<OsString> = words.iter().map(|word| word.to_os_string()).collect();
    let with_json = [&[OsString::from("--json")][..], &call].concat();
    is_harmless(&with_json, &kvfs(&with_json).output().expect("it runs"), codes);
    let done = kvfs(&call).output().expect("it runs");
    is_harmless(&call, &done, codes);
    String::from_utf8_lossy(&[done.stdout, done.stderr].concat()).into_owned()
}

/// Appends a line to each file in the root with a hostile name.
const CHANGE: &str =
    "cd \"$KVFS_MOUNT\"; for f in e*; do test -f \"$f\" && echo more >> \"$f\"; done";

/// The label and the paths of a commit that another user has made come with each conflict, and with
/// an undo.
#[test]
fn no_conflict_and_no_undo_lets_foreign_text_act_on_a_terminal() {
    let Some(hostile) = Hostile::new() else { return };
    let (root, id) = (hostile.mount.root(), OsStr::new(&hostile.id));
    let runs = |script: &str| -> Vec<OsString> {
        let mut words: Vec<OsString> = ["run", "--label", TEXT].map(OsString::from).into();
        words.push(root.clone().into());
        words.extend(["--", "sh", "-c", script].map(OsString::from));
        words
    };
    let others_commit = || {
        let script = format!("{CHANGE}; true");
        let call = runs(&script);
        is_harmless(&call, &kvfs(&call).output().expect("it runs"), &[0]);
    };
    // A run that ends after another one has committed.
    let call = runs(&format!("{CHANGE}; echo ready; read line; true"));
    let mut child = kvfs(&call)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut ready = [0; 6];
    child.stdout.as_mut().expect("a pipe").read_exact(&mut ready).expect("ready");
    others_commit();
    child.stdin.take().expect("a pipe").write_all(b"\n").expect("it takes input");
    let done = child.wait_with_output().expect("it ends");
    is_harmless(&call, &done, &[75]);
    let said = String::from_utf8_lossy(&done.stderr);
    assert!(said.contains("by commit ") && said.contains("FORGED"), "{said}");

    // The transaction that was open before has changed the same file.
    let on_root = |before: &[&str], behind: &[&OsStr], codes: &[i32]| {
        let mut words: Vec<&OsStr> = before.iter().map(OsStr::new).collect();
        words.push(root.as_os_str());
        words.extend(behind);
        walked(&words, codes)
    };
    let said = on_root(&["txn", "commit"], &[id], &[8, 75]);
    assert!(said.contains("by commit ") && said.contains("FORGED"), "{said}");
    let said = on_root(&["txn", "rebase"], &[id], &[75]);
    assert!(said.contains("by commit ") && said.contains("FORGED"), "{said}");

    // So has a clone of the state before.
    let in_clone = root.join(".kvfs/clone").join(NAME).join(OsStr::from_bytes(BYTES));
    fs::write(in_clone, "of the clone").expect("written");
    for words in [&["merge"][..], &["rebase"]] {
        let said = on_root(words, &[OsStr::new(NAME)], &[75]);
        assert!(said.contains("FORGED"), "{said}");
    }

    // The older commits cannot be undone, since later ones have changed the same file.
    let mut history = kvfs(&["--json".into(), "history".into(), root.clone().into()]);
    let history = history.output().expect("it runs").stdout;
    let history: serde_json::Value = serde_json::from_slice(&history).expect("JSON");
    let commits = history["commits"].as_array().expect("a list");
    assert!(commits.len() >= 2, "{history}");
    for commit in commits {
        let number = commit["number"].to_string();
        on_root(&["undo", "--dry-run", "--commit", &number], &[], &[0, 1, 8, 75]);
    }
    let said = on_root(&["undo", "--dry-run"], &[], &[0]);
    assert!(said.contains("FORGED"), "{said}");
    on_root(&["undo"], &[], &[0, 1, 8, 75]);
}

/// Walked by others of their family: they show no more than these do.
const KNOWN: &[&str] = &[
    "kv add",
    "kv append",
    "kv delete-prefix",
    "kv delrange",
    "kv estimate",
    "kv hash",
    "kv incr",
    "kv put",
    "kv range",
    "kv scan",
    "kv bench",
    "kv load",
    "kv expire",
    "kv ttl",
];
