//! The record of the lease of the main branch, in the dictionary of the records of transactions
//! (`records`), where no client sees it.
//!
//! Its key is the word `lease`; the keys of other records have 16 bytes. The value is a byte 4, the
//! epoch, a byte for how the lease stands (0: held, 1: given back, 2: lost), the key of the lease,
//! the number of its last batch, its time in milliseconds, the state in which the host has lent the
//! branch, and the label of its client. A batch writes the record together with its changes, so
//! that a server that was begun again knows which batches it has.
//!
//! A record that cannot be decoded counts as that of a lost lease. Its client is refused, as is any
//! client that holds no lease, and loses what it had not synced. An error instead would keep the
//! store from being served for as long as the record exists.

use kvdb::{Batch, DictionaryId, Kvdb};
use zones::varint::{get_bytes, get_u32, get_u64, put_bytes, put_u64};

use crate::body::TransactionKey;

const KEY: &[u8] = b"lease";
const LEASE: u8 = 4;
/// Limit of epochs and of the numbers of batches, which are counted.
const MAX_COUNTED: u64 = u64::MAX / 2;

/// The state of a lease.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Stands {
    Held,
    /// Its client has given it back.
    GivenBack,
    /// The lease was taken from its client, or has ended without it.
    Lost,
}

/// The newest lease.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LeaseRecord {
    /// The number of the lease in the store: each one has a greater number than all before.
    pub epoch: u64,
    pub stands: Stands,
    /// Drawn by its client.
    pub key: TransactionKey,
    /// The number of its last batch.
    pub batches: u64,
    /// Its time, in milliseconds.
    pub time: u32,
    /// The number by which the host knows whether the branch has changed without the lease
    /// ([`crate::Host::lend`]).
    pub lent_in: u64,
    /// The label of its client.
    pub label: String,
}

impl LeaseRecord {
    /// Reads the record. Returns `None` if there was no lease yet.
    pub fn read(db: &Kvdb, dict: DictionaryId) -> kvdb::Result<Option<LeaseRecord>> {
        let Some(value) = db.get(dict, KEY)? else { return Ok(None) };
        let record = LeaseRecord::decode(&value);
        Ok(Some(record.unwrap_or_else(|| LeaseRecord::unknown(db))))
    }

    /// Returns the record of a lost lease of which nothing is known. Epochs are counted from 1 on,
    /// so that none has reached the milliseconds since 1970.
    fn unknown(db: &Kvdb) -> LeaseRecord {
        tracing::warn!(
            "the record of the lease of the main files makes no sense: the lease is lost, if a \
             client had it"
        );
        LeaseRecord {
            epoch: (db.wall_clock().as_millis() as u64).min(MAX_COUNTED),
            stands: Stands::Lost,
            key: [0; 16],
            batches: 0,
            time: 0,
            lent_in: 0,
            label: String::new(),
        }
    }

    /// Adds the record to a batch.
    pub fn put(&self, batch: &mut Batch, dict: DictionaryId) {
        batch.put(dict, KEY.to_vec(), self.encode());
    }

    fn encode(&self) -> Vec<u8> {
        let mut value = vec![LEASE];
        put_u64(&mut value, self.epoch);
        value.push(match self.stands {
            Stands::Held => 0,
            Stands::GivenBack => 1,
            Stands::Lost => 2,
        });
        value.extend_from_slice(&self.key);
        put_u64(&mut value, self.batches);
        put_u64(&mut value, u64::from(self.time));
        put_u64(&mut value, self.lent_in);
        put_bytes(&mut value, self.label.as_bytes());
        value
    }

    fn decode(value: &[u8]) -> Option<LeaseRecord> {
        let (&LEASE, mut rest) = value.split_first()? else { return None };
        let epoch = get_u64(&mut rest).ok()?;
        let (stands, rest) = rest.split_first()?;
        let stands = match *stands {
            0 => Stands::Held,
            1 => Stands::GivenBack,
            2 => Stands::Lost,
            _ => return None,
        };
        let (key, mut rest) = rest.split_first_chunk::<16>()?;
        let (batches, time) = (get_u64(&mut rest).ok()?, get_u32(&mut rest).ok()?);
        let lent_in = get_u64(&mut rest).ok()?;
        let label = std::str::from_utf8(get_bytes(&mut rest).ok()?).ok()?.into();
        let is_counted = (1..=MAX_COUNTED).contains(&epoch) && batches <= MAX_COUNTED;
        let record = LeaseRecord { epoch, stands, key: *key, batches, time, lent_in, label };
        (is_counted && rest.is_empty()).then_some(record)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_is_read_as_it_was_written_and_one_that_is_cut_is_none() {
        for stands in [Stands::Held, Stands::GivenBack, Stands::Lost] {
            let record = LeaseRecord {
                epoch: 300,
                stands,
                key: [7; 16],
                batches: 1 << 40,
                time: 60_000,
                lent_in: 5,
                label: "laptop".into(),
            };
            let value = record.encode();
            assert_eq!(LeaseRecord::decode(&value), Some(record));
            for len in 0..value.len() {
                assert_eq!(LeaseRecord::decode(&value[..len]), None, "{len} bytes");
            }
            assert_eq!(LeaseRecord::decode(&[&value[..], &[0]].concat()), None);
        }
    }

    #[test]
    fn numbers_that_no_lease_can_have_reached_are_none() {
        let of = |epoch, batches| {
            let (stands, key, label) = (Stands::Held, [7; 16], String::new());
            let record = LeaseRecord { epoch, stands, key, batches, time: 1, lent_in: 5, label };
            LeaseRecord::decode(&record.encode())
        };
        assert!(of(1, 0).is_some() && of(MAX_COUNTED, MAX_COUNTED).is_some());
        for (epoch, batches) in [(0, 0), (u64::MAX, 0), (1, u64::MAX)] {
            assert_eq!(of(epoch, batches), None, "{epoch}, {batches}");
        }
    }
}
