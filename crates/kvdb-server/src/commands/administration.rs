//! Replies to programs that ask about features of Redis that this server does not have: replicas,
//! modules, users, a cluster, pictures. Each reply says that the feature is absent, and no
//! command here changes anything.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::Read;

use super::info::REDIS_VERSION;
use super::{COMMANDS, find, is, specs, unknown_subcommand};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// Replies with the role of a master without replicas.
pub fn role(_: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    out.array(3);
    out.bulk(b"master");
    out.integer(0);
    out.array(0);
    Ok(())
}

/// Executes `MODULE LIST`.
pub fn module(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, 2) if is(c, "list") => out.array(0),
        (c, 3..) if is(c, "load") || is(c, "loadex") || is(c, "unload") => {
            return Err(Failure::request("modules of Redis cannot be loaded here"));
        }
        _ => return Err(unknown_subcommand(args, "MODULE")),
    }
    Ok(())
}

/// `LOLWUT`: replies with the version that tools look for in the last line, without the picture.
pub fn lolwut(_: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let own = env!("CARGO_PKG_VERSION");
    out.verbatim(&format!("kvfs {own}, in the words of\nRedis ver. {REDIS_VERSION}\n"));
    Ok(())
}

pub const ACL_USAGE: &str = "WHOAMI | USERS | LIST | GETUSER default | CAT [category] | DRYRUN default command [arg ...] | GENPASS [bits] | LOG [count|RESET]";

/// `ACL`: replies that there is one user, who may do everything.
pub fn acl(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, 2) if is(c, "whoami") => out.bulk(b"default"),
        (c, 2) if is(c, "users") => {
            out.array(1);
            out.bulk(b"default");
        }
        (c, 2) if is(c, "list") => {
            out.array(1);
            let password = if s.shared.access.password().is_set() { "#" } else { "nopass" };
            out.bulk(format!("user default on {password} ~* &* +@all").as_bytes());
        }
        (c, 3) if is(c, "getuser") => get_user(s, args.at(2), out),
        (c, 3..) if is(c, "setuser") || is(c, "deluser") => {
            return Err(Failure::request("there are no users here except 'default'"));
        }
        (c, 2 | 3) if is(c, "cat") => categories(args.get(2), out)?,
        (c, 4..) if is(c, "dryrun") => dry_run(args, out)?,
        (c, 2 | 3) if is(c, "genpass") => password(args.get(2), out)?,
        // Access is denied only for a missing or wrong password, so nothing is logged.
        (c, 2) if is(c, "log") => out.array(0),
        (c, 3) if is(c, "log") && is(args.at(2), "reset") => out.ok(),
        (c, 3) if is(c, "log") && integer(args.at(2)).is_some() => out.array(0),
        (c, 2) if is(c, "load") || is(c, "save") => {
            return Err(Failure::request("there is no file of users here"));
        }
        (c, 2) if is(c, "help") => {
            out.array(1);
            out.status(&format!("ACL {ACL_USAGE}"));
        }
        _ => return Err(unknown_subcommand(args, "ACL")),
    }
    Ok(())
}

fn get_user(s: &Session, name: &[u8], out: &mut Output) {
    if name != b"default" {
        return out.null();
    }
    let open = !s.shared.access.password().is_set();
    out.map(6);
    out.bulk(b"flags");
    out.set(if open { 2 } else { 1 });
    out.bulk(b"on");
    if open {
        out.bulk(b"nopass");
    }
    out.bulk(b"passwords");
    out.array(0);
    for (name, value) in [("commands", "+@all"), ("keys", "~*"), ("channels", "&*")] {
        out.bulk(name.as_bytes());
        out.bulk(value.as_bytes());
    }
    out.bulk(b"selectors");
    out.array(0);
}

/// `ACL CAT [category]`: lists the categories of commands, or the commands of one category.
fn categories(wanted: Option<&[u8]>, out: &mut Output) -> Outcome {
    let all = COMMANDS.iter().map(|command| (command.name, specs::describe(command).categories));
    let found: BTreeSet<&str> = match wanted {
        None => all.flat_map(|(_, categories)| categories).collect(),
        Some(wanted) => {
            let of = |categories: &[&str]| categories.iter().any(|name| is(wanted, name));
            all.filter(|(_, categories)| of(categories)).map(|(name, _)| name).collect()
        }
    };
    if let (Some(wanted), true) = (wanted, found.is_empty()) {
        let name = String::from_utf8_lossy(&wanted[..wanted.len().min(64)]).into_owned();
        return Err(Failure::request(format!("Unknown category '{name}'")));
    }
    out.array(found.len());
    found.into_iter().for_each(|name| out.bulk(name.as_bytes()));
    Ok(())
}

/// `ACL DRYRUN user command [argument ...]`: replies that the user may call each command.
fn dry_run(args: Arguments<'_>, out: &mut Output) -> Outcome {
    let shown = |word: &[u8]| String::from_utf8_lossy(&word[..word.len().min(64)]).into_owned();
    if args.at(2) != b"default" {
        return Err(Failure::request(format!("User '{}' not found", shown(args.at(2)))));
    }
    let Some(command) = find(args.at(3)).map(|index| &COMMANDS[index]) else {
        return Err(Failure::request(format!("Command '{}' not found", shown(args.at(3)))));
    };
    let (given, wanted) = (args.len() - 3, command.arity.unsigned_abs() as usize);
    if given < wanted || command.arity > 0 && given != wanted {
        return Err(super::wrong_arity(command.name));
    }
    out.ok();
    Ok(())
}

/// `ACL GENPASS [bits]`: replies with random hexadecimal digits of at least `bits` bits.
fn password(bits: Option<&[u8]>, out: &mut Output) -> Outcome {
    let bits = bits.map_or(Some(256), integer).filter(|bits| (1..=4096).contains(bits));
    let bits = bits.ok_or(Failure::request(
        "ACL GENPASS argument must be the number of bits for the output password, a positive number up to 4096",
    ))?;
    let mut bytes = vec![0; (bits as usize).div_ceil(8)];
    File::open("/dev/urandom")
        .and_then(|mut random| random.read_exact(&mut bytes))
        .map_err(|error| Failure::Io(format!("there is nothing random: {error}")))?;
    let digits: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
    out.bulk(&digits.as_bytes()[..(bits as usize).div_ceil(4)]);
    Ok(())
}

/// Executes `CLUSTER`, `READONLY`, `READWRITE`, `ASKING`.
pub fn cluster(_: &mut Session, _: Arguments<'_>, _: &mut Output) -> Outcome {
    Err(Failure::request("This instance has cluster support disabled"))
}

/// The error for a client that wants to become a replica.
pub const NO_REPLICAS: Failure = Failure::Request(std::borrow::Cow::Borrowed(
    "the store cannot be copied as an RDB file or followed by a replica: use SNAPSHOT SEND, or `kvfs send`",
));

/// `REPLCONF`: returns an error. A client that announces itself as a replica continues with
/// `SYNC`, which is a different command in this server. The client must not take the reply to
/// `SYNC` for the length of a file.
pub fn replconf(s: &mut Session, _: Arguments<'_>, _: &mut Output) -> Outcome {
    s.identity.announce_replica();
    Err(NO_REPLICAS)
}

pub fn psync(_: &mut Session, _: Arguments<'_>, _: &mut Output) -> Outcome {
    Err(NO_REPLICAS)
}

/// `REPLICAOF`, `SLAVEOF`: accepts only `NO ONE`, because this server is already a master.
pub fn replicaof(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if !is(args.at(1), "no") || !is(args.at(2), "one") {
        return Err(Failure::request("the store cannot become a replica of another server"));
    }
    out.ok();
    Ok(())
}
