//! The descriptions of commands for `COMMAND INFO`: their flags, their categories, tips for
//! clients, and the positions of their keys. There is a description for each command that Redis
//! 7.0 also has, and for the commands for the deadlines of fields in Redis 7.4 and 8
//! (`specs.txt`). A client of a cluster uses them to find keys.
//!
//! A line has the name, the flags, the categories, the tips, the first and the last key with the
//! step between them, and the specifications of keys. The specifications are separated by
//! semicolons. Each has the flags of its keys, the beginning, which is an index or
//! `KEYWORD@index`, and the keys after the beginning. The keys are `last step limit`, or `#` and
//! three numbers: the place of the number of keys, the place of the first key, and the step. `?`
//! stands for keys that cannot be described in this way.

use crate::request::{Arguments, integer};

use super::Command;

static SPECS: &str = include_str!("specs.txt");

/// The description of a command.
pub struct Described {
    pub flags: Vec<&'static str>,
    pub categories: Vec<&'static str>,
    pub tips: Vec<&'static str>,
    /// The first and the last key, and the step between keys.
    pub range: [i64; 3],
    pub keys: Vec<Keys>,
}

/// The positions of some keys of a command.
pub struct Keys {
    pub flags: Vec<&'static str>,
    pub begin: Begin,
    pub find: Find,
}

#[derive(Clone, Copy)]
pub enum Begin {
    Index(i64),
    /// The keys begin after a word, which is searched for from an index on. If the index is
    /// negative, it counts from the end, and the search goes backward.
    Keyword(&'static str, i64),
    Unknown,
}

#[derive(Clone, Copy)]
pub enum Find {
    /// The keys extend up to the last one, which counts from the beginning, or from the end if it
    /// is negative. A limit of more than 1 is a divisor: only this part of the arguments are
    /// keys.
    Range {
        last: i64,
        step: i64,
        limit: i64,
    },
    /// The number of keys is an argument. All three positions count from the beginning.
    Number {
        at: i64,
        first: i64,
        step: i64,
    },
    Unknown,
}

/// Returns the description of a command.
pub fn describe(command: &Command) -> Described {
    let line = SPECS.lines().find(|line| {
        let rest = line.strip_prefix(command.name);
        rest.is_some_and(|rest| rest.starts_with('|'))
    });
    line.and_then(read).unwrap_or_else(|| of_own(command))
}

/// Describes a command that only this server has, or a command whose subcommands Redis describes
/// one by one.
fn of_own(command: &Command) -> Described {
    let flags: &[&str] = match (command.writes, command.keys == (0, 0, 0), command.open) {
        (true, ..) => &["write"],
        (_, false, _) => &["readonly"],
        (_, _, true) => &["fast", "no_auth"],
        _ => &["admin"],
    };
    let (first, last, step) = command.keys;
    let (first, last, step) = (i64::from(first), i64::from(last), i64::from(step));
    let of_keys: &[&str] = if command.writes { &["RW", "update"] } else { &["RO", "access"] };
    let keys = (first > 0).then(|| Keys {
        flags: of_keys.to_vec(),
        begin: Begin::Index(first),
        find: Find::Range { last: if last < 0 { last } else { last - first }, step, limit: 0 },
    });
    Described {
        flags: flags.to_vec(),
        categories: Vec::new(),
        tips: Vec::new(),
        range: [first, last, step],
        keys: keys.into_iter().collect(),
    }
}

fn words(text: &'static str) -> Vec<&'static str> {
    text.split_ascii_whitespace().collect()
}

fn numbers<const N: usize>(text: &str) -> Option<[i64; N]> {
    let all: Vec<i64> = text.split(' ').map(|word| word.parse().ok()).collect::<Option<_>>()?;
    all.try_into().ok()
}

/// Parses a line of the table.
fn read(line: &'static str) -> Option<Described> {
    let [_, flags, categories, tips, range, keys] =
        line.split('|').collect::<Vec<_>>().try_into().ok()?;
    let keys = keys.split(';').filter(|keys| !keys.is_empty()).map(read_keys);
    Some(Described {
        flags: words(flags),
        categories: words(categories),
        tips: words(tips),
        range: numbers(range)?,
        keys: keys.collect::<Option<_>>()?,
    })
}

fn read_keys(text: &'static str) -> Option<Keys> {
    let [flags, begin, find] = text.split(':').collect::<Vec<_>>().try_into().ok()?;
    let begin = match begin.split_once('@') {
        Some((word, from)) => Begin::Keyword(word, from.parse().ok()?),
        None if begin == "?" => Begin::Unknown,
        None => Begin::Index(begin.parse().ok()?),
    };
    let find = match find.strip_prefix('#') {
        Some(find) => {
            let [at, first, step] = numbers(find)?;
            Find::Number { at, first, step }
        }
        None if find == "?" => Find::Unknown,
        None => {
            let [last, step, limit] = numbers(find)?;
            Find::Range { last, step, limit }
        }
    };
    Some(Keys { flags: words(flags), begin, find })
}

impl Keys {
    /// Returns the indexes of these keys among the arguments, or `None` if they cannot be
    /// determined.
    fn places(&self, args: Arguments<'_>) -> Option<Vec<usize>> {
        let len = args.len() as i64;
        let begin = match self.begin {
            Begin::Index(at) => at,
            Begin::Keyword(word, from) => {
                let is_it = |at: &i64| {
                    let arg = usize::try_from(*at).ok().and_then(|at| args.get(at));
                    arg.is_some_and(|arg| super::is(arg, word))
                };
                let found = match from {
                    0.. => (from..len).find(is_it),
                    _ => (1..=len + from).rev().find(is_it),
                };
                match found {
                    Some(at) => at + 1,
                    None => return Some(Vec::new()),
                }
            }
            Begin::Unknown => return None,
        };
        let (first, last, step) = match self.find {
            Find::Range { last, step, limit } => {
                let last = match last {
                    0.. => begin + last,
                    _ if limit <= 1 => len + last,
                    _ => begin + (len - begin) / limit + last,
                };
                (begin, last, step)
            }
            Find::Number { at, first, step } => {
                let at = usize::try_from(begin + at).ok()?;
                let count = args.get(at).and_then(integer)?.clamp(0, len);
                (begin + first, begin + first + (count - 1) * step, step)
            }
            Find::Unknown => return None,
        };
        let step = usize::try_from(step).ok().filter(|step| *step > 0)?;
        let places = (first..=last.min(len - 1)).step_by(step);
        places.map(|at| usize::try_from(at).ok()).collect()
    }
}

/// The flags of a key that is read.
const READ: &[&str] = &["RO", "access"];
/// The flags of a key that is overwritten.
const WRITTEN: &[&str] = &["OW", "update"];

/// Returns the flags of the key of `SET` if the command does not return the old value.
pub fn of_set(args: Arguments<'_>) -> Option<&'static [&'static str]> {
    (!args.from(3).any(|arg| super::is(arg, "get"))).then_some(WRITTEN)
}

/// Returns the flags of the key of `BITFIELD` if the command does not change the value.
pub fn of_bitfield(args: Arguments<'_>) -> Option<&'static [&'static str]> {
    (!args.from(2).any(changes)).then_some(READ)
}

/// Returns the keys of a command, each with its flags.
pub fn keys_and_flags<'a>(
    command: &Command,
    args: Arguments<'a>,
) -> Vec<(&'a [u8], Vec<&'static str>)> {
    let described = describe(command);
    let mut found = Vec::new();
    for keys in &described.keys {
        let Some(places) = keys.places(args) else {
            // The second key, if there is one, is the destination.
            let flags = |i: usize| if i == 0 { READ.to_vec() } else { WRITTEN.to_vec() };
            let all = command.keys_of(args).into_iter().enumerate();
            return all.map(|(i, key)| (key, flags(i))).collect();
        };
        let flags = match command.key_flags.and_then(|flags| flags(args)) {
            Some(flags) => flags.to_vec(),
            None => keys.flags.iter().copied().filter(|flag| *flag != "variable_flags").collect(),
        };
        found.extend(places.into_iter().map(|at| (args.at(at), flags.clone())));
    }
    found
}

/// Returns whether an argument of `BITFIELD` is the name of an operation that changes the string.
fn changes(arg: &[u8]) -> bool {
    super::is(arg, "set") || super::is(arg, "incrby")
}

#[cfg(test)]
mod tests {
    use super::super::{COMMANDS, find};
    use super::*;
    use crate::request::Request;

    #[test]
    fn every_line_describes_a_command() {
        for line in SPECS.lines() {
            let described = read(line).unwrap_or_else(|| panic!("{line}"));
            let name = line.split('|').next().unwrap_or_default();
            let command = &COMMANDS[find(name.as_bytes()).unwrap_or_else(|| panic!("{name}"))];
            let writes = described.flags.contains(&"write");
            // Redis does not count these commands as writes, but the commands that they run.
            let runs_others = name == "exec" || name.starts_with("eval") || name == "fcall";
            assert_eq!(writes, command.writes && !runs_others, "{name}");
        }
    }

    #[test]
    fn specifications_find_the_keys_that_commands_lock() {
        let mut compared = 0;
        for request in [
            "get k",
            "set k v",
            "mset a 1 b 2",
            "blpop a b 0",
            "lmove a b left right",
            "zunionstore d 2 a b weights 1 2",
            "lmpop 2 a b left",
            "eval x 2 a b c",
            "fcall f 2 a b c",
            "xread count 1 streams a b 0 0",
            "georadius k 1 1 1 km store d",
            "bitop or d a b",
            "xreadgroup group g c streams a b > >",
            "sintercard 2 a b limit 1",
            "rename a b",
            "blmpop 0 2 a b left",
            "object encoding k",
            "xgroup create k g 0",
            "del a b c",
            "pfmerge a b",
            "pfcount a b",
            "geosearchstore d k frommember m byradius 1 km",
            "sort k limit 0 1 store d",
            "ping",
            "xinfo stream k",
        ] {
            let words: Vec<&[u8]> = request.split(' ').map(str::as_bytes).collect();
            let request_of = Request::of(&words);
            let args = request_of.arguments();
            let command = &COMMANDS[find(words[0]).expect("a command")];
            let found: Vec<&[u8]> =
                keys_and_flags(command, args).into_iter().map(|(key, _)| key).collect();
            assert_eq!(found, command.keys_of(args), "{request}");
            compared += found.len();
        }
        assert!(compared > 30);
    }
}
