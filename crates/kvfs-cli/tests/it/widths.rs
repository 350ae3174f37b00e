//! Tests that all text fits into 100 columns. In Rust the test checks comments; `cargo fmt` formats
//! the code, as far as string literals allow. In Python, shell scripts, C and Makefiles it checks
//! every line. In documents it checks every line except tables, which are as wide as they must be,
//! and text between code fences, which is transcripts and output. A line without a blank, such as
//! an address or a hash, cannot be broken.

use std::ffi::OsStr;
use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS: usize = 100;
/// A tab goes to the next of these.
const TAB: usize = 8;
const DIRECTORIES: [&str; 9] =
    ["crates", "bindings", "bench", "fuzz", "proof", "docs", "examples", "scripts", ".ci"];

#[derive(Clone, Copy, Debug, PartialEq)]
enum Kind {
    Rust,
    Document,
    Code,
}

/// Returns the kind of a file that is checked.
fn kind_of(path: &Path) -> Option<Kind> {
    let extension = path.extension().and_then(OsStr::to_str);
    match (extension, path.file_name().and_then(OsStr::to_str)) {
        (Some("rs"), _) => Some(Kind::Rust),
        (Some("md"), _) => Some(Kind::Document),
        (Some("py" | "pyi" | "sh" | "c" | "h"), _) => Some(Kind::Code),
        // `.ci/run` is a shell script.
        (None, Some("Makefile" | "run")) => Some(Kind::Code),
        _ => None,
    }
}

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn files(directory: &Path, found: &mut Vec<(PathBuf, Kind)>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name().to_string_lossy().into_owned();
        if path.is_dir() {
            if name != "target" && name != "node_modules" && !name.starts_with('.') {
                files(&path, found);
            }
        } else if let Some(kind) = kind_of(&path) {
            found.push((path, kind));
        }
    }
}

/// The text of a line that is checked, without the marks of a comment: in Rust that of a comment,
/// elsewhere that of any line.
fn checked(line: &str, kind: Kind) -> Option<&str> {
    match kind {
        Kind::Document => Some(line),
        Kind::Rust => {
            line.trim_start().strip_prefix("//").map(|l| l.trim_start_matches(['/', '!']))
        }
        Kind::Code => Some(line.trim_start().trim_start_matches(['#', '/', '*'])),
    }
}

fn columns(line: &str) -> usize {
    line.chars().fold(0, |at, c| if c == '\t' { at / TAB * TAB + TAB } else { at + 1 })
}

/// Numbers of the lines of `text` that are checked and too wide.
fn too_wide(text: &str, kind: Kind) -> Vec<usize> {
    let (mut fenced, mut found) = (false, Vec::new());
    for (number, line) in text.lines().enumerate() {
        let Some(text) = checked(line, kind).map(str::trim) else { continue };
        if text.starts_with("```") {
            fenced = !fenced;
        }
        let breakable = text.trim_start_matches(['-', '*', ' ']).contains(' ');
        let exempt = match kind {
            Kind::Document => fenced || text.starts_with('|'),
            Kind::Rust => text.starts_with('|'),
            Kind::Code => false,
        };
        if columns(line) > COLUMNS && !exempt && breakable {
            found.push(number + 1);
        }
    }
    found
}

#[test]
fn comments_documents_and_scripts_keep_to_100_columns() {
    let mut all = Vec::new();
    DIRECTORIES.iter().for_each(|f| files(&root().join(f), &mut all));
    for name in ["README.md", "CONTRIBUTING.md", "CHANGELOG.md", "Makefile"] {
        let path = root().join(name);
        let kind = kind_of(&path).expect("a kind that is checked");
        all.push((path, kind));
    }
    for (kind, least) in [(Kind::Rust, 700), (Kind::Document, 70), (Kind::Code, 80)] {
        let there = all.iter().filter(|(_, k)| *k == kind).count();
        assert!(there > least, "{there} files of {kind:?} are not all that there are");
    }
    let mut wide = Vec::new();
    for (path, kind) in all {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        wide.extend(too_wide(&text, kind).into_iter().map(|n| format!("{}:{n}", path.display())));
    }
    assert!(wide.is_empty(), "wider than {COLUMNS} columns:\n{}", wide.join("\n"));
}

#[test]
fn what_is_too_wide_is_found() {
    let (words, code) = ("word ".repeat(21), "x".repeat(101));
    let (rust, document) = (Kind::Rust, Kind::Document);
    assert_eq!(too_wide(&format!("short\n{words}"), document), [2]);
    assert_eq!(too_wide(&format!("    //! {words}\nlet a = \"{words}\";"), rust), [1]);
    assert_eq!(
        too_wide(&format!("// ```\n// {words}\n// ```\n// | {words}\n// {code}"), rust),
        [2]
    );
    assert_eq!(too_wide(&format!("```\n{words}\n```\n| {words}\n{code}"), document), [0usize; 0]);
}

#[test]
fn what_is_too_wide_is_found_in_each_kind_of_file() {
    let (words, code) = ("word ".repeat(20), "x".repeat(101));
    let fits = "word ".repeat(19) + "words";
    for (name, comment, statement) in [
        ("a.py", "# ", "print(\""),
        ("a.pyi", "    # ", "def "),
        ("a.sh", "# ", "echo "),
        ("a.c", "/* ", "return "),
        ("a.h", " * ", "int "),
        ("Makefile", "## ", "\techo "),
        ("run", "# ", "echo "),
    ] {
        let kind = kind_of(Path::new(name)).unwrap_or_else(|| panic!("{name} is not checked"));
        assert_eq!(kind, Kind::Code, "{name}");
        let text = format!(
            "{fits}\n{comment}{words}x\n{statement}{words}x\n| {words}x\n{comment}{code}\n{code}"
        );
        assert_eq!(too_wide(&text, kind), [2, 3, 4], "{name}");
        // A code fence exempts lines in documents only.
        assert_eq!(too_wide(&format!("```\n{words}x\n```"), kind), [2], "{name}");
    }
    // A tab is as wide as it is shown.
    let tabs = format!("\t{}\n\t{}", "x ".repeat(46), "x ".repeat(47));
    assert_eq!(too_wide(&tabs, Kind::Code), [2]);
    assert_eq!(kind_of(Path::new("a.jsonl")), None);
    assert_eq!(kind_of(Path::new("runs")), None);
}
