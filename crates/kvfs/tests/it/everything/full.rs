//! Full stores. Ballast, which the oracle does not record, is put until no space is left. Then some
//! of it is removed, and every removal must succeed.

use kvdb::{Batch, DictionaryId, Durability};

use super::world::{Dead, World, mainline};

/// A dictionary that the model does not look at.
const BALLAST: &str = "ballast";
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
    let ballast = match w.db.open_dictionary(BALLAST) {
        Ok(ballast) => ballast.id(),
        Err(e) => return w.judge(&mainline(), e.into(), "open_dictionary", &[]),
    };
    let len = [700, 5000, 60_000, 300_000][w.random.below(4) as usize];
    let count = 1 + w.random.below(8);
    let upto = if w.random.one_in(4) { 1 << 20 } else { 160 << 20 };
    let durability = w.durability();
    w.note(format!("fill with {upto} bytes, {count} of {len} at a time, {durability:?}"));
    let mut noise = vec![0; len];
    w.random.fill(&mut noise);
    let mut from = w.random.below(KEYS);
    for _ in 0..upto / (len as u64 * count) {
        let mut batch = Batch::new();
        for _ in 0..count {
            from = (from + 1) % KEYS;
            noise[..8].copy_from_slice(&w.random.number().to_le_bytes());
            batch.put(ballast, key(from), noise.clone());
        }
        if let Err(e) = w.db.commit(batch, durability) {
            w.judge(&mainline(), e.into(), "fill", &[])?;
            w.note("it is full".into());
            return Ok(());
        }
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
    // This runs only if no transaction is open, since an open one would detect the removal.
    if w.open.is_empty() && w.random.one_in(8) {
        w.note("drain: the dictionary".into());
        return w.stored(w.db.drop_dictionary(ballast));
    }
    let batch = removal(w, ballast);
    w.note(format!("drain {durability:?}"));
    w.stored(w.db.commit(batch, durability))?;
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
