//! `CONFIG`: reads the settings, and changes those that may be changed while the server runs.

use super::connection::yes;
use super::{is, keys, unknown_subcommand};
use crate::failure::{Failure, Outcome};
use crate::names::Compared;
use crate::notifications::Classes;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

pub const USAGE: &str = "GET pattern ... | SET setting value ... | RESETSTAT";

/// Upper bound of the time limit of scripts, in milliseconds.
const MOST_TIME: i64 = 3_600_000;
/// Upper bound of the number of connections.
const MOST_CONNECTIONS: i64 = 1_000_000;
/// The largest length of a password, in bytes. A client that is not authenticated may send only
/// little data.
const LONGEST_PASSWORD: usize = 512;
/// Upper bound of the number of entries in the slow log.
const MOST_SLOW: i64 = 10_000;
/// Upper bound of the time after which idle clients are disconnected, in seconds.
const MOST_IDLE: i64 = i32::MAX as i64;

pub fn config(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match (args.at(1), args.len()) {
        (c, 3..) if is(c, "get") => {
            let known = known(s);
            let lower: Vec<Vec<u8>> = args.from(2).map(<[u8]>::to_ascii_lowercase).collect();
            let (mut found, mut compared) = (Vec::new(), Compared::default());
            for (name, value) in &known {
                for pattern in &lower {
                    if compared.matches(pattern, name.as_bytes())? {
                        found.push((name, value));
                        break;
                    }
                }
            }
            out.map(found.len());
            for (name, value) in found {
                out.bulk(name.as_bytes());
                out.bulk(value.as_bytes());
            }
        }
        (c, 4..) if is(c, "set") && args.len().is_multiple_of(2) => {
            // If any setting is invalid, none is applied. The system may still refuse a valid
            // one.
            let mut settings = Vec::with_capacity(args.len() / 2 - 1);
            for (name, value) in args.from(2).step_by(2).zip(args.from(3).step_by(2)) {
                settings.push(Setting::parse(s, name, value)?);
            }
            settings.into_iter().try_for_each(|setting| setting.make(s))?;
            out.ok();
        }
        (c, 2) if is(c, "resetstat") => {
            s.shared.metrics.reset();
            out.ok();
        }
        (c, 2) if is(c, "rewrite") => {
            return Err(Failure::request("The server is running without a config file"));
        }
        (c, 2) if is(c, "help") => {
            out.array(1);
            out.status(&format!("CONFIG {USAGE}"));
        }
        _ => return Err(unknown_subcommand(args, "CONFIG")),
    }
    Ok(())
}

fn known(s: &Session) -> Vec<(&'static str, String)> {
    let (limits, scripts) = (&s.shared.limits, s.shared.scripts.time().as_millis().to_string());
    let idle = s.shared.access.idle_limit().map_or(0, |limit| limit.as_secs());
    let mut all = vec![
        ("appendonly", "yes".to_string()),
        ("busy-reply-threshold", scripts.clone()),
        (
            "client-output-buffer-limit",
            format!("normal 0 0 0 slave 0 0 0 pubsub {} 0 0", limits.mailbox),
        ),
        ("databases", i32::MAX.to_string()),
        ("durable", if s.durable { "yes" } else { "no" }.to_string()),
        ("hash-max-listpack-entries", keys::LISTPACK.to_string()),
        ("lua-time-limit", scripts),
        ("maxclients", s.shared.access.most_connections().to_string()),
        ("maxmemory", "0".to_string()),
        ("maxmemory-policy", "noeviction".to_string()),
        ("notify-keyspace-events", s.shared.notifications.wanted().shown()),
        ("proto-max-bulk-len", limits.argument.to_string()),
        ("save", String::new()),
        ("set-max-intset-entries", keys::INTSET.to_string()),
        ("set-max-listpack-entries", keys::LISTPACK.to_string()),
        ("slowlog-log-slower-than", s.shared.slow_log.slower_than().to_string()),
        ("slowlog-max-len", s.shared.slow_log.most().to_string()),
        ("timeout", idle.to_string()),
        ("unixsocket", s.shared.access.socket().to_owned()),
        ("zset-max-listpack-entries", keys::LISTPACK.to_string()),
    ];
    match s.shared.access.password().told() {
        None => all.push(("requirepass", String::new())),
        Some(password) if s.identity.needs_password() => all.push(("requirepass", password)),
        // A client that needed no password must not read it.
        Some(_) => {}
    }
    all
}

/// Parses a new password. An empty word removes the password.
fn password(s: &Session, word: &[u8]) -> Result<Option<String>, Failure> {
    let wrong = |why: &str| {
        let what = "CONFIG SET failed (possibly related to argument 'requirepass')";
        Failure::request(format!("{what} - {why}"))
    };
    let word = std::str::from_utf8(word).map_err(|_| wrong("a password is UTF-8"))?;
    if word.is_empty() && s.shared.access.tcp().is_some() {
        return Err(wrong("a server on the network needs a password"));
    }
    if word.len() > LONGEST_PASSWORD {
        return Err(wrong("a password has 512 bytes at most"));
    }
    Ok(Some(word.to_owned()).filter(|word| !word.is_empty()))
}

/// A setting to be changed.
enum Setting {
    Durable(bool),
    ScriptTime(u64),
    Notifications(Classes),
    SlowerThan(i64),
    SlowLog(usize),
    Connections(usize),
    IdleLimit(u64),
    Password(Option<String>),
    /// An unchangeable parameter is set to its present value, which succeeds.
    Same,
}

impl Setting {
    fn parse(s: &Session, name: &[u8], value: &[u8]) -> Result<Setting, Failure> {
        let within = |least: i64, most: i64| {
            integer(value).filter(|n| (least..=most).contains(n)).ok_or_else(|| {
                Failure::request(format!("argument must be between {least} and {most} inclusive"))
            })
        };
        Ok(match name {
            o if is(o, "durable") => Setting::Durable(yes(value)?),
            o if is(o, "lua-time-limit") || is(o, "busy-reply-threshold") => {
                Setting::ScriptTime(within(1, MOST_TIME)?.unsigned_abs())
            }
            o if is(o, "notify-keyspace-events") => {
                let wrong = "CONFIG SET failed - argument 'notify-keyspace-events': a letter of it means no class of events";
                Setting::Notifications(Classes::parse(value).ok_or(Failure::request(wrong))?)
            }
            o if is(o, "slowlog-log-slower-than") => Setting::SlowerThan(within(-1, i64::MAX)?),
            o if is(o, "maxclients") => Setting::Connections(within(1, MOST_CONNECTIONS)? as usize),
            o if is(o, "timeout") => Setting::IdleLimit(within(0, MOST_IDLE)?.unsigned_abs()),
            o if is(o, "requirepass") => Setting::Password(password(s, value)?),
            o if is(o, "slowlog-max-len") => Setting::SlowLog(within(0, MOST_SLOW)? as usize),
            o => {
                let fixed = known(s).into_iter().find(|(name, _)| is(o, name));
                if fixed.as_ref().is_some_and(|(_, now)| is(value, now)) {
                    return Ok(Setting::Same);
                }
                if fixed.is_some() {
                    let name = String::from_utf8_lossy(o);
                    return Err(Failure::request(format!(
                        "CONFIG SET failed (possibly related to argument '{name}') - can't set immutable config"
                    )));
                }
                let name = String::from_utf8_lossy(&o[..o.len().min(64)]).into_owned();
                return Err(Failure::request(format!(
                    "Unknown option or number of arguments for CONFIG SET - '{name}'"
                )));
            }
        })
    }

    fn make(self, s: &mut Session) -> Outcome {
        match self {
            Setting::Durable(durable) => s.durable = durable,
            Setting::ScriptTime(milliseconds) => s.shared.scripts.set_time(milliseconds),
            Setting::Notifications(wanted) => s.shared.notifications.set(wanted),
            Setting::SlowerThan(micros) => s.shared.slow_log.set_slower_than(micros),
            Setting::SlowLog(most) => s.shared.slow_log.set_most(most),
            Setting::Connections(most) => s.shared.access.allow_connections(most).map_err(|possible| {
                Failure::request(format!(
                    "CONFIG SET failed (possibly related to argument 'maxclients') - The operating system is not able to handle the specified number of clients, try with {possible}"
                ))
            })?,
            Setting::IdleLimit(seconds) => s.shared.access.set_idle_limit(seconds),
            Setting::Password(password) => s.shared.access.password().set(password),
            Setting::Same => {}
        }
        Ok(())
    }
}
