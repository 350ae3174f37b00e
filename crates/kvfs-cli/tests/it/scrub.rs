//! Tests of scrubs of a mounted store, one that finishes and one that does not.

use std::process::{Child, Stdio};

use crate::place::{Place, fails, kvfs, succeeds, text, until};
use serde_json::Value;

fn status(p: &Place) -> Value {
    let said = succeeds(kvfs(&["--json", "scrub", "--status"]).arg(p.mnt()));
    serde_json::from_str::<Value>(&said).expect("JSON")["scrub"].take()
}

#[test]
fn a_scrub_that_is_stopped_is_not_a_good_one() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let (mut random, mut content) = (env::Random::new(1), vec![0; 48 << 20]);
    random.fill(&mut content);
    std::fs::write(p.mnt().join("file"), content).expect("written");
    assert_eq!(p.ask(&["SYNC"]), "OK");
    // The scrub takes most of a minute.
    let mut scrub = kvfs(&["scrub", "--rate", "1"]);
    scrub.arg(p.mnt()).stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let scrub: Child = scrub.spawn().expect("kvfs runs");
    until("it is under way", || status(&p)["running"] == 1);
    succeeds(kvfs(&["scrub", "--stop"]).arg(p.mnt()));
    let ended = scrub.wait_with_output().expect("it is ours");
    let (said, why) = (text(&ended.stdout), text(&ended.stderr));
    assert_eq!(ended.status.code(), Some(1), "{said}{why}");
    assert!(said.contains("scrub not done to its end"), "{said}");
    assert!(why.contains("before it had read everything"), "{why}");
    // Asking for the progress succeeds, and a complete scrub reports success.
    succeeds(kvfs(&["scrub", "--status"]).arg(p.mnt()));
    assert!(succeeds(kvfs(&["scrub"]).arg(p.mnt())).starts_with("scrub done"));
    fails(3, kvfs(&["scrub"]).arg(p.mnt().join("nothing")));
}
