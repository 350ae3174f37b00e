//! A few threads serve many connections. Whatever one connection does or fails to do, the others
//! continue.

#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/served/mod.rs"]
mod served;

use std::io::{Read, Write};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::sync::Arc;
use std::time::{Duration, Instant};

use kvdb::Kvdb;
use kvdb_server::{Limits, Reply, ServerOptions};
use rustix::process::{Resource, Rlimit, getrlimit, setrlimit};
use served::{Raw, Served, serve, serve_db, show};
use zones::{MemoryDevice, SlowSyncDevice};

/// More than a server has event loops, so that each loop has some of them.
const MANY: usize = 20;
/// No test waits longer than this for another thread.
const PATIENCE: Duration = Duration::from_secs(30);

/// Returns when `done` says so.
fn await_until(what: &str, mut done: impl FnMut() -> bool) {
    let until = Instant::now() + PATIENCE;
    while !done() {
        assert!(Instant::now() < until, "not within {PATIENCE:?}: {what}");
        std::thread::yield_now();
    }
}

/// A connection whose reads time out.
fn connect(served: &Served) -> Raw {
    let client = served.connect();
    client.0.get_ref().set_read_timeout(Some(PATIENCE)).expect("set");
    client
}

fn many(served: &Served) -> Vec<Raw> {
    (0..MANY).map(|_| connect(served)).collect()
}

/// All requests are answered.
fn all_answer(clients: &mut [Raw]) {
    for (i, client) in clients.iter_mut().enumerate() {
        client.expect(&[
            (&format!("SET answer{i} {i}"), "OK"),
            (&format!("GET answer{i}"), &format!("\"{i}\"")),
        ]);
    }
}

/// A number in `INFO`.
fn info(client: &mut Raw, name: &str) -> u64 {
    client.send(b"INFO\r\n");
    let Ok(Reply::Bulk(text)) = client.reply() else { panic!("INFO is a text") };
    let text = String::from_utf8(text).expect("it is a text");
    let line = text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(':'));
    line.and_then(|number| number.trim().parse().ok()).expect("INFO has it")
}

/// Returns whether a connection has nothing to read now.
fn is_silent(client: &mut Raw) -> bool {
    let stream = client.0.get_mut();
    stream.set_nonblocking(true).expect("set");
    let read = stream.read(&mut [0]);
    stream.set_nonblocking(false).expect("set");
    matches!(read, Err(error) if error.kind() == std::io::ErrorKind::WouldBlock)
}

/// Threads of this process.
fn threads() -> usize {
    std::fs::read_dir("/proc/self/task").expect("there are threads").count()
}

#[test]
fn a_command_that_waits_for_a_lock_holds_up_no_other_connection() {
    let served = serve(ServerOptions::default());
    let mut holder = connect(&served);
    holder.expect(&[("SET k 0", "OK")]);
    let id = holder.run("TXN BEGIN SER").replace("(integer) ", "");
    holder.expect(&[(&format!("TXN JOIN {id}"), "OK"), ("SET k 1", "OK")]);
    // At least one connection for each loop waits, so each loop has a waiting one.
    let mut waiting = many(&served);
    for client in &mut waiting {
        client.send(b"APPEND k x\r\n");
    }
    let mut others = many(&served);
    await_until("all of them have begun", || {
        let list = others[0].run("CLIENT LIST");
        list.matches("cmd=append").count() == MANY
    });
    all_answer(&mut others);
    assert!(waiting.iter_mut().all(is_silent), "one was answered while the lock was held");
    holder.expect(&[("TXN COMMIT", "OK")]);
    for client in &mut waiting {
        let reply = show(&client.reply().expect("a reply"));
        assert!(reply.starts_with("(integer)"), "{reply}");
    }
    assert_eq!(others[0].run("STRLEN k"), format!("(integer) {}", 1 + MANY));
}

#[test]
fn replies_leave_though_the_next_connection_waits() {
    let served = serve(ServerOptions::default());
    let mut holder = connect(&served);
    holder.expect(&[("SET k 0", "OK")]);
    for round in 0..20 {
        let id = holder.run("TXN BEGIN SER").replace("(integer) ", "");
        holder.expect(&[(&format!("TXN JOIN {id}"), "OK"), ("SET k 1", "OK")]);
        // While the first of them is waited for, the others become ready in this order, at once.
        let mut clients: Vec<Raw> = (0..2 * MANY).map(|_| connect(&served)).collect();
        for (i, client) in clients.iter_mut().enumerate() {
            match i % 2 {
                0 => client.send(b"APPEND k x\r\n"),
                _ => client.send(format!("ECHO {i}\r\n").as_bytes()),
            }
        }
        for (i, client) in clients.iter_mut().enumerate().filter(|(i, _)| i % 2 == 1) {
            let reply = show(&client.reply().expect("a reply while the lock is held"));
            assert_eq!(reply, format!("\"{i}\""), "round {round}");
        }
        holder.expect(&[("TXN ABORT", "OK")]);
        for client in clients.iter_mut().step_by(2) {
            let reply = show(&client.reply().expect("a reply"));
            assert!(reply.starts_with("(integer)"), "{reply}");
        }
    }
}

#[test]
fn connections_that_block_hold_up_no_other_one() {
    let served = serve(ServerOptions::default());
    let before = threads();
    let mut blocked: Vec<Raw> = (0..50).map(|_| connect(&served)).collect();
    for client in &mut blocked {
        client.send(b"BLPOP queue 0\r\n");
    }
    let mut others = many(&served);
    await_until("all of them block", || info(&mut others[0], "blocked_clients") == 50);
    all_answer(&mut others);
    for i in 0..50 {
        assert_eq!(others[i % MANY].run(&format!("RPUSH queue {i}")), "(integer) 1");
        // The connection that came first gets the element.
        let got = show(&blocked[i].reply().expect("an element"));
        assert_eq!(got, format!("[\"queue\" \"{i}\"]"));
    }
    all_answer(&mut blocked);
    await_until("their threads have ended", || threads() < before + 20);
}

#[test]
fn a_client_that_takes_no_replies_holds_up_no_other_one() {
    let served = serve(ServerOptions::default());
    let mut others = many(&served);
    assert_eq!(others[0].run("SETRANGE long 99999 x"), "(integer) 100000");
    let long = [&[0; 99_999][..], b"x"].concat();
    let mut slow = many(&served);
    for client in &mut slow {
        client.send(&b"GET long\r\n".repeat(100));
    }
    all_answer(&mut others);
    for client in &mut slow {
        for _ in 0..100 {
            assert_eq!(client.reply().expect("a reply"), Reply::Bulk(long.clone()));
        }
    }
    all_answer(&mut slow);
}

#[test]
fn half_a_command_waits_for_its_other_half_alone() {
    let served = serve(ServerOptions::default());
    let (mut halves, mut others) = (many(&served), many(&served));
    let command = b"*3\r\n$3\r\nSET\r\n$4\r\nhalf\r\n$5\r\nwhole\r\n";
    for at in 0..command.len() {
        let client = &mut halves[at % MANY];
        client.send(&command[..at]);
        assert_eq!(others[at % MANY].run("PING"), "PONG");
        client.send(&command[at..]);
        assert_eq!(show(&client.reply().expect("a reply")), "OK", "cut at {at}");
    }
    // A request that never arrives.
    halves[0].send(&command[..10]);
    halves[0].0.get_mut().shutdown(Shutdown::Write).expect("shut");
    assert!(halves[0].reply().is_err(), "the server closes, too");
    all_answer(&mut others);
}

#[test]
fn a_thousand_idle_connections_take_no_threads() {
    const CLIENTS: usize = 1000;
    // Both ends are in this process.
    let limit = getrlimit(Resource::Nofile);
    setrlimit(Resource::Nofile, Rlimit { current: limit.maximum, ..limit }).expect("raised");
    let served = serve(ServerOptions::default());
    let mut first = connect(&served);
    assert_eq!(first.run("PING"), "PONG");
    let before = threads();
    let mut idle: Vec<Raw> = (1..CLIENTS).map(|_| connect(&served)).collect();
    await_until("all are there", || info(&mut first, "connected_clients") == CLIENTS as u64);
    // Other tests of this process may have connections, too.
    assert!(threads() < before + CLIENTS / 2, "{} threads, {before} before", threads());
    // Each of them is heard.
    all_answer(&mut idle);
    drop(idle);
    await_until("all are gone", || info(&mut first, "connected_clients") == 1);
}

#[test]
fn connections_beyond_the_limit_are_told_so_and_make_room_when_they_end() {
    let limits = Limits { connections: 3, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let mut clients: Vec<Raw> = (0..3).map(|_| connect(&served)).collect();
    all_answer(&mut clients);
    let mut refused = connect(&served);
    let reply = show(&refused.reply().expect("it is told"));
    assert_eq!(reply, "(error) ERR max number of clients reached");
    clients.pop();
    await_until("there is room", || {
        let mut client = connect(&served);
        let sent = client.0.get_mut().write_all(b"PING\r\n").is_ok();
        sent && client.reply().is_ok_and(|reply| reply == Reply::Status("PONG".into()))
    });
}

#[test]
fn a_client_that_goes_away_within_a_pipeline_leaves_whole_commands() {
    let served = serve(ServerOptions::default());
    let mut other = connect(&served);
    for round in 0..20 {
        let mut stream = UnixStream::connect(&served.path).expect("the server listens");
        let mut sent = Vec::new();
        for i in 0..500 {
            sent.extend_from_slice(format!("MSET a{i} {round} b{i} {round}\r\n").as_bytes());
        }
        sent.truncate(sent.len() - round * 7);
        // The server may have closed by then: its replies were not taken.
        let _ = stream.write_all(&sent);
        drop(stream);
    }
    await_until("they are gone", || info(&mut other, "connected_clients") == 1);
    for i in 0..500 {
        let both = other.run(&format!("MGET a{i} b{i}"));
        let (a, b) = both.trim_matches(['[', ']']).split_once(' ').expect("two");
        assert_eq!(a, b, "{i}");
    }
}

#[test]
fn messages_come_to_those_that_only_listen() {
    let served = serve(ServerOptions::default());
    let mut listeners = many(&served);
    for client in &mut listeners {
        assert_eq!(client.run("SUBSCRIBE news"), "[\"subscribe\" \"news\" (integer) 1]");
    }
    let mut others = many(&served);
    for i in 0..100 {
        let reached = others[i % MANY].run(&format!("PUBLISH news {i}"));
        assert_eq!(reached, format!("(integer) {MANY}"));
    }
    for client in &mut listeners {
        for i in 0..100 {
            let message = show(&client.reply().expect("a message"));
            assert_eq!(message, format!("[\"message\" \"news\" \"{i}\"]"));
        }
        assert_eq!(client.run("UNSUBSCRIBE"), "[\"unsubscribe\" \"news\" (integer) 0]");
    }
    all_answer(&mut listeners);
}

#[test]
fn a_connection_that_is_killed_ends_whatever_it_is_at() {
    let served = serve(ServerOptions::default());
    let mut killer = connect(&served);
    for (at, command) in [
        ("nothing", ""),
        ("half a command", "*2\r\n$3\r\nGET"),
        ("a wait for a key", "BLPOP queue 0\r\n"),
        ("messages", "SUBSCRIBE news\r\n"),
    ] {
        let mut victim = connect(&served);
        victim.run("CLIENT SETNAME victim");
        let id = victim.run("CLIENT ID");
        let id = id.trim_start_matches("(integer) ");
        victim.send(command.as_bytes());
        if at == "a wait for a key" {
            await_until("it blocks", || info(&mut killer, "blocked_clients") == 1);
        }
        assert_eq!(killer.run(&format!("CLIENT KILL ID {id}")), "(integer) 1", "{at}");
        // Replies that were sent before the kill may still arrive.
        while victim.reply().is_ok() {}
        await_until("it is gone", || info(&mut killer, "connected_clients") == 1);
    }
}

#[test]
fn a_pause_of_all_can_be_ended_by_any_of_them() {
    let served = serve(ServerOptions::default());
    let (mut paused, mut other) = (many(&served), connect(&served));
    assert_eq!(other.run("CLIENT PAUSE 3600000 ALL"), "OK");
    for client in &mut paused {
        client.send(b"PING\r\n");
    }
    // The request is answered although the loops have waiting connections.
    assert!(other.run("CLIENT ID").starts_with("(integer)"));
    assert!(paused.iter_mut().all(is_silent), "one was answered during the pause");
    assert_eq!(other.run("CLIENT UNPAUSE"), "OK");
    for client in &mut paused {
        assert_eq!(show(&client.reply().expect("a reply")), "PONG");
    }
}

#[test]
fn a_server_that_stops_ends_what_its_connections_are_at() {
    let served = serve(ServerOptions::default());
    let mut other = connect(&served);
    let mut clients = many(&served);
    for (i, client) in clients.iter_mut().enumerate() {
        match i % 4 {
            0 => client.send(b"BLPOP queue 0\r\n"),
            1 => client.send(b"SUBSCRIBE news\r\n"),
            2 => client.send(b"*1\r\n$4\r\nPI"),
            _ => {}
        }
    }
    let blocked = MANY as u64 / 4;
    await_until("some block", || info(&mut other, "blocked_clients") == blocked);
    served.server.stop();
    for client in &mut clients {
        while client.reply().is_ok() {}
    }
}

#[test]
fn replies_have_the_order_of_their_commands_when_a_thread_takes_over() {
    let served = serve(ServerOptions::default());
    let (mut clients, mut other) = (many(&served), connect(&served));
    // Each pipeline waits in its middle for longer than a leader may serve it.
    for client in &mut clients {
        let mut sent = Vec::new();
        for i in 0..50 {
            sent.extend_from_slice(format!("ECHO {i}\r\n").as_bytes());
        }
        sent.extend_from_slice(b"DEBUG SLEEP 0.05\r\n");
        for i in 50..100 {
            sent.extend_from_slice(format!("ECHO {i}\r\n").as_bytes());
        }
        client.send(&sent);
        // The request arrives while a thread serves the connection.
        client.send(b"ECHO last\r\n");
    }
    assert_eq!(other.run("PING"), "PONG");
    for client in &mut clients {
        for i in 0..50 {
            assert_eq!(show(&client.reply().expect("a reply")), format!("\"{i}\""));
        }
        assert_eq!(show(&client.reply().expect("a reply")), "OK");
        for i in 50..100 {
            assert_eq!(show(&client.reply().expect("a reply")), format!("\"{i}\""));
        }
        assert_eq!(show(&client.reply().expect("a reply")), "\"last\"");
    }
}

#[test]
fn transactions_that_are_synced_share_the_syncs_of_the_disk() {
    let device =
        Arc::new(SlowSyncDevice::new(Arc::new(MemoryDevice::new()), Duration::from_millis(3)));
    let create = kvdb::CreateOptions::default();
    let db = Kvdb::create(device, Arc::new(env::Machine::default()), create);
    let served = serve_db(db.expect("a store"), ServerOptions::default());
    const EACH: usize = 10;
    let before = served.db.stats().syncs;
    std::thread::scope(|scope| {
        for n in 0..MANY {
            let mut client = connect(&served);
            scope.spawn(move || {
                for i in 0..EACH {
                    let id = client.run("TXN BEGIN").replace("(integer) ", "");
                    client.expect(&[
                        (&format!("TXN JOIN {id}"), "OK"),
                        (&format!("SET of{n} {i}"), "OK"),
                        ("TXN COMMIT SYNC", "OK"),
                    ]);
                }
            });
        }
    });
    let syncs = served.db.stats().syncs - before;
    let commits = (MANY * EACH) as u64;
    assert!(syncs < commits * 3 / 4, "{syncs} syncs for {commits} commits");
}

#[test]
fn a_reset_is_answered_where_no_replies_were_wanted() {
    let served = serve(ServerOptions::default());
    let mut client = connect(&served);
    client.send(b"CLIENT REPLY OFF\r\nSET a 1\r\nRESET\r\nGET a\r\n");
    for want in ["RESET", "\"1\""] {
        assert_eq!(show(&client.reply().expect("a reply")), want);
    }
}

#[test]
fn a_client_that_goes_away_while_its_commands_are_paused_leaves_nothing() {
    let served = serve(ServerOptions::default());
    let mut other = connect(&served);
    assert_eq!(other.run("CLIENT PAUSE 3600000 WRITE"), "OK");
    let mut gone: Vec<Raw> = (0..MANY).map(|_| connect(&served)).collect();
    gone.iter_mut().for_each(|client| client.send(b"SET paused 1\r\n"));
    // One connection is ended from outside.
    let mut killed = connect(&served);
    let id = killed.run("CLIENT ID");
    killed.send(b"SET paused 1\r\n");
    drop(gone);
    let kill = format!("CLIENT KILL ID {}", id.trim_start_matches("(integer) "));
    assert_eq!(other.run(&kill), "(integer) 1");
    await_until("they are gone", || info(&mut other, "connected_clients") == 1);
    other.expect(&[("CLIENT UNPAUSE", "OK"), ("EXISTS paused", "(integer) 0")]);
}

#[test]
fn an_exec_that_ends_durability_is_durable_itself() {
    let served = serve(ServerOptions::default());
    let mut client = connect(&served);
    client.expect(&[("DURABLE yes", "OK"), ("MULTI", "OK"), ("SET a 1", "QUEUED")]);
    assert_eq!(client.run("DURABLE no"), "QUEUED");
    let before = served.db.stats().syncs;
    assert_eq!(client.run("EXEC"), "[OK OK]");
    assert!(served.db.stats().syncs > before, "its reply left without a sync");
}

#[test]
fn a_connection_that_is_closed_does_not_stay_for_what_drips_in() {
    let served = serve(ServerOptions::default());
    let mut other = connect(&served);
    let mut dripping = connect(&served);
    dripping.send(b"*x\r\n");
    assert!(show(&dripping.reply().expect("it is told")).contains("Protocol error"));
    await_until("it is closed", || {
        // A slow client, whose replies the test does not read.
        std::thread::sleep(Duration::from_millis(20));
        let _ = dripping.0.get_mut().write_all(b"x");
        info(&mut other, "connected_clients") == 1
    });
}
