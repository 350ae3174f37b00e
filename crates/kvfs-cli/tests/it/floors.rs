//! Tests of the layers of the workspace: a crate uses only floors below its own.

use std::process::Command;

/// From the ground up; crates in one line share a floor and do not know each other.
const FLOORS: &[&[&str]] = &[
    &["env", "kvdb-lua"],
    &["objects"],
    &["zones"],
    &["vt-tree"],
    &["kvdb"],
    &["kvfs"],
    &["kvfs-fuse", "kvdb-server", "kvdb-wire", "objects-s3"],
    &["places"],
    &["kvfs-served"],
    &["kvfs-cli"],
];

/// The directories of test machines and of programs that measure. They are outside of the floors:
/// they may use any, and only tests may use them.
const OUTSIDE: [&str; 2] = ["/proof/", "/bench/"];

fn floor(name: &str) -> Option<usize> {
    FLOORS.iter().position(|f| f.contains(&name))
}

#[test]
fn no_crate_uses_a_floor_above_it() {
    let out = Command::new(env!("CARGO"))
        .args(["metadata", "--no-deps", "--format-version", "1", "--manifest-path"])
        .arg(concat!(env!("CARGO_MANIFEST_DIR"), "/../../Cargo.toml"))
        .output()
        .expect("cargo runs, as it built this test");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let metadata: serde_json::Value =
        serde_json::from_slice(&out.stdout).expect("cargo metadata prints JSON");
    let packages = metadata["packages"].as_array().expect("packages");
    let is_machine = |package: &&serde_json::Value| {
        let path = package["manifest_path"].as_str().expect("a path");
        OUTSIDE.iter().any(|directory| path.contains(directory))
    };
    let machines: Vec<&str> =
        packages.iter().filter(is_machine).map(|p| p["name"].as_str().expect("a name")).collect();
    let mut seen = 0;
    for package in packages.iter().filter(|package| !is_machine(package)) {
        let name = package["name"].as_str().expect("a name");
        let mine = floor(name).unwrap_or_else(|| {
            panic!(
                "crate {name} has no floor: add it to the drawing in docs/architecture.md and here"
            )
        });
        seen += 1;
        for dependency in package["dependencies"].as_array().expect("dependencies") {
            let on = dependency["name"].as_str().expect("a name");
            let in_tests = dependency["kind"].as_str() == Some("dev");
            assert!(
                in_tests || !machines.contains(&on),
                "{name} must not use the test machine {on} outside of its tests"
            );
            // A crate may ask for features of its own in its tests.
            if let Some(other) = floor(on).filter(|_| !(in_tests && on == name)) {
                assert!(
                    other < mine,
                    "{name} (floor {}) must not use {on} (floor {})",
                    mine + 1,
                    other + 1
                );
            }
        }
    }
    assert_eq!(
        seen,
        FLOORS.iter().map(|f| f.len()).sum::<usize>(),
        "every crate of the drawing exists"
    );
}
