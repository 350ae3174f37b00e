//! The documents, and the fuzz targets: what they refer to is there.

use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// All documents of the repository: at its root, and below `docs`.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for folder in ["", "docs", "docs/bench", "docs/decisions"] {
        let entries = fs::read_dir(root().join(folder)).expect("a folder of the repository");
        let paths = entries.map(|entry| entry.expect("an entry").path());
        found.extend(paths.filter(|path| path.extension().is_some_and(|e| e == "md")));
    }
    assert!(found.len() > 30, "these are not all: {found:?}");
    found
}

/// The anchor that a heading of Markdown gets: lower case, without signs, with hyphens for spaces.
fn anchor(heading: &str) -> String {
    let kept = heading.chars().filter(|c| c.is_alphanumeric() || " -_".contains(*c));
    kept.collect::<String>().trim().to_lowercase().replace(' ', "-")
}

/// The targets of `[text](target)` outside of code.
fn links(text: &str) -> Vec<String> {
    let mut found = Vec::new();
    let mut code = false;
    for line in text.lines() {
        code ^= line.trim_start().starts_with("```");
        let mut rest = if code { "" } else { line };
        while let Some(at) = rest.find("](") {
            rest = &rest[at + 2..];
            let end = rest.find(')').unwrap_or(rest.len());
            found.push(rest[..end].to_string());
        }
    }
    found
}

#[test]
fn every_link_leads_to_a_file_and_a_heading_that_are_there() {
    let mut broken = Vec::new();
    let mut seen = 0;
    for document in documents() {
        let text = fs::read_to_string(&document).expect("a document");
        for link in links(&text).into_iter().filter(|link| !link.contains("://")) {
            seen += 1;
            let (file, heading) = link.split_once('#').unwrap_or((&link, ""));
            let target = if file.is_empty() {
                document.clone()
            } else {
                document.parent().expect("a folder").join(file)
            };
            let there = target.exists()
                && (heading.is_empty() || {
                    let target = fs::read_to_string(&target).expect("a document");
                    target
                        .lines()
                        .filter(|line| line.starts_with('#'))
                        .any(|line| anchor(line.trim_start_matches('#')) == heading)
                });
            if !there {
                broken.push(format!("{}: {link}", document.display()));
            }
        }
    }
    assert!(broken.is_empty(), "{broken:#?}");
    assert!(seen > 50, "only {seen} links were found");
}

#[test]
fn every_decision_is_in_the_index() {
    let folder = root().join("docs/decisions");
    let index = fs::read_to_string(folder.join("README.md")).expect("the index");
    for entry in fs::read_dir(&folder).expect("the decisions") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        if name == "README.md" {
            continue;
        }
        let text = fs::read_to_string(folder.join(&name)).expect("a decision");
        let title = text
            .lines()
            .next()
            .and_then(|line| line.strip_prefix("# "))
            .unwrap_or_else(|| panic!("{name} has no title"));
        let (number, title) =
            title.split_once(": ").unwrap_or_else(|| panic!("{name}: '{title}' has no number"));
        assert!(name.starts_with(&format!("{number}-")), "{name} says that it is {number}");
        assert!(
            index.contains(&format!("| [{number}]({name}) | {title} |")),
            "docs/decisions/README.md lacks {name} as '{title}'"
        );
    }
}

/// The fuzz targets are a workspace of their own, which `make test` does not build.
#[test]
fn every_module_that_the_fuzz_targets_take_in_is_there() {
    let folder = root().join("fuzz/src");
    let text = fs::read_to_string(folder.join("lib.rs")).expect("the fuzz targets");
    let paths: Vec<&str> = text
        .lines()
        .filter_map(|line| line.strip_prefix("#[path = \"")?.strip_suffix("\"]"))
        .collect();
    assert!(paths.len() > 10, "these are not all: {paths:?}");
    let missing: Vec<_> = paths.iter().filter(|path| !folder.join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
