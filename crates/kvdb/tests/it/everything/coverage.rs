//! Reads the public operations of a crate from its source. Each of them must occur in the history.

use std::collections::BTreeSet;
use std::path::Path;

fn sources(directory: &Path, out: &mut Vec<String>) {
    for entry in std::fs::read_dir(directory).expect("the source is there") {
        let path = entry.expect("a file").path();
        if path.is_dir() {
            sources(&path, out);
        } else if path.extension().is_some_and(|e| e == "rs") {
            out.push(std::fs::read_to_string(&path).expect("text"));
        }
    }
}

/// `Type::operation` of every public one of these types.
pub fn public_operations(types: &[&'static str]) -> BTreeSet<String> {
    let mut all = Vec::new();
    sources(&Path::new(env!("CARGO_MANIFEST_DIR")).join("src"), &mut all);
    let mut found = BTreeSet::new();
    for text in all {
        let mut of = None;
        for line in text.lines() {
            if let Some(rest) = line.strip_prefix("impl") {
                let name = rest
                    .trim_start_matches("<'a>")
                    .trim()
                    .trim_start_matches("crate::")
                    .split(['<', ' ', '{'])
                    .next()
                    .unwrap_or_default();
                of = types.iter().find(|t| **t == name && !rest.contains(" for "));
            } else if line.starts_with('}') {
                of = None;
            } else if let (Some(of), Some(rest)) = (of, line.strip_prefix("    pub fn ")) {
                let name = rest.split(['(', '<']).next().unwrap_or_default();
                found.insert(format!("{of}::{name}"));
            }
        }
    }
    assert!(found.len() > 50, "{} operations: is the source read rightly?", found.len());
    found
}

/// Fails unless tables name all of these operations, and no others.
#[allow(dead_code, reason = "histories note what they call instead")]
pub fn assert_named(named: &BTreeSet<&str>, all: &BTreeSet<String>) {
    let missing: Vec<_> = all.iter().filter(|name| !named.contains(name.as_str())).collect();
    assert!(missing.is_empty(), "no step has these operations: {missing:?}");
    let unknown: Vec<_> = named.iter().filter(|name| !all.contains(**name)).collect();
    assert!(unknown.is_empty(), "there are no such operations: {unknown:?}");
}
