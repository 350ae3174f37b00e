//! Tests of clients in other PID name spaces, such as clients in containers.

use crate::served::serve;
use kvdb_server::{Client, Reply, ServerOptions};

const SOCKET: &str = "KVDB_PEERS_SOCKET";

/// Runs this test again as a child, in a PID name space of its own.
fn in_a_name_space_of_its_own(socket: &str) {
    let mut client = Client::connect(socket.as_ref()).expect("the user of the server is known");
    assert_eq!(client.call(&[b"PING"]).expect("a reply"), Reply::Status("PONG".into()));
}

#[test]
fn a_process_of_another_pid_name_space_is_served() {
    if let Ok(socket) = std::env::var(SOCKET) {
        return in_a_name_space_of_its_own(&socket);
    }
    let served = serve(ServerOptions::default());
    let unshare = |command: &[&str]| {
        let mut unshare = std::process::Command::new("unshare");
        unshare.args(["--user", "--map-root-user", "--pid", "--fork"]).args(command);
        unshare
    };
    if !unshare(&["true"]).output().is_ok_and(|made| made.status.success()) {
        eprintln!("skipped: no PID name space can be made here");
        return;
    }
    let own = std::env::current_exe().expect("this test");
    let test = "peers::a_process_of_another_pid_name_space_is_served";
    let done = unshare(&[own.to_str().expect("a path"), "--exact", test, "--nocapture"])
        .env(SOCKET, &served.path)
        .output()
        .expect("it runs");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
}
