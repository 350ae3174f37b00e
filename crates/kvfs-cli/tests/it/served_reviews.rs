//! Changes of a transaction of a server, shown before its commit, as those of a store that is
//! mounted here.

use std::process::{Command, Output};

use crate::served_place::{Place, kvfs, said, succeeds};

fn text(output: &Output) -> String {
    String::from_utf8_lossy(&output.stdout).into_owned()
}

/// Changes of all kinds, made in the directory of a mount.
const SCRIPT: &str = "
    echo more >>a/file1; chmod 600 a/file2; rm a/file3; mv a/file4 a/moved
    mkdir -p made/deep; echo new >made/deep/file; ln -s ../a made/link
    echo changed >a/b/text; rm a/b/large; ln a/file5 a/hard";

#[track_caller]
fn runs(place: &Place, script: &str) {
    let mut shell = Command::new("sh");
    succeeds(shell.args(["-ec", script]).current_dir(place.path("one")));
}

#[test]
fn a_transaction_over_the_wire_shows_what_its_commit_then_changes() {
    let Some(place) = Place::new() else { return };
    succeeds(kvfs().args(["snapshot", "create"]).arg(place.path("store")).arg("before"));
    let serving = place.serve();
    succeeds(&mut place.mount("one"));
    let diff =
        |options: &[&str]| text(&succeeds(kvfs().arg("diff").args(options).arg(place.path("one"))));
    assert_eq!(diff(&[]), "nothing is changed\n");
    runs(&place, SCRIPT);
    let (shown, all) = (diff(&[]), diff(&["--all"]));
    for line in ["M  a/file1", "M  a/file2", "D  a/file3", "a/moved", "A  made", "D  a/b/large"] {
        assert!(shown.contains(line), "{line}: {shown}");
    }
    assert!(all.contains("made/deep/file"), "{all}");
    // The contents of both sides.
    let patch = diff(&["--patch"]);
    for line in ["-1 1 1 1 1 1 1 ", "+1 1 1 1 1 1 1 more", "+new", "deleted file mode 100644"] {
        assert!(patch.contains(line), "{line}: {patch}");
    }
    let json: serde_json::Value = serde_json::from_str(&diff(&["--json"])).expect("JSON");
    assert!(json["files"].as_array().is_some_and(|all| all.len() > 6), "{json}");
    let output = place.end("commit", "one");
    assert!(output.status.success(), "{}", said(&output));
    serving.ends_when_asked();
    let diff = |options: &[&str]| {
        let mut command = kvfs();
        command.arg("diff").args(options).arg(place.path("store")).arg("before");
        text(&succeeds(&mut command))
    };
    assert_eq!((diff(&[]), diff(&["--all"])), (shown, all));
}

#[test]
fn what_is_no_transaction_of_a_server_is_compared_with_a_snapshot_alone() {
    let Some(place) = Place::new() else { return };
    succeeds(kvfs().args(["snapshot", "create"]).arg(place.path("store")).arg("monday"));
    let output = kvfs().arg("diff").arg(place.path("store")).output().expect("kvfs runs");
    assert_eq!(output.status.code(), Some(2), "{}", said(&output));
    let serving = place.serve();
    let mut mount = kvfs();
    mount.arg("mount").arg(place.address()).arg(place.path("one"));
    succeeds(mount.args(["--snapshot", "monday"]));
    let output = kvfs().arg("diff").arg(place.path("one")).output().expect("kvfs runs");
    assert!(!output.status.success());
    assert!(said(&output).contains("no transaction of a server"), "{}", said(&output));
    succeeds(kvfs().arg("umount").arg(place.path("one")));
    serving.ends_when_asked();
}
