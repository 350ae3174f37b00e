//! Comments of sources and tests are plain sentences: a block opens with a subject or a verb, and
//! not with a word that begins a fragment ("What the kernel may know", "Of those since the sample
//! before"), and says "Returns `None` if" where it says when. The files that are allowed to have
//! some, and how many, are listed; the list has nothing to spare.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

/// Words with which a fragment begins.
const OPENINGS: [&str; 12] =
    ["What", "Whether", "How", "Why", "Of", "With", "Also", "By", "Given", "That", "Those", "As"];
/// Words for which there is a better one.
const WORDS: [&str; 5] = ["nobody", "whoever", "meanwhile", "beside", "anew"];
/// Values before a colon, which want "Returns … if".
const VALUES: [&str; 5] = ["`None`: ", "`Some`: ", "`true`: ", "`false`: ", "`nil`: "];

/// Marks that a file may have: help texts of commands, and sentences that begin like that.
#[rustfmt::skip]
const ALLOWED: &[(&str, usize)] = &[
    ("crates/kvdb-server/src/commands/bits.rs", 1),
    ("crates/kvdb-server/src/commands/long_double.rs", 1),
    ("crates/kvdb-server/src/commands/streams/trimming.rs", 1),
    ("crates/kvdb-server/src/commands/strings.rs", 1),
    ("crates/kvdb-server/src/relay.rs", 1),
    ("crates/kvdb-server/tests/it/streams.rs", 1),
    ("crates/kvfs-cli/src/commands/merge.rs", 1),
    ("crates/kvfs-cli/tests/it/language.rs", 2),
    ("crates/kvfs-fuse/tests/it/privileges.rs", 1),
    ("crates/kvfs/src/fs/superseded.rs", 1),
];

fn sources(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let path = entry.path();
        match path.is_dir() {
            true => sources(&path, found),
            false if path.extension().is_some_and(|e| e == "rs") => found.push(path),
            false => {}
        }
    }
}

/// Returns the text of a line that is a comment alone.
fn comment(line: &str) -> Option<&str> {
    line.trim_start().strip_prefix("//").map(|text| text.trim_start_matches(['/', '!']).trim())
}

/// Returns the numbers of the lines that have a mark.
fn marks(text: &str) -> Vec<usize> {
    let (mut found, mut is_in_block, mut is_code) = (Vec::new(), false, false);
    for (number, line) in text.lines().enumerate() {
        let Some(text) = comment(line) else {
            (is_in_block, is_code) = (false, false);
            continue;
        };
        if text.starts_with("```") {
            is_code = !is_code;
        } else if !is_code {
            let first = text.split(' ').next().unwrap_or_default();
            let opens = !is_in_block && OPENINGS.contains(&first);
            let words = text.split(|c: char| !c.is_alphanumeric());
            let has_word = words.map(str::to_lowercase).any(|word| WORDS.contains(&&*word));
            if opens || has_word || VALUES.iter().any(|value| text.contains(value)) {
                found.push(number + 1);
            }
        }
        is_in_block = true;
    }
    found
}

#[test]
fn comments_have_no_marks_of_fragments() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().unwrap();
    let (mut files, mut problems) = (Vec::new(), Vec::new());
    for entry in fs::read_dir(root.join("crates")).unwrap().flatten() {
        sources(&entry.path().join("src"), &mut files);
        sources(&entry.path().join("tests"), &mut files);
    }
    assert!(files.len() > 900, "{} sources were found", files.len());
    files.sort();
    let mut allowed: BTreeMap<&str, usize> = ALLOWED.iter().copied().collect();
    for file in files {
        let name = file.strip_prefix(&root).unwrap().to_str().unwrap();
        let found = marks(&fs::read_to_string(&file).unwrap());
        let most = allowed.remove(name).unwrap_or_default();
        if found.len() != most {
            problems.push(format!(
                "{name}: {most} marks are allowed, {} are there: {found:?}",
                found.len()
            ));
        }
    }
    problems.extend(allowed.keys().map(|name| format!("{name} is listed and not there")));
    assert!(problems.is_empty(), "{}", problems.join("\n"));
}

#[test]
fn a_mark_is_found_where_it_stands() {
    let text = "/// What the kernel knows.\nfn a() {}\n\n/// Returns it.\n/// What else.\n\
                // `None`: there is none.\nlet what = 1;\n// Waits for the others.\n\
                // It lies beside it.\n/// ```text\n/// What: 1\n/// ```\n";
    assert_eq!(marks(text), [1, 6, 9]);
}
