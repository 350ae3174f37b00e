//! Commands on the server: what it is, what it did, and that it syncs.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;
use std::time::{SystemTime, UNIX_EPOCH};

use super::connection::yes;
use super::{COMMANDS, Command, find, is};
use crate::dictionaries;
use crate::failure::{Failure, Outcome};
use crate::glob;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// Everything acknowledged before this is on disk when the reply leaves.
pub fn sync(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    s.shared.transactions.sync()?;
    out.ok();
    Ok(())
}

/// There are no replicas.
pub fn wait(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    integer(args.at(1)).and(integer(args.at(2))).ok_or(Failure::NOT_AN_INTEGER)?;
    out.integer(0);
    Ok(())
}

/// `WAITAOF local replicas timeout`, Redis's way to ask for what `SYNC` does.
pub fn waitaof(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    integer(args.at(1))
        .and(integer(args.at(2)))
        .and(integer(args.at(3)))
        .ok_or(Failure::NOT_AN_INTEGER)?;
    s.shared.transactions.sync()?;
    out.array(2);
    out.integer(1);
    out.integer(0);
    Ok(())
}

pub fn time(_: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    out.array(2);
    out.bulk(now.as_secs().to_string().as_bytes());
    out.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// The counters of the server and what the owner of the store knows, as one JSON object:
/// `{"server": …, "store": …}`.
pub fn stat(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let store = s.shared.info.as_ref().map_or_else(|| "null".into(), |info| info());
    out.bulk(format!("{{\"server\":{},\"store\":{store}}}", s.shared.metrics.json()).as_bytes());
    Ok(())
}

pub fn info(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let all = args.len() == 1
        || args.from(1).any(|a| is(a, "all") || is(a, "everything") || is(a, "default"));
    let wanted = |name: &str| all || args.from(1).any(|a| is(a, name));
    let m = &s.shared.metrics;
    let mut text = String::new();
    let mut section = |name: &str, body: &dyn Fn(&mut String)| {
        if wanted(name) {
            let separator = if text.is_empty() { "" } else { "\r\n" };
            let (first, rest) = name.split_at(1);
            let _ = write!(text, "{separator}# {}{rest}\r\n", first.to_ascii_uppercase());
            body(&mut text);
        }
    };
    section("server", &|t| {
        let _ = write!(
            t,
            "kvfs_version:{}\r\nredis_mode:standalone\r\nprocess_id:{}\r\nuptime_in_seconds:{}\r\nunixsocket:{}\r\ntcp_address:{}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            m.started.elapsed().as_secs(),
            s.shared.socket,
            s.shared.tcp.map(|a| a.to_string()).unwrap_or_default(),
        );
    });
    section("clients", &|t| {
        let _ = write!(
            t,
            "connected_clients:{}\r\nmaxclients:{}\r\n",
            m.connected.load(Relaxed),
            s.shared.limits.connections
        );
    });
    section("stats", &|t| {
        let _ = write!(
            t,
            "total_connections_received:{}\r\nrejected_connections:{}\r\ntotal_commands_processed:{}\r\nunknown_commands:{}\r\n\
             protocol_errors:{}\r\ntotal_net_input_bytes:{}\r\ntotal_net_output_bytes:{}\r\n",
            m.accepted.load(Relaxed),
            m.rejected.load(Relaxed),
            m.commands.load(Relaxed),
            m.unknown.load(Relaxed),
            m.protocol_errors.load(Relaxed),
            m.bytes_in.load(Relaxed),
            m.bytes_out.load(Relaxed),
        );
    });
    section("commandstats", &|t| {
        for (name, calls, failed, micros) in m.called() {
            let each = micros as f64 / calls as f64;
            let _ = write!(
                t,
                "cmdstat_{name}:calls={calls},usec={micros},usec_per_call={each:.2},failed_calls={failed}\r\n"
            );
        }
    });
    section("keyspace", &|t| {
        for (name, id) in dictionaries::listed(&s.shared.db) {
            let _ = write!(t, "dictionary_{}:{name}\r\n", id.0);
        }
    });
    section("store", &|t| {
        let space = s.shared.db.space();
        let _ = write!(t, "bytes_total:{}\r\nbytes_free:{}\r\n", space.total, space.free);
        if let Some(info) = &s.shared.info {
            let _ = write!(t, "json:{}\r\n", info().replace(['\r', '\n'], " "));
        }
    });
    out.verbatim(&text);
    Ok(())
}

pub fn config(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    match args.at(1) {
        c if is(c, "get") && args.len() > 2 => {
            let limits = &s.shared.limits;
            let known = [
                ("appendonly", "yes".to_string()),
                ("databases", i32::MAX.to_string()),
                ("durable", if s.durable { "yes" } else { "no" }.to_string()),
                ("maxclients", limits.connections.to_string()),
                ("maxmemory", "0".to_string()),
                ("proto-max-bulk-len", limits.value.to_string()),
                ("save", String::new()),
                ("unixsocket", s.shared.socket.clone()),
            ];
            let lower: Vec<Vec<u8>> = args.from(2).map(<[u8]>::to_ascii_lowercase).collect();
            let found: Vec<_> = known
                .iter()
                .filter(|(name, _)| lower.iter().any(|p| glob::matches(p, name.as_bytes())))
                .collect();
            out.map(found.len());
            for (name, value) in found {
                out.bulk(name.as_bytes());
                out.bulk(value.as_bytes());
            }
        }
        c if is(c, "set") && args.len() > 2 => {
            if args.len() != 4 || !is(args.at(2), "durable") {
                let name = String::from_utf8_lossy(args.at(2)).into_owned();
                return Err(Failure::request(format!(
                    "Unknown option or number of arguments for CONFIG SET - '{name}'"
                )));
            }
            s.durable = yes(args.at(3))?;
            out.ok();
        }
        c if is(c, "resetstat") && args.len() == 2 => {
            s.shared.metrics.reset();
            out.ok();
        }
        c => {
            let c = String::from_utf8_lossy(&c[..c.len().min(64)]).into_owned();
            return Err(Failure::request(format!(
                "unknown subcommand or wrong number of arguments for '{c}'. Try CONFIG GET *."
            )));
        }
    }
    Ok(())
}

pub fn command(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    let named = || args.from(2).map(|name| find(name).map(|i| &COMMANDS[i]));
    match args.get(1) {
        None => {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|c| describe(c, out));
        }
        Some(c) if is(c, "count") && args.len() == 2 => out.integer(COMMANDS.len() as i64),
        Some(c) if is(c, "list") && args.len() == 2 => {
            out.array(COMMANDS.len());
            COMMANDS.iter().for_each(|c| out.bulk(c.name.as_bytes()));
        }
        Some(c) if is(c, "info") => {
            let all = args.len() == 2;
            out.array(if all { COMMANDS.len() } else { args.len() - 2 });
            if all {
                COMMANDS.iter().for_each(|c| describe(c, out));
            }
            for found in named() {
                match found {
                    Some(c) => describe(c, out),
                    None => out.null(),
                }
            }
        }
        Some(c) if is(c, "docs") => {
            let found: Vec<&Command> = if args.len() == 2 {
                COMMANDS.iter().collect()
            } else {
                named().flatten().collect()
            };
            out.map(found.len());
            for c in found {
                out.bulk(c.name.as_bytes());
                out.map(if c.usage.is_empty() { 2 } else { 3 });
                out.bulk(b"summary");
                out.bulk(format!("{} {}", c.name, c.usage).trim_end().as_bytes());
                out.bulk(b"group");
                out.bulk(if c.keys == (0, 0, 0) { b"server" } else { b"string" });
                if !c.usage.is_empty() {
                    // As one argument: clients show it as a hint.
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
        }
        Some(c) => {
            let c = String::from_utf8_lossy(&c[..c.len().min(64)]).into_owned();
            return Err(Failure::request(format!(
                "unknown subcommand or wrong number of arguments for '{c}'. Try COMMAND COUNT."
            )));
        }
    }
    Ok(())
}

fn describe(c: &Command, out: &mut Output) {
    out.array(6);
    out.bulk(c.name.as_bytes());
    out.integer(i64::from(c.arity));
    let flags: &[&str] = match (c.writes, c.keys == (0, 0, 0), c.open) {
        (true, ..) => &["write"],
        (_, false, _) => &["readonly"],
        (_, _, true) => &["fast", "no_auth"],
        _ => &["admin"],
    };
    out.set(flags.len());
    flags.iter().for_each(|flag| out.status(flag));
    for n in [c.keys.0, c.keys.1, c.keys.2] {
        out.integer(i64::from(n));
    }
}
