//! Tests of `kvfs du` and `kvfs find`. They report the same as du(1) and find(1) on the same tree,
//! for the store, a transaction and a snapshot.

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::path::Path;
use std::process::Command;

use crate::place::{Place, fails, kvfs, succeeds};
use serde_json::Value;

fn make(at: &Path) {
    fs::create_dir_all(at.join("sub/empty")).expect("mkdir");
    fs::create_dir_all(at.join("sub-not/deep/deeper")).expect("mkdir");
    fs::write(at.join("small"), "small").expect("write");
    fs::write(at.join("sub/large"), vec![7; 3_000_000]).expect("write");
    fs::hard_link(at.join("sub/large"), at.join("sub-not/link")).expect("link");
    symlink("sub/large", at.join("symlink")).expect("symlink");
    fs::File::create(at.join("sparse"))
        .and_then(|file| file.write_all_at(b"x", 50 << 20))
        .expect("write");
    for n in 0..700u32 {
        fs::write(at.join(format!("sub/f{n}.o")), vec![n as u8; n as usize * 11]).expect("write");
    }
    for name in ["with space", "new\nline", "[x]", "a*b", "\u{fc}mlaut", "sub!"] {
        fs::write(at.join("sub-not/deep/deeper").join(name), name).expect("write");
    }
    let old = std::time::UNIX_EPOCH + std::time::Duration::from_secs(1_500_000_000);
    fs::File::options()
        .write(true)
        .open(at.join("sub/f9.o"))
        .and_then(|file| file.set_modified(old))
        .expect("set");
}

/// Returns the output of find(1), each path once.
fn theirs(at: &Path, words: &[&str]) -> BTreeSet<Vec<u8>> {
    let out = Command::new("find").arg(at).args(words).arg("-print0").output().expect("find runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    split(&out.stdout)
}

fn split(out: &[u8]) -> BTreeSet<Vec<u8>> {
    out.split(|b| *b == 0).filter(|path| !path.is_empty()).map(<[u8]>::to_vec).collect()
}

fn ours(at: &Path, words: &[&str]) -> BTreeSet<Vec<u8>> {
    let mut command = kvfs(&["find"]);
    let out = command
        .arg(at)
        .args(words)
        .arg("-print0")
        .env_remove("KVFS_TXN")
        .output()
        .expect("kvfs runs");
    assert!(out.status.success(), "{}", String::from_utf8_lossy(&out.stderr));
    let found: Vec<&[u8]> = out.stdout.split(|b| *b == 0).filter(|path| !path.is_empty()).collect();
    let all = split(&out.stdout);
    assert_eq!(found.len(), all.len(), "nothing comes twice");
    all
}

#[test]
fn find_finds_what_find_finds() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let at = p.mnt().join("tree");
    make(&at);
    let reference = p.dir.path().join("reference");
    fs::write(&reference, "")
        .and_then(|()| {
            let then = std::time::UNIX_EPOCH + std::time::Duration::new(1_500_000_000, 500);
            fs::File::options().write(true).open(&reference)?.set_modified(then)
        })
        .expect("made");
    let reference = reference.to_str().expect("text");
    // Sizes are bytes here, and blocks of 512 there unless they say `c`.
    let cases: [(&[&str], &[&str]); 13] = [
        (&[], &[]),
        (&["-name", "f1*.o"], &["-name", "f1*.o"]),
        (&["-name", "f[12]?.o"], &["-name", "f[12]?.o"]),
        (&["-name", "f[!1-8]?.o"], &["-name", "f[!1-8]?.o"]),
        (&["-name", "\\[x]"], &["-name", "\\[x]"]),
        (&["-name", "a\\*b"], &["-name", "a\\*b"]),
        (&["-name", "tree"], &["-name", "tree"]),
        (&["-type", "d"], &["-type", "d"]),
        (&["-type", "l,d"], &["-type", "l,d"]),
        (&["-type", "f", "-size", "+4000c"], &["-type", "f", "-size", "+4000"]),
        (
            &["-type", "f", "-size", "-100c", "-name", "f*"],
            &["-type", "f", "-size", "-100", "-name", "f*"],
        ),
        (&["-newermt", "@1500000000"], &["-newer", "1500000000"]),
        (&["-type", "f", "-newer", reference], &["-type", "f", "-newer", reference]),
    ];
    for (words, mine) in cases {
        let wanted = theirs(&at, words);
        assert_eq!(ours(&at, mine), wanted, "{mine:?}");
        assert!(!wanted.is_empty(), "{mine:?} finds something");
    }
    // A symbolic link as the last component is not followed, and a file is reported as itself.
    assert_eq!(ours(&at.join("symlink"), &[]).len(), 1);
    assert_eq!(ours(&at.join("sub/large"), &["-size", "3000000"]).len(), 1);
    let found: Value = serde_json::from_str(&succeeds(
        kvfs(&["--json", "find"]).arg(&at).args(["-name", "small"]),
    ))
    .expect("JSON");
    assert_eq!((found[0]["size"].as_u64(), found[0]["kind"].as_str()), (Some(5), Some("file")));
    assert!(found[0]["path"].as_str().is_some_and(|path| path.ends_with("tree/small")));
    for (words, code, why) in [
        (&["-type", "x"][..], 2, "no kind"),
        (&["-size", "many"], 2, "size"),
        (&["-newer", "/no/such"], 3, "neither seconds nor a file"),
    ] {
        let said = fails(code, kvfs(&["find"]).arg(&at).args(words));
        assert!(said.contains(why), "{said}");
    }
    assert!(fails(3, &mut kvfs(&["find", "/etc"])).contains("no mounted store"));
    fails(3, kvfs(&["find"]).arg(p.mnt().join("none")));
    assert!(fails(2, kvfs(&["find"]).arg(p.mnt().join(".kvfs/txn"))).contains("list of views"));
}

/// The bytes and names of every directory, found by walking it.
fn counted(at: &Path) -> BTreeMap<String, (u64, u64, u64)> {
    let format = "%y %i %s %p\n";
    let out = Command::new("find")
        .arg(at)
        .args(["-name", "new*", "-o", "-printf", format])
        .output()
        .expect("find runs");
    let mut all: BTreeMap<String, (u64, u64, u64)> = BTreeMap::new();
    let mut seen: BTreeMap<String, BTreeSet<u64>> = BTreeMap::new();
    for line in String::from_utf8_lossy(&out.stdout).lines() {
        let mut words = line.splitn(4, ' ');
        let mut word = || words.next().expect("a word");
        let (kind, ino, size, path) = (
            word(),
            word().parse::<u64>().expect("a number"),
            word().parse::<u64>().expect("a number"),
            word(),
        );
        for directory in Path::new(path).ancestors().filter(|directory| directory.starts_with(at)) {
            let directory = directory.display().to_string();
            let of = all.entry(directory.clone()).or_default();
            match kind {
                "d" => of.2 += 1,
                _ => {
                    of.1 += 1;
                    if seen.entry(directory).or_default().insert(ino) {
                        of.0 += size;
                    }
                }
            }
        }
    }
    all
}

fn du(at: &Path, depth: &str) -> Vec<(String, (u64, u64, u64), u64)> {
    let said = succeeds(kvfs(&["--json", "du", "--depth", depth]).arg(at));
    let value: Value = serde_json::from_str(&said).expect("JSON");
    let number = |row: &Value, name: &str| row[name].as_u64().expect("a number");
    let rows = value.as_array().expect("rows").iter();
    rows.map(|row| {
        let sums = (number(row, "bytes"), number(row, "files"), number(row, "directories"));
        (row["path"].as_str().expect("text").to_string(), sums, number(row, "stored"))
    })
    .collect()
}

#[test]
fn du_counts_what_a_walk_counts() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    let at = p.mnt().join("tree");
    make(&at);
    fs::remove_file(at.join("sub-not/deep/deeper/new\nline")).expect("unlink");
    let wanted = counted(&at);
    let rows = du(&at, "9");
    let directories: Vec<&String> = rows.iter().map(|(path, ..)| path).collect();
    assert_eq!(directories.len(), 6, "{directories:?}");
    // A link within counts once at the top, and in each of the two directories.
    for (path, sums, _) in &rows {
        let wanted = wanted[path];
        assert_eq!((sums.1, sums.2), (wanted.1, wanted.2), "{path}");
        if !path.ends_with("sub-not") {
            assert_eq!(sums.0, wanted.0, "{path}");
        }
    }
    assert_eq!(rows.last().map(|(path, ..)| path.as_str()), at.to_str(), "the top comes last");
    let stored = rows.last().map(|row| row.2).expect("a row");
    assert!((3_000_000..8_000_000).contains(&stored), "{stored} bytes: holes do not count");
    assert_eq!(du(&at, "0").len(), 1);
    assert_eq!(du(&at, "1").len(), 3);
    assert_eq!(du(&at.join("small"), "0")[0].1, (5, 1, 0));
    let said = succeeds(kvfs(&["du"]).arg(&at));
    assert!(said.contains("710 files") && said.contains("6 directories"), "{said}");
}

#[test]
fn each_view_has_its_own() {
    let Some(p) = Place::new() else { return };
    p.mounted();
    make(&p.mnt().join("tree"));
    succeeds(kvfs(&["snapshot", "create"]).arg(p.mnt()).arg("s"));
    succeeds(kvfs(&["clone", "create"]).arg(p.mnt()).args(["s", "c"]));
    let id = succeeds(kvfs(&["txn", "begin"]).arg(p.mnt())).trim().to_string();
    let inside = p.mnt().join(".kvfs/txn").join(&id).join("tree");
    fs::write(inside.join("new"), "new").expect("write");
    fs::remove_dir_all(p.mnt().join("tree/sub")).expect("removed");
    fs::write(p.mnt().join(".kvfs/clone/c/tree/other"), "other").expect("write");
    let count = |at: &Path| du(at, "0")[0].1.1;
    let all = 711;
    assert_eq!(count(&p.mnt().join(".kvfs/snapshot/s/tree")), all);
    assert_eq!(count(&p.mnt().join(".kvfs/clone/c")), all + 1);
    assert_eq!(count(&inside), all + 1);
    assert_eq!(count(&p.mnt()), all - 701);
    for view in
        [inside, p.mnt().join(".kvfs/snapshot/s"), p.mnt().join(".kvfs/clone/c/tree"), p.mnt()]
    {
        // If the name of a view is a link, the rest of the path is used as given.
        assert_eq!(ours(&view, &[]), theirs(&view, &[]), "{}", view.display());
    }
    // In `kvfs run` the paths are the same, and data that was just written is included.
    let script = format!(
        "echo x > {0}/tree/run; {1} find {0}/tree -name run",
        p.mnt().display(),
        env!("CARGO_BIN_EXE_kvfs")
    );
    let said = succeeds(kvfs(&["run"]).arg(p.mnt()).args(["--", "sh", "-c", &script]));
    assert_eq!(said.trim(), p.mnt().join("tree/run").display().to_string());
    succeeds(kvfs(&["txn", "abort"]).arg(p.mnt()).arg(&id));
}

#[test]
fn what_is_written_but_not_committed_counts() {
    let Some(p) = Place::new() else { return };
    succeeds(&mut p.mount(&["-o", "writeback"]));
    let file = fs::File::create(p.mnt().join("file")).expect("made");
    file.write_all_at(&[1; 100_000], 0).expect("write");
    assert_eq!(du(&p.mnt().join("file"), "0")[0].1.0, 100_000);
}

#[test]
fn a_store_that_is_not_mounted() {
    let dir = tempfile::tempdir().expect("a directory");
    let (store, tree) = (dir.path().join("s.kvfs"), dir.path().join("tree"));
    make(&tree);
    succeeds(kvfs(&["create"]).arg(&store));
    succeeds(kvfs(&["import"]).arg(&store).arg(&tree).args(["--to", "/a/tree"]));
    let out = kvfs(&["find", "--store"])
        .arg(&store)
        .args(["/a", "-type", "f", "-print0"])
        .output()
        .expect("kvfs runs");
    let strip = |all: BTreeSet<Vec<u8>>, of: &Path| -> BTreeSet<Vec<u8>> {
        let of = of.to_str().expect("text").len();
        all.into_iter().map(|path| path[of..].to_vec()).collect()
    };
    assert_eq!(
        strip(split(&out.stdout), Path::new("/a/tree")),
        strip(theirs(&tree, &["-type", "f"]), &tree)
    );
    let value: Value = serde_json::from_str(&succeeds(
        kvfs(&["--json", "du", "--store"]).arg(&store).arg("/a/tree"),
    ))
    .expect("JSON");
    assert_eq!(
        (value[0]["files"].as_u64(), value[0]["directories"].as_u64()),
        (Some(711), Some(6))
    );
    fails(3, kvfs(&["du", "--store"]).arg(&store).arg("/none"));
}
