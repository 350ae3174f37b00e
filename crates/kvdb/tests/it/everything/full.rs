//! Full stores. Ballast, which the oracle does not record, is put until no space is left. Then some
//! of it is removed, and every removal must succeed.

use kvdb::{Batch, DictionaryId, Durability};

use super::oracle::BALLAST;
use super::world::{Dead, World};

/// Data is refused when less room than this would be left.
const MARGIN: u64 = 8 << 20;
/// Keys of the ballast.
const KEYS: u64 = 4000;

fn key(n: u64) -> Vec<u8> {
    format!("b{n:06}").into_bytes()
}

/// Puts large values until the store is full or holds enough of them for now.
pub fn fill(w: &mut World) -> Result<(), Dead> {
    if !w.limited {
        return Ok(());
    }
    let Some(ballast) = w.unless_full(w.db.open_dictionary(BALLAST))? else { return Ok(()) };
    let len = [700, 5000, 60_000, 300_000][w.random.below(4) as usize];
    let count = 1 + w.random.below(8);
    let upto = if w.random.one_in(4) { 1 << 20 } else { 160 << 20 };
    let durability = w.durability();
    let mut noise = vec![0; len];
    w.random.fill(&mut noise);
    let mut from = w.random.below(KEYS);
    w.call("Kvdb::promised_space");
    let promised = w.db.promised_space();
    let room = 1 + w.random.below(1 << 20);
    let is_promised = w.db.space().free > room + MARGIN;
    if is_promised {
        promised.grow(room + room / 8);
    }
    for _ in 0..upto / (len as u64 * count) {
        let mut batch = Batch::new();
        for _ in 0..count {
            from = (from + 1) % KEYS;
            noise[..8].copy_from_slice(&w.random.number().to_le_bytes());
            batch.put(ballast.id(), key(from), noise.clone());
        }
        if w.unless_full(w.db.commit(batch, durability))?.is_none() {
            break;
        }
        if durability == Durability::Synced {
            w.history.certain();
        }
    }
    if is_promised {
        w.call("Batch::takes_promised_space");
        let mut batch = Batch::new();
        batch.takes_promised_space();
        for piece in noise.repeat(room as usize / len + 1)[..room as usize].chunks(4096) {
            from = (from + 1) % KEYS;
            batch.put(ballast.id(), key(from), piece.to_vec());
        }
        w.ok(w.db.commit(batch, durability))?;
        promised.shrink(room + room / 8);
        if durability == Durability::Synced {
            w.history.certain();
        }
    }
    Ok(())
}

/// Removes some of the ballast.
pub fn drain(w: &mut World) -> Result<(), Dead> {
    let Some(ballast) = w.db.dictionary(BALLAST) else { return Ok(()) };
    let durability = w.durability();
    if w.random.one_in(8) {
        w.ok(w.db.drop_dictionary(ballast))?;
        // No other thread reads it, and earlier commits may or may not be on disk.
        return Ok(());
    }
    let batch = removal(w, ballast);
    w.ok(w.db.commit(batch, durability))?;
    if durability == Durability::Synced {
        w.history.certain();
    }
    Ok(())
}

/// Removes a range of keys, or some scattered keys.
fn removal(w: &mut World, ballast: DictionaryId) -> Batch {
    let most = [10, 500, KEYS][w.random.below(3) as usize];
    let (from, count) = (w.random.below(KEYS), 1 + w.random.below(most));
    let mut batch = Batch::new();
    if w.random.one_in(2) {
        batch.delete_range(ballast, key(from), key(from + count));
    } else {
        (from..from + count).step_by(7).for_each(|n| batch.delete(ballast, key(n)));
    }
    batch
}
