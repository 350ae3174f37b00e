//! Builds and runs the C library and the examples on a mounted store. A C compiler and make are
//! required to build this project; the examples in other languages run only where their tools are
//! installed.

use std::fs;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::mounted::Mount;
use kvdb_server::{Client, Reply};

fn tree(path: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)
}

#[track_caller]
fn succeeds(command: &mut Command) -> String {
    let ended = crate::place::output(command);
    assert!(ended.status.success(), "{command:?}: {}", String::from_utf8_lossy(&ended.stderr));
    String::from_utf8_lossy(&ended.stdout).into_owned()
}

fn kvfs(words: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(words).env_remove("KVFS_TXN").env_remove("KVFS_SOCKET");
    command
}

fn is_there(program: &str, words: &[&str]) -> bool {
    let there =
        Command::new(program).args(words).output().is_ok_and(|ended| ended.status.success());
    if !there {
        eprintln!("SKIPPED: {program} {} does not work here", words.join(" "));
    }
    there
}

/// A machine without a C compiler has not tested the library.
#[track_caller]
fn c_can_be_built() {
    for (program, package) in [("cc", "gcc"), ("make", "make")] {
        let there = Command::new(program).arg("--version").output();
        assert!(
            there.is_ok_and(|ended| ended.status.success()),
            "the C library is tested with {program}, which is not here: apt-get install {package}, \
             or make setup"
        );
    }
}

/// Installs the library into `directory`, and builds `source` with it the way its users do.
fn built(directory: &Path, source: &Path) -> PathBuf {
    let prefix = directory.join("prefix");
    let mut make = Command::new("make");
    make.arg("-C")
        .arg(tree("bindings/c"))
        .arg("install")
        .arg(format!("BUILD={}", directory.join("build").display()));
    succeeds(make.arg(format!("PREFIX={}", prefix.display())));
    assert!(
        prefix.join("lib/pkgconfig/libkvfs.pc").exists() && prefix.join("lib/libkvfs.so").exists()
    );
    let program = directory.join("program");
    let mut compile = Command::new("cc");
    compile
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-o"])
        .arg(&program)
        .arg(source)
        .arg("-I")
        .arg(prefix.join("include"));
    succeeds(compile.arg(prefix.join("lib/libkvfs.a")));
    program
}

#[test]
fn the_c_example_publishes_a_file_with_its_key() {
    let Some(mount) = Mount::new() else { return };
    c_can_be_built();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let publish = built(directory.path(), &tree("examples/c/publish.c"));
    let root = mount.root();
    for (text, version) in [("first", "1"), ("second", "2")] {
        succeeds(Command::new(&publish).arg(&root).args(["page", text]));
        assert_eq!(fs::read_to_string(mount.path("page")).expect("the page"), format!("{text}\n"));
        assert_eq!(
            succeeds(kvfs(&["kv", "-d", "versions", "get"]).arg(&root).arg("page")),
            version
        );
    }
    // A page that cannot be written leaves the key alone.
    let ended = Command::new(&publish)
        .arg(&root)
        .args(["no/such/directory", "x"])
        .output()
        .expect("it runs");
    assert_eq!(ended.status.code(), Some(1));
    assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(&root)), "");
    // Four at once: each comes once.
    let mut all: Vec<_> = (0..4)
        .map(|i| {
            Command::new(&publish)
                .arg(&root)
                .args(["page", &format!("by {i}")])
                .spawn()
                .expect("it runs")
        })
        .collect();
    assert!(all.iter_mut().all(|child| child.wait().expect("it ends").success()));
    assert_eq!(succeeds(kvfs(&["kv", "-d", "versions", "get"]).arg(&root).arg("page")), "6");
}

/// Tests every function and its errors.
const CALLS: &str = r#"
#include <kvfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#define IS(what, want) do { int got = (what); if (got != (want)) { \
    fprintf(stderr, "line %d: %s is %d: %s\n", __LINE__, #what, got, kvfs_error(s)); return 1; } } while (0)
static int holds(const char *path, const char *want) {
    char got[64] = "";
    FILE *f = fopen(path, "r");
    if (f == NULL) return want == NULL;
    if (fgets(got, sizeof got, f) == NULL) got[0] = 0;
    fclose(f);
    return want != NULL && strcmp(got, want) == 0;
}
static void put(const char *path, const char *text) { FILE *f = fopen(path, "w"); if (f) { fputs(text, f); fclose(f); } }
int main(int n, char **words) {
    char path[4096];
    void *value; size_t size; kvfs_txn t, u;
    if (n != 2 || chdir(words[1]) != 0) return 2;
    kvfs *s = kvfs_open("."), *o = kvfs_open(words[1]);
    if (s == NULL || o == NULL) { perror("open"); return 1; }
    IS(strcmp(kvfs_mount_point(s), words[1]), 0);
    for (unsigned how = 0; how <= KVFS_CHROOT; how += KVFS_CHROOT) {
        put("file", "0");
        IS(kvfs_begin(s, KVFS_SI, 0, &t), KVFS_OK);
        IS(kvfs_enter(s, t, how), KVFS_OK);
        put("file", "1");
        IS(kvfs_put(s, "k\0y", 3, "v\r\n\0", 4), KVFS_OK);
        IS(kvfs_get(o, "k\0y", 3, &value, &size), KVFS_ABSENT);
        IS(kvfs_leave(s), KVFS_OK);
        if (chdir(words[1]) != 0) return 3;
        IS(holds("file", "0"), 1);
        IS(kvfs_get(s, "k\0y", 3, &value, &size), KVFS_ABSENT);
        IS(kvfs_view(s, t, path, sizeof path), KVFS_OK);
        strcat(path, "/file");
        IS(holds(path, "1"), 1);
        IS(kvfs_join(s, t), KVFS_OK);
        IS(kvfs_commit(s, t, KVFS_SYNC), KVFS_OK);
        IS(holds("file", "1"), 1);
        IS(kvfs_get(o, "k\0y", 3, &value, &size), KVFS_OK);
        IS(size == 4 && memcmp(value, "v\r\n\0", 5) == 0, 1);
        free(value);
        IS(kvfs_delete(o, "k\0y", 3), KVFS_OK);
        IS(kvfs_delete(o, "k\0y", 3), KVFS_ABSENT);
    }
    IS(kvfs_commit(s, t, 0), KVFS_ENDED);
    IS(kvfs_enter(s, 12345, 0), KVFS_ENDED);
    IS(kvfs_begin(s, KVFS_SI, 0, &t), KVFS_OK);
    IS(kvfs_begin(o, KVFS_SI, KVFS_NOCHECK, &u), KVFS_OK);
    IS(kvfs_join(s, t), KVFS_OK);
    IS(kvfs_join(o, u), KVFS_OK);
    IS(kvfs_put(s, "a", 1, "1", 1), KVFS_OK);
    IS(kvfs_put(o, "a", 1, "2", 1), KVFS_OK);
    IS(kvfs_commit(o, u, 0), KVFS_OK);
    IS(kvfs_commit(s, t, 0), KVFS_CONFLICT);
    IS(strstr(kvfs_error(s), "others have changed key \"a\"") != NULL, 1);
    IS(kvfs_begin(s, KVFS_SER, KVFS_ATTACHED, &t), KVFS_OK);
    IS(kvfs_enter(s, t, 0), KVFS_OK);
    put("file", "gone");
    IS(kvfs_abort(s, t), KVFS_OK);
    IS(holds("file", "1"), 1);
    /* Locks ahead of time, in serializable transactions alone. */
    IS(kvfs_lock_key(s, "k", 1, 0), KVFS_ERROR);
    IS(kvfs_begin(s, KVFS_SI, 0, &t), KVFS_OK);
    IS(kvfs_join(s, t), KVFS_OK);
    IS(kvfs_lock_dir(s, "/", KVFS_SHARED), KVFS_ERROR);
    IS(kvfs_abort(s, t), KVFS_OK);
    IS(kvfs_begin(s, KVFS_SER, KVFS_ATTACHED, &t), KVFS_OK);
    IS(kvfs_begin(o, KVFS_SER, KVFS_ATTACHED, &u), KVFS_OK);
    IS(kvfs_join(s, t), KVFS_OK);
    IS(kvfs_join(o, u), KVFS_OK);
    IS(kvfs_lock_key(s, "k\0y", 3, 0), KVFS_OK);
    IS(kvfs_lock_range(s, "l", 1, "m", 1, 0), KVFS_OK);
    IS(kvfs_lock_range(s, "n", 1, NULL, 0, KVFS_SHARED), KVFS_OK);
    IS(kvfs_lock_range(o, "n", 1, NULL, 0, KVFS_SHARED), KVFS_OK);
    IS(kvfs_lock_dir(s, "/", KVFS_SHARED), KVFS_OK);
    IS(kvfs_lock_dir(o, "/", KVFS_SHARED), KVFS_OK);
    IS(kvfs_lock_dir(s, "/file", 0), KVFS_ERROR);
    IS(kvfs_lock_dir(s, "/none", 0), KVFS_ERROR);
    IS(kvfs_abort(o, u), KVFS_OK);
    IS(kvfs_commit(s, t, 0), KVFS_OK);
    /* Ranges, in pieces, both ways, with bytes of every kind in the keys. */
    const char *options[] = {"separate-at", "512", "merge", "add", NULL};
    IS(kvfs_dict_create(s, "many", options), KVFS_OK);
    IS(kvfs_dict_create(s, "many", NULL), KVFS_ERROR);
    IS(kvfs_dict_set(s, "many", &options[2]), KVFS_OK);
    options[3] = "guess";
    IS(kvfs_dict_set(s, "many", options), KVFS_ERROR);
    options[1] = NULL;
    IS(kvfs_dict_set(s, "many", options), KVFS_ERROR);
    IS(kvfs_use(s, "many"), KVFS_OK);
    char key[8] = {'k', 0};
    const void *k, *v; size_t ks, vs; kvfs_cursor *c;
    for (int i = 0; i < 3000; i++) {
        key[2] = (char)(i / 256); key[3] = (char)(i % 256);
        IS(kvfs_put(s, key, 4, &i, sizeof i), KVFS_OK);
    }
    for (unsigned flags = 0; flags < 4; flags++) {
        int want = flags & KVFS_REVERSE ? 2999 : 0, seen = 0;
        IS(kvfs_range(s, NULL, 0, NULL, 0, flags, &c), KVFS_OK);
        while (kvfs_next(c, &k, &ks, &v, &vs) == KVFS_OK) {
            const unsigned char *bytes = k;
            IS(ks == 4 && bytes[2] * 256 + bytes[3] == want, 1);
            IS(flags & KVFS_KEYS ? v == NULL && vs == 0 : vs == sizeof want && memcmp(v, &want, vs) == 0, 1);
            want += flags & KVFS_REVERSE ? -1 : 1;
            seen++;
        }
        IS(seen, 3000);
        IS(kvfs_next(c, &k, &ks, NULL, NULL), KVFS_ABSENT);
        kvfs_cursor_close(c);
    }
    /* A piece whose last key is the empty one is the last, in reverse. */
    IS(kvfs_use(s, "few"), KVFS_OK);
    for (int i = 0; i < 16; i++)
        IS(kvfs_put(s, "abcdefghijklmnop", (size_t)i, "v", 1), KVFS_OK);
    IS(kvfs_range(s, NULL, 0, NULL, 0, KVFS_REVERSE, &c), KVFS_OK);
    for (int i = 15; i >= 0; i--) {
        IS(kvfs_next(c, &k, &ks, NULL, NULL), KVFS_OK);
        IS(ks == (size_t)i, 1);
    }
    IS(kvfs_next(c, &k, &ks, NULL, NULL), KVFS_ABSENT);
    kvfs_cursor_close(c);
    IS(kvfs_dict_drop(s, "few"), KVFS_OK);
    IS(kvfs_use(s, "many"), KVFS_OK);
    IS(kvfs_range(s, "k\0\1", 3, "k\0\2", 3, KVFS_REVERSE, &c), KVFS_OK);
    IS(kvfs_next(c, &k, &ks, NULL, NULL), KVFS_OK);
    IS(memcmp(k, "k\0\1\xff", 4), 0);
    kvfs_cursor_close(c);
    kvfs_cursor_close(NULL);
    /* Snapshots, and what differs. */
    IS(kvfs_snapshot_create(s, "then"), KVFS_OK);
    IS(kvfs_snapshot_create(s, "then"), KVFS_ERROR);
    IS(kvfs_delete_range(s, "k\0\1", 3, NULL, 0), KVFS_OK);
    IS(kvfs_put(s, "k\0\0\0", 4, "longer", 6), KVFS_OK);
    IS(kvfs_put(s, "new", 3, "", 0), KVFS_OK);
    kvfs_change *changes; size_t count;
    IS(kvfs_changes(s, "then", NULL, &changes, &count), KVFS_OK);
    IS(count, 3000 - 256 + 2);
    IS(strcmp(changes[0].dictionary, "many") == 0 && changes[0].key_size == 4 && changes[0].before == 4 && changes[0].after == 6, 1);
    IS(changes[1].before == 4 && changes[1].after == -1, 1);
    IS(changes[count - 1].before == -1 && changes[count - 1].after == 0, 1);
    kvfs_changes_free(changes, count);
    IS(kvfs_changes(s, "never", NULL, &changes, &count), KVFS_ERROR);
    IS(kvfs_snapshot_use(s, "then"), KVFS_OK);
    IS(kvfs_get(s, "new", 3, &value, &size), KVFS_ABSENT);
    IS(kvfs_put(s, "new", 3, "x", 1), KVFS_ERROR);
    IS(kvfs_snapshot_use(s, NULL), KVFS_OK);
    IS(kvfs_get(s, "new", 3, &value, &size), KVFS_OK);
    free(value);
    /* Savepoints. */
    IS(kvfs_savepoint(s, "mark"), KVFS_ERROR);
    IS(kvfs_begin(s, KVFS_SI, 0, &t), KVFS_OK);
    IS(kvfs_join(s, t), KVFS_OK);
    IS(kvfs_put(s, "kept", 4, "1", 1), KVFS_OK);
    IS(kvfs_savepoint(s, "mark"), KVFS_OK);
    IS(kvfs_put(s, "lost", 4, "1", 1), KVFS_OK);
    IS(kvfs_rollback_to(s, "mark"), KVFS_OK);
    IS(kvfs_rollback_to(s, "other"), KVFS_ERROR);
    IS(kvfs_commit(s, t, 0), KVFS_OK);
    IS(kvfs_get(s, "kept", 4, &value, &size), KVFS_OK);
    free(value);
    IS(kvfs_get(s, "lost", 4, &value, &size), KVFS_ABSENT);
    /* What can be undone, and what not. */
    IS(kvfs_undo(s, 0, &t), KVFS_ERROR);
    IS(kvfs_begin(s, KVFS_SI, KVFS_UNDOABLE, &t), KVFS_OK);
    IS(kvfs_join(s, t), KVFS_OK);
    IS(kvfs_put(s, "kept", 4, "2", 1), KVFS_OK);
    IS(kvfs_commit(s, t, KVFS_SYNC), KVFS_OK);
    IS(kvfs_undo(s, 0, &t), KVFS_OK);
    IS(kvfs_commit(s, t, KVFS_SYNC), KVFS_OK);
    IS(kvfs_get(s, "kept", 4, &value, &size), KVFS_OK);
    IS(size == 1 && *(char *)value == '1', 1);
    free(value);
    IS(kvfs_put(s, "kept", 4, "x", 1), KVFS_OK);
    IS(kvfs_undo(s, 0, &t), KVFS_CONFLICT);
    IS(strstr(kvfs_error(s), "others have changed key \"kept\"") != NULL, 1);
    IS(kvfs_undo(s, 1, &t), KVFS_ERROR);
    IS(kvfs_compact(s), KVFS_OK);
    IS(kvfs_sync(s), KVFS_OK);
    IS(kvfs_snapshot_rollback(s, "then"), KVFS_OK);
    IS(kvfs_get(s, "kept", 4, &value, &size), KVFS_ABSENT);
    IS(kvfs_snapshot_drop(s, "then"), KVFS_OK);
    IS(kvfs_dict_drop(s, "many"), KVFS_OK);
    IS(kvfs_use(s, ""), KVFS_ERROR);
    kvfs_close(s);
    kvfs_close(o);
    puts("done");
    return 0;
}
"#;

#[test]
fn every_call_of_the_c_library() {
    let Some(mount) = Mount::new() else { return };
    c_can_be_built();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = directory.path().join("calls.c");
    fs::write(&source, CALLS).expect("write");
    let calls = built(directory.path(), &source);
    assert_eq!(
        succeeds(Command::new(calls).arg(mount.root().canonicalize().expect("the mount"))),
        "done\n"
    );
}

/// A value that is too long for a command, between two others.
const LONG: &str = r#"
#include <kvfs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
int main(int n, char **words) {
    size_t longest = 4 << 20;
    char *value = calloc(1, longest + 1);
    kvfs *s = n == 2 ? kvfs_open(words[1]) : NULL;
    if (s == NULL || kvfs_put(s, "key", 3, value, longest) != KVFS_OK) return 2;
    if (kvfs_put(s, "key", 3, value, longest + 1) != KVFS_ERROR) return 3;
    if (strstr(kvfs_error(s), "4194304") == NULL) return 4;
    void *got;
    size_t size;
    if (kvfs_get(s, "key", 3, &got, &size) != KVFS_OK || size != longest) return 5;
    free(got);
    /* A transaction goes on, too, and has what came before and after. */
    kvfs_txn t;
    if (kvfs_begin(s, KVFS_SI, 0, &t) != KVFS_OK || kvfs_join(s, t) != KVFS_OK) return 6;
    if (kvfs_put(s, "before", 6, "1", 1) != KVFS_OK) return 7;
    if (kvfs_put(s, "long", 4, value, longest + 1) != KVFS_ERROR) return 8;
    if (kvfs_put(s, value, longest + 1, "long", 4) != KVFS_ERROR) return 9;
    if (kvfs_put(s, "after", 5, "1", 1) != KVFS_OK) return 10;
    if (kvfs_commit(s, t, KVFS_SYNC) != KVFS_OK) return 11;
    if (kvfs_get(s, "long", 4, &got, &size) != KVFS_ABSENT) return 12;
    if (kvfs_delete(s, "before", 6) != KVFS_OK || kvfs_delete(s, "after", 5) != KVFS_OK) return 13;
    kvfs_close(s);
    free(value);
    return 0;
}
"#;

#[test]
fn a_value_that_is_too_long_is_refused_and_the_connection_goes_on() {
    let Some(mount) = Mount::new() else { return };
    c_can_be_built();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = directory.path().join("long.c");
    fs::write(&source, LONG).expect("write");
    succeeds(Command::new(built(directory.path(), &source)).arg(mount.root()));
}

#[test]
fn the_c_library_says_where_it_was_installed_last() {
    c_can_be_built();
    let directory = tempfile::tempdir().expect("a temporary directory");
    for name in ["one", "other"] {
        let prefix = directory.path().join(name);
        let mut make = Command::new("make");
        make.arg("-C").arg(tree("bindings/c")).arg("install");
        make.arg(format!("BUILD={}", directory.path().join("build").display()));
        succeeds(make.arg(format!("PREFIX={}", prefix.display())));
        let said = fs::read_to_string(prefix.join("lib/pkgconfig/libkvfs.pc")).expect("installed");
        assert!(said.starts_with(&format!("prefix={}\n", prefix.display())), "{said}");
        assert!(!said.contains("/usr/local"), "{said}");
    }
}

/// A daemon that ends between two calls, or during a range.
const GONE: &str = r#"
#include <kvfs.h>
#include <stdio.h>
#include <string.h>
static int gone(kvfs *s, int code) {
    return code == KVFS_LOST && strstr(kvfs_error(s), "daemon is gone") != NULL;
}
int main(int n, char **words) {
    kvfs *s = n == 2 ? kvfs_open(words[1]) : NULL, *o = n == 2 ? kvfs_open(words[1]) : NULL;
    kvfs *t = n == 2 ? kvfs_open(words[1]) : NULL;
    kvfs_cursor *c;
    kvfs_txn id;
    const void *key;
    size_t size;
    char name[16];
    if (s == NULL || o == NULL || t == NULL) return 2;
    for (int i = 0; i < 3000; i++)
        if (kvfs_put(s, name, (size_t)sprintf(name, "%06d", i), "value", 5) != KVFS_OK) return 3;
    if (kvfs_range(o, NULL, 0, NULL, 0, 0, &c) != KVFS_OK) return 4;
    if (kvfs_next(c, &key, &size, NULL, NULL) != KVFS_OK) return 5;
    if (kvfs_begin(t, KVFS_SI, 0, &id) != KVFS_OK || kvfs_join(t, id) != KVFS_OK) return 6;
    puts("ready");
    fflush(stdout);
    if (getchar() == EOF) return 7;
    for (int i = 0; i < 2; i++)
        if (!gone(s, kvfs_put(s, "key", 3, "value", 5))) return 8;
    /* What has come of the range is given; its end is not taken for that of the keys. */
    int code, left = 3000;
    while ((code = kvfs_next(c, &key, &size, NULL, NULL)) == KVFS_OK) left--;
    if (left <= 0 || !gone(o, code)) return 9;
    if (!gone(t, kvfs_commit(t, id, KVFS_SYNC))) return 10;
    kvfs_cursor_close(c);
    kvfs_close(s);
    kvfs_close(o);
    kvfs_close(t);
    return 0;
}
"#;

/// Runs a program of the library until it is `ready`, ends the daemon, and lets the program
/// continue.
fn outlives(end: impl FnOnce(&Mount)) {
    let Some(mount) = Mount::new() else { return };
    c_can_be_built();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = directory.path().join("gone.c");
    fs::write(&source, GONE).expect("write");
    let mut program = Command::new(built(directory.path(), &source))
        .arg(mount.root())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("it runs");
    let mut said = [0; 6];
    program.stdout.as_mut().expect("a pipe").read_exact(&mut said).expect("it is ready");
    end(&mount);
    program.stdin.as_mut().expect("a pipe").write_all(b"\n").expect("told");
    let ended = program.wait().expect("it is ours");
    assert_eq!(ended.code(), Some(0), "{ended}");
}

#[test]
fn a_program_of_the_c_library_outlives_the_daemon() {
    outlives(|mount| drop(succeeds(kvfs(&["umount"]).arg(mount.root()))));
}

#[test]
fn a_program_of_the_c_library_is_told_of_a_daemon_that_was_killed() {
    outlives(|mount| {
        let said = succeeds(kvfs(&["--json", "stat"]).arg(mount.root()));
        let stat: serde_json::Value = serde_json::from_str(&said).expect("JSON");
        let pid = stat["daemon"]["pid"].as_i64().expect("a process") as i32;
        let pid = rustix::process::Pid::from_raw(pid).expect("a process");
        let daemon = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty());
        let daemon = daemon.expect("it is there");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        let mut ended = [rustix::event::PollFd::new(&daemon, rustix::event::PollFlags::IN)];
        rustix::event::poll(&mut ended, None).expect("it has ended");
    });
}

/// The Python package is not a member of the workspace, and only `make python` builds it, so a new
/// error that it lacks would break it unnoticed.
#[test]
fn the_python_package_has_a_class_for_each_error_of_the_database() {
    let read = |path: &str| fs::read_to_string(tree(path)).expect("it is there");
    let file = syn::parse_file(&read("crates/kvdb/src/error.rs")).expect("Rust");
    let errors = file.items.iter().find_map(|item| match item {
        syn::Item::Enum(found) if found.ident == "Error" => Some(found),
        _ => None,
    });
    let known = read("bindings/python/src/failure.rs");
    let (_, known) = known.split_once("\nfn of_store(").expect("the function");
    let (known, _) = known.split_once("\n}\n").expect("its end");
    let is_known = |name: &str| {
        known.split(|c: char| !c.is_alphanumeric() && c != ':').any(|word| word == name)
    };
    for variant in &errors.expect("the errors").variants {
        let name = format!("Error::{}", variant.ident);
        assert!(is_known(&name), "bindings/python/src/failure.rs: of_store lacks {name}");
    }
}

#[test]
fn the_python_example_moves_a_file_and_its_keys() {
    let Some(mount) = Mount::new() else { return };
    let Some(python) = ["python3", "/usr/bin/python3"]
        .into_iter()
        .find(|python| is_there(python, &["-c", "import redis"]))
    else {
        return;
    };
    fs::create_dir(mount.path("inbox")).expect("mkdir");
    fs::write(mount.path("inbox/letter"), "Dear all").expect("write");
    let root = mount.root();
    let socket = root.with_file_name("store.sock");
    let mut transfer = Command::new(python);
    transfer
        .arg(tree("examples/python/transfer.py"))
        .arg(&root)
        .args(["inbox/letter", "archive"])
        .env("KVFS_SOCKET", &socket);
    succeeds(&mut transfer);
    assert_eq!(fs::read_to_string(mount.path("archive/letter")).expect("the letter"), "Dear all");
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("place:letter")), "archive");
    // No value is left to move, so nothing changes.
    assert!(!transfer.output().expect("it runs").status.success());
    assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("documents in archive")), "1");
    assert_eq!(succeeds(kvfs(&["txn", "list"]).arg(&root)), "");
}

#[test]
fn the_shell_example_upgrades_when_the_tests_pass() {
    let Some(mount) = Mount::new() else { return };
    if !is_there("tar", &["--version"]) {
        return;
    }
    let directory = tempfile::tempdir().expect("a temporary directory");
    let root = mount.root();
    let program = Path::new(env!("CARGO_BIN_EXE_kvfs")).parent().expect("a directory");
    let path = format!("{}:{}", program.display(), std::env::var("PATH").unwrap_or_default());
    for (version, works) in [("1", "true"), ("2", "false")] {
        let app = directory.path().join(version);
        fs::create_dir(&app).expect("mkdir");
        fs::write(app.join("VERSION"), version).expect("write");
        fs::write(app.join("self-test"), format!("#!/bin/sh\n{works}\n")).expect("write");
        let archive = directory.path().join(format!("{version}.tar"));
        succeeds(
            Command::new("sh")
                .arg("-c")
                .arg("chmod +x self-test; tar -cf \"$1\" .")
                .arg("sh")
                .arg(&archive)
                .current_dir(&app),
        );
        let ended = Command::new(tree("examples/shell/upgrade.sh"))
            .arg(&root)
            .arg(&archive)
            .env("PATH", &path)
            .output()
            .expect("it runs");
        assert_eq!(
            ended.status.success(),
            works == "true",
            "{}",
            String::from_utf8_lossy(&ended.stderr)
        );
        assert_eq!(fs::read_to_string(mount.path("app/VERSION")).expect("a version"), "1");
        assert_eq!(succeeds(kvfs(&["kv", "get"]).arg(&root).arg("app:version")), "1");
    }
}

/// Replies that a program seldom gets: long ones, and errors among others.
const REPLIES: &str = r#"
#define _GNU_SOURCE
#include <kvfs.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>
#define IS(what, want) do { int got = (what); if (got != (want)) { \
    fprintf(stderr, "line %d: %s is %d: %s\n", __LINE__, #what, got, kvfs_error(s)); return 1; } } while (0)
int main(int n, char **words) {
    kvfs *s = n == 2 ? kvfs_open(words[1]) : NULL, *o = n == 2 ? kvfs_open(words[1]) : NULL;
    if (s == NULL || o == NULL || chdir(words[1]) != 0) return 2;
    void *value; size_t size; kvfs_txn t;
    IS(kvfs_use(s, "long"), KVFS_OK);
    IS(kvfs_get(s, "long", 4, &value, &size), KVFS_OK);
    IS(size == (70 << 20) && ((char *)value)[size - 1] == 'x', 1);
    free(value);
    /* Of a range the second string is too long for a reply, which is said in its place. What
     * follows it is read, and is no reply to the next command. */
    IS(kvfs_use(s, "longer"), KVFS_OK);
    const void *k, *v; size_t ks, vs; kvfs_cursor *c;
    IS(kvfs_range(s, NULL, 0, NULL, 0, 0, &c), KVFS_OK);
    for (int i = 0; i < 3; i++) {
        IS(kvfs_next(c, &k, &ks, &v, &vs), KVFS_ERROR);
        IS(strstr(kvfs_error(s), "read it in parts") != NULL, 1);
    }
    kvfs_cursor_close(c);
    IS(kvfs_get(s, "a", 1, &value, &size), KVFS_OK);
    IS(size == 5 && memcmp(value, "first", 5) == 0, 1);
    free(value);
    IS(kvfs_range(s, NULL, 0, NULL, 0, KVFS_KEYS, &c), KVFS_OK);
    for (int i = 0; i < 3; i++) IS(kvfs_next(c, &k, &ks, &v, &vs), KVFS_OK);
    IS(kvfs_next(c, &k, &ks, &v, &vs), KVFS_ABSENT);
    kvfs_cursor_close(c);
    /* A root that cannot be changed leaves the working directory what it is. */
    struct __user_cap_header_struct head = {_LINUX_CAPABILITY_VERSION_3, 0};
    struct __user_cap_data_struct have[2];
    if (syscall(SYS_capget, &head, have) != 0) return 3;
    have[0].effective &= ~(1u << CAP_SYS_CHROOT);
    if (syscall(SYS_capset, &head, have) != 0) return 4;
    IS(kvfs_begin(s, KVFS_SI, 0, &t), KVFS_OK);
    IS(kvfs_enter(s, t, KVFS_CHROOT), KVFS_ERROR);
    char *here = getcwd(NULL, 0);
    IS(here != NULL && strcmp(here, words[1]) == 0, 1);
    free(here);
    IS(kvfs_abort(s, t), KVFS_OK);
    kvfs_close(s);
    kvfs_close(o);
    puts("done");
    return 0;
}
"#;

#[test]
fn replies_that_are_long_or_hold_an_error_are_read_to_their_end() {
    let Some(mount) = Mount::new() else { return };
    c_can_be_built();
    let directory = tempfile::tempdir().expect("a temporary directory");
    let source = directory.path().join("replies.c");
    fs::write(&source, REPLIES).expect("write");
    let program = built(directory.path(), &source);
    let mut client = Client::connect(&mount.root().with_file_name("store.sock")).expect("connect");
    // Strings that are zeros but for their ends take little room.
    for command in [
        "USE long",
        "SETRANGE long 73400319 x",
        "USE longer",
        "SET a first",
        "SETRANGE b 536870912 x",
        "SET c last",
    ] {
        let words: Vec<&[u8]> = command.split(' ').map(str::as_bytes).collect();
        let reply = client.call(&words).expect("an answer");
        assert!(!matches!(reply, Reply::Error(_)), "{command}: {reply:?}");
    }
    assert_eq!(
        succeeds(Command::new(program).arg(mount.root().canonicalize().expect("the mount"))),
        "done\n"
    );
}
