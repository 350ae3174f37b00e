//! The decoders of this crate as functions of bytes, for the fuzz targets under `fuzz/` and the
//! tests below. Each of them accepts any bytes, and must neither panic nor take unbounded time or
//! memory.

use std::hint::black_box;

use bytes::Bytes;

use crate::frame::{encode, read_frame};
use crate::reply::Reply;
use crate::request::Request;

/// Decodes a series of frames, and then one frame with a correct checksum, which fuzzing could not
/// guess.
pub fn frames(data: &[u8]) {
    let mut rest = data;
    while let Ok(frame) = read_frame(&mut rest) {
        black_box(&frame);
    }
    if let Some((kind, body)) = data.split_first() {
        let bytes = encode(1, *kind, body).expect("smaller than a frame may be");
        let frame = read_frame(&mut &bytes[..]).expect("it was encoded");
        assert_eq!((frame.kind, &frame.body[..]), (*kind, body));
    }
}

/// Decodes the body of a request or an answer; the first byte is its kind. A decoded message must
/// decode to the same message after it was encoded again.
pub fn messages(data: &[u8]) {
    let Some((&kind, body)) = data.split_first() else { return };
    let body = Bytes::copy_from_slice(body);
    if let Ok(request) = Request::decode(kind, &body) {
        let (kind, body) = request.encode();
        assert_eq!(Request::decode(kind, &body.into()).expect("encoded"), request);
    }
    if let Ok(reply) = Reply::decode(kind, &body) {
        let (kind, body) = reply.encode();
        assert_eq!(Reply::decode(kind, &body.into()).expect("encoded"), reply);
    }
}

#[cfg(test)]
mod tests {
    use kvdb::{DictionaryId, Reference, ServedChange, Space, Update};
    use proptest::prelude::*;

    use super::*;
    use crate::failure::{Failure, FailureCode};
    use crate::reply::{ConflictKey, Listed};

    fn bytes() -> impl Strategy<Value = Bytes> {
        proptest::collection::vec(any::<u8>(), 0..40).prop_map(Bytes::from)
    }

    fn dict() -> impl Strategy<Value = DictionaryId> {
        any::<u32>().prop_map(DictionaryId)
    }

    fn change() -> impl Strategy<Value = ServedChange> {
        prop_oneof![
            (dict(), bytes(), bytes()).prop_map(|(d, k, v)| ServedChange::Put(d, k, v)),
            (dict(), bytes(), any::<i64>()).prop_map(|(d, k, n)| ServedChange::Update(
                d,
                k,
                Update::add(n)
            )),
            (dict(), bytes()).prop_map(|(d, k)| ServedChange::Delete(d, k)),
            (dict(), bytes(), bytes()).prop_map(|(d, a, b)| ServedChange::DeleteRange(d, a, b)),
            (dict(), bytes(), dict(), bytes()).prop_map(|(dict, key, of, from)| {
                ServedChange::Refer(Reference { dict, key, of: (of, from) })
            }),
        ]
    }

    fn begin() -> impl Strategy<Value = Request> {
        let flags = any::<(bool, bool, bool, bool)>();
        let who = any::<([u8; 16], u64)>();
        (who, flags, any::<u32>(), "\\PC{0,20}", "\\PC{0,20}").prop_map(
            |((key, holder), (serializable, durable, joins, takes), lease, branch, label)| {
                Request::Begin {
                    key,
                    serializable,
                    durable,
                    joins,
                    takes,
                    holder,
                    lease,
                    branch,
                    label,
                }
            },
        )
    }

    /// The requests of an open transaction.
    fn of_transaction() -> impl Strategy<Value = Request> {
        let numbers = any::<(u64, u64, u64)>();
        prop_oneof![
            (any::<(u64, u64)>(), proptest::collection::vec(change(), 0..9)).prop_map(
                |((transaction, batch), changes)| Request::Apply { transaction, batch, changes }
            ),
            any::<([u8; 16], bool, u64)>().prop_map(|(key, synced, batches)| Request::Commit {
                key,
                synced,
                batches
            }),
            (any::<(u64, u64, u32, bool)>(), proptest::collection::vec(change(), 0..9)).prop_map(
                |((transaction, batch, part, last), changes)| Request::ApplyPart {
                    transaction,
                    batch,
                    part,
                    last,
                    changes
                }
            ),
            any::<[u8; 16]>().prop_map(|key| Request::Abort { key }),
            any::<u64>().prop_map(|transaction| Request::Sync { transaction }),
            any::<u64>().prop_map(|transaction| Request::Lease { transaction }),
            any::<(u64, u64)>()
                .prop_map(|(transaction, batch)| Request::Savepoint { transaction, batch }),
            numbers.prop_map(|(transaction, batch, to)| Request::RollBack {
                transaction,
                batch,
                to
            }),
            any::<(u64, u32)>()
                .prop_map(|(transaction, count)| Request::Reserve { transaction, count }),
            (any::<(u64, u64)>(), proptest::collection::vec(bytes(), 0..9)).prop_map(
                |((transaction, offset), words)| Request::Review { transaction, offset, words }
            ),
        ]
    }

    /// The requests by the names of snapshots and clones, and the one for the lease.
    fn of_snapshots() -> impl Strategy<Value = Request> {
        prop_oneof![
            (any::<[u8; 16]>(), "\\PC{0,20}", "\\PC{0,20}", any::<bool>()).prop_map(
                |(key, branch, name, synced)| Request::Snapshot { key, branch, name, synced }
            ),
            (any::<[u8; 16]>(), "\\PC{0,20}", "\\PC{0,20}")
                .prop_map(|(key, snapshot, name)| Request::Clone { key, snapshot, name }),
            (any::<bool>(), "\\PC{0,20}").prop_map(|(clones, from)| Request::List { clones, from }),
            (any::<bool>(), any::<[u8; 16]>(), "\\PC{0,20}")
                .prop_map(|(clone, key, name)| Request::Remove { clone, key, name }),
            (any::<[u8; 16]>(), any::<(bool, bool)>(), any::<u32>(), "\\PC{0,20}").prop_map(
                |(key, (joins, takes), lease, label)| Request::Hold {
                    key,
                    joins,
                    takes,
                    lease,
                    label
                }
            ),
        ]
    }

    fn request() -> impl Strategy<Value = Request> {
        let iterate = (any::<(u64, bool, bool, u32, u32)>(), dict(), bytes(), bytes()).prop_map(
            |((view, backward, keys_only, tuples, bytes), dict, start, end)| Request::Iterate {
                view,
                dict,
                backward,
                keys_only,
                tuples,
                bytes,
                start,
                end,
            },
        );
        prop_oneof![
            (any::<u16>(), bytes()).prop_map(|(version, token)| Request::Hello { version, token }),
            proptest::option::of("\\PC{0,20}").prop_map(|snapshot| Request::View { snapshot }),
            (any::<u64>(), dict(), proptest::collection::vec(bytes(), 0..9))
                .prop_map(|(view, dict, keys)| Request::GetMany { view, dict, keys }),
            (any::<(u64, u64, u32)>(), dict(), bytes()).prop_map(
                |((view, offset, length), dict, key)| {
                    Request::GetPart { view, dict, key, offset, length }
                }
            ),
            iterate,
            any::<u64>().prop_map(|view| Request::Drop { view }),
            begin(),
            of_transaction(),
            of_snapshots(),
        ]
    }

    fn dictionaries() -> impl Strategy<Value = Vec<(DictionaryId, String)>> {
        proptest::collection::vec((dict(), "\\PC{0,9}"), 0..5)
    }

    fn conflict_key() -> impl Strategy<Value = ConflictKey> {
        (dict(), bytes(), "\\PC{0,20}").prop_map(|(dict, key, place)| ConflictKey {
            dict,
            key,
            place,
        })
    }

    fn listed() -> impl Strategy<Value = Listed> {
        ("\\PC{0,20}", "\\PC{0,20}", any::<u64>()).prop_map(|(name, of, created)| Listed {
            name,
            of,
            created,
        })
    }

    fn reply() -> impl Strategy<Value = Reply> {
        let code = proptest::sample::select(FailureCode::ALL);
        prop_oneof![
            (code, "\\PC{0,40}").prop_map(|(code, what)| Reply::Failed(Failure { code, what })),
            Just(Reply::Done),
            any::<(u16, u32, u32)>().prop_map(|(version, under_way, views)| Reply::Welcome {
                version,
                under_way,
                views
            }),
            (any::<(u64, [u8; 16], u64, u64)>(), dictionaries()).prop_map(
                |((view, snapshot, total, free), dictionaries)| {
                    Reply::Viewed { view, snapshot, space: Space { total, free }, dictionaries }
                }
            ),
            proptest::collection::vec(proptest::option::of(bytes()), 0..9).prop_map(Reply::Values),
            (any::<u64>(), bytes()).prop_map(|(length, bytes)| Reply::Part { length, bytes }),
            (any::<bool>(), proptest::collection::vec((bytes(), bytes()), 0..9))
                .prop_map(|(ended, tuples)| Reply::Tuples { ended, tuples }),
            (any::<(u64, u64, u64, u32)>(), any::<(u64, u64)>(), dictionaries()).prop_map(
                |((transaction, id, batches, lease), (total, free), dictionaries)| {
                    let space = Space { total, free };
                    Reply::Begun { transaction, id, batches, lease, space, dictionaries }
                }
            ),
            ("\\PC{0,40}", proptest::collection::vec(conflict_key(), 0..5))
                .prop_map(|(what, keys)| Reply::Conflict { what, keys }),
            prop_oneof![
                any::<(u64, u32)>().prop_map(|(first, count)| Reply::Reserved { first, count }),
                (any::<bool>(), proptest::collection::vec(listed(), 0..5))
                    .prop_map(|(ended, all)| Reply::Listed { ended, all }),
            ],
        ]
    }

    proptest! {
        #[test]
        fn a_request_survives_the_way_there(request in request()) {
            let (kind, body) = request.encode();
            prop_assert_eq!(Request::decode(kind, &body.into()).unwrap(), request);
        }

        #[test]
        fn an_answer_survives_the_way_back(reply in reply()) {
            let (kind, body) = reply.encode();
            prop_assert_eq!(Reply::decode(kind, &body.into()).unwrap(), reply);
        }

        #[test]
        fn a_message_that_is_cut_or_has_more_is_malformed(
            request in request(),
            reply in reply(),
            at in any::<proptest::sample::Index>(),
        ) {
            let (kind, body) = request.encode();
            if !body.is_empty() {
                let cut = Bytes::copy_from_slice(&body[..at.index(body.len())]);
                prop_assert!(Request::decode(kind, &cut).is_err());
            }
            prop_assert!(Request::decode(kind, &[&body[..], &[0]].concat().into()).is_err());
            let (kind, body) = reply.encode();
            if !body.is_empty() {
                let cut = Bytes::copy_from_slice(&body[..at.index(body.len())]);
                prop_assert!(Reply::decode(kind, &cut).is_err());
            }
            prop_assert!(Reply::decode(kind, &[&body[..], &[0]].concat().into()).is_err());
        }

        #[test]
        fn any_bytes_are_an_error_or_a_message(
            kind in any::<u8>(),
            data in proptest::collection::vec(any::<u8>(), 0..200),
        ) {
            frames(&data);
            for kind in [kind, kind % 23, 128 + kind % 11] {
                messages(&[&[kind], &data[..]].concat());
            }
        }

        #[test]
        fn a_message_with_a_flipped_bit_is_an_error_or_another_message(
            request in request(),
            reply in reply(),
            at in any::<proptest::sample::Index>(),
            bit in 0u8..8,
        ) {
            for (kind, mut body) in [request.encode(), reply.encode()] {
                if !body.is_empty() {
                    let at = at.index(body.len());
                    body[at] ^= 1 << bit;
                }
                messages(&[&[kind], &body[..]].concat());
            }
        }
    }

    #[test]
    fn few_bytes_do_not_stand_for_much_memory() {
        // Each key shares almost all of a long key with the one before: a megabyte would expand to
        // gigabytes.
        let mut body = vec![0];
        zones::varint::put_u64(&mut body, 4096);
        body.push(0);
        zones::varint::put_bytes(&mut body, &[7; kvdb::MAX_KEY - 1]);
        body.push(0);
        for _ in 1..4096 {
            zones::varint::put_u64(&mut body, kvdb::MAX_KEY as u64 - 1);
            zones::varint::put_bytes(&mut body, &[1]);
            body.push(0);
        }
        assert!(Reply::decode(134, &body.into()).is_err());
        // A count of elements that do not follow.
        let mut body = vec![1, 1];
        zones::varint::put_u64(&mut body, 4096);
        assert!(Request::decode(3, &body.into()).is_err());
        // Changes of four bytes each, which take more in memory.
        let mut body = vec![1, 1];
        zones::varint::put_u64(&mut body, crate::MAX_CHANGES as u64 + 1);
        (0..=crate::MAX_CHANGES).for_each(|_| body.extend_from_slice(&[3, 1, 1, 7]));
        assert!(Request::decode(8, &body.into()).is_err());
    }
}
