//! Tests of registered forks and of the collector, which deletes unreferenced objects. These are
//! hand-made cases of the histories that `collect_machine` draws at random.

use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use crate::model::*;
use crate::place::{Late, Seen};
use env::{Env, Random, Simulated};
use kvdb::{
    CollectOptions, Collected, Error, ForkOptions, Kvdb, LocalCopy, OpenOptions, RemotePlace,
    RemoteStore, RemoteZones,
};
use objects::{Condition, CountObjects, Key, Objects, Part};
use zones::MemoryDevice;

const GRACE: Duration = Duration::from_secs(3600);

fn fresh() -> Arc<Simulated> {
    static NEXT: AtomicU64 = AtomicU64::new(1 << 41);
    Arc::new(Simulated::new(NEXT.fetch_add(1, Ordering::Relaxed)))
}

/// A place with one store in it, which was published.
struct Lab {
    clock: Arc<Simulated>,
    objects: Arc<dyn Objects>,
    db: Kvdb,
    to: RemoteStore,
    random: Random,
}

impl Lab {
    fn new() -> Lab {
        let clock = fresh();
        let objects: Arc<dyn Objects> = Arc::new(Late::new(clock.clone(), 1));
        let db = create(Arc::new(MemoryDevice::new()), fresh(), small()).expect("a store");
        // Each state is an object, which can become dead.
        let to = RemoteStore::new(objects.clone(), "fruit").expect("a name");
        let to = to.with_state_in_head(0);
        let mut lab = Lab { clock, objects, db, to, random: Random::new(1) };
        lab.publish();
        lab
    }

    /// Changes the store and publishes it.
    fn publish(&mut self) -> Model {
        let dicts = dictionaries(&self.db).expect("dictionaries");
        for _ in 0..5 {
            let changes = changes(&mut self.random, &dicts);
            self.db.commit(batch(&changes), kvdb::Durability::Buffered).expect("a commit");
        }
        self.db.push(&self.to, &mut |_| Ok(())).expect("published");
        contents(&self.db).expect("read")
    }

    fn place(&self) -> RemotePlace {
        RemotePlace::new(self.objects.clone())
    }

    fn collect(&self) -> Collected {
        collected(&self.place(), &*fresh()).expect("collected")
    }

    /// Finds the objects that are dead now, and deletes them after the grace period.
    fn settle(&self) -> u64 {
        let first = self.collect().deleted.objects;
        self.clock.advance(GRACE);
        first + self.collect().deleted.objects
    }

    fn fork(&self, options: &ForkOptions) -> (Arc<MemoryDevice>, LocalCopy) {
        let device = Arc::new(MemoryDevice::new());
        let copy = self.to.fork_to(device.clone(), fresh(), options).expect("a fork");
        (device, copy)
    }

    fn read(&self, device: &MemoryDevice) -> kvdb::Result<Model> {
        let zones = RemoteZones {
            timeout: Duration::from_millis(1),
            ..RemoteZones::new(self.objects.clone())
        };
        let options = OpenOptions { remote: Some(zones), read_only: true, ..small() };
        contents(&Kvdb::open(Arc::new(MemoryDevice::clone(device)), fresh(), options)?.0)
    }

    fn keys(&self, prefix: &str) -> Vec<Key> {
        let (mut keys, mut after) = (Vec::new(), String::new());
        loop {
            let page = self.objects.list(prefix, &after).expect("a list");
            keys.extend(page.entries.into_iter().map(|entry| entry.key));
            match keys.last() {
                Some(last) if page.more => after = last.to_string(),
                _ => return keys,
            }
        }
    }

    fn put(&self, key: &str, bytes: Vec<u8>) {
        let key = Key::new(key).expect("a key");
        self.objects.put(&key, bytes.into(), Condition::Always).expect("put");
    }

    fn is_whole(&self) {
        assert_eq!(self.place().survey(&*fresh()).expect("a survey").missing, []);
    }
}

fn collected(place: &RemotePlace, env: &dyn Env) -> kvdb::Result<Collected> {
    place.collect(env, CollectOptions { grace: GRACE, dry_run: false }, &mut |_| Ok(()))
}

#[test]
fn what_is_replaced_is_deleted_after_the_grace_and_not_before() {
    let mut lab = Lab::new();
    let device = Arc::new(MemoryDevice::new());
    let reader = lab.to.copy_to(device.clone(), fresh()).expect("a reader");
    assert_eq!(reader.fork, None);
    let was = lab.read(&device).expect("read");
    let now = lab.publish();
    let dry = CollectOptions { grace: Duration::ZERO, dry_run: true };
    let before = lab.keys("");
    let found = lab.place().collect(&*fresh(), dry, &mut |_| Ok(())).expect("dry").found;
    assert!(found.objects > 0);
    assert_eq!(lab.keys(""), before, "a dry run changes nothing");

    let first = lab.collect();
    assert_eq!((first.found, first.deleted.objects), (found, 0));
    lab.clock.advance(GRACE - Duration::from_secs(1));
    let second = lab.collect();
    assert_eq!((second.waiting, second.deleted.objects), (found, 0));
    assert_eq!(lab.read(&device).expect("read"), was, "the grace is for readers");
    lab.clock.advance(Duration::from_secs(1));
    assert_eq!(lab.collect().deleted, found);
    assert_eq!(lab.keys("d/"), []);
    assert_eq!(lab.keys("c/").len(), 1, "what was replaced is gone");
    let newest = Arc::new(MemoryDevice::new());
    lab.to.copy_to(newest.clone(), fresh()).expect("a reader");
    assert_eq!(lab.read(&newest).expect("read"), now);
}

#[test]
fn a_fork_costs_one_put_and_keeps_what_it_began_as() {
    // The requests are one for the head, one for the state if it is an object, and one for the head
    // again.
    fork_costs(0, 3);
    fork_costs(32 << 10, 2);
}

fn fork_costs(in_head: usize, gets: u64) {
    let mut lab = Lab::new();
    lab.to = lab.to.with_state_in_head(in_head);
    lab.publish();
    let was = contents(&lab.db).expect("read");
    let counted = Arc::new(CountObjects::new(lab.objects.clone()));
    let device = Arc::new(MemoryDevice::new());
    let to = RemoteStore::new(counted.clone(), "fruit").expect("a name");
    let options = ForkOptions { lifetime: None, label: "mine".into(), snapshot: None };
    let copy = to.fork_to(device.clone(), fresh(), &options).expect("a fork");
    let counts = counted.counts();
    assert_eq!((counts.put.requests, counts.get.requests), (1, gets));
    assert_eq!(LocalCopy::of(&*device).expect("a note"), Some(copy.clone()));

    lab.publish();
    lab.settle();
    assert_eq!(lab.read(&device).expect("read"), was);
    let forks = lab.to.forks().expect("the registry");
    let told: Vec<_> = forks.iter().map(|f| (Some(f.id), &*f.label, f.expires)).collect();
    assert_eq!(told, [(copy.fork, "mine", None)]);
    assert!(lab.to.drop_fork(forks[0].id).expect("dropped"));
    assert!(!lab.to.drop_fork(forks[0].id).expect("there is none"));
    let states = lab.keys("c/").len();
    assert_eq!(states, if in_head == 0 { 2 } else { 0 });
    let deleted = lab.settle();
    assert!(deleted > 0 || in_head > 0);
    assert_eq!(lab.keys("c/").len(), states / 2, "the state of the fork is gone");
    let long = ForkOptions { label: "x".repeat(257), ..options };
    assert!(matches!(lab.to.fork_to(device, fresh(), &long), Err(Error::Invalid(_))));
    assert_eq!(lab.to.forks().expect("the registry"), []);
}

#[test]
fn forks_of_states_that_are_changes_to_one_object_keep_what_they_began_as() {
    let mut lab = Lab::new();
    let newest = |lab: &Lab| lab.to.head().expect("read").expect("a head").state.expect("a state");
    let mut forks = Vec::new();
    // The limits let a head contain the changes, but not all of a state.
    for in_head in (100..4000).step_by(20) {
        lab.to = lab.to.clone().with_state_in_head(in_head);
        let model = lab.publish();
        let state = newest(&lab);
        if state.changes.is_some() && state.object.is_some() {
            let device = lab.fork(&ForkOptions::default()).0;
            forks.push((state.object, device, model));
        }
    }
    let pairs = forks.windows(2).filter(|pair| pair[0].0 == pair[1].0).count();
    assert!(pairs > 3, "{pairs} of {} forks have an object in common", forks.len());
    lab.settle();
    lab.settle();
    for (object, device, model) in forks {
        assert_eq!(lab.read(&device).expect("read"), model, "{object:?}");
    }
    lab.is_whole();
}

#[test]
fn a_registration_expires_by_the_clock_of_the_place() {
    let mut lab = Lab::new();
    // The clock of the fork's machine is years off, and so is the collector's.
    let wrong = fresh();
    wrong.advance(Duration::from_secs(400 << 20));
    let (device, options) = (
        Arc::new(MemoryDevice::new()),
        ForkOptions { lifetime: Some(3 * GRACE), ..Default::default() },
    );
    lab.to.fork_to(device.clone(), wrong.clone(), &options).expect("a fork");
    lab.publish();
    for _ in 0..3 {
        let done = collected(&lab.place(), &*wrong).expect("collected");
        assert_eq!((done.forks, done.deleted.objects), (1, 0));
        wrong.advance(1000 * GRACE);
        lab.clock.advance(GRACE - Duration::from_secs(1));
    }
    lab.clock.advance(Duration::from_secs(3));
    let done = collected(&lab.place(), &*wrong).expect("collected");
    assert_eq!((done.forks, done.expired_forks, done.deleted.objects), (0, 1, 0));
    lab.clock.advance(GRACE);
    assert!(collected(&lab.place(), &*wrong).expect("collected").deleted.objects > 0);
    assert_eq!(lab.keys("f/"), []);
}

#[test]
fn a_fork_is_kept_whenever_it_registers_during_a_collection() {
    let mut last = false;
    for at in 0.. {
        let mut lab = Lab::new();
        lab.publish();
        lab.collect();
        lab.clock.advance(GRACE);
        let seen = Seen::new(lab.objects.clone());
        let lab = Arc::new(Mutex::new(lab));
        let forked = Arc::new(Mutex::new(None));
        let (other, result) = (lab.clone(), forked.clone());
        seen.before(at, move || {
            let lab = &mut *other.lock().unwrap();
            let was = contents(&lab.db).expect("read");
            let device = lab.fork(&ForkOptions::default()).0;
            // The state in which the fork began is replaced at once, and another collector finds
            // it.
            lab.publish();
            lab.collect();
            lab.clock.advance(GRACE);
            *result.lock().unwrap() = Some((device, was));
        });
        collected(&RemotePlace::new(seen.clone()), &*fresh()).expect("collected");
        let Some((device, was)) = forked.lock().unwrap().take() else {
            last = at > 5;
            break;
        };
        let lab = lab.lock().unwrap();
        lab.is_whole();
        assert_eq!(lab.read(&device).expect("read"), was, "registered at request {at}");
        lab.settle();
        lab.is_whole();
        assert_eq!(lab.read(&device).expect("read"), was, "registered at request {at}");
    }
    assert!(last, "all requests of a collection were tried");
}

#[test]
fn a_fork_that_is_overtaken_while_it_registers_begins_anew() {
    let lab = Arc::new(Mutex::new(Lab::new()));
    let objects = lab.lock().unwrap().objects.clone();
    let seen = Seen::new(objects);
    let other = lab.clone();
    seen.before(1, move || _ = other.lock().unwrap().publish());
    let to = RemoteStore::new(seen, "fruit").expect("a name");
    let device = Arc::new(MemoryDevice::new());
    let copy = to.fork_to(device.clone(), fresh(), &ForkOptions::default()).expect("a fork");
    let lab = lab.lock().unwrap();
    assert_eq!(copy.generation, 2);
    assert_eq!(lab.keys("f/").len(), 1, "the first registration was removed");
    lab.settle();
    assert_eq!(lab.read(&device).expect("read"), contents(&lab.db).expect("read"));
}

#[test]
fn what_a_publication_under_way_has_written_stays() {
    let mut lab = Lab::new();
    lab.publish();
    let dicts = dictionaries(&lab.db).expect("dictionaries");
    let noise = bytes(&mut lab.random, 3000);
    let put = [Change::Put(dicts[1], b"new".to_vec(), noise)];
    lab.db.commit(batch(&put), kvdb::Durability::Buffered).expect("a commit");
    let mut current = 0;
    let pushed = lab.db.push(&lab.to, &mut |_| {
        for _ in 0..3 {
            lab.clock.advance(GRACE);
            current = lab.collect().current.objects.max(current);
        }
        Ok(())
    });
    pushed.expect("published");
    assert!(current > 0, "its objects were seen");
    lab.is_whole();
    let device = lab.fork(&ForkOptions::default()).0;
    assert_eq!(lab.read(&device).expect("read"), contents(&lab.db).expect("read"));
}

#[test]
fn what_cannot_be_read_stops_the_collector() {
    let mut lab = Lab::new();
    let (_, copy) = lab.fork(&ForkOptions::default());
    lab.publish();
    lab.collect();
    lab.clock.advance(GRACE);
    let fork = format!("f/fruit/{}", copy.fork.expect("registered"));
    let state = lab.to.head().expect("read").expect("a head").state.expect("a state");
    let state = state.object.expect("an object").key;
    for (key, named) in
        [("m/fruit/head", "fruit"), (&*fork, &*fork), (state.as_str(), state.as_str())]
    {
        let key = Key::new(key).expect("a key");
        let whole = lab.objects.get(&key, Part::Whole).expect("there").bytes;
        let mut newer = whole[12..].to_vec();
        newer[0] = 9;
        let mut flipped = whole.to_vec();
        flipped[20] ^= 1;
        let sealed = [&whole[..8], &zones::crc32c(&newer).to_le_bytes(), &newer].concat();
        for bad in [flipped, sealed, Vec::new(), vec![7; 100]] {
            let is_newer = bad.len() > 8 && bad[12] == 9;
            lab.put(key.as_str(), bad);
            let before = lab.keys("");
            let error = collected(&lab.place(), &*fresh()).expect_err("it is damaged").to_string();
            assert!(error.contains(named) || is_newer, "{key}: {error}");
            assert_eq!(lab.keys(""), before);
            assert!(lab.place().survey(&*fresh()).is_err());
        }
        lab.objects.put(&key, whole, Condition::Always).expect("put");
    }
    for odd in ["m/fruit/other", "f/fruit/other"] {
        lab.put(odd, b"x".to_vec());
        let error = collected(&lab.place(), &*fresh()).expect_err("odd").to_string();
        assert!(error.contains(odd), "{error}");
        lab.objects.delete(&Key::new(odd).expect("a key")).expect("deleted");
    }
    lab.collect();
    lab.is_whole();
}

/// A list of dead objects as a hostile writer may make it.
fn list(keys: &[&str]) -> Vec<u8> {
    let mut body = [&1u32.to_le_bytes()[..], &[keys.len() as u8]].concat();
    for key in keys {
        body.push(key.len() as u8);
        body.extend_from_slice(key.as_bytes());
    }
    [&b"KVFSDEAD"[..], &zones::crc32c(&body).to_le_bytes(), &body].concat()
}

#[test]
fn a_list_says_when_and_never_what_is_deleted() {
    let mut lab = Lab::new();
    lab.publish();
    let all = lab.keys("");
    let names: Vec<&str> = all.iter().map(Key::as_str).collect();
    let name = |digit: &str| format!("d/{}", digit.repeat(32));
    lab.put(&name("7"), list(&names));
    lab.put(&name("8"), list(&["m/fruit/head"]));
    lab.put(&name("9"), b"KVFSDEADnone".to_vec());
    lab.put(&name("a"), list(&[]));
    lab.put("d/now-old", b"now".to_vec());
    lab.put("z/odd", b"odd".to_vec());
    lab.clock.advance(2 * GRACE);
    let done = lab.collect();
    assert_eq!((done.deleted.objects, done.unknown.objects), (0, 1));
    assert!(done.found.objects > 0);
    lab.is_whole();
    lab.clock.advance(GRACE);
    assert_eq!(lab.collect().deleted, done.found, "the list that was written then counts");
    lab.is_whole();
    assert_eq!(lab.keys("d/"), []);
    assert_eq!(lab.keys("z/odd").len(), 1);
}

#[test]
fn a_store_that_is_unpublished_goes_but_for_its_forks() {
    let lab = Lab::new();
    let was = contents(&lab.db).expect("read");
    let (device, copy) = lab.fork(&ForkOptions::default());
    let before = lab.to.unpublish(&*fresh()).expect("unpublished");
    assert_eq!(before.generation, 1);
    for again in
        [lab.to.unpublish(&*fresh()).map(drop), lab.to.copy_to(device.clone(), fresh()).map(drop)]
    {
        assert!(matches!(again, Err(Error::NoStore(_))), "{again:?}");
    }
    let refused = lab.to.fork_to(Arc::new(MemoryDevice::new()), fresh(), &ForkOptions::default());
    assert!(matches!(refused, Err(Error::NoStore(_))));
    lab.settle();
    assert_eq!(lab.read(&device).expect("read"), was);
    lab.to.drop_fork(copy.fork.expect("registered")).expect("dropped");
    assert!(lab.settle() > 0);
    assert_eq!(lab.keys("").iter().map(Key::as_str).collect::<Vec<_>>(), ["m/fruit/head"]);
}

#[test]
fn a_survey_names_what_is_missing_and_who_needs_it() {
    let lab = Lab::new();
    let keys = lab.keys("z/");
    let whole = lab.objects.get(&keys[0], Part::Whole).expect("there").bytes;
    lab.is_whole();
    lab.put(keys[0].as_str(), whole[..whole.len() - 1].to_vec());
    let survey = lab.place().survey(&*fresh()).expect("a survey");
    let told: Vec<String> = survey.missing.iter().map(ToString::to_string).collect();
    assert_eq!(told.len(), 1);
    assert!(
        told[0].contains(keys[0].as_str()) && told[0].contains("fruit, generation 1"),
        "{told:?}"
    );
    lab.objects.delete(&keys[0]).expect("deleted");
    assert_eq!(lab.place().survey(&*fresh()).expect("a survey").missing, survey.missing);
    lab.objects.put(&keys[0], whole, Condition::Absent).expect("put");
    lab.is_whole();
}

/// Reads a number of seven bits a byte.
fn varint(bytes: &[u8], at: &mut usize) -> usize {
    let (mut value, mut shift) = (0, 0);
    loop {
        let byte = bytes[*at];
        *at += 1;
        value |= usize::from(byte & 0x7f) << shift;
        shift += 7;
        if byte < 0x80 {
            return value;
        }
    }
}

fn put_varint(out: &mut Vec<u8>, mut value: usize) {
    while value >= 0x80 {
        out.push(value as u8 | 0x80);
        value >>= 7;
    }
    out.push(value as u8);
}

/// Splits a head of version 4 into the bytes before its embedded state, and that state.
fn state_in(head: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let mut at = 12;
    assert_eq!(head[at], 4, "a head with a state in itself");
    at += 4;
    varint(head, &mut at);
    varint(head, &mut at);
    at += 48;
    varint(head, &mut at);
    for _ in 0..2 {
        at += varint(head, &mut at);
        varint(head, &mut at);
        at += 4;
    }
    at += 17;
    varint(head, &mut at);
    at += varint(head, &mut at);
    assert_eq!(head[at], 0, "no journal");
    at += 1;
    let before = head[..at].to_vec();
    varint(head, &mut at);
    at += 4;
    let len = varint(head, &mut at);
    assert_eq!(at + len, head.len());
    (before, zstd::decode_all(&head[at..]).expect("a frame"))
}

fn sealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let sum = zones::crc32c(&bytes[12..]);
    bytes[8..12].copy_from_slice(&sum.to_le_bytes());
    bytes
}

/// A head that contains another state.
fn with_state(before: &[u8], state: &[u8]) -> Vec<u8> {
    let mut head = before.to_vec();
    let frame = zstd::encode_all(state, 3).expect("a frame");
    put_varint(&mut head, state.len());
    head.extend_from_slice(&zones::crc32c(state).to_le_bytes());
    put_varint(&mut head, frame.len());
    head.extend_from_slice(&frame);
    sealed(head)
}

/// The state with another fingerprint of its last piece, so that its checksum is `sum`.
fn with_sum(state: &[u8], sum: u32) -> Vec<u8> {
    let first = state.len() - 16;
    let flipped = |bits: u128| {
        let mut other = state.to_vec();
        for (byte, flips) in other[first..].iter_mut().zip(bits.to_le_bytes()) {
            *byte ^= flips;
        }
        sealed(other)
    };
    let begun = zones::crc32c(&flipped(0));
    // Each bit flips some of the sum; which ones does not depend on the others.
    let mut basis: Vec<(u32, u128)> = Vec::new();
    let reduced = |basis: &[(u32, u128)], mut sum: u32, mut bits: u128| {
        for (of, with) in basis {
            if sum ^ of < sum {
                (sum, bits) = (sum ^ of, bits ^ with);
            }
        }
        (sum, bits)
    };
    for bit in 0..128 {
        let flips = zones::crc32c(&flipped(1 << bit)) ^ begun;
        let (left, bits) = reduced(&basis, flips, 1 << bit);
        if left != 0 {
            basis.push((left, bits));
            basis.sort_by_key(|of| std::cmp::Reverse(of.0));
        }
    }
    let (left, bits) = reduced(&basis, begun ^ sum, 0);
    assert_eq!(left, 0, "there is such a state");
    flipped(bits)
}

// A collector distinguished embedded states of heads only by a length and 32 bits.
#[test]
fn states_of_one_length_and_checksum_are_two_states() {
    let lab = Lab::new();
    let published = |name: &str| {
        let db = create(Arc::new(MemoryDevice::new()), fresh(), small()).expect("a store");
        let to = RemoteStore::new(lab.objects.clone(), name).expect("a name");
        let dict = db.open_dictionary("d").expect("a dictionary");
        for key in ["a", "b"] {
            dict.insert(key, name.to_owned()).expect("put");
            db.push(&to, &mut |_| Ok(())).expect("published");
        }
        to
    };
    let head_of = |name: &str| {
        let key = Key::new(format!("m/{name}/head")).expect("a key");
        lab.objects.get(&key, Part::Whole).expect("a head").bytes.to_vec()
    };
    let _apple = published("apple");
    let like = state_in(&head_of("apple")).1;
    let pears: Vec<RemoteStore> = (0..40).map(|n| published(&format!("pear{n:02}"))).collect();
    let alike = |to: &&RemoteStore| state_in(&head_of(to.name())).1.len() == like.len();
    let pear = pears.iter().find(alike).expect("one of the same length");
    let (before, state) = state_in(&head_of(pear.name()));
    let other = with_sum(&state, zones::crc32c(&like));
    assert!(other != like && other.len() == like.len());
    lab.put(&format!("m/{}/head", pear.name()), with_state(&before, &other));

    let read = || -> kvdb::Result<Model> {
        let device = Arc::new(MemoryDevice::new());
        pear.copy_to(device.clone(), fresh())?;
        lab.read(&device)
    };
    let was = read().expect("read");
    assert!(!was.is_empty());
    lab.settle();
    lab.settle();
    assert_eq!(read().expect("its zones are there"), was);
}

// Each registration was read with a store of its own, which kept the object of its state in memory
// until all forks were marked.
#[test]
fn an_object_that_many_forks_make_changes_to_is_read_once_by_a_collector() {
    let mut lab = Lab::new();
    let mut forks = 0;
    for in_head in (100..4000).step_by(20) {
        lab.to = lab.to.clone().with_state_in_head(in_head);
        lab.publish();
        let state = lab.to.head().expect("read").expect("a head").state.expect("a state");
        if state.changes.is_some() && state.object.is_some() {
            lab.fork(&ForkOptions::default());
            forks += 1;
        }
    }
    let states = lab.keys("c/").len() as u64;
    let counted = Arc::new(CountObjects::new(lab.objects.clone()));
    let place = RemotePlace::new(counted.clone());
    let options = CollectOptions { grace: GRACE, dry_run: true };
    place.collect(&*fresh(), options, &mut |_| Ok(())).expect("collected");
    let (gets, heads) = (counted.counts().get.requests, 1);
    assert!(forks > 3 && gets <= heads + forks + states, "{gets} gets: {forks} forks, {states}");
}

// A state that could not be read counted as marked from then on. So a second fork of it caused no
// error, and objects that the fork needs were deleted.
#[test]
fn a_fork_whose_state_cannot_be_read_is_an_error_whatever_becomes_of_another_fork_of_it() {
    let mut lab = Lab::new();
    let forks: Vec<_> = (0..2).map(|_| lab.fork(&ForkOptions::default()).1.fork).collect();
    let state = lab.keys("c/").remove(0);
    lab.publish();
    lab.objects.delete(&state).expect("deleted");
    for dropped in forks.into_iter().flatten() {
        for request in 0..20 {
            let key = Key::new(format!("f/fruit/{dropped}")).expect("a key");
            let bytes = lab.objects.get(&key, Part::Whole).expect("there").bytes;
            let seen = Seen::new(lab.objects.clone());
            let (to, options) = (lab.to.clone(), CollectOptions { grace: GRACE, dry_run: true });
            seen.before(request, move || _ = to.drop_fork(dropped));
            let place = RemotePlace::new(seen);
            let outcome = place.collect(&*fresh(), options, &mut |_| Ok(()));
            assert!(outcome.is_err(), "{dropped} is dropped before request {request}: {outcome:?}");
            lab.put(key.as_str(), bytes.to_vec());
        }
    }
}
