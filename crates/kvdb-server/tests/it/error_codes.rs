//! Tests of error codes. The document lists exactly the codes that the server uses, and an error
//! that Redis does not have carries a code of its own.

use std::collections::BTreeSet;

use kvdb_server::{ErrorCode, ServerOptions};

use crate::served::serve;

/// Returns the words in the first column of the document's table.
fn documented() -> Vec<String> {
    let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/resp.md");
    let document = std::fs::read_to_string(path).expect("the document");
    let (_, section) = document.split_once("\n## Codes of errors\n").expect("the section");
    let section = section.split("\n## ").next().unwrap_or_default();
    let rows = section.lines().filter_map(|line| line.strip_prefix("| `"));
    let cells = rows.filter_map(|row| row.split(" |").next());
    cells.flat_map(|cell| cell.split(", ")).map(|word| word.replace('`', "")).collect()
}

#[test]
fn the_document_lists_each_code_once_and_no_other() {
    let documented = documented();
    let words: BTreeSet<&str> = documented.iter().map(String::as_str).collect();
    assert_eq!(words.len(), documented.len(), "a code is listed twice: {documented:?}");
    let codes: BTreeSet<&str> = ErrorCode::all().map(ErrorCode::word).collect();
    assert_eq!(words, codes);
}

#[test]
fn names_that_are_missing_or_taken_are_told_by_codes() {
    let served = serve(ServerOptions::default());
    let mut c = served.connect();
    assert_eq!(c.run("SNAPSHOT CREATE monday"), "OK");
    for (command, code) in [
        ("SNAPSHOT CREATE monday", ErrorCode::Exists),
        ("CLONE CREATE tuesday x", ErrorCode::NoSnapshot),
        ("DICT INFO nowhere", ErrorCode::NoDictionary),
        ("TXN JOIN 77", ErrorCode::NoTransaction),
        ("TXN UNDO 77", ErrorCode::NoCommit),
        ("GET", ErrorCode::Err),
    ] {
        let reply = c.run(command);
        let error = reply.strip_prefix("(error) ").unwrap_or_default();
        assert_eq!(ErrorCode::of(error), Some(code), "{command}: {reply}");
    }
}
