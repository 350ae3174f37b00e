//! Tests that everything to which the documents and the fuzz targets refer exists.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

fn root() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").canonicalize().expect("the workspace")
}

/// All documents of the repository: at its root, and below `docs`.
fn documents() -> Vec<PathBuf> {
    let mut found = Vec::new();
    for directory in ["", "docs", "docs/bench", "docs/decisions"] {
        let entries = fs::read_dir(root().join(directory)).expect("a directory of the repository");
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
                document.parent().expect("a directory").join(file)
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
    let directory = root().join("docs/decisions");
    let index = fs::read_to_string(directory.join("README.md")).expect("the index");
    for entry in fs::read_dir(&directory).expect("the decisions") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        if name == "README.md" {
            continue;
        }
        let text = fs::read_to_string(directory.join(&name)).expect("a decision");
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

/// The numbers that a list such as "004 to 009, 029" names.
fn numbers_of(list: &str) -> BTreeSet<u32> {
    let number = |text: &str| text.trim().parse().unwrap_or_else(|e| panic!("{text:?}: {e}"));
    list.split(',')
        .flat_map(|part| match part.split_once(" to ") {
            Some((first, last)) => number(first)..=number(last),
            None => number(part)..=number(part),
        })
        .collect()
}

#[test]
fn the_index_names_each_number_of_which_there_is_no_decision() {
    let directory = root().join("docs/decisions");
    let index = fs::read_to_string(directory.join("README.md")).expect("the index");
    let (_, never) = index.split_once("these numbers were never given: ").expect("the list");
    let never = numbers_of(never.split_once('.').expect("the end of the list").0);
    let names = fs::read_dir(&directory)
        .expect("the decisions")
        .map(|entry| entry.expect("an entry").file_name().into_string().expect("a name"));
    let given: BTreeSet<u32> =
        names.filter_map(|name| name.split_once('-')?.0.parse().ok()).collect();
    // Records of the newest ten may come in another order than their numbers.
    let complete = given.last().expect("some decisions") / 10 * 10;
    let lost: Vec<u32> = (1..complete).filter(|n| given.contains(n) == never.contains(n)).collect();
    assert!(lost.is_empty(), "neither a record nor named as never given, or both: {lost:?}");
}

/// The sections of a decision record, in their order.
const SECTIONS: [&str; 5] = ["Context", "Decision", "Alternatives", "Consequences", "Measurement"];

/// The text of a measurement without a command.
const NOTHING_MEASURED: &str = "Nothing was measured";

#[test]
fn every_decision_has_its_date_its_sections_and_a_command() {
    let directory = root().join("docs/decisions");
    let mut wrong = Vec::new();
    let mut commands = 0;
    for entry in fs::read_dir(&directory).expect("the decisions") {
        let path = entry.expect("an entry").path();
        if path.ends_with("README.md") {
            continue;
        }
        let text = fs::read_to_string(&path).expect("a decision");
        let mut found = Vec::new();
        match problems(&text, &mut found) {
            problems if problems.is_empty() => commands += found.len(),
            problems => wrong.push(format!("{}: {problems:?}", path.display())),
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(commands > 30, "only {commands} commands were found");
}

/// Returns the problems of a decision record. Its commands are added to `commands`.
fn problems(text: &str, commands: &mut Vec<String>) -> Vec<String> {
    let mut problems = Vec::new();
    if !text.lines().nth(2).is_some_and(has_date_and_status) {
        problems.push("its third line is not 'Date: YYYY-MM-DD · Status: ...'".to_string());
    }
    let mut sections = text.split("\n## ").skip(1).map(|s| s.split_once('\n').unwrap_or((s, "")));
    let bodies: Vec<&str> = sections.clone().map(|(_, body)| body).collect();
    if !sections.by_ref().map(|(title, _)| title).eq(SECTIONS) {
        problems.push(format!("its sections are not {SECTIONS:?}"));
    }
    if bodies.iter().any(|body| !body.contains('.')) {
        problems.push("a section has no sentence".to_string());
    }
    let measurement = bodies.last().copied().unwrap_or("");
    commands.extend(commands_in(measurement));
    if commands.is_empty() && !measurement.contains(NOTHING_MEASURED) {
        problems.push(format!("its measurement has no command, nor '{NOTHING_MEASURED}'"));
    }
    problems.extend(commands.iter().flat_map(|command| missing_of(command)));
    problems
}

/// Returns whether a line is "Date: 2026-11-21 · Status: holds", or has another status.
fn has_date_and_status(line: &str) -> bool {
    let Some((date, status)) =
        line.strip_prefix("Date: ").and_then(|rest| rest.split_once(" · Status: "))
    else {
        return false;
    };
    let digits =
        |part: &str, count| part.len() == count && part.chars().all(|digit| digit.is_ascii_digit());
    let parts: Vec<&str> = date.split('-').collect();
    let dated = matches!(parts[..], [y, m, d] if digits(y, 4) && digits(m, 2) && digits(d, 2));
    dated && !status.trim().is_empty()
}

#[test]
fn a_decision_that_a_later_one_changes_names_it_and_the_later_one_refers_back() {
    let directory = root().join("docs/decisions");
    let index = fs::read_to_string(directory.join("README.md")).expect("the index");
    let (mut wrong, mut changed) = (Vec::new(), 0);
    for entry in fs::read_dir(&directory).expect("the decisions") {
        let name = entry.expect("an entry").file_name().into_string().expect("a name");
        if name == "README.md" {
            continue;
        }
        let text = fs::read_to_string(directory.join(&name)).expect("a decision");
        // The status may take several lines, up to the first section.
        let head = text.split("\n## ").next().unwrap_or("");
        let status = head.split_once("Status: ").map_or("", |(_, status)| status.trim());
        let later = links(status);
        let numbers: Vec<&str> =
            later.iter().filter_map(|link| Some(link.split_once('-')?.0)).collect();
        let expected = match status.split(['[', ';']).next().unwrap_or("").trim() {
            "holds" if numbers.is_empty() => "holds".to_string(),
            "holds in part" if !numbers.is_empty() => {
                format!("holds in part, see {}", numbers.join(", "))
            }
            "superseded by" if !numbers.is_empty() => {
                format!("superseded by {}", numbers.join(", "))
            }
            other => panic!("{name}: a decision has no status '{other}'"),
        };
        if !index.lines().any(|row| {
            row.contains(&format!("]({name}) |")) && row.ends_with(&format!("| {expected} |"))
        }) {
            wrong.push(format!("{name}: the index does not say '{expected}'"));
        }
        for file in later {
            changed += 1;
            let successor = fs::read_to_string(directory.join(&file)).expect("a later decision");
            if !successor.contains(&format!("]({name})")) {
                wrong.push(format!("{file} does not refer back to {name}"));
            }
        }
    }
    assert!(wrong.is_empty(), "{wrong:#?}");
    assert!(changed > 10, "only {changed} changes were found");
}

/// The commands of a text of Markdown, in backticks, fences or indented by four spaces, each on one
/// line.
fn commands_in(text: &str) -> Vec<String> {
    let indented = text.lines().filter_map(|line| line.strip_prefix("    "));
    let spans = text.split('`').skip(1).step_by(2);
    let is_number = |word: &str| word.chars().all(|digit| digit.is_ascii_digit());
    let is_command = |code: &String| {
        // Variables of the environment and `nice -n N` come before the program.
        let mut words = code.split(' ').skip_while(|word| {
            word.contains('=') || *word == "nice" || word.starts_with('-') || is_number(word)
        });
        let program = words.next().unwrap_or("");
        let has_arguments = words.next().is_some();
        has_arguments && ["cargo", "make", "python3", "git", "kvfs"].contains(&program)
    };
    indented
        .chain(spans)
        .map(|code| code.split_whitespace().collect::<Vec<_>>().join(" "))
        .filter(is_command)
        .collect()
}

/// Returns the words of a command that are not in the repository: targets of the Makefile, scripts,
/// tests and programs of packages.
fn missing_of(command: &str) -> Vec<String> {
    let words: Vec<&str> = command.split(' ').collect();
    let package = words.iter().position(|word| *word == "-p").map(|at| words[at + 1]);
    let makefile = fs::read_to_string(root().join("Makefile")).expect("the Makefile");
    let mut missing = Vec::new();
    let tests = root().join("crates").join(package.unwrap_or("")).join("tests");
    let is_in = |directory: &Path, name: &str| {
        directory.join(format!("{name}.rs")).exists() || directory.join(name).is_dir()
    };
    for (before, word) in words.iter().zip(words.iter().skip(1)) {
        let there = match *before {
            "make" => makefile.lines().any(|line| line.starts_with(&format!("{word}:"))),
            "python3" | "--manifest-path" => root().join(word).exists(),
            "--bin" => root().join(format!("bench/measure/src/bin/{word}.rs")).exists(),
            "--test" => is_in(&tests, word),
            // A module of the test program, or a test of one.
            "it" => {
                word.split_once("::").is_none_or(|(module, _)| is_in(&tests.join("it"), module))
            }
            _ => true,
        };
        if !there {
            missing.push(format!("'{word}' of the command '{command}' is not there"));
        }
    }
    missing
}

#[test]
fn a_decision_that_lacks_something_is_found() {
    let whole = "# 001: A title\n\nDate: 2026-11-21 · Status: holds\n\n## Context\n\nIt was so.\n\n\
                 ## Decision\n\nDo it.\n\n## Alternatives\n\nNone.\n\n## Consequences\n\nNone.\n\n\
                 ## Measurement\n\n`make ace` prints it.\n";
    let of = |text: &str| problems(text, &mut Vec::new()).len();
    assert_eq!(of(whole), 0);
    assert_eq!(of(&whole.replace("`make ace` prints it", NOTHING_MEASURED)), 0);
    for (from, to) in [
        ("2026-11-21", "today"),
        ("Status: holds", ""),
        ("## Context", "## Background"),
        ("Do it.", ""),
        ("## Alternatives\n\nNone.\n\n", ""),
        ("`make ace` prints it", "It was fast"),
        ("make ace", "make haste"),
        ("make ace", "python3 scripts/none.py"),
        ("make ace", "cargo test -p kvdb --test none"),
        ("make ace", "cargo test -p kvdb --test it none::"),
        ("make ace", "cargo run -p measure --bin none"),
    ] {
        assert_eq!(of(&whole.replace(from, to)), 1, "with '{to}' in place of '{from}'");
    }
}

/// The fuzz targets are a workspace of their own, which `make test` does not build.
#[test]
fn every_module_that_the_fuzz_targets_take_in_is_there() {
    let directory = root().join("fuzz/src");
    let text = fs::read_to_string(directory.join("lib.rs")).expect("the fuzz targets");
    let paths: Vec<&str> = text
        .lines()
        .filter_map(|line| line.trim_start().strip_prefix("#[path = \"")?.strip_suffix("\"]"))
        .collect();
    assert!(paths.len() > 10, "these are not all: {paths:?}");
    let missing: Vec<_> = paths.iter().filter(|path| !directory.join(path).exists()).collect();
    assert!(missing.is_empty(), "{missing:?}");
}
