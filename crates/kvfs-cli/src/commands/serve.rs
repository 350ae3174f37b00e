//! `kvfs serve`: lets clients elsewhere read the snapshots of a store, whose file systems they
//! mount, and write in transactions if that is allowed. `kvdb-wire` implements the protocol, which
//! `docs/wire.md` specifies. This module handles options, messages and signals.

mod network;
mod vsock;

use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock, Weak};

use kvdb_server::provide_descriptors;
use kvdb_wire::{Server, Tokens};
use kvfs::Views;
use serde_json::json;
use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
use signal_hook::iterator::Signals;

use self::network::{Listening, Network};
use self::vsock::Port;
use crate::support::mounting::mount_options;
use crate::support::serving::metrics::{self, Sources};
use crate::support::serving::served_files::ServedFiles;
use crate::support::serving::wire_server::{CONNECTIONS, Limits, SHARE, Serving, of_network};
use crate::support::stores::store::{self, Access};
use crate::support::terminal::output::{Exit, Failure, Outcome, Output};
use crate::support::terminal::text::Shown;
use crate::support::terminal::{sizes, text};

/// Serve a store to mounts in virtual machines, in containers and on other machines. They see its
/// snapshots, and with --write the current files, each mount in its own transaction.
#[derive(clap::Args)]
#[command(after_help = "\
The command serves until it is ended by Ctrl-C or SIGTERM; clients wait for a server that is \
restarted.

  kvfs serve my.kvfs --listen unix:/run/my.sock
  kvfs mount kvfs+unix:/run/my.sock /mnt --snapshot monday

Only the user of the server can connect to the socket. Clients see the snapshots of the store, \
which do not change; with --write they see and change the whole store, by transactions:

  kvfs serve my.kvfs --write --listen unix:/run/my.sock
  kvfs mount kvfs+unix:/run/my.sock /mnt --txn
  make -C /mnt/project
  kvfs commit /mnt

Clients on other machines connect by TLS and present a token:

  (umask 077; head -c 32 /dev/urandom | sha256sum | cut -c 1-64 > token)
  echo \"$(tr -d '\\n' < token | sha256sum | cut -c 1-64) write read=nightly-*\" > tokens
  kvfs serve my.kvfs --write --listen tls:0.0.0.0:7411 --cert c.pem --key k.pem --tokens tokens
  kvfs mount kvfs://HOST:7411 /mnt --txn --token-file token

Each line of the list is the SHA-256 of a token and its permissions: read=PATTERN, snapshots with \
matching names (* stands for any characters); write, transactions and new snapshots of the files; \
write=PATTERN, those of matching clones; lease, the files themselves for one mount at a time \
(kvfs mount --lease); admin, everything. The clients of one token have at most \
three quarters of the connections and transactions if there are others; most=N limits them to N of \
each.

With --client-ca, a line may begin with cert: and the SHA-256 of a client's certificate instead:

  openssl x509 -in laptop.pem -outform DER | sha256sum | sed 's/^/cert:/; s/-$/write/' >> tokens
  kvfs mount kvfs://HOST:7411 /mnt --txn --cert laptop.pem --cert-key laptop.key

Virtual machines connect to their host, whose number is 2, by a vsock and with a token:

  kvfs serve my.kvfs --write --listen vsock:741 --tokens tokens
  kvfs mount kvfs+vsock://2:741 /mnt --txn --token-file token

A mounted store is served by its mount: kvfs mount -o serve=unix:SOCKET. That mount has the files \
itself, so no other one gets them by --lease.")]
pub struct Args {
    /// Store to serve: a file or a block device made by `kvfs create`.
    store: PathBuf,
    /// Address to listen at: unix:SOCKET, the path of a socket to create; tls:HOST:PORT, with
    /// --cert, --key and --tokens; or vsock:PORT, for virtual machines, with --tokens.
    #[arg(long, value_name = "ADDRESS")]
    listen: OsString,
    /// For tls: file with the certificate of the server in PEM, and those that lead to a known
    /// authority.
    #[arg(long, value_name = "FILE")]
    cert: Option<PathBuf>,
    /// For tls: file with the key of the certificate in PEM.
    #[arg(long, value_name = "FILE")]
    key: Option<PathBuf>,
    /// For tls and vsock: file that lists the permissions of each token.
    #[arg(long, value_name = "FILE")]
    tokens: Option<PathBuf>,
    /// For tls: file with the authorities, in PEM, whose certificates clients may present; the list
    /// of --tokens has a line for each certificate.
    #[arg(long, value_name = "FILE")]
    client_ca: Option<PathBuf>,
    /// Let clients begin transactions, which change the store when they commit.
    #[arg(long, short = 'w')]
    write: bool,
    /// Limit the open transactions of all clients together to PERCENT of the store.
    #[arg(
        long, value_name = "PERCENT", default_value_t = SHARE, requires = "write",
        value_parser = clap::value_parser!(u8).range(1..=100)
    )]
    share: u8,
    /// Limit the connections of all clients together to N. A mount has one, and two for a moment
    /// when the server takes long. Each takes two threads, or three over TLS.
    #[arg(
        long, value_name = "N", default_value_t = CONNECTIONS,
        value_parser = clap::value_parser!(u32).range(1..=10_000)
    )]
    connections: u32,
    /// Serve metrics to Prometheus at http://ADDRESS/metrics, such as 127.0.0.1:9100. There is no
    /// password, so only addresses of this machine are accepted. Port 0 selects any free port.
    #[arg(long, value_name = "ADDRESS", value_parser = mount_options::parse_address)]
    metrics: Option<std::net::SocketAddr>,
    /// Memory limit of the store for buffers, caches and indexes, in bytes or with a unit (64M,
    /// 2G); default 320M.
    #[arg(long, value_name = "SIZE", value_parser = sizes::parse_size)]
    memory: Option<u64>,
}

pub fn run(args: Args, output: &Output) -> Outcome {
    let at = address_of(&args)?;
    let limits = Limits { share: args.share, connections: args.connections };
    have_descriptors(&at, args.connections)?;
    let cannot = |e| Failure::io("cannot listen to signals", &e);
    let mut signals = Signals::new([SIGINT, SIGTERM, SIGHUP]).map_err(cannot)?;
    let access = if args.write { Access::ReadWrite } else { Access::ReadOnly };
    let store = store::open(&args.store, access, args.memory)?;
    let fs = args.write.then(|| store.served_file_system()).transpose()?;
    let views = fs.clone().map(|fs| Views::new(store.db.clone(), fs));
    let db = &store.db;
    let of = |views| ServedFiles { db: db.clone(), views, is_mounted: false, compress: None };
    let files = views.clone().map(of);
    let counted: Arc<OnceLock<Weak<Server>>> = Arc::default();
    let sources = || Sources {
        db: db.clone(),
        files: fs.clone().zip(views.clone()),
        mount: Arc::default(),
        served: counted.clone(),
    };
    let metrics = args.metrics.map(|address| metrics::start(address, sources())).transpose()?;
    if let Some(listening) = &metrics {
        let at = listening.address().to_string();
        output.note_with(format!("metrics at http://{at}/metrics"), json!({"metrics": at}));
    }
    let served = args.store.shown();
    let (serving, server): (Box<dyn std::any::Any>, Weak<Server>) = match at {
        Address::Socket(path) => {
            let serving = Serving::begin(db, files, limits, &path)?;
            let paths = [("store", Some(&*args.store)), ("socket", Some(&*path))];
            let said = format!("{served} is served at unix:{}", path.shown());
            output.print(said, text::with_paths(json!({}), &paths))?;
            let server = serving.server();
            (Box::new(serving), server)
        }
        Address::Network(at, network) => {
            let server = of_network(db, files, limits)?;
            let listening = Listening::begin(&at, network, Arc::downgrade(&server))?;
            let address = listening.address()?;
            let value = json!({"listen": address.to_string()});
            let value = text::with_paths(value, &[("store", Some(&args.store))]);
            output.print(format!("{served} is served at tls:{address}"), value)?;
            let counted = Arc::downgrade(&server);
            (Box::new((listening, server)), counted)
        }
        Address::Vsock(at, tokens) => {
            let server = of_network(db, files, limits)?;
            let listening = vsock::Listening::begin(at, tokens, Arc::downgrade(&server))?;
            let address = listening.address();
            let value =
                text::with_paths(json!({"listen": address}), &[("store", Some(&args.store))]);
            output.print(format!("{served} is served at {address}"), value)?;
            let counted = Arc::downgrade(&server);
            (Box::new((listening, server)), counted)
        }
    };
    // The file is empty until then.
    let _ = counted.set(server);
    output.note("Ctrl-C ends it");
    signals.forever().next();
    drop((metrics, serving));
    let written = |e: kvfs::Error| {
        let what = format!("{} was not closed well: {e}", args.store.shown());
        Failure::new(Exit::Failed, what)
    };
    if let (Some(views), Some(fs)) = (&views, &fs) {
        views.shutdown().and_then(|()| fs.shutdown()).map_err(written)?;
    }
    drop((views, fs));
    store.close()
}

/// Lets this process have the file descriptors of these connections. Fails if it may not have them,
/// unless the number is the default: then there are as many connections as are possible.
fn have_descriptors(at: &Address, connections: u32) -> Outcome {
    let wanted = connections as usize;
    let possible = provide_descriptors(wanted, matches!(at, Address::Network(..)));
    if possible >= wanted || connections <= CONNECTIONS {
        return Ok(());
    }
    let what =
        format!("{wanted} connections need more file descriptors than this process may have");
    let hint = format!("raise its limit (ulimit -n), or write at most --connections {possible}");
    Err(Failure::new(Exit::Failed, what).hint(hint))
}

/// The address to which clients connect.
enum Address {
    Socket(PathBuf),
    /// HOST:PORT.
    Network(String, Network),
    Vsock(Port, Arc<Tokens>),
}

fn address_of(args: &Args) -> Outcome<Address> {
    let wrong = |what: &str, hint: &str| Err(Failure::new(Exit::Usage, what).hint(hint));
    let files = [&args.cert, &args.key, &args.tokens];
    let client_ca = args.client_ca.as_deref();
    let listen = args.listen.to_str().unwrap_or_default();
    if listen.starts_with("tcp:") {
        let what = "over plain TCP everybody on the way reads the files and the tokens";
        return wrong(what, "write tls:HOST:PORT, or on one machine unix:SOCKET");
    }
    if let Some(at) = listen.strip_prefix("vsock:") {
        let at = Port::parse(at)?;
        if client_ca.is_some() || args.cert.is_some() || args.key.is_some() {
            let what = "--cert, --key and --client-ca are for tls:HOST:PORT";
            return wrong(
                what,
                "leave them out: nothing encrypts a vsock, and no name is proved there",
            );
        }
        let Some(tokens) = &args.tokens else {
            let what = "vsock: needs --tokens: other machines, and all users here, can connect";
            return wrong(what, "kvfs serve --help shows how a token is made");
        };
        let tokens = network::read_tokens(tokens)?;
        if !tokens.has_tokens() {
            let what = "the list has certificates alone, which no client can present by a vsock";
            return wrong(what, "kvfs serve --help shows how a token is made");
        }
        return Ok(Address::Vsock(at, Arc::new(tokens)));
    }
    let Some(at) = listen.strip_prefix("tls:") else {
        if client_ca.is_some() || files.iter().any(|file| file.is_some()) {
            let what = "--cert, --key and --client-ca are for tls:HOST:PORT, and --tokens for that \
                        and vsock:PORT";
            return wrong(what, "leave them out");
        }
        return socket_of(&args.listen).map(Address::Socket);
    };
    match files {
        [Some(cert), Some(key), Some(tokens)] => {
            Ok(Address::Network(at.into(), Network::read(cert, key, tokens, client_ca)?))
        }
        _ => wrong(
            "tls: needs --cert, --key and --tokens: clients are told who serves, and say who they are",
            "kvfs serve --help shows how a token is made",
        ),
    }
}

/// Returns the absolute path in `unix:PATH`.
fn socket_of(address: &OsStr) -> Outcome<PathBuf> {
    let wrong = || {
        let what = format!("{} is no address to listen at", address.shown());
        Failure::new(Exit::Usage, what)
            .hint("write unix:SOCKET, with the path of a socket, vsock:PORT or tls:HOST:PORT")
    };
    let path = address.as_bytes().strip_prefix(b"unix:").ok_or_else(wrong)?;
    if path.is_empty() {
        return Err(wrong());
    }
    let path = Path::new(OsStr::from_bytes(path));
    std::path::absolute(path).map_err(|e| Failure::io("cannot listen there", &e))
}
