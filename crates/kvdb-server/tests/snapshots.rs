//! Snapshots and clones at the door.

mod served;

use kvdb_server::ServerOptions;
use served::serve;

#[test]
fn a_snapshot_keeps_a_state_to_compare_with_and_to_go_back_to() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("MSET a 1 b 22 c 333", "OK"),
        ("SNAPSHOT CREATE monday", "OK"),
        ("SNAPSHOT CHANGES monday", "[]"),
        ("SET b four", "OK"),
        ("DEL c", "(integer) 1"),
        ("USE new", "OK"),
        ("SET x 1", "OK"),
        ("SNAPSHOT CREATE tuesday", "OK"),
        ("SET x 2", "OK"),
        (
            "SNAPSHOT CHANGES monday tuesday",
            r#"[["0" "b" (integer) 2 (integer) 4] ["0" "c" (integer) 3 (nil)] ["new" "x" (nil) (integer) 1]]"#,
        ),
        ("SNAPSHOT CHANGES tuesday", r#"[["new" "x" (integer) 1 (integer) 1]]"#),
        ("SNAPSHOT FILES monday", "[]"),
        ("SNAPSHOT ROLLBACK monday", "OK"),
        ("SELECT 0", "OK"),
        ("MGET a b c", r#"["1" "22" "333"]"#),
        ("DICTS", "[\"0\"]"),
        ("SNAPSHOT DROP monday", "OK"),
        ("SNAPSHOT CREATE tuesday", "(error) ERR snapshot tuesday exists already"),
    ]);
    let list = c.run("SNAPSHOT LIST");
    assert!(list.starts_with(r#"[["name" "tuesday" "clone" "" "created" (integer) "#) && !list.contains("monday"), "{list}");
    for missing in
        ["SNAPSHOT DROP none", "SNAPSHOT ROLLBACK none", "SNAPSHOT CHANGES none", "CLONE CREATE none x", "CLONE DROP none"]
    {
        let reply = c.run(missing);
        assert!(reply.starts_with("(error) NOSNAPSHOT "), "{missing}: {reply}");
    }
    assert!(c.run("SNAPSHOT FRY x").contains("SNAPSHOT CREATE name"));
}

#[test]
fn a_clone_goes_its_own_way() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    c.expect(&[
        ("SET a 1", "OK"),
        ("SNAPSHOT CREATE base", "OK"),
        ("CLONE CREATE base other", "OK"),
        ("CLONE LIST", r#"[["name" "other" "snapshot" "base"]]"#),
        // Its dictionaries have their names, and are not those of the store.
        ("DICTS", "[\"0\"]"),
        ("SET a 2", "OK"),
        ("SNAPSHOT CREATE of-other OF other", "OK"),
        ("SNAPSHOT CHANGES base of-other", "[]"),
        ("CLONE DROP other", "OK"),
        ("CLONE LIST", "[]"),
        ("SNAPSHOT CHANGES of-other", r#"[["0" "a" (integer) 1 (integer) 1]]"#),
    ]);
}
