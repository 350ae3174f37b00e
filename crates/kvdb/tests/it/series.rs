//! Tests of codecs for series of values. However a value gets its place, it is encoded by the codec
//! of its series, and reads need not know the codec.

use std::sync::Arc;

use env::{Machine, Simulated};
use kvdb::{
    Batch, Compression, CreateOptions, DictionaryId, DictionaryInfo, DictionaryOptions, Durability,
    Error, Isolation, Kvdb, OpenOptions, ReadOther, ReceiveOptions, ScrubOptions, SeriesCodec,
    SeriesOf, SeriesSource, Update,
};
use zones::{CrashDevice, MemoryDevice};

const PAGES: u64 = 40;

/// Puts the pages of a series.
type Writer = fn(&Kvdb, DictionaryId, &str);

fn open_options() -> OpenOptions {
    OpenOptions { threads: false, memory: 64 << 20, ..OpenOptions::default() }
}

fn store(device: Arc<dyn zones::Device>) -> (Kvdb, DictionaryId) {
    let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
    let db = Kvdb::create(device, Arc::new(Simulated::new(1)), options).unwrap();
    let dict = db.create_dictionary("d", DictionaryOptions::default()).unwrap();
    (db, dict)
}

fn key(series: &str, i: u64) -> Vec<u8> {
    format!("{series}{i:08}").into_bytes()
}

/// A page of text, or of noise in the series `nois`.
fn page(series: &str, i: u64) -> Vec<u8> {
    if series == "nois" {
        let mut random = env::Random::new(i);
        let mut noise = vec![0; 4096];
        random.fill(&mut noise);
        return noise;
    }
    let line = format!("{series} {i}: the quick brown fox jumps over the lazy dog\n");
    line.repeat(100).into_bytes()[..4096].to_vec()
}

/// Returns the bytes that the values of a series take on the device.
fn stored(db: &Kvdb, dict: DictionaryId, series: &str) -> Vec<usize> {
    let view = db.view();
    let mut tuples = view.stored_tuples(dict).unwrap();
    tuples.seek(series.as_bytes());
    let mut all = Vec::new();
    while tuples.advance().unwrap() {
        let Some(tuple) = tuples.current() else { break };
        if !tuple.key.starts_with(series.as_bytes()) {
            break;
        }
        all.push(tuple.stored_bytes());
    }
    all
}

fn assert_whole(db: &Kvdb, dict: DictionaryId, series: &[&str]) {
    for series in series {
        for i in 0..PAGES {
            let value = db.get(dict, &key(series, i)).unwrap();
            assert_eq!(value.as_deref(), Some(&page(series, i)[..]), "{series} {i}");
        }
    }
}

fn put_each(db: &Kvdb, dict: DictionaryId, series: &str, durability: Durability) {
    for i in 0..PAGES {
        db.put(dict, &key(series, i), &page(series, i), durability).unwrap();
    }
}

fn batch(dict: DictionaryId, series: &str) -> Batch {
    let mut batch = Batch::new();
    (0..PAGES).for_each(|i| batch.put(dict, key(series, i), page(series, i)));
    batch
}

/// The ways in which values get their places.
const WRITERS: &[(&str, Writer)] = &[
    ("each by itself", |db, dict, series| put_each(db, dict, series, Durability::Buffered)),
    ("each synced", |db, dict, series| put_each(db, dict, series, Durability::Synced)),
    ("a large batch", |db, dict, series| {
        db.commit(batch(dict, series), Durability::Buffered).unwrap();
    }),
    ("a transaction", |db, dict, series| {
        let t = db.begin(Isolation::Snapshot).unwrap();
        t.apply(batch(dict, series)).unwrap();
        t.commit(Durability::Buffered).unwrap();
    }),
    ("a run of a transaction", |db, dict, series| {
        let t = db.begin(Isolation::Snapshot).unwrap();
        let mut bulk = t.bulk(dict, &db.view()).unwrap();
        for i in 0..PAGES {
            bulk.push(&key(series, i), &page(series, i)).unwrap();
        }
        t.adopt(bulk.finish().unwrap()).unwrap();
        t.commit(Durability::Buffered).unwrap();
    }),
    ("an ingest", |db, dict, series| {
        db.ingest(dict, (0..PAGES).map(|i| (key(series, i), page(series, i)))).unwrap();
    }),
];

#[test]
fn each_series_has_its_codec_by_whatever_way_its_values_get_their_places() {
    for (name, write) in WRITERS {
        let (db, dict) = store(Arc::new(MemoryDevice::new()));
        let set = |series: &str, codec| {
            db.set_codec_of_series(dict, series.as_bytes(), Some(codec)).unwrap();
        };
        set("text", SeriesCodec::Fixed(Compression::Zstd));
        set("auto", SeriesCodec::Auto);
        set("nois", SeriesCodec::Auto);
        for series in ["text", "auto", "nois", "rest"] {
            write(&db, dict, series);
        }
        db.flush().unwrap();
        let sizes = |series, fits: fn(usize) -> bool| {
            let all = stored(&db, dict, series);
            assert_eq!(all.len() as u64, PAGES, "{name}: {series}");
            assert!(all.iter().all(|len| fits(*len)), "{name}: {series} has {all:?}");
        };
        sizes("text", |len| len < 1024);
        sizes("auto", |len| len < 1024);
        sizes("nois", |len| len == 4096);
        sizes("rest", |len| len == 4096);
        assert_whole(&db, dict, &["text", "auto", "nois", "rest"]);
        // A merge moves values as they are.
        let before = stored(&db, dict, "text");
        db.compact(dict).unwrap();
        assert_eq!(stored(&db, dict, "text"), before, "{name}");
        assert_whole(&db, dict, &["text", "auto", "nois", "rest"]);
    }
}

#[test]
fn a_series_may_be_excepted_from_the_codec_of_its_dictionary() {
    let (db, _) = store(Arc::new(MemoryDevice::new()));
    let options =
        DictionaryOptions { compress_values: Compression::Lz4, ..DictionaryOptions::default() };
    let dict = db.create_dictionary("packed", options).unwrap();
    db.set_codec_of_series(dict, b"none", Some(SeriesCodec::Fixed(Compression::None))).unwrap();
    put_each(&db, dict, "none", Durability::Buffered);
    put_each(&db, dict, "rest", Durability::Buffered);
    db.flush().unwrap();
    assert!(stored(&db, dict, "none").iter().all(|len| *len == 4096));
    assert!(stored(&db, dict, "rest").iter().all(|len| *len < 1024));
    // From now on it has the codec of the dictionary again; what is stored stays.
    db.set_codec_of_series(dict, b"none", None).unwrap();
    db.put(dict, &key("none", 0), &page("none", 0), Durability::Buffered).unwrap();
    db.flush().unwrap();
    let all = stored(&db, dict, "none");
    assert!(all[0] < 1024 && all[1..].iter().all(|len| *len == 4096), "{all:?}");
    assert_whole(&db, dict, &["none", "rest"]);
}

#[test]
fn a_page_that_is_changed_in_part_keeps_its_codec() {
    let (db, dict) = store(Arc::new(MemoryDevice::new()));
    db.set_codec_of_series(dict, b"text", Some(SeriesCodec::Auto)).unwrap();
    put_each(&db, dict, "text", Durability::Buffered);
    put_each(&db, dict, "rest", Durability::Buffered);
    db.flush().unwrap();
    db.set_codec_of_series(dict, b"text", None).unwrap();
    let mut expected = Vec::new();
    for series in ["text", "rest"] {
        let mut batch = Batch::new();
        batch.update(dict, key(series, 7), Update::patch(100, b"another").unwrap());
        db.commit(batch, Durability::Buffered).unwrap();
        let mut whole = page(series, 7);
        whole[100..107].copy_from_slice(b"another");
        expected.push((series, whole));
    }
    db.flush().unwrap();
    db.compact(dict).unwrap();
    for (series, whole) in expected {
        assert_eq!(db.get(dict, &key(series, 7)).unwrap().unwrap(), whole);
    }
    assert!(stored(&db, dict, "text").iter().all(|len| *len < 1024));
    assert!(stored(&db, dict, "rest").iter().all(|len| *len == 4096));
}

/// The end of a file that grows slowly lies in its block at first. It gets its place when a
/// compaction applies what was appended.
#[test]
fn a_value_that_grows_until_it_gets_a_place_has_the_codec_of_its_series() {
    let compactions: [fn(&Kvdb, DictionaryId); 2] = [
        |db, dict| db.compact(dict).unwrap(),
        |db, dict| db.compact_range(dict, b"a".as_slice()..b"z".as_slice()).unwrap(),
    ];
    for compact in compactions {
        let (db, _) = store(Arc::new(MemoryDevice::new()));
        let options = DictionaryOptions { separate_at: 2048, ..DictionaryOptions::default() };
        let dict = db.create_dictionary("grows", options).unwrap();
        db.set_codec_of_series(dict, b"text", Some(SeriesCodec::Auto)).unwrap();
        let (key, whole) = (key("text", 1), page("text", 1));
        db.put(dict, &key, &whole[..1000], Durability::Buffered).unwrap();
        db.flush().unwrap();
        let mut batch = Batch::new();
        batch.update(dict, key.clone(), Update::append(&whole[1000..]).unwrap());
        db.commit(batch, Durability::Buffered).unwrap();
        db.flush().unwrap();
        compact(&db, dict);
        assert_eq!(db.get(dict, &key).unwrap().as_deref(), Some(&whole[..]));
        let stored = stored(&db, dict, "text");
        assert!(stored.len() == 1 && stored[0] < 1024, "{stored:?}");
    }
}

#[test]
fn compressed_values_are_sound_after_a_power_cut_a_scrub_and_in_a_copy() {
    for seed in 0..20 {
        let device = Arc::new(CrashDevice::new());
        let (db, dict) = store(device.clone());
        for series in ["text", "nois"] {
            db.set_codec_of_series(dict, series.as_bytes(), Some(SeriesCodec::Auto)).unwrap();
            put_each(&db, dict, series, Durability::Buffered);
        }
        db.sync().unwrap();
        put_each(&db, dict, "more", Durability::Buffered);
        device.cut_power_after(seed);
        let _ = db.sync();
        let image = device.crash(seed);
        drop(db);
        let report = kvdb::check(Arc::new(image.clone()), &mut |_, _| {});
        assert!(report.is_clean(), "seed {seed}: {:?}", report.faults);
        let (db, _) =
            Kvdb::open(Arc::new(image), Arc::new(Machine::default()), open_options()).unwrap();
        assert_whole(&db, dict, &["text", "nois"]);
        db.flush().unwrap();
        assert!(stored(&db, dict, "text").iter().all(|len| *len < 1024));
        if seed > 0 {
            continue;
        }
        db.scrub(ScrubOptions::default()).unwrap();
        db.wait_for_scrub();
        let progress = db.scrub_progress();
        assert!(progress.bytes > 0 && progress.faults == 0, "{progress:?}");
        db.snapshot("s").unwrap();
        let mut stream = Vec::new();
        db.send("s", None, &mut stream, None).unwrap();
        let options = CreateOptions { open: open_options(), ..CreateOptions::default() };
        let copy =
            Kvdb::create(Arc::new(MemoryDevice::new()), Arc::new(Simulated::new(2)), options)
                .unwrap();
        copy.receive(&stream[..], &ReceiveOptions::default()).unwrap();
        let dict = copy.dictionary("d").unwrap();
        assert_whole(&copy, dict, &["text", "nois"]);
    }
}

/// Reads what it would find in a damaged store.
struct Damaged;

impl SeriesSource for Damaged {
    fn series_of(
        &self,
        _: &DictionaryInfo,
        _: &[u8],
        _: &mut ReadOther<'_>,
    ) -> kvdb::Result<Option<SeriesOf>> {
        Err(Error::Corrupt("a tuple block".into()))
    }
}

#[test]
fn a_copy_is_received_whole_though_the_codecs_of_its_values_are_not_known() {
    let (db, dict) = store(Arc::new(MemoryDevice::new()));
    // More than is committed in batches, before runs are made.
    let series = ["text", "nois", "more", "rest"].repeat(20);
    for (n, series) in series.iter().enumerate() {
        let series = format!("{series}{n:02}");
        db.commit(batch(dict, &series), Durability::Buffered).unwrap();
    }
    db.snapshot("s").unwrap();
    let mut stream = Vec::new();
    db.send("s", None, &mut stream, None).unwrap();
    let copy = Kvdb::in_memory();
    copy.set_series_source(Arc::new(Damaged));
    copy.receive(&stream[..], &ReceiveOptions::default()).unwrap();
    let dict = copy.dictionary("d").unwrap();
    for (n, series) in series.iter().enumerate() {
        let series = format!("{series}{n:02}");
        assert_whole(&copy, dict, &[series.as_str()]);
    }
}
