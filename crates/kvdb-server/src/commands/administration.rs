//! Answers to programs that ask about parts of Redis that this server does not have: replicas,
//! modules, users, a cluster. Each says so, and has nothing to change.

use super::{is, unknown_subcommand};
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::Arguments;
use crate::session::Session;

/// Replies with the role of a master without replicas.
pub fn role(_: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    out.array(3);
    out.bulk(b"master");
    out.integer(0);
    out.array(0);
    Ok(())
}

/// `MODULE LIST`
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

pub const ACL_USAGE: &str = "WHOAMI | USERS | LIST | GETUSER default";

/// `ACL`: there is one user, who may do everything.
pub fn acl(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, 2) if is(c, "whoami") => out.bulk(b"default"),
        (c, 2) if is(c, "users") => {
            out.array(1);
            out.bulk(b"default");
        }
        (c, 2) if is(c, "list") => {
            out.array(1);
            let password = if s.shared.password.is_none() { "nopass" } else { "#" };
            out.bulk(format!("user default on {password} ~* &* +@all").as_bytes());
        }
        (c, 3) if is(c, "getuser") => get_user(s, args.at(2), out),
        (c, 3..) if is(c, "setuser") || is(c, "deluser") => {
            return Err(Failure::request("there are no users here except 'default'"));
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
    let open = s.shared.password.is_none();
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

/// `CLUSTER`, `READONLY`, `READWRITE`, `ASKING`
pub fn cluster(_: &mut Session, _: Arguments<'_>, _: &mut Output) -> Outcome {
    Err(Failure::request("This instance has cluster support disabled"))
}

/// The error of a client that wants to become a replica.
pub const NO_REPLICAS: Failure = Failure::Request(std::borrow::Cow::Borrowed(
    "the store cannot be copied as an RDB file or followed by a replica: use SNAPSHOT SEND, or `kvfs send`",
));

/// `REPLCONF`: a client that announces itself as a replica goes on with `SYNC`, which is another
/// command here. It must not take the reply to that for the length of a file.
pub fn replconf(s: &mut Session, _: Arguments<'_>, _: &mut Output) -> Outcome {
    s.is_replica = true;
    Err(NO_REPLICAS)
}

pub fn psync(_: &mut Session, _: Arguments<'_>, _: &mut Output) -> Outcome {
    Err(NO_REPLICAS)
}

/// `REPLICAOF`, `SLAVEOF`: this server is a master already.
pub fn replicaof(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    if !is(args.at(1), "no") || !is(args.at(2), "one") {
        return Err(Failure::request("the store cannot become a replica of another server"));
    }
    out.ok();
    Ok(())
}
