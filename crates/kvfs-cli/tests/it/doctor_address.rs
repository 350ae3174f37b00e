//! Tests of `kvfs doctor ADDRESS`: its report on a shared folder, on the store in it, and on an
//! unreachable bucket. The command leaves nothing at the address.

use std::collections::BTreeSet;
use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words);
    command
}

/// The exit code, and each finding as `check verdict: found`.
#[track_caller]
fn asked(command: &mut Command) -> (Option<i32>, Vec<String>) {
    let ended = command.output().expect("it runs");
    let said: Value = serde_json::from_slice(&ended.stdout)
        .unwrap_or_else(|e| panic!("{e}: {}", String::from_utf8_lossy(&ended.stderr)));
    let text = |finding: &Value, name: &str| finding[name].as_str().unwrap_or("-").to_owned();
    let line = |finding: &Value| {
        let names = ["check", "verdict", "found"].map(|name| text(finding, name));
        assert!(names[1] == "ok" || finding["mend"].is_string(), "{finding}");
        format!("{} {}: {}", names[0], names[1], names[2])
    };
    let findings = said["findings"].as_array().expect("a list");
    (ended.status.code(), findings.iter().map(line).collect())
}

#[track_caller]
fn of(address: &str) -> (Option<i32>, Vec<String>) {
    asked(&mut kvfs(&["--json", "doctor", address]))
}

/// All files in a folder.
fn listed(folder: &Path) -> BTreeSet<PathBuf> {
    let (mut found, mut todo) = (BTreeSet::new(), vec![folder.to_path_buf()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(directory).expect("a folder") {
            let path = entry.expect("an entry").path();
            if path.is_dir() {
                todo.push(path.clone());
            }
            found.insert(path);
        }
    }
    found
}

#[track_caller]
fn has(findings: &[String], begins: &str) {
    assert!(findings.iter().any(|f| f.starts_with(begins)), "{begins}: {findings:#?}");
}

#[test]
fn a_folder_is_tried_and_left_as_it_was() {
    let folder = tempfile::tempdir().expect("a folder");
    let address = format!("dir:{}/work", folder.path().display());
    let (code, found) = of(&address);
    assert_eq!(code, Some(0), "{found:#?}");
    for begins in ["place ok", "locks ok", "clock ok", "latency ok", "rules ok", "store note"] {
        has(&found, begins);
    }
    assert_eq!(listed(folder.path()), BTreeSet::new());

    let file = tempfile::tempdir().expect("a folder");
    let (store, tree) = (file.path().join("a.kvfs"), file.path().join("tree"));
    // So many dissimilar names that the state does not fit into the head.
    fs::create_dir(&tree).expect("a folder");
    let mut number = 1_u128;
    for _ in 0..3_000 {
        number = number.wrapping_mul(0x2360_ed05_1fc6_5da4_4385_df64_9fcc_f645).wrapping_add(7);
        fs::write(tree.join(format!("{number:032x}")), "").expect("written");
    }
    assert!(kvfs(&["create"]).arg(&store).output().expect("it runs").status.success());
    let imported = kvfs(&["import"]).args([&store, &tree]).output().expect("it runs");
    assert!(imported.status.success(), "{imported:?}");
    assert!(kvfs(&["push"]).arg(&store).arg(&address).output().expect("it runs").status.success());
    let before = listed(folder.path());
    let (code, found) = of(&address);
    assert_eq!(code, Some(0), "{found:#?}");
    has(&found, "store ok: generation 1, published 20");
    assert_eq!(listed(folder.path()), before);
    let (_, other) = of(&format!("dir:{}/other", folder.path().display()));
    has(&other, "store note: there is none of the name other");

    // Its state is missing, and then its head is damaged.
    fs::rename(folder.path().join("c"), folder.path().join("d")).expect("moved");
    let (code, found) = of(&address);
    assert_eq!(code, Some(1), "{found:#?}");
    has(&found, "store error: its head names the state c/work/");
    fs::write(folder.path().join("m/work/head"), "no head").expect("written");
    let (code, found) = of(&address);
    assert_eq!(code, Some(1), "{found:#?}");
    has(&found, "store error: corrupt");
}

#[test]
fn what_is_no_place_is_said() {
    let folder = tempfile::tempdir().expect("a folder");
    let (code, found) = of(&format!("dir:{}/none/work", folder.path().display()));
    assert_eq!((code, found.len()), (Some(1), 1), "{found:#?}");
    has(&found, "place error");
    for (wrong, says) in [
        ("/srv/work", "is no address of a store"),
        ("dir:/srv/work@monday", "names the snapshot monday"),
        ("dir:/srv/.work", "is no name of a store"),
    ] {
        let ended = kvfs(&["doctor", wrong]).output().expect("it runs");
        let said = String::from_utf8_lossy(&ended.stderr).into_owned();
        assert!(ended.status.code() == Some(2) && said.contains(says), "{said}");
    }
}

#[test]
fn a_server_that_is_not_reached_is_an_error_without_secrets() {
    // A port at which no server listens.
    let port = TcpListener::bind("127.0.0.1:0").expect("a port").local_addr().expect("bound");
    let mut command = kvfs(&["--json", "doctor", "s3://bucket/stores/work"]);
    command.env("AWS_ACCESS_KEY_ID", "AKIDHIDDEN").env("AWS_SECRET_ACCESS_KEY", "hidden-secret");
    command.env("AWS_ENDPOINT_URL", format!("http://{port}")).env("AWS_REGION", "there-1");
    for name in ["AWS_PROFILE", "AWS_SESSION_TOKEN", "AWS_ENDPOINT_URL_S3", "HOME"] {
        command.env_remove(name);
    }
    let (code, found) = asked(&mut command);
    assert_eq!(code, Some(1), "{found:#?}");
    has(&found, "credentials ok: of the environment");
    has(&found, &format!("endpoint ok: http://{port}, signed for the region there-1"));
    has(&found, "place error: listing \"\" in s3://bucket/stores failed");
    assert!(!found.iter().any(|f| f.to_lowercase().contains("hidden")), "{found:#?}");
}

#[test]
#[cfg(feature = "s3")]
#[ignore = "make remote: it takes a server of S3"]
fn a_bucket_is_tried_and_left_as_it_was() {
    let bucket = std::env::var("KVFS_S3_BUCKET").expect("scripts/remote_servers.sh runs this");
    let endpoint = std::env::var("KVFS_S3_ENDPOINT").expect("scripts/remote_servers.sh runs this");
    let address = format!("s3://{bucket}/examined/work");
    let asked_there = || {
        let mut command = kvfs(&["--json", "doctor", &address]);
        asked(command.env("AWS_ENDPOINT_URL", &endpoint))
    };
    let (code, found) = asked_there();
    assert_eq!(code, Some(0), "{found:#?}");
    for begins in ["place ok", "clock ok", "latency ok", "rules ok", "store note", "lifecycle"] {
        has(&found, begins);
    }
    let variables = [("AWS_ENDPOINT_URL", endpoint.clone())];
    let names = ["AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"];
    let keys = names.map(|name| (name, std::env::var(name).expect("the server's keys")));
    let environment = objects_s3::Environment::of(variables.into_iter().chain(keys));
    let there =
        objects_s3::S3Objects::from_address(&format!("s3://{bucket}/examined"), &environment);
    let left = objects::Objects::list(&there.expect("a place"), "", "").expect("a list");
    assert_eq!(left.entries, [], "nothing is left");
}
