//! `COMMAND` and `SLOWLOG`: information about the commands of the server.

use super::specs::{self, Begin, Find, Keys};
use super::{COMMANDS, Command, find, is, unknown_subcommand};
use crate::failure::{Failure, Outcome};
use crate::names::Compared;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

pub fn command(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let named = || args.from(2).map(|name| find(name).map(|i| &COMMANDS[i]));
    match args.get(1) {
        None => {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|c| describe(c, out));
        }
        Some(c) if is(c, "count") && args.len() == 2 => out.integer(COMMANDS.len() as i64),
        Some(c) if is(c, "list") => list(args, out)?,
        Some(c) if is(c, "info") => {
            let all = args.len() == 2;
            out.array(if all { COMMANDS.len() } else { args.len() - 2 });
            if all {
                COMMANDS.iter().for_each(|c| describe(c, out));
            }
            for found in named() {
                match found {
                    Some(c) => describe(c, out),
                    None => out.null_array(),
                }
            }
        }
        Some(c) if is(c, "docs") => {
            let found: Vec<&Command> = match args.len() {
                2 => COMMANDS.iter().collect(),
                _ => named().flatten().collect(),
            };
            out.map(found.len());
            found.into_iter().for_each(|c| document(c, out));
        }
        Some(c) if (is(c, "getkeys") || is(c, "getkeysandflags")) && args.len() > 2 => {
            let request = args.behind(2);
            let unknown = Failure::request("Invalid command specified");
            let command = find(request.at(0)).map(|i| &COMMANDS[i]).ok_or(unknown)?;
            let wanted = command.arity.unsigned_abs() as usize;
            if request.len() < wanted || command.arity > 0 && request.len() != wanted {
                return Err(Failure::request("Invalid number of arguments specified for command"));
            }
            let keys = command.keys_of(request);
            if keys.is_empty() {
                return Err(Failure::request("The command has no key arguments"));
            }
            if is(c, "getkeysandflags") {
                let keys = specs::keys_and_flags(command, request);
                out.array(keys.len());
                for (key, flags) in keys {
                    out.array(2);
                    out.bulk(key);
                    statuses(&flags, out);
                }
                return Ok(());
            }
            out.array(keys.len());
            keys.into_iter().for_each(|key| out.bulk(key));
        }
        Some(_) => return Err(unknown_subcommand(args, "COMMAND")),
    }
    Ok(())
}

/// Executes `COMMAND LIST [FILTERBY PATTERN pattern|ACLCAT category]`.
fn list(args: Arguments<'_>, out: &mut Output) -> Outcome {
    let pattern = match args.len() {
        2 => b"*",
        5 if is(args.at(2), "filterby") && is(args.at(3), "pattern") => args.at(4),
        5 if is(args.at(2), "filterby") && is(args.at(3), "aclcat") => {
            let wanted = |c: &&Command| {
                specs::describe(c).categories.iter().any(|category| is(args.at(4), category))
            };
            let found: Vec<_> = COMMANDS.iter().filter(wanted).collect();
            out.array(found.len());
            found.into_iter().for_each(|c| out.bulk(c.name.as_bytes()));
            return Ok(());
        }
        // No command belongs to a module, so the list is empty.
        5 if is(args.at(2), "filterby") => {
            out.array(0);
            return Ok(());
        }
        _ => return Err(Failure::SYNTAX),
    };
    let pattern = pattern.to_ascii_lowercase();
    let (mut found, mut compared) = (Vec::new(), Compared::default());
    for command in COMMANDS.iter() {
        if compared.matches(&pattern, command.name.as_bytes())? {
            found.push(command);
        }
    }
    out.array(found.len());
    found.into_iter().for_each(|c| out.bulk(c.name.as_bytes()));
    Ok(())
}

/// Writes the name, number of arguments, flags, keys, categories, tips, specifications of keys,
/// and a list of subcommands, which is always empty in this server.
fn describe(c: &Command, out: &mut Output) {
    let described = specs::describe(c);
    out.array(10);
    out.bulk(c.name.as_bytes());
    out.integer(i64::from(c.arity));
    statuses(&described.flags, out);
    described.range.iter().for_each(|n| out.integer(*n));
    let categories: Vec<String> = described.categories.iter().map(|c| format!("@{c}")).collect();
    statuses(&categories, out);
    out.set(described.tips.len());
    described.tips.iter().for_each(|tip| out.bulk(tip.as_bytes()));
    out.set(described.keys.len());
    described.keys.iter().for_each(|keys| describe_keys(keys, out));
    out.set(0);
}

fn statuses<T: AsRef<str>>(words: &[T], out: &mut Output) {
    out.set(words.len());
    words.iter().for_each(|word| out.status(word.as_ref()));
}

fn describe_keys(keys: &Keys, out: &mut Output) {
    let part = |kind: &str, numbers: &[(&str, i64)], word: Option<&str>, out: &mut Output| {
        out.map(2);
        out.bulk(b"type");
        out.bulk(kind.as_bytes());
        out.bulk(b"spec");
        out.map(numbers.len() + usize::from(word.is_some()));
        if let Some(word) = word {
            out.bulk(b"keyword");
            out.bulk(word.as_bytes());
        }
        for (name, number) in numbers {
            out.bulk(name.as_bytes());
            out.integer(*number);
        }
    };
    out.map(3);
    out.bulk(b"flags");
    statuses(&keys.flags, out);
    out.bulk(b"begin_search");
    match keys.begin {
        Begin::Index(at) => part("index", &[("index", at)], None, out),
        Begin::Keyword(word, from) => part("keyword", &[("startfrom", from)], Some(word), out),
        Begin::Unknown => part("unknown", &[], None, out),
    }
    out.bulk(b"find_keys");
    match keys.find {
        Find::Range { last, step, limit } => {
            part("range", &[("lastkey", last), ("keystep", step), ("limit", limit)], None, out);
        }
        Find::Number { at, first, step } => {
            let numbers = [("keynumidx", at), ("firstkey", first), ("keystep", step)];
            part("keynum", &numbers, None, out);
        }
        Find::Unknown => part("unknown", &[], None, out),
    }
}

fn document(c: &Command, out: &mut Output) {
    out.bulk(c.name.as_bytes());
    out.map(if c.usage.is_empty() { 2 } else { 3 });
    out.bulk(b"summary");
    out.bulk(format!("{} {}", c.name, c.usage).trim_end().as_bytes());
    out.bulk(b"group");
    out.bulk(if c.keys == (0, 0, 0) { b"server" } else { b"generic" });
    if !c.usage.is_empty() {
        // All arguments are described as one, which clients show as a hint.
        out.bulk(b"arguments");
        out.array(1);
        out.map(3);
        out.bulk(b"name");
        out.bulk(c.usage.as_bytes());
        out.bulk(b"type");
        out.bulk(b"string");
        out.bulk(b"display_text");
        out.bulk(c.usage.as_bytes());
    }
}

/// `SLOWLOG GET [count]`, `LEN`, `RESET`: lists, counts or removes the newest commands that took
/// longer than `slowlog-log-slower-than` microseconds.
pub fn slowlog(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let log = &s.shared.slow_log;
    match (args.at(1), args.len()) {
        (c, 2 | 3) if is(c, "get") => {
            let wrong = || Failure::request("count should be greater than or equal to -1");
            let count = args.get(2).map_or(Some(10), integer).filter(|n| *n >= -1);
            let found = log.newest(usize::try_from(count.ok_or_else(wrong)?).unwrap_or(usize::MAX));
            out.array(found.len());
            for entry in found {
                out.array(6);
                out.integer(entry.number as i64);
                out.integer(entry.at as i64);
                out.integer(i64::try_from(entry.micros).unwrap_or(i64::MAX));
                out.array(entry.words.len());
                entry.words.iter().for_each(|word| out.bulk(word));
                out.bulk(entry.address.as_bytes());
                out.bulk(entry.name.as_bytes());
                out.send_if_large();
            }
        }
        (c, 2) if is(c, "len") => out.integer(log.len() as i64),
        (c, 2) if is(c, "reset") => {
            log.forget();
            out.ok();
        }
        (c, 2) if is(c, "help") => {
            out.array(1);
            out.status("SLOWLOG GET [count] | LEN | RESET");
        }
        _ => return Err(unknown_subcommand(args, "SLOWLOG")),
    }
    Ok(())
}

pub const LATENCY_USAGE: &str =
    "LATEST | HISTORY event | RESET [event ...] | HISTOGRAM [command ...] | DOCTOR";

/// `LATENCY`: replies with empty lists, because there is no latency monitor.
pub fn latency(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, 2) if is(c, "latest") => out.array(0),
        (c, 3) if is(c, "history") => out.array(0),
        (c, _) if is(c, "reset") => out.integer(0),
        (c, _) if is(c, "histogram") => out.map(0),
        (c, 2) if is(c, "doctor") => out.verbatim(
            "Latencies are not monitored here. SLOWLOG GET has the commands that took long, INFO commandstats what each \
             command takes, and `kvfs top` what the store does.",
        ),
        (c, 2) if is(c, "help") => {
            out.array(1);
            out.status(&format!("LATENCY {LATENCY_USAGE}"));
        }
        _ => return Err(unknown_subcommand(args, "LATENCY")),
    }
    Ok(())
}
