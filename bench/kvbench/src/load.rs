//! The loads: the clients, the tuples that they write and their order. Each put is timed.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use anyhow::{Result, bail};

use crate::engines::Engine;
use crate::histogram::Histogram;
use crate::keys::{Dice, KEY_BYTES, Shape, Values, Zipf};
use crate::spec::{Load, Spec};

/// The counts of a client.
#[derive(Default)]
pub struct Tally {
    pub ops: u64,
    /// Keys and values that it wrote.
    pub written: u64,
    /// Keys and values that it wrote or saw.
    pub moved: u64,
    pub puts: Histogram,
    pub reads: Histogram,
    /// Nanoseconds in puts of more than 10 ms.
    pub stalled: u64,
    pub misses: u64,
}

const STALL: u64 = 10_000_000;

impl Tally {
    fn put(&mut self, nanos: u64, bytes: u64) {
        self.puts.record(nanos);
        if nanos > STALL {
            self.stalled += nanos;
        }
        self.ops += 1;
        self.written += bytes;
        self.moved += bytes;
    }
    fn merge(&mut self, other: &Tally) {
        self.ops += other.ops;
        self.written += other.written;
        self.moved += other.moved;
        self.puts.merge(&other.puts);
        self.reads.merge(&other.reads);
        self.stalled += other.stalled;
        self.misses += other.misses;
    }
}

/// The order in which a client inserts its share of the tuples.
enum Order {
    /// Every `step`-th number.
    Ascending { next: u64, step: u64, end: u64 },
    /// Ranges that are not full yet with their next tuple, the range in turn, and how many of a
    /// burst it still gets.
    Ranges {
        open: Vec<(u64, u64)>,
        current: usize,
        left: u64,
        burst: u64,
        ranges: u64,
        per_range: u64,
        dice: Dice,
    },
}

impl Order {
    fn new(spec: &Spec, client: u64) -> Order {
        match spec.shape() {
            Shape::Append { ranges } => Order::Ranges {
                open: (client..ranges).step_by(spec.clients as usize).map(|r| (r, 0)).collect(),
                current: 0,
                left: 0,
                burst: (spec.burst / spec.tuple_bytes()).max(1),
                ranges,
                per_range: spec.count() / ranges,
                dice: Dice::new(client + 100),
            },
            _ => Order::Ascending { next: client, step: spec.clients, end: spec.count() },
        }
    }
}

impl Iterator for Order {
    type Item = u64;

    #[inline]
    fn next(&mut self) -> Option<u64> {
        match self {
            Order::Ascending { next, step, end } => {
                let i = *next;
                *next += *step;
                (i < *end).then_some(i)
            }
            Order::Ranges { open, current, left, burst, ranges, per_range, dice } => {
                if open.is_empty() {
                    return None;
                }
                if *left == 0 {
                    *current = dice.below(open.len() as u64) as usize;
                    *left = *burst;
                }
                *left -= 1;
                let (range, done) = &mut open[*current];
                let i = *done * *ranges + *range;
                *done += 1;
                if *done == *per_range {
                    open.swap_remove(*current);
                    *left = 0;
                }
                Some(i)
            }
        }
    }
}

/// One client of a load.
struct Client<'a> {
    engine: &'a dyn Engine,
    spec: &'a Spec,
    values: &'a Values,
    done: &'a AtomicU64,
    number: u64,
    tally: Tally,
    last: Instant,
}

impl Client<'_> {
    /// Nanoseconds since the operation before, so that each operation reads the clock once.
    fn lap(&mut self) -> u64 {
        let now = Instant::now();
        let nanos = now.duration_since(self.last).as_nanos() as u64;
        self.last = now;
        self.done.fetch_add(1, Ordering::Relaxed);
        nanos
    }

    fn insert_all(&mut self, version: u64) -> Result<()> {
        let shape = self.spec.shape();
        for i in Order::new(self.spec, self.number) {
            self.put(shape, i, version)?;
        }
        Ok(())
    }

    #[inline]
    fn put(&mut self, shape: Shape, i: u64, version: u64) -> Result<()> {
        self.engine.put(&shape.key(i), self.values.of(i, version))?;
        let nanos = self.lap();
        self.tally.put(nanos, self.spec.tuple_bytes());
        Ok(())
    }

    fn delete_half(&mut self) -> Result<()> {
        let shape = self.spec.shape();
        for i in
            Order::new(self.spec, self.number).filter(|i| (i / self.spec.clients).is_multiple_of(2))
        {
            self.engine.delete(&shape.key(i))?;
            let nanos = self.lap();
            self.tally.put(nanos, KEY_BYTES as u64);
        }
        Ok(())
    }

    fn delete_ranges(&mut self) -> Result<()> {
        let shape = self.spec.shape();
        for i in (self.number..self.spec.first_live()).step_by(self.spec.clients as usize) {
            let mut end = shape.key(i).to_vec();
            end.push(0);
            if !self.engine.delete_range(&shape.key(i), &end)? {
                bail!("{} has no range delete", self.spec.engine);
            }
            let nanos = self.lap();
            self.tally.put(nanos, 2 * KEY_BYTES as u64);
        }
        Ok(())
    }

    fn overwrite(&mut self) -> Result<()> {
        let (shape, count) = (self.spec.shape(), self.spec.count());
        let mut dice = Dice::new(self.number + 200);
        for _ in (self.number..count).step_by(self.spec.clients as usize) {
            self.put(shape, dice.below(count), 1)?;
        }
        Ok(())
    }

    fn ycsb(&mut self, inserted: &AtomicU64) -> Result<()> {
        let (shape, load) = (self.spec.shape(), self.spec.load);
        let mut dice = Dice::new(self.number + 300);
        let zipf = Zipf::new(self.spec.count());
        let reads = match load {
            Load::YcsbA | Load::YcsbF => 0.5,
            Load::YcsbC => 1.0,
            _ => 0.95,
        };
        for _ in (self.number..self.spec.ops).step_by(self.spec.clients as usize) {
            let (n, rank) = (inserted.load(Ordering::Relaxed), zipf.draw(&mut dice));
            // The popular are spread over the key space; in D they are the newest.
            let i = if load == Load::YcsbD {
                n - 1 - rank.min(n - 1)
            } else {
                crate::keys::mix(rank) % n
            };
            if dice.fraction() < reads {
                if load == Load::YcsbE {
                    let limit = 1 + dice.below(100);
                    let mut seen = 0;
                    self.engine.scan(&shape.key(i), limit, &mut |k, v| {
                        seen += (k.len() + v.len()) as u64
                    })?;
                    self.tally.moved += seen;
                } else {
                    self.read(shape, i)?;
                }
                let nanos = self.lap();
                self.tally.reads.record(nanos);
                self.tally.ops += 1;
            } else {
                match load {
                    Load::YcsbD | Load::YcsbE => {
                        self.put(shape, inserted.fetch_add(1, Ordering::Relaxed), 0)?
                    }
                    Load::YcsbF => {
                        self.read(shape, i)?;
                        self.put(shape, i, 1)?;
                    }
                    _ => self.put(shape, i, 1)?,
                }
            }
        }
        Ok(())
    }

    fn read(&mut self, shape: Shape, i: u64) -> Result<()> {
        let mut seen = 0;
        if !self.engine.get(&shape.key(i), &mut |v| seen = v.len() as u64)? {
            self.tally.misses += 1;
        }
        self.tally.moved += seen;
        Ok(())
    }
}

/// The work before the clock starts.
pub fn prepare(engine: &dyn Engine, spec: &Spec) -> Result<()> {
    if !matches!(spec.load, Load::Sequential | Load::Random | Load::Append | Load::WriteDeleteWrite)
    {
        let done = Arc::new(AtomicU64::new(0));
        run(engine, &Spec { load: Load::Random, ..spec.clone() }, &done)?;
    }
    Ok(())
}

/// Runs the load with one thread for each client. `done` counts operations as they happen.
pub fn run(engine: &dyn Engine, spec: &Spec, done: &AtomicU64) -> Result<Tally> {
    let values = Values::new(spec.settings.value_bytes as usize);
    let inserted = AtomicU64::new(spec.count());
    let work = |number: u64, stage: u8| -> Result<Tally> {
        let mut c = Client {
            engine,
            spec,
            values: &values,
            done,
            number,
            tally: Tally::default(),
            last: Instant::now(),
        };
        match (spec.load, stage) {
            (Load::Sequential | Load::Random | Load::Append, _) | (Load::WriteDeleteWrite, 0) => {
                c.insert_all(0)?
            }
            (Load::WriteDeleteWrite, 1) => c.delete_half()?,
            (Load::WriteDeleteWrite, _) => c.insert_all(1)?,
            (Load::Overwrite, _) => c.overwrite()?,
            (Load::RangeDelete, _) => c.delete_ranges()?,
            _ => c.ycsb(&inserted)?,
        }
        Ok(c.tally)
    };
    let stages = if spec.load == Load::WriteDeleteWrite { 3 } else { 1 };
    let mut total = Tally::default();
    for stage in 0..stages {
        if spec.clients == 1 {
            total.merge(&work(0, stage)?);
        } else {
            std::thread::scope(|scope| -> Result<()> {
                let work = &work;
                let threads: Vec<_> =
                    (0..spec.clients).map(|c| scope.spawn(move || work(c, stage))).collect();
                for t in threads {
                    total.merge(&t.join().map_err(|_| anyhow::anyhow!("a client panicked"))??);
                }
                Ok(())
            })?;
        }
        engine.finish()?;
    }
    Ok(total)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::Settings;

    fn spec(load: Load, clients: u64, burst: u64) -> Spec {
        let settings = Settings {
            dir: "unused".into(),
            memory: 1,
            write_buffer: 1,
            journal: true,
            stitch_at: None,
            separate_at: None,
            value_bytes: 64,
        };
        Spec {
            engine: "kvdb".into(),
            load,
            read: None,
            settings,
            bytes: 80 * 10_000,
            ranges: 37,
            burst,
            clients,
            ops: 1,
            read_seconds: 1.0,
            round: 0,
            group: None,
            memory_limit: None,
            series: None,
        }
    }

    #[test]
    fn the_clients_of_a_load_insert_every_tuple_once() {
        for load in [Load::Sequential, Load::Random, Load::Append] {
            for clients in [1, 2, 3] {
                let s = spec(load, clients, 800);
                let mut all: Vec<u64> = (0..clients).flat_map(|c| Order::new(&s, c)).collect();
                all.sort_unstable();
                assert!(all.iter().copied().eq(0..s.count()), "{load:?} {clients}");
            }
        }
    }

    #[test]
    fn ranges_grow_in_order_and_in_bursts() {
        let s = spec(Load::Append, 1, 800);
        let order: Vec<u64> = Order::new(&s, 0).collect();
        let mut next = [0; 37];
        for i in &order {
            assert_eq!(i / 37, next[(i % 37) as usize]);
            next[(i % 37) as usize] += 1;
        }
        let changes = order.windows(2).filter(|w| w[0] % 37 != w[1] % 37).count();
        assert!(
            (700..1100).contains(&changes),
            "{changes} changes of range in {} tuples with bursts of 10",
            order.len()
        );
    }
}
