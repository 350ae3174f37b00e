//! Tests of the commands that work on an unmounted store, and on the keys of a mounted one, as a
//! user or a script sees them: their output and exit codes.

use std::ffi::OsStr;
use std::fs;
use std::io::Write;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

const NOT_FOUND: i32 = 3;
const BUSY: i32 = 4;
const DAMAGED: i32 = 5;
const NOT_PERMITTED: i32 = 7;

/// A directory with a new store in it.
struct Lab {
    dir: tempfile::TempDir,
    store: PathBuf,
}

/// The way in which a command ended.
struct Ended {
    code: i32,
    out: Vec<u8>,
    err: String,
}

impl Ended {
    fn text(&self) -> &str {
        std::str::from_utf8(&self.out).expect("text")
    }
    fn json(&self) -> Value {
        assert_eq!(self.code, 0, "{}", self.err);
        serde_json::from_slice(&self.out)
            .unwrap_or_else(|e| panic!("{e} in {}", self.out.escape_ascii()))
    }
    #[track_caller]
    fn prints(&self, want: &str) {
        assert_eq!((self.code, self.text()), (0, want), "{}", self.err);
    }
    #[track_caller]
    fn fails(&self, code: i32, says: &str) {
        assert_eq!(self.code, code, "{} / {}", self.err, self.out.escape_ascii());
        assert!(self.err.contains(says), "{says:?} is not in {:?}", self.err);
    }
}

fn kvfs<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>) -> Ended {
    kvfs_with(args, b"")
}

fn kvfs_with<S: AsRef<OsStr>>(args: impl IntoIterator<Item = S>, input: &[u8]) -> Ended {
    let mut command = Command::new(env!("CARGO_BIN_EXE_kvfs"));
    command.args(args).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("kvfs starts");
    let mut stdin = child.stdin.take().expect("a pipe");
    let input = input.to_vec();
    // A command that does not read its input may end before it is written.
    let writer = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let output = child.wait_with_output().expect("kvfs ends");
    writer.join().expect("the input is written");
    let code = output.status.code().expect("kvfs is not killed");
    Ended { code, out: output.stdout, err: String::from_utf8_lossy(&output.stderr).into_owned() }
}

impl Lab {
    fn new() -> Lab {
        let dir = tempfile::tempdir().expect("a temporary directory");
        let store = dir.path().join("s.kvfs");
        kvfs([OsStr::new("create"), store.as_os_str(), "--size".as_ref(), "1G".as_ref()])
            .prints(&format!("created {} (up to 1.0 GiB)\n", store.display()));
        Lab { dir, store }
    }
    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }
    /// Runs "kv ACTION STORE REST…".
    fn kv(&self, action: &str, rest: &[&str]) -> Ended {
        let mut args: Vec<&OsStr> = vec!["kv".as_ref(), action.as_ref(), self.store.as_os_str()];
        args.extend(rest.iter().map(OsStr::new));
        kvfs(args)
    }
    /// Runs "COMMAND STORE REST…".
    fn run(&self, command: &str, rest: &[&str]) -> Ended {
        let mut args: Vec<&OsStr> = vec![command.as_ref(), self.store.as_os_str()];
        args.extend(rest.iter().map(OsStr::new));
        kvfs(args)
    }
}

#[test]
fn a_store_is_made_for_a_device_and_later_mounts_know_it() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("s.kvfs");
    let create = |profile: &str| {
        let args = [OsStr::new("create"), path.as_os_str(), "--profile".as_ref(), profile.as_ref()];
        kvfs(args)
    };
    let refused = create("floppy");
    assert_eq!(refused.code, 2);
    for word in ["floppy", "auto", "ssd", "hdd"] {
        assert!(refused.err.contains(word), "{}", refused.err);
    }
    assert!(!path.exists());
    for (profile, seek_bytes) in [("hdd", 1 << 20), ("ssd", 8 << 10)] {
        assert_eq!(create(profile).code, 0);
        // Opened for writing since.
        for (action, words) in [("put", &["key", "value"][..]), ("get", &["key"])] {
            let mut args = vec![OsStr::new("kv"), action.as_ref(), path.as_os_str()];
            args.extend(words.iter().map(OsStr::new));
            assert_eq!(kvfs(args).code, 0);
        }
        let shown = kvfs([OsStr::new("stat"), path.as_os_str(), "--json".as_ref()]);
        let shown: serde_json::Value = serde_json::from_slice(&shown.out).unwrap();
        assert_eq!(shown["device"]["profile"], profile);
        assert_eq!(shown["device"]["seek_bytes"], seek_bytes);
        let shown = kvfs([OsStr::new("stat"), path.as_os_str()]);
        assert!(String::from_utf8_lossy(&shown.out).contains(&format!("profile       {profile}")));
        fs::remove_file(&path).unwrap();
    }
}

#[test]
fn defragmentation_says_what_it_gained() {
    let lab = Lab::new();
    fs::create_dir(lab.path("in")).unwrap();
    for i in 0..300 {
        fs::write(
            lab.path(&format!("in/{}-{i}", if i % 5 == 0 { "stays" } else { "goes" })),
            vec![i as u8; 200 << 10],
        )
        .unwrap();
    }
    let input = lab.path("in");
    assert_eq!(lab.run("import", &[input.to_str().expect("text")]).code, 0);
    for i in 0..20 {
        lab.kv("put", &[&format!("k{i}"), "v"]).prints("");
    }
    let out = lab.run("defrag", &["--rate", "500", "--json"]).json();
    let of = |name: &str| out["defrag"][name].as_u64().unwrap();
    assert_eq!(of("running"), 0);
    assert_eq!(of("zones_reclaimed"), of("zones_reclaimable"));
    let text = lab.run("defrag", &["--fullest", "99"]);
    assert!(
        text.code == 0 && text.text().contains("reclaimable zones of 8 MiB are free"),
        "{} {}",
        text.text(),
        text.err
    );
    lab.run("defrag", &["--status"])
        .prints("0 of 0 reclaimable zones of 8 MiB are free, 0 B moved\n");
    lab.run("defrag", &["--fullest", "100"]).fails(2, "100 is not in 1..=99");
    assert_eq!(lab.run("check", &[]).code, 0);
}

#[test]
fn keys() {
    let lab = Lab::new();
    lab.kv("put", &["b", "2"]).prints("");
    lab.kv("put", &["a", "one and only"]).prints("");
    lab.kv("get", &["a"]).prints("one and only");
    lab.kv("get", &["nope"]).fails(NOT_FOUND, "no such key in dictionary 0: 'nope'");
    lab.kv("put", &["a", "x", "--new"]).fails(1, "the key 'a' exists");
    lab.kv("put", &["c", "3", "--new", "--no-sync"]).prints("");
    lab.kv("incr", &["n"]).prints("1\n");
    lab.kv("incr", &["n", "-5"]).prints("-4\n");
    lab.kv("incr", &["a"]).fails(1, "value is not an integer or out of range");
    lab.kv("count", &[]).prints("4\n");
    lab.kv("scan", &[]).prints("a\nb\nc\nn\n");
    lab.kv("scan", &["--match", "[bn]"]).prints("b\nn\n");
    lab.kv("range", &[]).prints("a\tone and only\nb\t2\nc\t3\nn\t-4\n");
    lab.kv("range", &["b", "n"]).prints("b\t2\nc\t3\n");
    lab.kv("range", &["--reverse", "--limit", "2", "--keys"]).prints("n\nc\n");
    lab.kv("range", &["", "b"]).prints("a\tone and only\n");
    lab.kv("range", &["x", "b"]).prints("");
    lab.kv("del", &["a", "nope"]).prints("");
    lab.kv("del", &["a", "nope"]).fails(NOT_FOUND, "no such key in dictionary 0: 'a', 'nope'");
    lab.kv("delrange", &["c", ""]).prints("");
    lab.kv("scan", &[]).prints("b\n");
    lab.kv("put", &["b", "-7"]).prints("");
    lab.kv("put", &["--", "-b", "--new"]).prints("");
    lab.kv("get", &["--", "-b"]).prints("--new");
    lab.kv("del", &["--", "-b"]).prints("");
    // The option may be last, and its text may be a value or a key.
    lab.kv("put", &["b", "--"]).prints("");
    lab.kv("get", &["b"]).prints("--");
    lab.kv("put", &["--", "--", "v"]).prints("");
    lab.kv("get", &["--"]).prints("v");
    lab.kv("del", &["--"]).prints("");
    lab.kv("put", &["b", "2"]).prints("");
    lab.kv("call", &["MGET", "b", "nope"]).prints("2\n(nil)\n");
    lab.kv("call", &["NOSUCH"]).fails(1, "unknown command 'NOSUCH'");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
}

#[test]
fn a_prefix_is_deleted_and_a_range_estimated() {
    let lab = Lab::new();
    lab.kv("estimate", &[]).prints("0 keys\n0 B\n");
    for key in ["user/1", "user/2", "user0", "zebra"] {
        lab.kv("put", &[key, "12345"]).prints("");
    }
    let figures = |rest: &[&str]| {
        let out = lab.kv("estimate", &[rest, &["--json"]].concat()).json();
        ["keys", "keys_error", "bytes", "bytes_error"]
            .map(|name| out[name].as_u64().expect("a number"))
    };
    let holds = |[keys, off, ..]: [u64; 4], truth: u64| keys.abs_diff(truth) <= off;
    assert!(
        holds(figures(&[]), 4)
            && holds(figures(&["user/", "user0"]), 2)
            && holds(figures(&["zz"]), 0)
    );
    assert!(figures(&[])[2] >= 10);
    lab.kv("delete-prefix", &["user/"]).prints("");
    lab.kv("scan", &[]).prints("user0\nzebra\n");
    assert_eq!(
        lab.kv("delprefix", &["nothing", "--json"]).json(),
        serde_json::json!({"deleted": true})
    );
    lab.kv("count", &[]).prints("2\n");
    lab.kv("delete-prefix", &[""]).prints("");
    lab.kv("count", &[]).prints("0\n");
}

#[test]
fn keys_as_json() {
    let lab = Lab::new();
    assert_eq!(lab.kv("put", &["a", "1", "--json"]).json(), serde_json::json!({"put": 1}));
    assert_eq!(
        lab.kv("get", &["a", "--json"]).json(),
        serde_json::json!({"key": "a", "value": "1"})
    );
    assert_eq!(
        lab.kv("range", &["--json"]).json(),
        serde_json::json!([{"key": "a", "value": "1"}])
    );
    assert_eq!(lab.kv("scan", &["--json", "--match", "x*"]).json(), serde_json::json!([]));
    assert_eq!(lab.kv("incr", &["a", "--json"]).json(), serde_json::json!({"value": 2}));
    assert_eq!(lab.kv("count", &["--json"]).json(), serde_json::json!({"keys": 1}));
    assert_eq!(lab.kv("dicts", &["--json"]).json(), serde_json::json!(["0"]));
    assert_eq!(lab.kv("del", &["a", "--json"]).json(), serde_json::json!({"deleted": 1}));
    let failed = lab.kv("get", &["a", "--json"]);
    let error: Value = serde_json::from_str(&failed.err).expect("JSON on standard error");
    assert_eq!((failed.code, &error["error"]["code"]), (NOT_FOUND, &Value::from("not_found")));
    assert!(failed.out.is_empty());
}

#[test]
fn values_are_any_bytes() {
    let lab = Lab::new();
    let value: Vec<u8> =
        (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    let put = |key: &str, value: &[u8]| {
        kvfs_with(
            [OsStr::new("kv"), "put".as_ref(), lab.store.as_os_str(), key.as_ref(), "-".as_ref()],
            value,
        )
    };
    put("large", &value).prints("");
    assert_eq!(lab.kv("get", &["large"]).out, value);
    put("odd", b"\xff\n\0").prints("");
    assert_eq!(lab.kv("get", &["odd"]).out, b"\xff\n\0");
    assert_eq!(
        lab.kv("get", &["odd", "--json"]).json(),
        serde_json::json!({"key": "odd", "value_base64": "/woA"})
    );
    lab.kv("range", &["odd"]).prints("odd\t\\xff\\n\\x00\n");
    // A longer value is sent in pieces, and stored as a whole or not at all.
    let huge: Vec<u8> = value.iter().copied().cycle().take((9 << 20) + 1).collect();
    put("huge", &huge).prints("");
    assert!(lab.kv("get", &["huge"]).out == huge);
    lab.kv("del", &["huge"]).prints("");
    put("none", b"").prints("");
    lab.kv("get", &["none"]).prints("");
    // The names of no bound are keys like any other.
    for key in ["-", "+"] {
        kvfs([
            OsStr::new("kv"),
            "put".as_ref(),
            lab.store.as_os_str(),
            key.as_ref(),
            "sign".as_ref(),
        ])
        .prints("");
    }
    lab.kv("range", &["--reverse", "--keys"]).prints("odd\nnone\nlarge\n-\n+\n");
}

#[test]
fn a_long_range_is_paged_without_a_seam() {
    let lab = Lab::new();
    let mut call = vec!["MSET".to_string()];
    let keys: Vec<String> = (0..10_000).map(|i| format!("k{i:05}")).collect();
    for (i, key) in keys.iter().enumerate() {
        call.extend([key.clone(), format!("{}", i * i)]);
    }
    lab.kv("call", &call.iter().map(String::as_str).collect::<Vec<_>>()).prints("OK\n");
    let lines = |ended: Ended| ended.text().lines().map(String::from).collect::<Vec<_>>();
    assert_eq!(lines(lab.kv("scan", &[])), keys);
    assert_eq!(lines(lab.kv("range", &["-k"])), keys);
    assert_eq!(
        lines(lab.kv("range", &["-k", "-r"])),
        keys.iter().rev().cloned().collect::<Vec<_>>()
    );
    assert_eq!(lines(lab.kv("range", &["-k", "-n", "5000"])), keys[..5000]);
    let all = lab.kv("range", &["--json"]).json();
    assert_eq!(all.as_array().map(Vec::len), Some(10_000));
    assert_eq!(all[9_999], serde_json::json!({"key": "k09999", "value": "99980001"}));
}

#[test]
fn dictionaries_are_apart_and_those_of_the_file_system_closed() {
    let lab = Lab::new();
    lab.kv("put", &["a", "zero"]).prints("");
    lab.kv("put", &["a", "photo", "--dict", "photos"]).prints("");
    lab.kv("get", &["a"]).prints("zero");
    lab.kv("get", &["a", "-d", "photos"]).prints("photo");
    lab.kv("dicts", &[]).prints("0\nphotos\n");
    for dict in ["nmap", "imap", "dmap"] {
        for (action, rest) in [
            ("put", vec!["a", "1"]),
            ("scan", vec![]),
            ("delrange", vec!["", ""]),
            ("delete-prefix", vec![""]),
            ("estimate", vec![]),
        ] {
            let mut rest = rest.clone();
            rest.extend(["--dict", dict]);
            lab.kv(action, &rest).fails(NOT_PERMITTED, "is reserved for the file system");
        }
    }
    lab.kv("scan", &["--dict", ""]).fails(1, "1 to 128 bytes long");
}

const USUAL: &str = "compression none, false-positives 80, merge none, separate-at adaptive, \
                     short-values inside, stitch-at adaptive, value-compression none";

impl Lab {
    /// Runs "dict ACTION STORE REST…".
    fn dict(&self, action: &str, rest: &[&str]) -> Ended {
        let mut args: Vec<&OsStr> = vec!["dict".as_ref(), action.as_ref(), self.store.as_os_str()];
        args.extend(rest.iter().map(OsStr::new));
        kvfs(args)
    }
}

#[test]
fn a_dictionary_is_made_changed_and_dropped() {
    let lab = Lab::new();
    lab.dict("list", &[]).prints("");
    lab.dict("create", &["log", "--stitch-at", "never", "--compression", "zstd"]).prints("");
    lab.dict("info", &["log"]).prints(
        "compression       zstd\nfalse-positives   80\nmerge             none\n\
         separate-at       adaptive\nshort-values      inside\n\
         stitch-at         never\nvalue-compression none\n",
    );
    lab.kv("put", &["k", "v", "--dict", "log"]).prints("");
    lab.kv("put", &["k", "v"]).prints("");
    let some = ["log", "--separate-at", "4K", "--stitch-at", "64K", "--merge", "max"];
    lab.dict("set", &some).prints("");
    lab.dict("list", &[]).prints(&format!(
        "0    {USUAL}\nlog  compression zstd, false-positives 80, merge max, separate-at 4096, \
         stitch-at 65536, value-compression none\n"
    ));
    let codecs = ["log", "--value-compression", "lz4", "--compression", "none"];
    assert_eq!(lab.dict("set", &[&codecs[..], &["--json"]].concat()).json()["changed"], "log");
    let info = lab.dict("info", &["log", "--json"]).json();
    assert_eq!(info["name"], "log");
    assert_eq!(info["options"]["value-compression"], "lz4");
    assert_eq!(info["options"]["separate-at"], "4096", "what is not named stays as it is");
    assert_eq!(lab.dict("list", &["--json"]).json()[1]["options"], info["options"]);
    lab.dict("set", &["log", "--separate-at", "adaptive"]).prints("");
    let adaptive = lab.dict("info", &["log", "--json"]).json();
    assert_eq!(adaptive["options"]["separate-at"], "adaptive");
    assert_eq!(adaptive["options"]["short-values"], "inside");
    lab.kv("get", &["k", "--dict", "log"]).prints("v");
    assert_eq!(lab.dict("drop", &["log", "--json"]).json()["dropped"], "log");
    lab.dict("ls", &[]).prints(&format!("0  {USUAL}\n"));
    lab.kv("get", &["k", "--dict", "log"]).fails(NOT_FOUND, "no such key");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
}

#[test]
fn what_is_wrong_with_a_dictionarys_options_is_said_and_changes_nothing() {
    let lab = Lab::new();
    lab.dict("create", &["log"]).prints("");
    let wrong: &[(&[&str], i32, &str)] = &[
        (&["set", "log"], 2, "no option of dictionary log is given"),
        (&["set", "log", "--separate-at=-1"], 2, "is not a size"),
        (&["set", "log", "--separate-at", "2G"], 2, "write less than 2G, or `never`"),
        (&["set", "log", "--separate-at", "soon"], 2, "is not a size"),
        (&["set", "log", "--stitch-at", "soon"], 2, "is not a size"),
        (&["set", "log", "--compression", "gzip"], 2, "possible values: none, lz4, zstd"),
        (&["set", "log", "--value-compression", "gzip"], 2, "possible values: none, lz4, zstd"),
        (&["set", "log", "--merge", "sum"], 2, "invalid value 'sum'"),
        (&["set", "log", "--false-positives", "10001"], 2, "10001 is not in 0..=10000"),
        (&["set", "log", "--separate-at", "1", "--colour", "red"], 2, "--colour"),
        (&["set", "nowhere", "--separate-at", "1"], NOT_FOUND, "no dictionary 'nowhere'"),
        (&["info", "nowhere"], NOT_FOUND, "no dictionary 'nowhere'"),
        (&["drop", "nowhere"], NOT_FOUND, "no dictionary 'nowhere'"),
        (&["create", "log"], 1, "exists"),
        (&["create", "other", "--stitch-at", "x"], 2, "is not a size"),
        (&["create", ""], 1, "1 to 128 bytes long"),
        (&["create", "a\nb"], 1, "without control characters"),
    ];
    for (words, code, says) in wrong {
        lab.dict(words[0], &words[1..]).fails(*code, says);
    }
    lab.dict("list", &[]).prints(&format!("log  {USUAL}\n"));
    let missing = lab.path("missing.kvfs");
    kvfs([OsStr::new("dict"), "list".as_ref(), missing.as_os_str()]).fails(NOT_FOUND, "cannot");
    assert!(!missing.exists());
}

#[test]
fn the_dictionaries_of_the_file_system_cannot_be_changed_or_dropped() {
    let lab = Lab::new();
    fs::create_dir(lab.path("in")).unwrap();
    fs::write(lab.path("in/file"), "content").unwrap();
    assert_eq!(lab.run("import", &[lab.path("in").to_str().expect("text")]).code, 0);
    let reserved = "is reserved for the file system";
    for dict in ["nmap", "imap", "dmap"] {
        lab.dict("drop", &[dict]).fails(NOT_PERMITTED, reserved);
        lab.dict("set", &[dict, "--separate-at", "1"]).fails(NOT_PERMITTED, reserved);
        lab.dict("create", &[dict]).fails(NOT_PERMITTED, reserved);
        lab.dict("info", &[dict]).fails(NOT_PERMITTED, reserved);
        lab.run("compact", &[dict]).fails(NOT_PERMITTED, reserved);
    }
    lab.dict("list", &[]).prints("");
    lab.run("cat", &["/file"]).prints("content");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
}

#[test]
fn a_store_a_dictionary_or_a_range_is_compacted() {
    let lab = Lab::new();
    let value = "v".repeat(1000);
    for i in 0..20 {
        lab.kv("put", &[&format!("k{i:02}"), &value, "--dict", "log"]).prints("");
    }
    lab.dict("set", &["log", "--separate-at", "100"]).prints("");
    lab.run("compact", &["log", "k05", "k10"]).prints("");
    lab.run("compact", &["log", "-", "+"]).prints("");
    lab.run("compact", &["log"]).prints("");
    let runs = |name: &str| {
        let stat = lab.run("stat", &["--json"]).json();
        let all = stat["dictionaries"].as_array().expect("a list").clone();
        let of = all.into_iter().find(|d| d["name"] == name).expect("the dictionary");
        let levels = of["levels"].as_array().expect("levels");
        levels.iter().map(|runs| runs.as_array().expect("runs").len()).sum::<usize>()
    };
    assert_eq!(runs("log"), 1);
    let done = lab.run("compact", &["--json"]).json();
    assert_eq!((&done["compacted"], &done["dictionary"]), (&true.into(), &Value::Null));
    for name in ["log", "imap"] {
        assert_eq!(runs(name), 1, "{name}");
    }
    lab.run("compact", &["log", "k05"]).fails(2, "<TO>");
    lab.run("compact", &["log", "k10", "k05"]).fails(2, "FROM is not before TO");
    lab.run("compact", &["nowhere"]).fails(NOT_FOUND, "no dictionary 'nowhere'");
    lab.kv("get", &["k07", "--dict", "log"]).prints(&value);
    lab.kv("count", &["--dict", "log"]).prints("20\n");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
}

/// A directory with every kind of file.
fn sample(at: &Path) {
    fs::create_dir_all(at.join("d/e")).expect("directories");
    fs::write(at.join("small"), "hello\n").expect("a file");
    let large: Vec<u8> =
        (0..2_500_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 11) as u8).collect();
    fs::write(at.join("large"), large).expect("a file");
    fs::write(at.join("empty"), "").expect("a file");
    fs::hard_link(at.join("small"), at.join("d/other-name")).expect("a hard link");
    symlink("../small", at.join("d/link")).expect("a symbolic link");
    symlink("x".repeat(200), at.join("d/long-link")).expect("a symbolic link");
    fs::write(at.join("d").join("n".repeat(200)), "long name").expect("a file");
    fs::write(at.join("d/gr\u{fc}n \t#"), "odd name").expect("a file");
    let sparse = fs::File::create(at.join("sparse")).expect("a file");
    sparse.set_len(50 << 20).expect("a hole");
    std::os::unix::fs::FileExt::write_all_at(&sparse, b"in the middle", 20 << 20).expect("data");
    fs::set_permissions(at.join("large"), fs::Permissions::from_mode(0o4711)).expect("a mode");
    fs::set_permissions(at.join("d/e"), fs::Permissions::from_mode(0o500)).expect("a mode");
    rustix::fs::mknodat(
        rustix::fs::CWD,
        at.join("fifo"),
        rustix::fs::FileType::Fifo,
        rustix::fs::Mode::RWXU,
        0,
    )
    .expect("a fifo");
    let _ = rustix::fs::setxattr(
        at.join("small"),
        "user.mark",
        b"a\0b",
        rustix::fs::XattrFlags::empty(),
    );
    let times = |secs, nanos| {
        let t = rustix::fs::Timespec { tv_sec: secs, tv_nsec: nanos };
        rustix::fs::Timestamps { last_access: t, last_modification: t }
    };
    let set = |name: &str, secs, nanos| {
        rustix::fs::utimensat(
            rustix::fs::CWD,
            at.join(name),
            &times(secs, nanos),
            rustix::fs::AtFlags::SYMLINK_NOFOLLOW,
        )
        .expect("times");
    };
    set("small", 981_173_106, 123_456_789);
    set("empty", -86_400, 500_000_000);
    set("d/link", 1_000_000_000, 1);
    set("d", 1_234_567_890, 987_654_321);
}

/// All properties of all files in a directory, in order of names. Hard links are shown by their
/// first name.
fn describe(at: &Path) -> Vec<String> {
    let (mut todo, mut paths) = (vec![at.to_path_buf()], Vec::new());
    while let Some(dir) = todo.pop() {
        for entry in fs::read_dir(&dir).expect("a directory") {
            let path = entry.expect("an entry").path();
            if path.symlink_metadata().expect("attributes").is_dir() {
                todo.push(path.clone());
            }
            paths.push(path);
        }
    }
    paths.sort();
    let mut first = std::collections::HashMap::new();
    let describe = |path: PathBuf| {
        let m = path.symlink_metadata().expect("attributes");
        let name = path.strip_prefix(at).expect("inside").to_path_buf();
        let same = first.entry(m.ino()).or_insert_with(|| name.clone()).clone();
        let content = match m.file_type() {
            t if t.is_file() => {
                let content = fs::read(&path).expect("content");
                let sum = content
                    .iter()
                    .fold(0u64, |sum, b| sum.wrapping_mul(31).wrapping_add(u64::from(*b)));
                format!("{} bytes, {sum:x}", content.len())
            }
            t if t.is_symlink() => {
                format!("-> {}", fs::read_link(&path).expect("a target").display())
            }
            t if t.is_fifo() => "fifo".into(),
            _ => "directory".into(),
        };
        let mut value = [0; 100];
        let xattr = rustix::fs::lgetxattr(&path, "user.mark", &mut value)
            .map_or(String::new(), |n| value[..n].escape_ascii().to_string());
        let links = if m.is_dir() { 0 } else { m.nlink() };
        let times = format!("{}.{:09}", m.mtime(), m.mtime_nsec());
        format!(
            "{} = {}: {:o} {}:{} {links} {times} {xattr} {content}",
            name.display(),
            same.display(),
            m.mode(),
            m.uid(),
            m.gid()
        )
    };
    paths.into_iter().map(describe).collect()
}

#[test]
fn a_directory_goes_in_and_out_unchanged() {
    let lab = Lab::new();
    let (from, to) = (lab.path("from"), lab.path("to"));
    sample(&from);
    let imported =
        lab.run("import", &[from.to_str().expect("text"), "--to", "/a/b", "--json"]).json();
    assert_eq!(imported["skipped"], 0);
    assert_eq!(
        (&imported["hard_links"], &imported["symlinks"], &imported["special"]),
        (&1.into(), &2.into(), &1.into())
    );
    let exported = lab
        .run("export", &[to.join("").to_str().expect("text"), "--from", "/a/b", "--json"])
        .json();
    assert_eq!(exported["skipped"], 0);
    assert_eq!(describe(&to), describe(&from));
    let blocks = |path: &Path| path.join("sparse").metadata().expect("attributes").blocks();
    assert!(blocks(&to) < 1000, "holes stay holes: {} blocks", blocks(&to));
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);

    // Repeating it replaces existing files and changes nothing else.
    lab.run("import", &[from.to_str().expect("text"), "--to", "/a/b", "--json"]).json();
    let again = lab.path("again");
    lab.run("export", &[again.join("").to_str().expect("text"), "--from", "a/b", "--json"]).json();
    assert_eq!(describe(&again), describe(&from));
    let check = lab.run("check", &["--json"]).json();
    assert_eq!((&check["clean"], &check["files"]["orphans"]), (&true.into(), &0.into()));
    fs::set_permissions(from.join("d/e"), fs::Permissions::from_mode(0o700)).expect("a mode");
}

#[test]
fn a_tar_stream_goes_in_and_out_unchanged() {
    let lab = Lab::new();
    let (from, to) = (lab.path("from"), lab.path("to"));
    sample(&from);
    let tar = |args: &[&str]| {
        let output =
            Command::new("tar").current_dir(lab.dir.path()).args(args).output().expect("tar runs");
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
        output.stdout
    };
    for (i, format) in ["--format=posix", "--format=gnu"].into_iter().enumerate() {
        let stream = tar(&["-cSf", "-", format, "--xattrs", "-C", "from", "."]);
        let place = format!("/{i}");
        let imported = kvfs_with(
            [
                OsStr::new("import"),
                lab.store.as_os_str(),
                "-".as_ref(),
                "--to".as_ref(),
                place.as_ref(),
                "--json".as_ref(),
            ],
            &stream,
        );
        assert_eq!(imported.json()["skipped"], 0);
        let blocks =
            lab.run("stat", &[&format!("{place}/sparse"), "--json"]).json()["blocks"].as_u64();
        assert!(blocks.is_some_and(|b| b < 1000), "{format}: holes stay holes: {blocks:?} blocks");
    }
    // Through the standard output, and through a file.
    let stream = lab.run("export", &["-", "--from", "/0"]);
    assert_eq!(stream.code, 0, "{}", stream.err);
    fs::write(lab.path("out.tar"), &stream.out).expect("a file");
    lab.run("export", &[lab.path("file.tar").to_str().expect("text"), "--from", "/0"]);
    assert!(
        stream.out == fs::read(lab.path("file.tar")).expect("a file"),
        "both are the same bytes"
    );
    fs::create_dir(&to).expect("a directory");
    tar(&["-xpf", "out.tar", "--xattrs", "-C", "to"]);
    assert_eq!(describe(&to), describe(&from));
    assert!(to.join("sparse").metadata().expect("attributes").blocks() < 1000);
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
    for dir in [&from, &to] {
        fs::set_permissions(dir.join("d/e"), fs::Permissions::from_mode(0o700)).expect("a mode");
    }
}

/// A tar archive of entries (name, kind, link target, content), made byte by byte so that names
/// need not be sound.
fn archive(entries: &[(&str, tar::EntryType, &str, &str)]) -> Vec<u8> {
    let mut builder = tar::Builder::new(Vec::new());
    for (name, kind, link, content) in entries {
        let mut header = tar::Header::new_ustar();
        header.as_mut_bytes()[..name.len()].copy_from_slice(name.as_bytes());
        header.as_mut_bytes()[157..157 + link.len()].copy_from_slice(link.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(0o644);
        header.set_uid(7);
        header.set_gid(8);
        header.set_mtime(9);
        header.set_size(content.len() as u64);
        header.set_cksum();
        builder.append(&header, content.as_bytes()).expect("an entry");
    }
    builder.into_inner().expect("an archive")
}

#[test]
fn hostile_archives_write_where_their_paths_say_or_nowhere() {
    use tar::EntryType::{Link, Regular, Symlink};
    let lab = Lab::new();
    let import = |entries: &[(&str, tar::EntryType, &str, &str)], to: &str| {
        kvfs_with(
            [
                OsStr::new("import"),
                lab.store.as_os_str(),
                "-".as_ref(),
                "--to".as_ref(),
                to.as_ref(),
            ],
            &archive(entries),
        )
    };
    import(&[("secret", Regular, "", "mine")], "/").prints_something();
    import(&[("../secret", Regular, "", "theirs")], "/in").fails(1, "leads out of its directory");
    import(&[("a/../../secret", Regular, "", "theirs")], "/in")
        .fails(1, "leads out of its directory");
    import(&[("up", Symlink, "..", ""), ("up/secret", Regular, "", "theirs")], "/in")
        .fails(1, "which is a symlink");
    import(&[("stolen", Link, "../secret", "")], "/in").fails(1, "leads out of its directory");
    import(&[("stolen", Link, "nothing", "")], "/in").fails(NOT_FOUND, "hard link");
    let slashes = import(&[("/secret", Regular, "", "theirs")], "/in");
    assert_eq!(slashes.code, 0, "{}", slashes.err);
    lab.run("cat", &["/secret"]).prints("mine");
    lab.run("cat", &["/in/secret"]).prints("theirs");
    let cut = &archive(&[("f", Regular, "", "content")])[..700];
    kvfs_with([OsStr::new("import"), lab.store.as_os_str(), "-".as_ref()], cut).fails(1, "");
    kvfs_with([OsStr::new("import"), lab.store.as_os_str(), "-".as_ref()], &[0x1f; 1024])
        .fails(1, "the tar stream cannot be read");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
}

#[test]
fn an_import_that_fails_leaves_nothing_in_a_store_that_is_not_mounted() {
    use tar::EntryType::Regular;
    let lab = Lab::new();
    let import = |stream: &[u8]| {
        kvfs_with([OsStr::new("import"), lab.store.as_os_str(), "-".as_ref()], stream)
    };
    import(&archive(&[("kept", Regular, "", "mine")])).prints_something();
    let entries = [
        ("kept", Regular, "", "theirs"),
        ("new/a", Regular, "", "content"),
        ("last", Regular, "", "content"),
    ];
    // Each entry is a header and a block: the last one has no data.
    import(&archive(&entries)[..2560]).fails(1, "");
    // The last one leads out of the store.
    import(&archive(&[entries[0], entries[1], ("../last", Regular, "", "content")]))
        .fails(1, "leads out of its directory");
    lab.run("ls", &["-R"]).prints("kept\n");
    lab.run("cat", &["/kept"]).prints("mine");
    import(&archive(&entries)).prints_something();
    lab.run("ls", &["-R"]).prints("kept\nlast\nnew\nnew/a\n");
    lab.run("cat", &["/kept"]).prints("theirs");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
}

#[test]
fn looking_into_a_store() {
    let lab = Lab::new();
    let from = lab.path("from");
    fs::create_dir_all(from.join("d")).expect("directories");
    fs::write(from.join("d/f"), "content").expect("a file");
    fs::write(from.join("g"), "more").expect("a file");
    symlink("d/f", from.join("l")).expect("a link");
    lab.run("import", &[from.to_str().expect("text")]).prints_something();
    lab.run("ls", &[]).prints("d\ng\nl\n");
    lab.run("ls", &["/d/"]).prints("f\n");
    lab.run("ls", &["-R"]).prints("d\nd/f\ng\nl\n");
    let long = lab.run("ls", &["-l"]);
    assert!(
        long.text()
            .lines()
            .nth(2)
            .is_some_and(|l| l.starts_with("lrwxrwxrwx") && l.ends_with(" l -> d/f")),
        "{}",
        long.text()
    );
    let list = lab.run("ls", &["/", "--json"]).json();
    assert_eq!(
        (&list[1]["name"], &list[1]["kind"], &list[1]["size"]),
        (&"g".into(), &"file".into(), &4.into())
    );
    assert_eq!(list[2]["target"], "d/f");
    lab.run("ls", &["/nope"]).fails(NOT_FOUND, "cannot find /nope");
    lab.run("cat", &["/d/f", "/g", "/l"]).prints("contentmorecontent");
    lab.run("cat", &["/d"]).fails(1, "cannot print /d: it is a directory");
    lab.run("cat", &["/nope"]).fails(NOT_FOUND, "cannot find /nope");
    let stat = lab.run("stat", &["/l", "--json"]).json();
    assert_eq!((&stat["kind"], &stat["target"]), (&"symlink".into(), &"d/f".into()));
    assert!(lab.run("stat", &["/g"]).text().contains("size      4"));
}

impl Ended {
    fn prints_something(&self) {
        assert_eq!(self.code, 0, "{}", self.err);
        assert!(!self.out.is_empty());
    }
}

#[test]
fn the_figures_of_a_store() {
    let lab = Lab::new();
    lab.kv("put", &["k", "v"]).prints("");
    let stat = lab.run("stat", &["--json"]).json();
    assert_eq!(stat["space"]["total"], 1 << 30);
    let names: Vec<_> = stat["dictionaries"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|d| d["name"].as_str())
        .collect();
    for name in ["nmap", "imap", "dmap", "0"] {
        assert!(names.contains(&Some(name)), "{name} in {names:?}");
    }
    let zero = &stat["dictionaries"][names.iter().position(|n| *n == Some("0")).expect("there")];
    assert_eq!((&zero["reserved"], &zero["levels"][0][0]["items"]), (&false.into(), &1.into()));
    assert!(stat["io"]["journal"]["write_bytes"].is_u64());
    let text = lab.run("stat", &[]);
    for part in ["space", "memory", "dictionary", "nmap", "purpose", "journal"] {
        assert!(text.text().contains(part), "{part} in {}", text.text());
    }
}

#[test]
fn damage_is_found_and_never_printed() {
    let lab = Lab::new();
    let content: Vec<u8> =
        (0..1_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 9) as u8).collect();
    fs::write(lab.path("f"), &content).expect("a file");
    fs::create_dir(lab.path("dir")).expect("a directory");
    fs::rename(lab.path("f"), lab.path("dir/f")).expect("moved");
    fs::write(lab.path("dir/whole"), "unharmed").expect("a file");
    lab.run("import", &[lab.path("dir").to_str().expect("text")]).prints_something();
    let clean = lab.run("check", &[]);
    assert_eq!(clean.code, 0, "{}", clean.err);
    assert!(clean.text().contains(": clean; "), "{}", clean.text());
    let scrub = lab.run("scrub", &["--rate", "1000"]);
    assert!(
        scrub.code == 0 && scrub.text().starts_with("scrub done: "),
        "{} {}",
        scrub.text(),
        scrub.err
    );

    let mut store = fs::read(&lab.store).expect("the store");
    let needle = &content[500_000 / 4096 * 4096..][..64];
    let at = store
        .windows(64)
        .position(|w| w == needle)
        .expect("the content lies in the store as it is");
    store[at + 10] ^= 4;
    fs::write(&lab.store, &store).expect("the store");

    let check = lab.run("check", &["--json"]);
    check.fails(DAMAGED, "faults in");
    let report: Value = serde_json::from_slice(&check.out).expect("JSON");
    assert_eq!(report["clean"], false);
    let places: Vec<_> = report["faults"]
        .as_array()
        .expect("a list")
        .iter()
        .map(|f| f["place"].to_string())
        .collect();
    assert!(places.iter().any(|p| p.contains("dmap")), "{places:?}");
    // A scrub finds the same damage, and the file to which it belongs.
    let scrub = lab.run("scrub", &["--json"]);
    scrub.fails(DAMAGED, "cannot be read as they were written");
    let found: Value = serde_json::from_slice(&scrub.out).expect("JSON");
    assert_eq!(found["faults"].as_array().map(Vec::len), Some(1), "{found}");
    let concerns = found["faults"][0]["concerns"].as_str().expect("a file's page");
    assert!(concerns.starts_with("bytes ") && concerns.ends_with(" of /f"), "{concerns}");
    assert_eq!((&found["scrub"]["complete"], &found["scrub"]["faults"]), (&1.into(), &1.into()));
    let cat = lab.run("cat", &["/f"]);
    cat.fails(DAMAGED, "corrupt");
    assert!(content.starts_with(&cat.out), "what was printed before is right");

    // Undamaged files can be saved, and half a file never passes for a whole one.
    let (out, file) = (lab.path("out"), lab.path("out.tar"));
    let (directory, file) = (out.join(""), file.to_str().expect("text"));
    let directory = directory.to_str().expect("text");
    lab.run("export", &[directory]).fails(DAMAGED, "cannot read f");
    lab.run("export", &[directory, "--keep-going"]).fails(DAMAGED, "1 entries of");
    assert!(!out.join("f").exists());
    assert_eq!(fs::read(out.join("whole")).expect("the other file"), b"unharmed");
    lab.run("export", &[file, "--keep-going"]).fails(DAMAGED, "1 entries of");
    let list = Command::new("tar").args(["-tf", file]).output().expect("tar runs");
    assert_eq!(
        (list.status.success(), String::from_utf8_lossy(&list.stdout).as_ref()),
        (true, "./\nwhole\n")
    );
}

#[test]
fn what_is_not_there_or_no_store_or_in_use() {
    let lab = Lab::new();
    let nothing = lab.path("nothing");
    let text = lab.path("text");
    fs::write(&text, "just a text").expect("a file");
    for command in [
        vec!["kv", "get", "@", "k"],
        vec!["kv", "put", "@", "k", "v"],
        vec!["ls", "@"],
        vec!["stat", "@"],
        vec!["check", "@"],
    ] {
        let on = |target: &Path| {
            kvfs(command.iter().map(|w| if *w == "@" { target.as_os_str() } else { OsStr::new(w) }))
        };
        on(&nothing).fails(NOT_FOUND, nothing.to_str().expect("text"));
        on(&text).fails(1, "not a KVFS store");
        assert_ne!(on(lab.dir.path()).code, 0, "{command:?} of a directory");
        assert_eq!(fs::read(&text).expect("the file"), b"just a text");
        assert!(!nothing.exists());

        // The lock is held as another process would hold it. A child that another test is just
        // starting may hold our last lock for a moment more.
        let held = loop {
            match zones::FileDevice::open(&lab.store, false) {
                Err(zones::Error::Busy(_)) => std::thread::yield_now(),
                held => break held.expect("the store can be opened"),
            }
        };
        on(&lab.store).fails(BUSY, "is in use by another process");
        drop(held);
    }
    for wrong in [
        vec!["kv"],
        vec!["kv", "get", "x"],
        vec!["nosuch"],
        vec!["kv", "incr", "x", "k", "ten"],
        vec!["export", "x"],
    ] {
        assert_eq!(kvfs(&wrong).code, 2, "{wrong:?}");
    }
    let help = kvfs(["--help"]);
    assert!(help.text().contains("Exit codes:"));
}

#[test]
fn what_shells_and_man_know() {
    let lab = Lab::new();
    for shell in ["bash", "zsh", "fish"] {
        let script = kvfs(["completions", shell]);
        assert!(script.code == 0 && script.text().contains("delrange"), "{shell}");
    }
    // From a file: one argument of a program has a limit of 128 KiB.
    let script = lab.path("completions.bash");
    fs::write(&script, kvfs(["completions", "bash"]).text()).expect("written");
    let syntax = Command::new("bash").arg("-n").arg(&script).status();
    assert!(syntax.expect("bash runs").success());
    let pages = lab.path("man1");
    kvfs([OsStr::new("man"), pages.as_os_str()]).prints_something();
    for page in ["kvfs.1", "kvfs-mount.1", "kvfs-kv-range.1"] {
        assert!(
            fs::read_to_string(pages.join(page)).expect(page).contains(".SH SYNOPSIS"),
            "{page}"
        );
    }
}

/// Returns the manual pages by the names of their files.
fn manual_pages(lab: &Lab) -> Vec<(String, String)> {
    let pages = lab.path("man1");
    kvfs([OsStr::new("man"), pages.as_os_str()]).prints_something();
    let all = fs::read_dir(&pages).expect("a directory").map(|page| page.expect("a page"));
    let read = |page: fs::DirEntry| {
        let text = fs::read_to_string(page.path()).expect("text");
        (page.file_name().to_string_lossy().into_owned(), text)
    };
    let all: Vec<_> = all.map(read).collect();
    assert!(all.len() > 80, "{} pages", all.len());
    all
}

#[test]
fn every_argument_and_every_command_has_a_description() {
    let lab = Lab::new();
    let mut empty = Vec::new();
    for (name, text) in manual_pages(&lab) {
        let lines: Vec<&str> = text.lines().collect();
        for at in lines.iter().enumerate().filter(|(_, line)| **line == ".TP").map(|(at, _)| at) {
            let description = lines.get(at + 2).copied().unwrap_or_default();
            if description.is_empty() || description.starts_with('.') {
                empty.push(format!("{name}: {}", lines[at + 1]));
            }
        }
        let about = text.lines().skip_while(|line| *line != ".SH NAME").nth(1);
        if about.is_none_or(|line| !line.contains(" \\- ")) {
            empty.push(format!("{name}: the command itself"));
        }
    }
    assert!(empty.is_empty(), "without a description:\n{}", empty.join("\n"));
}

#[test]
fn examples_in_the_help_are_indented_alike() {
    let lab = Lab::new();
    let mut outdented = Vec::new();
    for (name, text) in manual_pages(&lab) {
        let lines: Vec<&str> = text.lines().collect();
        // In the source the first line of a text that begins with `\` loses its indentation.
        let first = lines.iter().position(|line| *line == ".SH EXTRA").map(|at| at + 1);
        if let Some(at) = first.filter(|at| lines[*at].starts_with("kvfs ")) {
            outdented.push(format!("{name}: {}", lines[at]));
        }
    }
    assert!(outdented.is_empty(), "outdented:\n{}", outdented.join("\n"));
}

/// Unmounts when the test ends, in whatever way.
struct Mounted<'a>(&'a Path);

impl Drop for Mounted<'_> {
    fn drop(&mut self) {
        let ended = kvfs([OsStr::new("umount"), self.0.as_os_str()]);
        if ended.code != 0 {
            eprintln!("{}", ended.err);
        }
    }
}

#[test]
fn keys_of_a_mounted_store() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("there is no /dev/fuse here; nothing is mounted");
        return;
    }
    let lab = Lab::new();
    let mnt = lab.path("mnt");
    fs::create_dir(&mnt).expect("a directory");
    kvfs([OsStr::new("mount"), lab.store.as_os_str(), mnt.as_os_str()]).prints_something();
    let mounted = Mounted(&mnt);
    let kv = |words: &[&str]| {
        let at = words.iter().position(|w| *w == "@").expect("a target");
        let mut args: Vec<&OsStr> = vec!["kv".as_ref()];
        args.extend(
            words
                .iter()
                .enumerate()
                .map(|(i, w)| if i == at { mnt.as_os_str() } else { OsStr::new(w) }),
        );
        kvfs(args)
    };
    fs::write(mnt.join("file"), "next to the keys").expect("a file");
    kv(&["put", "@", "a", "1"]).prints("");
    kv(&["incr", "@", "a", "41"]).prints("42\n");
    kv(&["get", "@", "a"]).prints("42");
    kv(&["get", "@", "nope"]).fails(NOT_FOUND, "no such key");
    kv(&["put", "@", "x", "y", "--dict", "imap"])
        .fails(NOT_PERMITTED, "is reserved for the file system");
    kv(&["range", "@"]).prints("a\t42\n");
    let at = mnt.to_str().expect("text");
    kvfs(["dict", "create", at, "log", "--compression", "lz4"]).prints("");
    kvfs(["dict", "set", at, "log", "--separate-at", "never"]).prints("");
    let info = kvfs(["dict", "info", at, "log", "--json"]).json();
    assert_eq!(
        (&info["options"]["separate-at"], &info["options"]["compression"]),
        (&"never".into(), &"lz4".into())
    );
    kvfs(["dict", "drop", at, "imap"]).fails(NOT_PERMITTED, "is reserved for the file system");
    kvfs(["compact", at]).prints("");
    kvfs(["compact", at, "0", "a", "b"]).prints("");
    kvfs(["compact", at, "nowhere"]).fails(NOT_FOUND, "no dictionary 'nowhere'");
    lab.dict("drop", &["log"]).prints("");
    // The store's file also names the mount. A command that needs the store exclusively gets an
    // error with the mount point.
    lab.kv("get", &["a"]).prints("42");
    lab.run("ls", &[]).prints("file\n");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
    lab.run("check", &["--repair", "--yes"]).fails(BUSY, "is mounted");
    let stat = kvfs([OsStr::new("stat"), mnt.as_os_str(), "--json".as_ref()]).json();
    assert!(stat["daemon"]["pid"].as_u64().is_some_and(|pid| pid > 1));
    assert_eq!(
        stat["daemon"]["mount_point"],
        mnt.canonicalize().expect("a path").to_str().expect("text")
    );
    assert!(stat["clients"]["by_command"]["incrby"]["calls"] == 1, "{}", stat["clients"]);
    assert!(stat["dictionaries"].is_array());
    let text = kvfs([OsStr::new("stat"), mnt.as_os_str()]);
    assert!(text.text().contains("mounted on"), "{}", text.text());
    drop(mounted);
    lab.kv("get", &["a"]).prints("42");
    lab.run("cat", &["/file"]).prints("next to the keys");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
}

#[test]
fn a_save_through_the_socket_has_files_on_disk() {
    if !Path::new("/dev/fuse").exists() {
        eprintln!("there is no /dev/fuse here; nothing is mounted");
        return;
    }
    let lab = Lab::new();
    let mnt = lab.path("mnt");
    fs::create_dir(&mnt).expect("a directory");
    for command in ["SAVE", "SYNC"] {
        kvfs([OsStr::new("mount"), lab.store.as_os_str(), mnt.as_os_str()]).prints_something();
        fs::write(mnt.join("small"), command).expect("a file");
        fs::write(mnt.join("large"), command.repeat(50_000)).expect("a file");
        lab.kv("call", &[command]).prints("OK\n");
        let stat = kvfs([OsStr::new("stat"), mnt.as_os_str(), "--json".as_ref()]).json();
        let pid = rustix::process::Pid::from_raw(
            stat["daemon"]["pid"].as_i64().expect("a number") as i32
        )
        .expect("a process");
        let ended = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())
            .expect("it runs");
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).expect("killed");
        rustix::event::poll(
            &mut [rustix::event::PollFd::new(&ended, rustix::event::PollFlags::IN)],
            None,
        )
        .expect("it has ended");
        kvfs([OsStr::new("umount"), "--force".as_ref(), mnt.as_os_str()]);
        lab.run("cat", &["/small"]).prints(command);
        assert_eq!(lab.run("cat", &["/large"]).out, command.repeat(50_000).into_bytes());
    }
}

/// In the root of a mounted store that name leads to the views.
#[test]
fn what_would_lie_under_the_views_is_not_imported() {
    let lab = Lab::new();
    let from = lab.path("from");
    fs::create_dir_all(from.join(".kvfs")).expect("directories");
    fs::write(from.join(".kvfs/file"), "content").expect("a file");
    fs::write(from.join("sibling"), "content").expect("a file");
    let directory = from.to_str().expect("text");
    lab.run("import", &[directory]).fails(1, "the name .kvfs belongs to its views");
    lab.run("import", &[directory, "--to", "/.kvfs/a"])
        .fails(1, "the name .kvfs belongs to its views");
    lab.run("import", &[directory, "--to", "//.kvfs"])
        .fails(1, "the name .kvfs belongs to its views");
    // Nothing was created before the error was found.
    lab.run("ls", &["-R"]).prints("");
    let tar = |name: &str| {
        let stream = archive(&[(name, tar::EntryType::Regular, "", "content")]);
        kvfs_with([OsStr::new("import"), lab.store.as_os_str(), "-".as_ref()], &stream)
    };
    for name in [".kvfs", "./.kvfs/file", "/.kvfs/a/b"] {
        tar(name).fails(1, "the name .kvfs belongs to its views");
    }
    // Anywhere else it is a name like others.
    lab.run("import", &[directory, "--to", "/below"]).prints_something();
    lab.run("ls", &["-R"]).prints("below\nbelow/.kvfs\nbelow/.kvfs/file\nbelow/sibling\n");
}

/// The minimum size that `create` states is enough to work with.
#[test]
fn a_store_of_the_least_size_takes_files_and_keys() {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let store = dir.path().join("least.kvfs");
    let create = |size: &str| {
        kvfs([OsStr::new("create"), store.as_os_str(), "--size".as_ref(), size.as_ref()])
    };
    for size in ["0", "1M", "80M", "128M", "159M"] {
        create(size).fails(2, "the least is 160 MiB");
        assert!(!store.exists());
    }
    assert_eq!(create("160M").code, 0);
    let lab = Lab { store, dir };
    let from = lab.path("from");
    fs::create_dir_all(from.join("small")).expect("a directory");
    for round in 0..6u32 {
        for i in 0..8u32 {
            let content: Vec<u8> = (0..1u32 << 20)
                .map(|n| ((n ^ round << 7 ^ i).wrapping_mul(2_654_435_761) >> 13) as u8)
                .collect();
            fs::write(from.join(i.to_string()), content).expect("a file");
        }
        for i in 0..300 {
            fs::write(from.join(format!("small/{i}")), vec![round as u8; 3000]).expect("a file");
        }
        lab.run("import", &[from.to_str().expect("text")]).prints_something();
        lab.kv("put", &[&format!("key {round}"), &"value".repeat(20_000)]).prints("");
        kvfs([OsStr::new("snapshot"), "create".as_ref(), lab.store.as_os_str(), "s".as_ref()])
            .prints("");
        kvfs([OsStr::new("snapshot"), "drop".as_ref(), lab.store.as_os_str(), "s".as_ref()])
            .prints("");
    }
    lab.kv("count", &[]).prints("6\n");
    assert_eq!(lab.run("check", &["--json"]).json()["clean"], true);
}
