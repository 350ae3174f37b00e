//! Comments and documents keep to 100 columns. Code does by `cargo fmt`, as far as a string literal
//! lets it. Tables are as wide as they must be, and so is what stands between code fences in
//! documents: sessions and outputs.

use std::fs;
use std::path::{Path, PathBuf};

const COLUMNS: usize = 100;
const DIRECTORIES: [&str; 7] = ["crates", "bindings", "bench", "fuzz", "proof", "docs", "examples"];

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

fn files(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        let name = entry.file_name();
        if path.is_dir() && name != "target" && name != "node_modules" {
            files(&path, found);
        } else if path.extension().is_some_and(|e| e == "rs" || e == "md") {
            found.push(path);
        }
    }
}

/// The text of a line of prose: of a comment in Rust, any line in Markdown.
fn prose(line: &str, rust: bool) -> Option<&str> {
    match rust {
        false => Some(line),
        true => line.trim_start().strip_prefix("//").map(|l| l.trim_start_matches(['/', '!'])),
    }
}

/// Numbers of the lines of `text` that are prose and too wide.
fn too_wide(text: &str, rust: bool) -> Vec<usize> {
    let (mut fenced, mut found) = (false, Vec::new());
    for (number, line) in text.lines().enumerate() {
        let Some(prose) = prose(line, rust).map(str::trim) else { continue };
        if prose.starts_with("```") {
            fenced = !fenced;
        }
        let breakable = prose.trim_start_matches(['-', '*', ' ']).contains(' ');
        let exempt = fenced && !rust || prose.starts_with('|');
        if line.chars().count() > COLUMNS && !exempt && breakable {
            found.push(number + 1);
        }
    }
    found
}

#[test]
fn comments_and_documents_keep_to_100_columns() {
    let mut all = Vec::new();
    DIRECTORIES.iter().for_each(|f| files(&root().join(f), &mut all));
    all.extend(["README.md", "CONTRIBUTING.md", "CHANGELOG.md"].map(|f| root().join(f)));
    assert!(all.len() > 500, "{} files are not all that there are", all.len());
    let mut wide = Vec::new();
    for path in all {
        let text = fs::read_to_string(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()));
        let rust = path.extension().is_some_and(|e| e == "rs");
        wide.extend(too_wide(&text, rust).into_iter().map(|n| format!("{}:{n}", path.display())));
    }
    assert!(wide.is_empty(), "wider than {COLUMNS} columns:\n{}", wide.join("\n"));
}

#[test]
fn what_is_too_wide_is_found() {
    let (words, code) = ("word ".repeat(21), "x".repeat(101));
    assert_eq!(too_wide(&format!("short\n{words}"), false), [2]);
    assert_eq!(too_wide(&format!("    //! {words}\nlet a = \"{words}\";"), true), [1]);
    assert_eq!(
        too_wide(&format!("// ```\n// {words}\n// ```\n// | {words}\n// {code}"), true),
        [2]
    );
    assert_eq!(too_wide(&format!("```\n{words}\n```\n| {words}\n{code}"), false), []);
}
