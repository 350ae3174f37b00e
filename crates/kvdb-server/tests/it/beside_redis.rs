//! Sends random commands to a store and to `redis-server`, and compares replies and keys. The
//! program is `scripts/redis_fuzz.py`. `KVFS_COMMANDS` sets the number of commands, `KVFS_SEED` the
//! seed.

use std::path::Path;
use std::process::Command;

use crate::served::serve;
use kvdb_server::{Limits, ServerOptions};

#[test]
fn random_commands_do_the_same_as_in_redis() {
    if !Command::new("redis-server").arg("--version").output().is_ok_and(|o| o.status.success()) {
        println!("SKIPPED: redis-server is not installed, so nothing is compared");
        return;
    }
    let of = |name: &str, usual: &str| std::env::var(name).unwrap_or_else(|_| usual.into());
    // Ranks are found by an index, as those of large collections are.
    let limits = Limits { walked: 0, ..Limits::default() };
    let served = serve(ServerOptions { limits, ..ServerOptions::default() });
    let program = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/redis_fuzz.py");
    let compared = Command::new("python3")
        .arg(program)
        .arg(&served.path)
        .args(["--commands", &of("KVFS_COMMANDS", "20000"), "--seed", &of("KVFS_SEED", "1")])
        .output()
        .expect("python3 runs");
    let said = String::from_utf8_lossy(&compared.stdout);
    println!("{said}");
    assert!(compared.status.success(), "{said}{}", String::from_utf8_lossy(&compared.stderr));
}
