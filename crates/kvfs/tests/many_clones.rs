//! Tests of many clones. Work on one of them, above all its merge, costs the same whether the store
//! has few clones or many. Work is counted as bytes that it allocates, since a list of all clones
//! shows in this number and the load of the machine does not.

#[path = "../../kvdb/tests/bounded/counting.rs"]
mod counting;
#[allow(dead_code, reason = "this program uses a part of it")]
#[path = "it/world/mod.rs"]
mod world;

use kvdb::{Durability, Settled};
use kvfs::{FileKind, FsOptions, MergeOptions, ROOT, ViewId, Views};
use world::{USER, World};

/// Times that each operation is counted.
const EACH: usize = 15;

/// The bytes that the median of an operation allocates: one in many writes a checkpoint.
struct Counted {
    name: &'static str,
    allocated: Vec<u64>,
}

impl Counted {
    fn median(&self) -> u64 {
        let mut sorted = self.allocated.clone();
        sorted.sort_unstable();
        sorted[sorted.len() / 2]
    }
}

/// Counts the work on one clone next to this many others.
fn beside(clones: usize) -> Vec<Counted> {
    let (w, views) = World::with_views(FsOptions::default());
    w.fs.mknod(ROOT, b"f", FileKind::File, 0o644, 0, USER).unwrap();
    views.snapshot(&ViewId::Mainline, "base", Durability::Synced).unwrap();
    for n in 0..clones {
        views.clone_snapshot("base", &format!("idle{n}")).unwrap();
        views
            .snapshot(&ViewId::Clone(format!("idle{n}")), &format!("of{n}"), Durability::Buffered)
            .unwrap();
    }
    let mut all: Vec<Counted> =
        ["clone", "open", "change", "merge", "commit", "snapshot", "roll back", "drop"]
            .map(|name| Counted { name, allocated: Vec::new() })
            .into();
    for n in 0..EACH {
        each(&views, n, &mut all);
    }
    all
}

fn each(views: &Views, n: usize, all: &mut [Counted]) {
    let view = ViewId::Clone("try".into());
    let mut next = all.iter_mut();
    let mut count = |operation: &mut dyn FnMut()| {
        let before = counting::allocated();
        operation();
        next.next().unwrap().allocated.push(counting::allocated() - before);
    };
    count(&mut || views.clone_snapshot("base", "try").unwrap());
    count(&mut || drop(views.fs(&view).unwrap()));
    count(&mut || {
        let fs = views.fs(&view).unwrap();
        let name = format!("n{n}");
        fs.mknod(ROOT, name.as_bytes(), FileKind::File, 0o644, 0, USER).unwrap();
        fs.sync_all().unwrap();
    });
    let mut merged = None;
    count(&mut || {
        let options = MergeOptions { clone: "try".into(), ..MergeOptions::default() };
        merged = Some(views.merge(&options, &|_, _| Settled::Conflict).unwrap());
    });
    let merged = merged.take().unwrap();
    assert!(merged.conflicts.is_empty());
    count(&mut || views.commit(merged.transaction, Durability::Buffered).unwrap());
    count(&mut || views.snapshot(&view, "state", Durability::Buffered).unwrap());
    count(&mut || views.rollback("state").unwrap());
    count(&mut || {
        views.drop_clone("try").unwrap();
        views.drop_snapshot("state").unwrap();
    });
}

#[test]
fn what_is_done_with_one_clone_allocates_the_same_beside_few_and_many() {
    for (few, many) in beside(20).iter().zip(&beside(400)) {
        let (before, after) = (few.median(), many.median());
        // Maps of twenty times the size are a node or two higher.
        assert!(
            after <= 2 * before + 8192,
            "{}: {before} bytes beside 20 clones, {after} beside 400",
            few.name
        );
    }
}
