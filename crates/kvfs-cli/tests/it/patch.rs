//! Tests of `--patch`. Applying the patch with `git apply` produces the content of the store, and
//! the patch is readable for a person.

use std::collections::BTreeMap;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, Output, Stdio};

use crate::mounted::Mount;

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).stdin(Stdio::null()).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

#[track_caller]
fn succeeds(command: &mut Command) -> Vec<u8> {
    let Output { status, stdout, stderr } = crate::place::output(command);
    assert!(status.success(), "{command:?}: {}", String::from_utf8_lossy(&stderr));
    stdout
}

#[track_caller]
fn shell(directory: &Path, script: &str) {
    succeeds(Command::new("sh").args(["-ec", script]).current_dir(directory));
}

/// Returns the properties of a tree that git keeps: paths, whether a file can be executed, contents
/// and targets.
fn kept(top: &Path) -> BTreeMap<Vec<u8>, (u32, Vec<u8>)> {
    let (mut all, mut todo) = (BTreeMap::new(), vec![top.to_path_buf()]);
    while let Some(directory) = todo.pop() {
        for entry in fs::read_dir(&directory).expect("a directory") {
            let path = entry.expect("an entry").path();
            let name = path.strip_prefix(top).expect("below").as_os_str().as_bytes().to_vec();
            let meta = path.symlink_metadata().expect("there");
            if name == b".git" {
            } else if meta.is_dir() {
                todo.push(path);
            } else if meta.is_symlink() {
                let target = fs::read_link(&path).expect("a link");
                all.insert(name, (0o120000, target.as_os_str().as_bytes().to_vec()));
            } else if meta.is_file() {
                let mode = meta.permissions().mode() & 0o100;
                all.insert(name, (mode, fs::read(&path).expect("a file")));
            }
        }
    }
    all
}

const BEFORE: &str = r#"
    mkdir -p src/deep 'with blank'
    seq 1 40 >src/lines; seq 1 40 >src/moved; seq 1 20 >src/deep/a; seq 1 20 >src/deep/b
    printf 'no end' >src/open; printf 'a\rb\r\nc' >src/returns; printf 'gr\374n\n' >src/latin
    head -c 3000 /dev/urandom >src/binary; head -c 70000 /dev/zero >src/zeros
    echo 1 >'with blank/name here'; echo 1 >'quo"te'; echo 1 >'back\slash'; echo 1 >"$(printf 'new\nline')"
    echo 1 >"$(printf 'not\377utf8')"; echo 1 >grün; : >empty; echo gone >gone; ln -s there link; ln -s x turns
    echo 1 >script; echo 1 >tolink
"#;
const CHANGES: &str = r#"
    sed -i -e 's/^7$/seven/' -e '30,31d' -e '$a 41' src/lines; mv src/moved src/elsewhere; sed -i 's/^9$/nine/' src/elsewhere
    printf 'no end either' >src/open; printf 'a\rB\r\nc' >src/returns; printf 'gr\374n\ngr\374n' >src/latin
    mv src/deep src/deeper; echo more >>src/deeper/b
    head -c 4000 /dev/urandom >src/binary; printf x | dd of=src/zeros bs=1 seek=69000 conv=notrunc 2>/dev/null
    head -c 100 /dev/urandom >src/new-binary; : >src/new-empty; rm gone empty
    for f in 'with blank/name here' 'quo"te' 'back\slash' grün; do echo 2 >>"$f"; done
    echo 2 >>"$(printf 'new\nline')"; echo 2 >>"$(printf 'not\377utf8')"; mv 'quo"te' 'quo"ted and	tabbed'
    ln -sfn elsewhere link; chmod +x script; rm turns tolink; echo file >turns; ln -s target tolink
    mkdir -p fresh/directory; echo new >fresh/directory/file; ln -s ../x fresh/link
"#;

#[test]
fn git_makes_of_a_patch_what_the_store_has() {
    let Some(mount) = Mount::new() else { return };
    let (root, work) = (mount.root(), tempfile::tempdir().expect("a directory"));
    shell(&root, BEFORE);
    let copy = work.path().join("copy");
    shell(work.path(), "git init -q copy");
    succeeds(
        Command::new("sh")
            .args(["-ec", "cp -a \"$1\"/. copy/", "sh"])
            .arg(&root)
            .current_dir(work.path()),
    );
    assert_eq!(kept(&root), kept(&copy));
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
    let id = succeeds(kvfs(&["run", "--keep"]).arg(&root).args([
        "--",
        "sh",
        "-ec",
        &format!("cd $KVFS_MOUNT\n{CHANGES}"),
    ]));
    let id = String::from_utf8(id).expect("a number");
    let inside = succeeds(kvfs(&["txn", "diff", "--patch"]).arg(&root).arg(id.trim()));
    succeeds(kvfs(&["txn", "commit"]).arg(&root).arg(id.trim()));
    let patch = succeeds(kvfs(&["diff", "--patch"]).arg(&root).arg("before"));
    assert!(patch == inside, "a transaction and a snapshot give other patches");
    assert_ne!(kept(&root), kept(&copy));
    let file = work.path().join("patch");
    fs::write(&file, &patch).expect("written");
    let text = String::from_utf8_lossy(&patch).into_owned();
    assert!(text.contains("rename from src/deep/a\nrename to src/deeper/a\n"), "{text}");
    succeeds(Command::new("git").arg("apply").arg(&file).current_dir(&copy));
    assert_eq!(kept(&root), kept(&copy), "{text}");
    // Without renames the patch has the same effect.
    let apart = succeeds(kvfs(&["diff", "--patch", "--no-renames"]).arg(&root).arg("before"));
    assert!(!String::from_utf8_lossy(&apart).contains("rename from"));
    fs::write(&file, &apart).expect("written");
    shell(work.path(), "rm -rf copy; git init -q copy");
    let old = root.join(".kvfs/snapshot/before");
    succeeds(
        Command::new("sh")
            .args(["-ec", "cp -a \"$1\"/. copy/", "sh"])
            .arg(&old)
            .current_dir(work.path()),
    );
    succeeds(Command::new("git").arg("apply").arg(&file).current_dir(&copy));
    assert_eq!(kept(&root), kept(&copy));
}

#[test]
fn what_git_does_not_keep_is_said_in_remarks() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::write(mount.path("owned"), "x").expect("a file");
    fs::set_permissions(mount.path("owned"), fs::Permissions::from_mode(0o644)).expect("a mode");
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
    shell(&root, "chown 12:34 owned; chmod 600 owned; mkdir empty; mkfifo fifo");
    succeeds(kvfs(&["kv", "put"]).arg(&root).args(["key", "value"]));
    let patch = succeeds(kvfs(&["diff", "--patch"]).arg(&root).arg("before"));
    let text = String::from_utf8(patch).expect("text");
    let lines: Vec<String> =
        text.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    assert_eq!(
        lines,
        [
            "# A empty/",
            "# A fifo fifo",
            "# M owned mode 0644 → 0600, owner 0:0 → 12:34",
            "# A key 0:key 5 B",
            "# 2 files added, 1 file changed, 1 key changed",
        ]
    );
}

#[test]
fn colours_are_for_terminals_and_for_those_who_ask() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::write(mount.path("text"), "one\n").expect("a file");
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
    fs::write(mount.path("text"), "two\x1b[2K\n").expect("a file");
    let said = |words: &[&str]| {
        let mut command = kvfs(words);
        command.arg(&root).arg("before").env("KVFS_PAGER", "echo PAGED; cat");
        String::from_utf8(succeeds(&mut command)).expect("text")
    };
    let plain = said(&["diff", "--patch"]);
    assert!(plain.contains("-one\n+two\x1b[2K\n"), "a patch has the bytes as they are: {plain:?}");
    assert!(!plain.contains("\x1b[3") && !plain.contains("PAGED"), "{plain:?}");
    let coloured = said(&["diff", "--patch", "--color", "always"]);
    assert!(coloured.contains("\x1b[31m-one\x1b[m\n\x1b[32m+two"), "{coloured:?}");
    assert!(said(&["diff", "--color", "always"]).starts_with("\x1b[33mM  text"));
    let failed =
        kvfs(&["diff", "--color", "red"]).arg(&root).arg("before").output().expect("it runs");
    assert_eq!(failed.status.code(), Some(2));
}

/// Returns the screen of a terminal after a command.
fn on_a_terminal(command: &str, environment: &[(&str, &str)]) -> String {
    // script(1) gives it a terminal.
    let mut script = Command::new("script");
    script.args(["-qec", command, "/dev/null"]).stdin(Stdio::null()).env("TERM", "xterm");
    script.env_remove("NO_COLOR").env_remove("PAGER").envs(environment.iter().copied());
    String::from_utf8(succeeds(&mut script)).expect("text").replace('\r', "")
}

#[test]
fn on_a_terminal_there_are_colours_a_pager_and_no_tricks() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    fs::write(mount.path("text"), "one\n").expect("a file");
    fs::write(mount.path("binary"), "\0one\n").expect("a file");
    succeeds(kvfs(&["snapshot", "create"]).arg(&root).arg("before"));
    fs::write(mount.path("text"), "two\x1b[2K\n").expect("a file");
    fs::write(mount.path("binary"), "\0two\n").expect("a file");
    let diff = format!("{} diff {} before", env!("CARGO_BIN_EXE_kvfs"), root.display());
    let paged = on_a_terminal(&format!("{diff} -p"), &[("KVFS_PAGER", "sed 's/^/PAGED /'")]);
    assert!(paged.contains("PAGED \x1b[32m+two\\u{1b}[2K\x1b[m"), "{paged:?}");
    assert!(paged.contains("Binary files a/binary and b/binary differ"), "{paged:?}");
    let other = on_a_terminal(&diff, &[("PAGER", "sed 's/^/PAGED /'"), ("NO_COLOR", "1")]);
    assert!(other.contains("PAGED M  text") && !other.contains('\x1b'), "{other:?}");
    let none = on_a_terminal(&format!("{diff} --no-pager"), &[("PAGER", "sed 's/^/PAGED /'")]);
    assert!(none.contains("\x1b[33mM  text") && !none.contains("PAGED"), "{none:?}");
    // If the pager does not exist, the output is complete.
    let missing = on_a_terminal(&diff, &[("PAGER", "no-such-pager-anywhere")]);
    assert!(missing.contains("M  text"), "{missing:?}");
}

#[test]
fn what_an_undo_has_changed_is_paged_on_a_terminal_and_counted_when_asked() {
    let Some(mount) = Mount::new() else { return };
    let root = mount.root();
    let script = "cd $KVFS_MOUNT && touch one two three";
    succeeds(kvfs(&["run"]).arg(&root).args(["--", "sh", "-c", script]));
    let undo = format!("{} undo {}", env!("CARGO_BIN_EXE_kvfs"), root.display());
    let paged = on_a_terminal(&undo, &[("KVFS_PAGER", "sed 's/^/PAGED /'"), ("NO_COLOR", "1")]);
    for name in ["one", "two", "three"] {
        assert!(paged.contains(&format!("PAGED D  {name} ")), "{paged:?}");
    }
    assert!(paged.contains("PAGED 3 files removed"), "{paged:?}");
    let counted = String::from_utf8(succeeds(kvfs(&["undo", "--stat"]).arg(&root))).expect("text");
    assert!(counted.starts_with("3 files added"), "{counted}");
    assert!(!counted.contains("A  one"), "{counted}");
}
