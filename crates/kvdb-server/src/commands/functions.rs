//! `FUNCTION`, `FCALL`, `FCALL_RO`: functions of libraries, which the store keeps.
//!
//! A library is a text whose code registers functions. The code runs in a worker, like a script
//! (see `eval`). It runs when the library is loaded, to find out its functions, and before each
//! call of one of them, in the same process, so a library keeps no state between calls. The
//! libraries are tuples of a reserved dictionary (`libraries`). So they belong to the state of
//! the store: a transaction, a clone or a snapshot has its own libraries, and a rollback restores
//! the earlier ones.

use kvdb_lua::library;

use super::eval::{self, Found};
use super::multi::{Locks, atomically};
use super::row::Handler;
use super::{is, unknown_subcommand, wrong_arity};
use crate::failure::{Failure, Outcome};
use crate::names::Compared;
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

mod libraries;
mod payload;

use libraries::{Libraries, Library};
pub use libraries::{NAME, counts};

pub const USAGE: &str = "LOAD [REPLACE] code | DELETE name | LIST [LIBRARYNAME pattern] [WITHCODE] | FLUSH [ASYNC|SYNC] | DUMP | RESTORE payload [FLUSH|APPEND|REPLACE] | STATS | KILL";
pub const FCALL_USAGE: &str = "function numkeys [key ...] [arg ...]";

const HELP: &[&str] = &[
    "FUNCTION <subcommand> [<arg> [value] [opt] ...]. Subcommands are:",
    "LOAD [REPLACE] <FUNCTION CODE>",
    "    Create a new library with the given library name and code.",
    "DELETE <LIBRARY NAME>",
    "    Delete the given library.",
    "LIST [LIBRARYNAME PATTERN] [WITHCODE]",
    "    Return general information on all the libraries:",
    "    * Library name",
    "    * The engine used to run the Library",
    "    * Library description",
    "    * Functions list",
    "    * Library code (if WITHCODE is given)",
    "    It also possible to get only function that matches a pattern using LIBRARYNAME argument.",
    "STATS",
    "    Return information about the current function running:",
    "    * Function name",
    "    * Command used to run the function",
    "    * Duration in MS that the function is running",
    "    If no function is running, return nil",
    "    In addition, returns a list of available engines.",
    "KILL",
    "    Kill the current running function.",
    "FLUSH [ASYNC|SYNC]",
    "    Delete all the libraries.",
    "    When called without the optional mode argument, the behavior is determined by the",
    "    lazyfree-lazy-user-flush configuration directive. Valid modes are:",
    "    * ASYNC: Asynchronously flush the libraries.",
    "    * SYNC: Synchronously flush the libraries.",
    "DUMP",
    "    Return a serialized payload representing the current libraries, can be restored using FUNCTION RESTORE command",
    "RESTORE <PAYLOAD> [FLUSH|APPEND|REPLACE]",
    "    Restore the libraries represented by the given payload, it is possible to give a restore policy to",
    "    control how to handle existing libraries (default APPEND):",
    "    * FLUSH: delete all existing libraries.",
    "    * APPEND: appends the restored libraries to the existing libraries. On collision, abort.",
    "    * REPLACE: appends the restored libraries to the existing libraries, On collision, replace the old",
    "      libraries with the new libraries (notice that even on this option there is a chance of failure",
    "      in case of functions name collision with another library).",
    "HELP",
    "    Prints this help.",
];

/// The subcommands, each with the number of its arguments as in the table of commands.
static FORMS: [(&str, i32, Handler); 9] = [
    ("delete", 3, delete),
    ("dump", 2, dump),
    ("flush", -2, flush),
    ("help", 2, help),
    ("kill", 2, kill),
    ("list", -2, list),
    ("load", -3, load),
    ("restore", -3, restore),
    ("stats", 2, stats),
];

pub fn function(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let Some((name, arity, run)) = FORMS.iter().find(|(name, ..)| is(args.at(1), name)) else {
        let given = shown(args.at(1));
        return Err(Failure::request(format!("unknown subcommand '{given}'. Try FUNCTION HELP.")));
    };
    let wanted = arity.unsigned_abs() as usize;
    if args.len() < wanted || *arity > 0 && args.len() != wanted {
        return Err(wrong_arity(&format!("function|{name}")));
    }
    run(s, args, out)
}

pub fn fcall(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    eval::call(s, args, false, out, |s| find(s, args.at(1)))
}
pub fn fcall_ro(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    eval::call(s, args, true, out, |s| find(s, args.at(1)))
}

fn find(s: &Session, name: &[u8]) -> Result<Found, Failure> {
    let not_found = || Failure::request("Function not found");
    let (library, function) = libraries::find(s, name)?.ok_or_else(not_found)?;
    let header = library::header(&library.code).map_err(Failure::request)?;
    Ok(Found {
        only_reads: function.only_reads(),
        name: function.name,
        text: library.code,
        begin: header.length,
    })
}

/// Returns the beginning of an argument for a message.
fn shown(argument: &[u8]) -> String {
    String::from_utf8_lossy(&argument[..argument.len().min(128)]).into_owned()
}

/// Changes the libraries in one transaction. `edit` changes the present libraries into the new
/// ones, and may be called again after a conflict.
fn change(s: &mut Session, out: &mut Output, edit: impl Fn(&mut Libraries) -> Outcome) -> Outcome {
    let dictionary = libraries::made(s)?;
    let work = |s: &mut Session, _: &mut Output| -> Outcome {
        let before = libraries::all(s)?;
        let mut after = before.clone();
        edit(&mut after)?;
        libraries::store(s, dictionary, &before, &after)
    };
    match s.exec.is_running() {
        true => work(s, out),
        false => atomically(s, &[], Locks::Keys(&[]), out, work),
    }
}

/// Adds a library. Returns an error if one of its functions is in another library.
fn add(all: &mut Libraries, library: &Library) -> Outcome {
    for function in &library.functions {
        let has = |other: &Library| other.name != library.name && other.has(&function.name);
        if all.values().any(has) {
            return Err(Failure::request(format!("Function {} already exists", function.name)));
        }
    }
    all.insert(library.name.clone(), library.clone());
    Ok(())
}

fn exists(name: &str) -> Failure {
    Failure::request(format!("Library '{name}' already exists"))
}

/// Runs a library to find out its functions.
fn register(s: &mut Session, header: &library::Header, code: &[u8]) -> Result<Library, Failure> {
    let functions = eval::register(s, &header.name, &code[header.length..])?;
    Library::new(&header.name, code, functions)
}

/// Executes `FUNCTION LOAD [REPLACE] code`.
fn load(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let last = args.len() - 1;
    for option in args.from(2).take(last - 2) {
        if !is(option, "replace") {
            return Err(Failure::request(format!("Unknown option given: {}", shown(option))));
        }
    }
    let (code, replace) = (args.at(last), last > 2);
    let header = library::header(code).map_err(Failure::request)?;
    if !replace && libraries::all(s)?.contains_key(&header.name) {
        return Err(exists(&header.name));
    }
    let library = register(s, &header, code)?;
    change(s, out, |all| match !replace && all.contains_key(&library.name) {
        true => Err(exists(&library.name)),
        false => add(all, &library),
    })?;
    out.bulk(library.name.as_bytes());
    Ok(())
}

/// Executes `FUNCTION DELETE name`.
fn delete(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let not_found = || Failure::request("Library not found");
    let name = std::str::from_utf8(args.at(2)).map_err(|_| not_found())?;
    if libraries::dictionary(s).is_none() {
        return Err(not_found());
    }
    change(s, out, |all| all.remove(name).map(|_| ()).ok_or_else(not_found))?;
    out.ok();
    Ok(())
}

/// `FUNCTION FLUSH [ASYNC|SYNC]`: both forms remove the libraries before the reply.
fn flush(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.len(), args.at(2)) {
        (2, _) => {}
        (3, how) if is(how, "async") || is(how, "sync") => {}
        (3, _) => {
            return Err(Failure::request("FUNCTION FLUSH only supports SYNC|ASYNC option"));
        }
        _ => return Err(unknown_subcommand(args, "FUNCTION")),
    }
    if libraries::dictionary(s).is_some() {
        change(s, out, |all| {
            all.clear();
            Ok(())
        })?;
    }
    out.ok();
    Ok(())
}

/// Executes `FUNCTION LIST [LIBRARYNAME pattern] [WITHCODE]`.
fn list(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let (mut pattern, mut with_code) = (None, false);
    let mut options = args.from(2);
    while let Some(option) = options.next() {
        match option {
            o if is(o, "withcode") && !with_code => with_code = true,
            o if is(o, "libraryname") && pattern.is_none() => {
                let given = options.next();
                pattern =
                    Some(given.ok_or(Failure::request("library name argument was not given"))?);
            }
            o => return Err(Failure::request(format!("Unknown argument {}", shown(o)))),
        }
    }
    let pattern = pattern.map(<[u8]>::to_ascii_lowercase);
    let all = libraries::all(s)?;
    let (mut listed, mut compared): (Vec<&Library>, _) = (Vec::new(), Compared::default());
    for library in all.values() {
        let name = library.name.to_ascii_lowercase();
        let fits = match &pattern {
            Some(pattern) => compared.matches(pattern, name.as_bytes())?,
            None => true,
        };
        if fits {
            listed.push(library);
        }
    }
    out.array(listed.len());
    for library in listed {
        out.map(if with_code { 4 } else { 3 });
        out.bulk(b"library_name");
        out.bulk(library.name.as_bytes());
        out.bulk(b"engine");
        out.bulk(b"LUA");
        out.bulk(b"functions");
        out.array(library.functions.len());
        for function in &library.functions {
            out.map(3);
            out.bulk(b"name");
            out.bulk(function.name.as_bytes());
            out.bulk(b"description");
            out.value(function.description.as_deref());
            out.bulk(b"flags");
            let flags = function.flag_names();
            out.set(flags.len());
            flags.iter().for_each(|flag| out.status(flag));
        }
        if with_code {
            out.bulk(b"library_code");
            out.bulk(&library.code);
        }
    }
    Ok(())
}

/// Executes `FUNCTION DUMP`.
fn dump(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    out.bulk(&payload::write(libraries::all(s)?.values().map(|library| &library.code[..])));
    Ok(())
}

/// Determines the treatment of existing libraries when others are restored.
#[derive(Clone, Copy, PartialEq)]
enum Policy {
    Flush,
    Append,
    Replace,
}

/// Executes `FUNCTION RESTORE payload [FLUSH|APPEND|REPLACE]`.
fn restore(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let policy = match (args.len(), args.at(3)) {
        (3, _) => Policy::Append,
        (4, word) if is(word, "append") => Policy::Append,
        (4, word) if is(word, "replace") => Policy::Replace,
        (4, word) if is(word, "flush") => Policy::Flush,
        (4, _) => {
            return Err(Failure::request(
                "Wrong restore policy given, value should be either FLUSH, APPEND or REPLACE.",
            ));
        }
        _ => return Err(unknown_subcommand(args, "FUNCTION")),
    };
    let mut restored = Libraries::new();
    for code in payload::read(args.at(2), (libraries::LONGEST, libraries::TOGETHER))? {
        let header = library::header(&code).map_err(Failure::request)?;
        if restored.contains_key(&header.name) {
            return Err(exists(&header.name));
        }
        let library = register(s, &header, &code)?;
        add(&mut restored, &library)?;
    }
    change(s, out, |all| {
        if policy == Policy::Flush {
            all.clear();
        }
        for name in restored.keys() {
            if all.remove(name).is_some() && policy == Policy::Append {
                return Err(Failure::request(format!("Library {name} already exists")));
            }
        }
        restored.values().try_for_each(|library| add(all, library))
    })?;
    out.ok();
    Ok(())
}

/// Executes `FUNCTION STATS`.
fn stats(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let all = libraries::all(s)?;
    out.map(2);
    out.bulk(b"running_script");
    // Copy the data for the reply, because writing the reply may wait for the client while other
    // threads wait for the list of running scripts.
    let running = s.shared.scripts.show_call(|call| {
        (call.name.clone(), call.command.arguments().to_request(), call.begun.elapsed())
    });
    match running {
        None => out.null(),
        Some((name, command, time)) => {
            out.map(3);
            out.bulk(b"name");
            out.bulk(name.as_bytes());
            out.bulk(b"command");
            let words = command.arguments();
            out.array(words.len());
            words.from(0).for_each(|word| out.bulk(word));
            out.bulk(b"duration_ms");
            out.integer(i64::try_from(time.as_millis()).unwrap_or(i64::MAX));
        }
    }
    out.bulk(b"engines");
    out.map(1);
    out.bulk(b"LUA");
    out.map(2);
    out.bulk(b"libraries_count");
    out.integer(all.len() as i64);
    out.bulk(b"functions_count");
    out.integer(all.values().map(|library| library.functions.len() as i64).sum());
    Ok(())
}

/// Executes `FUNCTION KILL`.
fn kill(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    s.shared.scripts.kill(true)?;
    out.ok();
    Ok(())
}

/// Executes `FUNCTION HELP`.
fn help(_: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    out.array(HELP.len());
    HELP.iter().for_each(|line| out.status(line));
    Ok(())
}
