//! A server on a store in memory, and replies in the notation of `redis-cli`.

use std::io::{BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::Arc;

use env::Simulated;
use kvdb::{CreateOptions, Kvdb, OpenOptions};
use kvdb_server::{Limits, Reply, Server, ServerOptions, read_reply};
use tempfile::TempDir;
use zones::MemoryDevice;

pub struct Served {
    pub server: Server,
    pub db: Kvdb,
    pub path: PathBuf,
    pub dir: TempDir,
}

pub fn serve(options: ServerOptions) -> Served {
    serve_db(Kvdb::in_memory(), options)
}

pub fn serve_db(db: Kvdb, options: ServerOptions) -> Served {
    let dir = tempfile::tempdir().expect("a temporary directory");
    let path = dir.path().join("kv.sock");
    let server = Server::start(db.clone(), &path, options).expect("the server starts");
    Served { server, db, path, dir }
}

/// A store in memory whose time stands still until it is advanced.
pub fn clocked_store() -> (Arc<Simulated>, Kvdb) {
    let clock = Arc::new(Simulated::new(7));
    let open = OpenOptions { memory: 8 << 20, zero_journal: false, ..OpenOptions::default() };
    let options = CreateOptions { open, ..CreateOptions::default() };
    let db = Kvdb::create(Arc::new(MemoryDevice::new()), clock.clone(), options).expect("made");
    (clock, db)
}

/// Strings of more than ten bytes are in pages.
pub fn pages_soon() -> ServerOptions {
    let limits = Limits { tuple: 10, ..Limits::default() };
    ServerOptions { limits, ..ServerOptions::default() }
}

/// Returns the numbers of tuples among the strings and in the dictionary of their types.
pub fn tuples(db: &Kvdb) -> (usize, usize) {
    let count = |name: &str| {
        let dict = db.dictionary(name);
        dict.map_or(0, |dict| db.view().scan(dict, b"", b"", 1 << 20).expect("read").len())
    };
    (count("0"), count(":types:0"))
}

impl Served {
    pub fn connect(&self) -> Raw {
        Raw(BufReader::new(UnixStream::connect(&self.path).expect("the server listens")))
    }
}

/// A connection on which inline commands are typed.
pub struct Raw(pub BufReader<UnixStream>);

impl Raw {
    pub fn send(&mut self, bytes: &[u8]) {
        self.0.get_mut().write_all(bytes).expect("the server reads");
    }
    pub fn reply(&mut self) -> std::io::Result<Reply> {
        read_reply(&mut self.0, 0)
    }
    /// Types a command and shows the reply.
    pub fn run(&mut self, command: &str) -> String {
        self.send(format!("{command}\r\n").as_bytes());
        show(&self.reply().expect("a reply"))
    }
    /// Runs commands one after the other and compares each reply.
    pub fn expect(&mut self, steps: &[(&str, &str)]) {
        for (i, (command, want)) in steps.iter().enumerate() {
            assert_eq!(self.run(command), *want, "step {i}: {command}");
        }
    }
}

pub fn show(reply: &Reply) -> String {
    match reply {
        Reply::Null => "(nil)".into(),
        Reply::Status(s) => s.clone(),
        Reply::Error(e) => format!("(error) {e}"),
        Reply::Integer(i) => format!("(integer) {i}"),
        Reply::Bulk(b) => format!("\"{}\"", b.escape_ascii()),
        Reply::Array(items) => {
            format!("[{}]", items.iter().map(show).collect::<Vec<_>>().join(" "))
        }
    }
}
