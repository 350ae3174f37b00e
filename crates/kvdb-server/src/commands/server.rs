//! Commands on the server: its properties, its statistics, and syncing.

use std::fmt::Write;
use std::sync::atomic::Ordering::Relaxed;

use super::is;
use crate::channels::By;
use crate::dictionaries;
use crate::failure::{Failure, Outcome};
use crate::keyspace::types_name;
use crate::output::Output;
use crate::request::{Arguments, integer};
use crate::session::Session;

/// The version of Redis whose commands and errors this server follows, for clients that ask.
pub const REDIS_VERSION: &str = "7.0.15";

/// Returns the resident memory of the process, bytes, as the system counts it.
fn resident_bytes() -> u64 {
    let text = std::fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kib = line.and_then(|line| line.trim().strip_suffix(" kB")?.parse::<u64>().ok());
    kib.unwrap_or(0) * 1024
}

/// Replies after everything acknowledged before this command is on disk.
pub fn sync(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    s.shared.transactions.sync()?;
    out.ok();
    Ok(())
}

/// Replies with 0, since there are no replicas.
pub fn wait(_: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    integer(args.at(1)).and(integer(args.at(2))).ok_or(Failure::NOT_AN_INTEGER)?;
    out.integer(0);
    Ok(())
}

/// `WAITAOF local replicas timeout`, Redis' equivalent of `SYNC`.
pub fn waitaof(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    integer(args.at(1))
        .and(integer(args.at(2)))
        .and(integer(args.at(3)))
        .ok_or(Failure::NOT_AN_INTEGER)?;
    out.will_wait();
    s.shared.transactions.sync()?;
    out.array(2);
    out.integer(1);
    out.integer(0);
    Ok(())
}

/// Replies with the time of the clock that decides about expiry.
pub fn time(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let now = s.db().wall_clock();
    out.array(2);
    out.bulk(now.as_secs().to_string().as_bytes());
    out.bulk(now.subsec_micros().to_string().as_bytes());
    Ok(())
}

/// Replies with the counters of the server and the owner's statistics, as one JSON object:
/// `{"server": …, "store": …}`.
pub fn stat(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let store = s.shared.info.as_ref().map_or_else(|| "null".into(), |info| info());
    out.bulk(format!("{{\"server\":{},\"store\":{store}}}", s.shared.metrics.json()).as_bytes());
    Ok(())
}

/// `KVFS.CHECK`: lets the owner of the store check its data, and replies with the faults and the
/// amount of data checked, as JSON.
pub fn check(s: &mut Session, _: Arguments<'_>, out: &mut Output) -> Outcome {
    let nothing = || Failure::request("there are no files in this store that could be checked");
    let check = s.shared.check.clone().ok_or_else(nothing)?;
    out.bulk(check()?.as_bytes());
    Ok(())
}

/// `KVFS.PUSH address`: publishes the store to object storage, and replies with statistics as JSON
/// when it is done. The address may name a place on this machine, so a client on the network may
/// not use this command to create files.
pub fn push(s: &mut Session, args: Arguments<'_>, out: &mut Output) -> Outcome {
    out.will_wait();
    let nothing = || Failure::request("this server publishes nothing");
    let publish = s.shared.publish.clone().ok_or_else(nothing)?;
    if s.needs_password {
        return Err(Failure::request("a store is published over its Unix socket alone"));
    }
    let address = str::from_utf8(args.at(1));
    let address = address.map_err(|_| Failure::request("an address is UTF-8"))?;
    out.bulk(publish(address).map_err(Failure::request)?.as_bytes());
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
            "redis_version:{REDIS_VERSION}\r\nkvfs_version:{}\r\nredis_mode:standalone\r\narch_bits:64\r\nprocess_id:{}\r\nuptime_in_seconds:{}\r\nuptime_in_days:{}\r\nunixsocket:{}\r\ntcp_address:{}\r\n",
            env!("CARGO_PKG_VERSION"),
            std::process::id(),
            m.started.elapsed().as_secs(),
            m.started.elapsed().as_secs() / 86_400,
            s.shared.socket,
            s.shared.tcp.map(|a| a.to_string()).unwrap_or_default(),
        );
    });
    section("clients", &|t| {
        let _ = write!(
            t,
            "connected_clients:{}\r\nmaxclients:{}\r\nblocked_clients:{}\r\npubsub_clients:{}\r\ntracking_clients:0\r\n",
            m.connected.load(Relaxed),
            s.shared.limits.connections,
            s.shared.waiters.count(),
            s.shared.clients.all().iter().filter(|client| client.listens()).count(),
        );
    });
    section("memory", &|t| {
        // There is no `maxmemory`: only replies and requests are counted, and the store has a bound
        // of its own.
        let _ = write!(
            t,
            "used_memory:{}\r\nnumber_of_cached_scripts:{}\r\nmaxmemory:0\r\nmaxmemory_policy:noeviction\r\n",
            resident_bytes(),
            s.shared.scripts.count()
        );
    });
    section("persistence", &|t| {
        let _ = write!(
            t,
            "loading:0\r\nrdb_bgsave_in_progress:0\r\nrdb_last_bgsave_status:ok\r\naof_enabled:1\r\naof_last_write_status:{}\r\n",
            if s.shared.db.takes_writes().is_ok() { "ok" } else { "err" }
        );
    });
    section("replication", &|t| {
        let _ = write!(t, "role:master\r\nconnected_slaves:0\r\n");
    });
    section("stats", &|t| {
        let _ = write!(
            t,
            "total_connections_received:{}\r\nrejected_connections:{}\r\ntotal_commands_processed:{}\r\nunknown_commands:{}\r\n\
             protocol_errors:{}\r\ntotal_net_input_bytes:{}\r\ntotal_net_output_bytes:{}\r\nexpired_keys:{}\r\nevicted_keys:0\r\n\
             pubsub_channels:{}\r\npubsub_patterns:{}\r\npubsubshard_channels:{}\r\nevents_dropped:{}\r\n",
            m.accepted.load(Relaxed),
            m.rejected.load(Relaxed),
            m.commands.load(Relaxed),
            m.unknown.load(Relaxed),
            m.protocol_errors.load(Relaxed),
            m.bytes_in.load(Relaxed),
            m.bytes_out.load(Relaxed),
            m.expired.load(Relaxed),
            s.shared.channels.count(By::Channel),
            s.shared.channels.count(By::Pattern),
            s.shared.channels.count(By::Shard),
            m.effects_dropped.load(Relaxed),
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
    section("errorstats", &|t| {
        for (code, count) in m.errors() {
            let _ = write!(t, "errorstat_{code}:count={count}\r\n");
        }
    });
    section("keyspace", &|t| {
        for (name, id) in dictionaries::listed(&s.shared.db) {
            let _ = write!(t, "dictionary_{}:{name}\r\n", id.0);
            if !name.bytes().all(|c| c.is_ascii_digit()) {
                continue;
            }
            // These are estimates, which read no tuples.
            let view = s.shared.db.view();
            let strings = view.estimate::<&[u8]>(id, ..).map_or(0, |e| e.items);
            let types = s.shared.db.dictionary(&types_name(&name));
            let beside = |from: &[u8], to: &[u8]| {
                types.and_then(|types| view.estimate(types, from..to).ok()).map_or(0, |e| e.items)
            };
            let (heads, expire) = (beside(b"k", b"l"), beside(b"t", b"u"));
            let keys = strings + heads.saturating_sub(expire);
            let _ = write!(t, "db{name}:keys={keys},expires={expire},avg_ttl=0\r\n");
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
