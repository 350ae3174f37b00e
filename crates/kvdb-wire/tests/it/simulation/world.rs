//! The server of a run, its store on a device whose power can be cut, and the connections to it.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use bytes::Bytes;
use env::sync::Mutex;
use env::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use env::{Random, Scheduled, Simulated, thread};
use kvdb::{Batch, CreateOptions, Durability, Kvdb, OpenOptions};
use kvdb_wire::{Client, ClientOptions, Server, ServerOptions};
use zones::{CrashDevice, MemoryDevice};

use super::oracle::{Oracle, Watched, say};
use super::pipe::{Link, Troubles, below};

const DICTIONARY: &str = "fruit";

/// The plan of a run. It is drawn from the seed, so that runs differ in the kinds of faults that
/// they have: a fault is more likely to find a bug alone than among all others.
#[derive(Clone, Debug)]
pub struct Plan {
    pub clients: u64,
    pub transactions: u64,
    pub operations: u64,
    pub troubles: Troubles,
    /// The server is killed once in this number of moments, alone or with the power of its machine.
    pub kills: u64,
    /// The server ends in an orderly way once in this number of moments, and another one continues
    /// with the store.
    pub restarts: u64,
    pub cuts: u64,
    pub client_kills: u64,
    /// Limit of the milliseconds between moments.
    pub moments: u64,
    /// Durable transactions out of ten.
    pub durable: u64,
    /// Once in this number of takeovers, the former client continues with the transaction.
    pub stale: u64,
    pub lease: (u64, u64),
    pub timeout: Duration,
    pub memory: usize,
    /// Set if clients renew their leases at an interval.
    pub hearts: bool,
}

impl Plan {
    pub fn new(random: &mut Random) -> Plan {
        let mut maybe = |often: u64| match random.one_in(2) {
            true => 1 + random.below(often),
            false => 0,
        };
        let troubles = Troubles {
            cut: maybe(6),
            swallow: maybe(20),
            delay: maybe(12),
            delay_ms: 0,
            twice: maybe(8),
            overtaken: maybe(8),
            pieces: maybe(4),
        };
        let (kills, restarts) = (maybe(12), maybe(20));
        let (cuts, client_kills, stale) = (maybe(8), maybe(20), maybe(3));
        Plan {
            troubles: Troubles { delay_ms: 1 << random.below(13), ..troubles },
            kills,
            restarts,
            cuts,
            client_kills,
            stale,
            clients: 1 + random.below(3),
            transactions: 1 + random.below(3),
            operations: 4 + random.below(12),
            moments: 1 << random.below(10),
            durable: random.below(11),
            lease: (100, 100 << random.below(9)),
            timeout: Duration::from_millis(500 << random.below(6)),
            memory: [1 << 10, 32 << 20][random.below(2) as usize],
            hearts: !random.one_in(4),
        }
    }
}

struct Running {
    image: MemoryDevice,
    device: Arc<CrashDevice>,
    db: Option<Kvdb>,
    server: Option<Server>,
    links: Vec<(u64, Arc<Link>)>,
    /// Clients that were killed. They cannot connect.
    dead: BTreeSet<u64>,
    clients: u64,
}

pub struct World {
    pub plan: Plan,
    pub oracle: Arc<Oracle>,
    running: Mutex<Running>,
    /// Set once no more faults are injected.
    pub is_calm: AtomicBool,
    pub is_over: AtomicBool,
    /// Number of servers that were begun or ended.
    servers: AtomicU64,
}

/// Returns a store with a few keys, made once for all runs. Call it outside of any schedule, so
/// that the first run is like all others, and runs do not contend for its lock.
pub fn image() -> MemoryDevice {
    static IMAGE: OnceLock<MemoryDevice> = OnceLock::new();
    let made = IMAGE.get_or_init(|| {
        let device = Arc::new(CrashDevice::new());
        let env = Arc::new(Simulated::new(1));
        let options = CreateOptions { open: options(), reserve_zones: 4, ..Default::default() };
        let db = Kvdb::create(device.clone(), env, options).expect("a store in memory");
        let dict = db.open_dictionary(DICTIONARY).expect("a dictionary").id();
        let mut batch = Batch::new();
        for key in ["k0", "k2", "k4", "k6"] {
            batch.put(dict, key, "first");
        }
        db.commit(batch, Durability::Synced).expect("a store in memory");
        drop(db);
        device.current()
    });
    made.clone()
}

pub fn options() -> OpenOptions {
    OpenOptions {
        memory: 1 << 20,
        flush_interval: Duration::from_millis(10),
        threads: false,
        zero_journal: false,
        merge_threads: 1,
        ..OpenOptions::default()
    }
}

impl World {
    pub fn new(plan: Plan, image: MemoryDevice) -> Arc<World> {
        let device = Arc::new(CrashDevice::over(image));
        let (db, _) = Kvdb::open(device.clone(), Arc::new(Scheduled), options()).expect("a store");
        let dict = db.dictionary(DICTIONARY).expect("it was made");
        let world = World {
            plan,
            oracle: Arc::new(Oracle::new(&db, dict)),
            running: Mutex::new(Running {
                image: MemoryDevice::new(),
                device,
                db: Some(db),
                server: None,
                links: Vec::new(),
                dead: BTreeSet::new(),
                clients: 0,
            }),
            is_calm: AtomicBool::new(false),
            is_over: AtomicBool::new(false),
            servers: AtomicU64::new(0),
        };
        world.serve();
        Arc::new(world)
    }

    /// Starts a server. Opens the store if it is not open.
    pub fn serve(&self) {
        let mut running = self.running.lock();
        if running.server.is_some() {
            return;
        }
        if running.db.is_none() {
            running.device = Arc::new(CrashDevice::over(running.image.clone()));
            let opened = Kvdb::open(running.device.clone(), Arc::new(Scheduled), options());
            let (db, _) = opened.expect("a store after a crash");
            self.oracle.reopened(&db);
            running.db = Some(db);
        }
        self.servers.fetch_add(1, Ordering::Relaxed);
        let db = running.db.clone().expect("it is open");
        let host =
            Watched { db: db.clone(), device: running.device.clone(), oracle: self.oracle.clone() };
        let server = Server::without_socket(db, Some(Arc::new(host)), ServerOptions::default());
        running.server = Some(server.expect("a server"));
    }

    /// Kills the server, alone or with the power of its machine.
    pub fn kill_server(&self, power: bool) {
        let mut running = self.running.lock();
        if running.db.is_none() {
            return;
        }
        // Cut the connections first: from now on no client may be told anything, for example that
        // the server finds its device gone.
        running.links.drain(..).for_each(|(_, link)| link.cut());
        self.servers.fetch_add(1, Ordering::Relaxed);
        running.device.cut_power();
        say(|| format!("the server is killed, with its power: {power}"));
        running.server = None;
        running.db = None;
        running.image = match power {
            true => running.device.crash(below(u64::MAX)),
            false => running.device.current(),
        };
    }

    /// Ends the server in an orderly way. Its store stays open.
    pub fn end_server(&self) {
        let mut running = self.running.lock();
        self.servers.fetch_add(1, Ordering::Relaxed);
        running.server = None;
    }

    /// Returns the number of servers that were begun or ended so far.
    pub fn servers(&self) -> u64 {
        self.servers.load(Ordering::Relaxed)
    }

    pub fn cut_some(&self) {
        let mut running = self.running.lock();
        if !running.links.is_empty() {
            let place = below(running.links.len() as u64) as usize;
            running.links.swap_remove(place).1.cut();
        }
    }

    pub fn kill_some_client(&self) {
        let mut running = self.running.lock();
        let client = below(running.clients + 1);
        running.dead.insert(client);
        running.links.retain(|(of, link)| {
            if *of == client {
                link.cut();
            }
            *of != client
        });
    }

    pub fn is_dead(&self, client: u64) -> bool {
        self.running.lock().dead.contains(&client)
    }

    /// Lets the store do its background work, for example end idle transactions.
    pub fn step(&self) {
        let (db, device) = {
            let running = self.running.lock();
            let Some(db) = running.db.clone() else { return };
            (db, running.device.clone())
        };
        if let Err(e) = db.step() {
            assert!(device.is_dead(), "{e}");
        }
    }

    /// Returns the store, which must be open.
    pub fn db(&self) -> Kvdb {
        self.running.lock().db.clone().expect("it is open")
    }

    /// Returns a new client and its number. Tries for a while to reach the server.
    pub fn client(self: &Arc<World>) -> Option<(u64, Arc<Client>)> {
        let number = {
            let mut running = self.running.lock();
            running.clients += 1;
            running.clients
        };
        let options = ClientOptions {
            timeout: self.plan.timeout,
            memory: self.plan.memory,
            token: Bytes::new(),
        };
        for _ in 0..20 {
            let world = self.clone();
            let connect = move |_| world.connect(number);
            match Client::connect(connect, options.clone()) {
                Ok(client) => return Some((number, client)),
                Err(e) => assert!(e.is_of_connection(), "{e}"),
            }
            thread::sleep(Duration::from_millis(1 + below(300)));
        }
        None
    }

    fn connect(&self, client: u64) -> io::Result<kvdb_wire::Socket> {
        let mut running = self.running.lock();
        let refused = || io::Error::from(io::ErrorKind::ConnectionRefused);
        if running.dead.contains(&client) {
            return Err(refused());
        }
        let calm = self.is_calm.load(Ordering::Relaxed);
        let troubles = if calm { Troubles::default() } else { self.plan.troubles };
        let (link, here, there) = Link::new(troubles);
        say(|| format!("client {client} connects"));
        let server = running.server.as_ref().ok_or_else(refused)?;
        server.serve(there).map_err(io::Error::other)?;
        running.links.push((client, link));
        Ok(here)
    }
}
