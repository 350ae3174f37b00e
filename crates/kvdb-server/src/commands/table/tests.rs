//! Checks that only the table knows commands by their names, and that all other rooms of the
//! server use the fields of a row.

use std::fs;
use std::path::{Path, PathBuf};

use super::COMMANDS;

/// Words in rooms that have the name of a command, but another meaning there.
const OTHER_WORDS: [(&str, &str, &str); 2] = [
    ("commands/tree.rs", "txn", "the word of an argument: TXN id"),
    ("commands/tree.rs", "clone", "the word of an argument: CLONE name"),
];

/// A part of the text of a program.
#[derive(Debug, PartialEq, Eq)]
enum Token {
    /// A string, and the line in which it begins.
    Text(String, usize),
    /// A name, a number, or an operator.
    Other(String),
}

/// Splits a program into its tokens, without comments.
fn tokens(program: &str) -> Vec<Token> {
    let (mut found, mut rest, mut line) = (Vec::new(), program, 1);
    while let Some(first) = rest.chars().next() {
        let length = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if let Some(raw) = rest.strip_prefix("r#\"") {
            raw.find("\"#").map_or(rest.len(), |end| end + 5)
        } else if first == '"' {
            let length = length_of_text(rest);
            let inside = rest.get(1..length - 1).unwrap_or_default();
            found.push(Token::Text(inside.to_owned(), line));
            length
        } else if let Some(length) = length_of_character(rest) {
            length
        } else {
            let is_word = |c: char| c.is_alphanumeric() || c == '_';
            let length = match rest.find(|c: char| !is_word(c)).unwrap_or(rest.len()) {
                0 if ["==", "!=", "=>", "||"].iter().any(|one| rest.starts_with(one)) => 2,
                0 => first.len_utf8(),
                length => length,
            };
            if !first.is_whitespace() {
                found.push(Token::Other(rest[..length].to_owned()));
            }
            length
        };
        line += rest[..length].matches('\n').count();
        rest = &rest[length..];
    }
    found
}

/// Returns the length of the string at the beginning of the program, including quotes.
fn length_of_text(program: &str) -> usize {
    let (mut at, bytes) = (1, program.as_bytes());
    while at < bytes.len() && bytes[at] != b'"' {
        at += if bytes[at] == b'\\' { 2 } else { 1 };
    }
    (at + 1).min(bytes.len())
}

/// Returns the length of the character literal at the beginning of the program, or `None` if the
/// program begins with something else, such as a lifetime.
fn length_of_character(program: &str) -> Option<usize> {
    let inside = program.strip_prefix('\'')?;
    let first = inside.chars().next()?;
    let length = match first {
        '\\' => 2 + inside.get(2..)?.find('\'')?,
        _ => first.len_utf8(),
    };
    inside[length..].starts_with('\'').then_some(length + 2)
}

/// Returns whether the string at a token is compared with a value: by an operator, in a pattern,
/// or as an element of a list of commands.
fn is_compared(tokens: &[Token], at: usize) -> bool {
    let other = |at: Option<usize>| match at.and_then(|at| tokens.get(at)) {
        Some(Token::Other(other)) => other.as_str(),
        _ => "",
    };
    let (before, after) = (other(at.checked_sub(1)), other(Some(at + 1)));
    if ["==", "!=", "|"].contains(&before) || ["==", "!=", "|", "=>", "if"].contains(&after) {
        return true;
    }
    let is_in_list = |token: &Token| match token {
        Token::Text(word, _) => is_command(word),
        Token::Other(other) => other == ",",
    };
    let is_word = |token: &&Token| matches!(token, Token::Text(..));
    let first = (0..at).rev().take_while(|at| is_in_list(&tokens[*at])).last().unwrap_or(at);
    let length = tokens[first..].iter().take_while(|token| is_in_list(token)).count();
    let is_list = other(first.checked_sub(1)) == "[" && other(Some(first + length)) == "]";
    is_list && tokens[first..first + length].iter().filter(is_word).count() > 1
}

fn is_command(word: &str) -> bool {
    COMMANDS.iter().any(|command| command.name == word)
}

/// Returns the room of each command. The room is the module that has the handler of the command.
fn rooms(table: &str) -> Vec<(String, String)> {
    let tokens = tokens(table);
    let mut found: Vec<(String, String)> = Vec::new();
    for (i, token) in tokens.iter().enumerate() {
        let is_row = i > 1
            && tokens[i - 1] == Token::Other("(".into())
            && matches!(&tokens[i - 2], Token::Other(word) if ROWS.contains(&word.as_str()));
        if let (Token::Text(name, _), true) = (token, is_row) {
            found.push((name.clone(), String::new()));
            continue;
        }
        // A handler is `module::function)`; a constant in capitals is not a handler.
        let of_handler = |at: usize| match tokens.get(i + at) {
            Some(Token::Other(word)) => word.as_str(),
            _ => "",
        };
        let is_handler = of_handler(1) == ":"
            && of_handler(2) == ":"
            && of_handler(3).starts_with(|c: char| c.is_ascii_lowercase());
        if let (Token::Other(module), Some((_, room)), true) = (token, found.last_mut(), is_handler)
            && room.is_empty()
        {
            room.clone_from(module);
        }
    }
    found
}

/// The names of the constructors of rows.
const ROWS: [&str; 7] = ["acts", "asks", "open", "pushes", "reads", "typed", "writes"];

fn programs(directory: &Path, found: &mut Vec<PathBuf>) {
    for entry in fs::read_dir(directory).expect("a directory of the source") {
        let path = entry.expect("an entry").path();
        if path.is_dir() {
            programs(&path, found);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
}

/// Returns the names of commands that a program compares with a value, each with its line.
fn compared(program: &str) -> Vec<(String, usize)> {
    let product = program.split("#[cfg(test)]\nmod tests").next().unwrap_or_default();
    let tokens = tokens(product);
    let names = tokens.iter().enumerate().filter_map(|(at, token)| match token {
        Token::Text(word, line) if is_command(word) && is_compared(&tokens, at) => {
            Some((word.clone(), *line))
        }
        _ => None,
    });
    names.collect()
}

#[test]
fn no_room_but_its_own_knows_a_command_by_its_name() {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("src");
    let table = fs::read_to_string(source.join("commands/table.rs")).expect("the table");
    let rooms = rooms(&table);
    assert_eq!(rooms.len(), COMMANDS.len(), "each row is found in the text");
    let (mut all, mut wrong) = (Vec::new(), Vec::new());
    programs(&source, &mut all);
    let mut unused = OTHER_WORDS.to_vec();
    for path in all {
        let file = path.strip_prefix(&source).expect("below it").to_string_lossy().into_owned();
        let is_test = file.starts_with("schedule_tests") || file.ends_with("tests.rs");
        if is_test || file == "commands/table.rs" {
            continue;
        }
        let program = fs::read_to_string(&path).expect("a program");
        for (name, line) in compared(&program) {
            let room = rooms.iter().find(|(command, _)| *command == name).map(|(_, room)| room);
            let room = room.expect("a command has a room");
            let own = [format!("commands/{room}.rs"), format!("commands/{room}/")];
            unused.retain(|(place, word, _)| (*place, *word) != (&file[..], &name[..]));
            let is_other_word = OTHER_WORDS
                .iter()
                .any(|(place, word, _)| (*place, *word) == (&file[..], &name[..]));
            if !own.iter().any(|own| file.starts_with(own)) && !is_other_word {
                wrong.push(format!("{file}:{line}: {name}, which is of {room}"));
            }
        }
    }
    assert!(wrong.is_empty(), "make it a field of the row:\n{}", wrong.join("\n"));
    assert!(unused.is_empty(), "the list has words that are compared nowhere: {unused:?}");
}

#[test]
fn names_are_found_in_each_form_of_a_comparison() {
    for (program, names) in [
        (r#"if command.name == "exec" {"#, &["exec"][..]),
        (r#"matches!(command.name, "multi" | "watch")"#, &["multi", "watch"]),
        (r#"match name { "set" if plain => 1, "get" => 2, _ => 3 }"#, &["set", "get"]),
        (r#"["auth", "hello"].contains(&command.name)"#, &["auth", "hello"]),
        (r#"Kind::Set => "set", '"' => "keys", // "get" => "#, &[]),
        (r#"is(option, "count") || args["key"]"#, &[]),
    ] {
        let found: Vec<String> = compared(program).into_iter().map(|(name, _)| name).collect();
        assert_eq!(found, names, "{program}");
    }
}

#[test]
fn fields_of_a_row_do_not_contradict_each_other() {
    use super::super::row::{InMulti, InScripts};
    for command in COMMANDS {
        let name = command.name;
        let in_scripts = matches!(command.in_scripts, InScripts::Refused | InScripts::Debugging);
        assert!(in_scripts || command.in_multi == InMulti::Queued, "{name} in a script");
        assert!(!command.writes || command.paused_with_writes, "{name} in a pause of writes");
        assert!(!command.writes || !command.tracked, "{name} reads nothing for a client to keep");
        assert!(!command.pushes || command.among_messages, "{name} among messages");
    }
}
