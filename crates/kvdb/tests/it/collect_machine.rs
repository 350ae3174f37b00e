//! Random histories of stores that are published, forked, read and rolled back in one place. At the
//! same time collectors delete unreferenced objects, are interrupted, and run next to each other.
//! Objects that anything refers to stay, and all others are deleted. `seeded` explains how to run
//! more histories.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::model::*;
use crate::place::{LATE, Late, Seen};
use crate::seeded;
use env::{Env, Random, Simulated};
use kvdb::{
    CollectOptions, Collected, Error, ForkId, ForkOptions, Kvdb, OpenOptions, RemotePlace,
    RemoteStore, RemoteZones,
};
use objects::{FaultyObjects, Objects, Rates};
use zones::MemoryDevice;

const GRACE: Duration = Duration::from_secs(3600);

/// Each world has another seed, since random numbers must not repeat.
fn fresh() -> Arc<Simulated> {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 40);
    Arc::new(Simulated::new(NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A store that publishes.
struct Publisher {
    to: RemoteStore,
    db: Kvdb,
    /// The states that may be the newest one in the place; `None` stands for no state.
    possible: Vec<Option<Model>>,
    /// The number of this fork.
    fork: Option<ForkId>,
}

struct Fork {
    of: RemoteStore,
    id: ForkId,
    /// The device as it was created: no data has been fetched yet.
    device: Arc<MemoryDevice>,
    model: Model,
    expires: Duration,
}

struct Reader {
    device: Arc<MemoryDevice>,
    model: Model,
    /// The store can be read until then.
    until: Duration,
}

struct World {
    clock: Arc<Simulated>,
    late: Arc<Late>,
    faults: Arc<FaultyObjects>,
    random: Random,
    publishers: Vec<Publisher>,
    forks: Vec<Fork>,
    readers: Vec<Reader>,
    names: u64,
}

fn rates(faulty: bool) -> Rates {
    let one_in = 40 * u64::from(faulty);
    Rates {
        lost_request: one_in,
        lost_answer: one_in,
        late_request: one_in,
        conflict: one_in,
        too_many: 2 * one_in,
        truncated: one_in,
        flipped: 4 * one_in,
        repeated_entry: one_in,
        ..Rates::default()
    }
}

fn read(device: &MemoryDevice, objects: Arc<dyn Objects>) -> Model {
    let remote = Some(RemoteZones::new(objects));
    let options = OpenOptions { remote, read_only: true, ..small() };
    let device = Arc::new(MemoryDevice::clone(device));
    contents(&Kvdb::open(device, fresh(), options).expect("it opens").0).expect("all is there")
}

impl World {
    fn new(seed: u64) -> World {
        let clock = Arc::new(Simulated::new(seed));
        let late = Arc::new(Late::new(clock.clone(), seed));
        let faults = Arc::new(FaultyObjects::new(late.clone(), seed, Rates::default()));
        let random = Random::new(seed);
        let (publishers, forks, readers) = Default::default();
        World { clock, late, faults, random, publishers, forks, readers, names: 0 }
    }

    fn objects(&self) -> Arc<dyn Objects> {
        self.faults.clone()
    }

    fn behave(&self, badly: bool) {
        self.faults.set_rates(rates(badly));
        self.late.set_late(badly);
        if !badly {
            self.faults.deliver();
        }
    }

    fn name(&mut self) -> RemoteStore {
        self.names += 1;
        let named = RemoteStore::new(self.objects(), &format!("s{}", self.names)).expect("a name");
        // States are objects, changes to objects, or in the heads.
        named.with_state_in_head([0, 600, 32 << 10][self.random.below(3) as usize])
    }

    fn some<T>(&mut self, of: &[T]) -> Option<usize> {
        (!of.is_empty()).then(|| self.random.below(of.len() as u64) as usize)
    }

    fn advance(&mut self) {
        let part = self.random.below(GRACE.as_secs() / 2);
        self.clock.advance(Duration::from_secs(part));
    }

    fn found(&mut self) {
        let db = create(Arc::new(MemoryDevice::new()), fresh(), small()).expect("a store");
        dictionaries(&db).expect("dictionaries");
        let to = self.name();
        self.publishers.push(Publisher { to, db, possible: vec![None], fork: None });
    }

    /// Changes a store and publishes it, perhaps with collections in the middle.
    fn publish(&mut self) {
        let publishers = std::mem::take(&mut self.publishers);
        let which = self.some(&publishers);
        self.publishers = publishers;
        let Some(which) = which else { return self.found() };
        let times = 1 + self.random.below(10);
        let (db, to) = (self.publishers[which].db.clone(), self.publishers[which].to.clone());
        let dicts = dictionaries(&db).expect("dictionaries");
        for _ in 0..times {
            let changes = changes(&mut self.random, &dicts);
            if db.commit(batch(&changes), kvdb::Durability::Buffered).is_err() {
                // The store has read damaged bytes too often.
                self.publishers.remove(which);
                return;
            }
        }
        let now = contents(&db);
        let mut within = if self.random.one_in(4) { 2 } else { 0 };
        let (clock, place) = (self.clock.clone(), RemotePlace::new(self.objects()));
        let pushed = db.push(&to, &mut |_| {
            if within > 0 {
                within -= 1;
                let _ = collected(&place);
                clock.advance(GRACE + LATE);
            }
            Ok(())
        });
        let publisher = &mut self.publishers[which];
        let Ok(now) = now else { return };
        if pushed.is_ok() {
            publisher.possible.clear();
        }
        publisher.possible.push(Some(now));
    }

    /// The store whose newest state is certain.
    fn certain(&mut self) -> Option<(RemoteStore, Model)> {
        let of = |p: &Publisher| match &p.possible[..] {
            [Some(model)] => Some((p.to.clone(), model.clone())),
            _ => None,
        };
        let all: Vec<_> = self.publishers.iter().filter_map(of).collect();
        let which = self.some(&all)?;
        all.into_iter().nth(which)
    }

    fn fork(&mut self) {
        let Some((of, model)) = self.certain() else { return };
        let lifetime = self.random.one_in(2).then(|| GRACE * (1 + self.random.below(4) as u32));
        let options = ForkOptions { lifetime, label: "a fork".into(), snapshot: None };
        let device = Arc::new(MemoryDevice::new());
        let expires = lifetime.map_or(Duration::MAX, |time| self.clock.wall() + time);
        let Ok(copy) = of.fork_to(device.clone(), fresh(), &options) else { return };
        let id = copy.fork.expect("it is registered");
        self.forks.push(Fork { of, id, device, model, expires });
    }

    /// A fork becomes a store of its own, which publishes.
    fn publish_fork(&mut self) {
        let now = self.clock.wall();
        let alive = |fork: &Fork| fork.expires == Duration::MAX || fork.expires > now + 4 * GRACE;
        let Some(fork) = self.forks.iter().find(|fork| alive(fork)) else { return };
        let id = fork.id;
        if self.publishers.iter().any(|publisher| publisher.fork == Some(id)) {
            return;
        }
        let remote = Some(RemoteZones::new(self.objects()));
        let device = Arc::new(MemoryDevice::clone(&fork.device));
        let opened = Kvdb::open(device, fresh(), OpenOptions { remote, ..small() });
        let Ok((db, _)) = opened else { return };
        let to = self.name();
        self.publishers.push(Publisher { to, db, possible: vec![None], fork: Some(id) });
    }

    fn drop_fork(&mut self) {
        let forks = std::mem::take(&mut self.forks);
        let which = self.some(&forks);
        self.forks = forks;
        if let Some(which) = which {
            let fork = self.forks.remove(which);
            let _ = fork.of.drop_fork(fork.id);
            self.without(fork.id);
        }
    }

    /// A fork may no longer publish the data that it has not published so far.
    fn without(&mut self, fork: ForkId) {
        let is_whole = |p: &Publisher| p.possible.iter().all(Option::is_some);
        self.publishers.retain(|p| p.fork != Some(fork) || is_whole(p));
    }

    fn read(&mut self) {
        let Some((of, model)) = self.certain() else { return };
        let (device, until) = (Arc::new(MemoryDevice::new()), self.clock.wall() + GRACE - LATE);
        if of.copy_to(device.clone(), fresh()).is_ok() {
            self.readers.push(Reader { device, model, until });
        }
    }

    fn unpublish(&mut self) {
        let Some((of, _)) = self.certain() else { return };
        if of.unpublish(&*fresh()).is_ok() {
            self.publishers.retain(|publisher| publisher.to.name() != of.name());
        } else {
            let mut all = self.publishers.iter_mut();
            let found = all.find(|publisher| publisher.to.name() == of.name());
            found.into_iter().for_each(|publisher| publisher.possible.push(None));
        }
    }

    /// Does one random operation that may happen at the same time as collectors.
    fn step(&mut self) {
        match self.random.below(16) {
            0..5 => self.publish(),
            5..8 => self.fork(),
            8 => self.publish_fork(),
            9 => self.drop_fork(),
            10 | 11 => self.read(),
            12 if self.random.one_in(2) => self.unpublish(),
            12 => self.found(),
            _ => self.advance(),
        }
    }

    /// Checks that no data is missing. If `whole`, also checks that all kept data is unchanged.
    fn check(&mut self, whole: bool) {
        self.behave(false);
        let survey = RemotePlace::new(self.objects()).survey(&*fresh()).expect("all can be read");
        assert_eq!(survey.missing, []);
        assert_eq!(survey.unknown.objects, 0);
        let now = self.clock.wall();
        let expired: Vec<ForkId> =
            self.forks.iter().filter(|f| f.expires <= now).map(|f| f.id).collect();
        expired.into_iter().for_each(|id| self.without(id));
        self.forks.retain(|fork| fork.expires > now);
        self.readers.retain(|reader| reader.until > now);
        if !whole {
            return;
        }
        for publisher in &mut self.publishers {
            let device = Arc::new(MemoryDevice::new());
            let there = match publisher.to.copy_to(device.clone(), fresh()) {
                Ok(_) => Some(read(&device, self.faults.clone())),
                Err(Error::NoStore(_)) => None,
                Err(e) => panic!("{e}"),
            };
            assert!(publisher.possible.contains(&there), "{}", publisher.to.name());
        }
        for Fork { device, model, id, .. } in &self.forks {
            assert_eq!(read(device, self.faults.clone()), *model, "fork {id}");
        }
        for Reader { device, model, .. } in &self.readers {
            assert_eq!(read(device, self.faults.clone()), *model);
        }
    }
}

fn collected(place: &RemotePlace) -> kvdb::Result<Collected> {
    let options = CollectOptions { grace: GRACE, dry_run: false };
    place.collect(&*fresh(), options, &mut |_| Ok(()))
}

/// A collection that may be interrupted, and during which other operations may run, even another
/// collection.
fn collect(world: &Arc<Mutex<World>>, badly: bool) -> u64 {
    let (seen, cut, at, another) = {
        let mut world = world.lock().unwrap();
        let seen = Seen::new(world.objects());
        let random = &mut world.random;
        let (cut, at) = (random.one_in(3).then(|| random.below(60)), random.below(50));
        (seen, cut, at, random.one_in(3))
    };
    cut.into_iter().for_each(|requests| seen.cut_after(requests));
    let within = world.clone();
    seen.before(at, move || {
        let mut world = within.lock().unwrap();
        (0..3).for_each(|_| world.step());
        if another {
            let _ = collected(&RemotePlace::new(world.objects()));
            world.advance();
        }
    });
    let done = collected(&RemotePlace::new(seen.clone()));
    // A collection that nothing stops succeeds.
    assert!(done.is_ok() || badly || cut.is_some(), "{done:?}");
    done.map_or(0, |done| done.deleted.objects)
}

fn history(seed: u64, steps: u64) -> u64 {
    let world = Arc::new(Mutex::new(World::new(seed)));
    let mut deleted = 0;
    for step in 0..steps {
        let (badly, collects) = {
            let mut world = world.lock().unwrap();
            let (badly, collects) = (world.random.one_in(4), world.random.one_in(3));
            world.behave(badly);
            (badly, collects)
        };
        if collects {
            deleted += collect(&world, badly);
        } else {
            world.lock().unwrap().step();
        }
        world.lock().unwrap().check(step % 5 == 4 || step + 1 == steps);
    }
    let world = &mut *world.lock().unwrap();
    let place = RemotePlace::new(world.objects());
    // Waits until everything that can expire has expired.
    world.clock.advance(4 * GRACE);
    for _ in 0..2 {
        world.clock.advance(GRACE + LATE);
        deleted += collected(&place).expect("nothing stops it").deleted.objects;
    }
    let survey = place.survey(&*fresh()).expect("all can be read");
    assert_eq!((survey.dead.objects, survey.unreferenced.objects), (0, 0), "{survey:?}");
    world.check(true);
    let lists = world.objects().list("d/", "").expect("a list").entries;
    assert!(lists.is_empty(), "{lists:?}");
    deleted
}

#[test]
fn what_anyone_refers_to_stays_and_the_rest_goes() {
    let deleted = AtomicU64::new(0);
    let is_usual = seeded::each("what anyone refers to stays", 200, |seed| {
        deleted.fetch_add(history(seed, 16), Ordering::Relaxed);
    });
    let deleted = deleted.into_inner();
    assert!(!is_usual || deleted > 100, "only {deleted} were deleted");
}
