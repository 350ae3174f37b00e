//! Commands that act on the connection itself: authentication, protocol, dictionary.

use super::{client, is, monitor, tracking, wrong_arity};
use crate::dictionaries::Selected;
use crate::error_code::ErrorCode;
use crate::failure::{Failure, Outcome};
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::{Replies, Session};

const WRONGPASS: Failure = Failure::Coded(
    ErrorCode::WrongPassword,
    std::borrow::Cow::Borrowed("invalid username-password pair or user is disabled."),
);

pub fn ping(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match args.len() {
        // A client that expects messages receives the reply in the form of a message.
        1 | 2 if s.is_subscribed() && !out.resp3 => {
            out.array(2);
            out.bulk(b"pong");
            out.bulk(args.get(1).unwrap_or_default());
        }
        1 => out.status("PONG"),
        2 => out.bulk(args.at(1)),
        _ => return Err(wrong_arity("ping")),
    }
    Ok(())
}

pub fn echo(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.bulk(args.at(1));
    Ok(())
}

pub fn quit(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    s.closing = true;
    out.ok();
    Ok(())
}

pub fn reset(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    s.leave();
    s.multi.discard();
    s.let_go();
    s.unsubscribe_all();
    monitor::end(s);
    tracking::end(s);
    while s.connection.mailbox.next().is_some() {}
    s.file_work = Default::default();
    if s.replies == Replies::Off {
        out.unmute();
    }
    s.replies = Replies::On;
    s.dictionary = Selected::default();
    s.durable = s.shared.access.is_durable();
    s.identity.reset();
    out.resp3 = false;
    out.status("RESET");
    Ok(())
}

pub fn auth(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match args.len() {
        2 if !s.shared.access.password().is_set() => {
            return Err(Failure::request(
                "AUTH <password> called without any password configured for the default user. Are you sure your configuration is correct?",
            ));
        }
        2 => authenticate(s, b"default", args.at(1))?,
        3 => authenticate(s, args.at(1), args.at(2))?,
        _ => return Err(Failure::SYNTAX),
    }
    out.ok();
    Ok(())
}

fn authenticate(s: &mut Session, user: &[u8], password: &[u8]) -> Outcome {
    if user != b"default" || !s.shared.access.password().is(password) {
        return Err(WRONGPASS);
    }
    s.identity.authenticate();
    Ok(())
}

/// Executes `HELLO [2|3 [AUTH user password] [SETNAME name]]`.
pub fn hello(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let mut resp3 = out.resp3;
    if let Some(version) = args.get(1) {
        resp3 = match integer(version)
            .ok_or(Failure::request("Protocol version is not an integer or out of range"))?
        {
            2 => false,
            3 => true,
            _ => return Err(Failure::coded(ErrorCode::NoProtocol, "unsupported protocol version")),
        };
    }
    let mut options = args.from(2);
    let mut name = None;
    while let Some(option) = options.next() {
        match option {
            o if is(o, "auth") && options.len() >= 2 => {
                let (user, password) =
                    (options.next().unwrap_or_default(), options.next().unwrap_or_default());
                authenticate(s, user, password)?;
            }
            o if is(o, "setname") && options.len() >= 1 => name = options.next(),
            o => {
                return Err(Failure::request(format!(
                    "Syntax error in HELLO option '{}'",
                    String::from_utf8_lossy(o)
                )));
            }
        }
    }
    if !s.identity.is_authenticated() {
        return Err(Failure::coded(
            ErrorCode::NoAuth,
            "HELLO must be called with the client already authenticated, otherwise the HELLO <proto> AUTH <user> <pass> option can \
             be used to authenticate the client and select the RESP protocol version at the same time",
        ));
    }
    if let Some(name) = name {
        s.identity.set_name(client::name(name)?);
    }
    out.resp3 = resp3;
    out.map(7);
    out.bulk(b"server");
    out.bulk(b"kvfs");
    out.bulk(b"version");
    out.bulk(env!("CARGO_PKG_VERSION").as_bytes());
    out.bulk(b"proto");
    out.integer(if resp3 { 3 } else { 2 });
    out.bulk(b"id");
    out.integer(s.id as i64);
    out.bulk(b"mode");
    out.bulk(b"standalone");
    out.bulk(b"role");
    out.bulk(b"master");
    out.bulk(b"modules");
    out.array(0);
    Ok(())
}

/// `SELECT n`: selects the dictionary named by the number.
pub fn select(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    s.dictionary = numbered(s, args.at(1))?;
    out.ok();
    Ok(())
}

/// Returns the dictionary named by a number.
pub fn numbered(s: &Session, number: &[u8]) -> Result<Selected, Failure> {
    let n = integer(number).ok_or(Failure::NOT_AN_INTEGER)?;
    if !(0..=i64::from(i32::MAX)).contains(&n) {
        return Err(Failure::request("DB index is out of range"));
    }
    Selected::choose(s.db(), n.to_string().as_bytes())
}

/// Executes `USE name`.
pub fn choose(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    s.dictionary = Selected::choose(s.db(), args.at(1))?;
    out.ok();
    Ok(())
}

pub fn dicts(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let all = s.dictionaries();
    out.array(all.len());
    for (name, _) in all {
        out.bulk(name.as_bytes());
    }
    Ok(())
}

/// `DURABLE [yes|no]`: sets or returns whether each write of this connection is on disk before
/// its reply.
pub fn durable(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match args.get(1) {
        None => out.bulk(if s.durable { b"yes" } else { b"no" }),
        Some(value) if args.len() == 2 => {
            s.durable = yes(value)?;
            out.ok();
        }
        Some(_) => return Err(wrong_arity("durable")),
    }
    Ok(())
}

pub fn yes(value: &[u8]) -> Result<bool, Failure> {
    match value {
        v if is(v, "yes") => Ok(true),
        v if is(v, "no") => Ok(false),
        _ => Err(Failure::request("argument must be 'yes' or 'no'")),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use kvdb::Kvdb;

    use super::*;
    use crate::commands;
    use crate::files::{FileResult, Imported, Importing, Walking};
    use crate::limits::Limits;
    use crate::request::Request;
    use crate::session::Shared;

    struct Files;
    impl Importing for Files {
        fn add(&mut self, _: &[u8]) -> FileResult<()> {
            Ok(())
        }
        fn finish(self: Box<Self>) -> FileResult<Imported> {
            Ok(Imported::default())
        }
    }
    impl Walking for Files {
        fn next(&mut self) -> FileResult<Vec<u8>> {
            Ok(Vec::new())
        }
    }

    #[test]
    fn a_reset_leaves_nothing_under_way() {
        let (db, limits, metrics) = (Kvdb::in_memory(), Limits::default(), commands::metrics());
        let shared = Arc::new(Shared::new(db.clone(), limits, None, false, metrics));
        let mut out = Output::scratch(db, 1 << 20, shared.memory.whole_replies().clone());
        let mut session = Session::new(shared, "test".into(), false, None);
        session.file_work.begin_import(Box::new(Files));
        session.file_work.begin_walk(Box::new(Files));
        reset(&mut session, Request::of(&[b"RESET"]).arguments(), &mut out).expect("done");
        assert!(!session.file_work.is_importing() && !session.file_work.is_walking());
        assert_eq!(out.take(), b"+RESET\r\n");
    }
}
