//! Serves a store in memory on a socket, until its input ends: for trying clients by hand, and for
//! `scripts/redis_differential.py` and `scripts/redis_suites.py`.
//!
//! ```sh
//! cargo run --release -p kvdb-server --example serve -- /tmp/kv.sock [kvfs lua-worker]
//! ```
//!
//! Words behind the socket are the command that starts a process for scripts.

use std::io::Read;
use std::path::PathBuf;

use kvdb::Kvdb;
use kvdb_server::{Server, ServerOptions};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let path = std::env::args_os().nth(1).ok_or("the path of the socket is wanted")?;
    let path = PathBuf::from(path);
    let command: Vec<_> = std::env::args_os().skip(2).collect();
    let scripts = (!command.is_empty()).then_some(command);
    let options = ServerOptions { scripts, ..ServerOptions::default() };
    let server = Server::start(Kvdb::in_memory(), &path, options)?;
    println!("listening at {}; end the input to stop", path.display());
    std::io::stdin().read_to_end(&mut Vec::new())?;
    server.stop();
    Ok(())
}
