//! Tests of the filter: it has no false negatives, false positives occur at the promised rate,
//! filters are small and can be merged, and foreign bytes are rejected.

use super::*;
use proptest::prelude::*;
use std::collections::BTreeSet;

fn build(hashes: impl IntoIterator<Item = u64>) -> Vec<u8> {
    let mut b = FilterBuilder::new(FALSE_POSITIVES);
    hashes.into_iter().for_each(|h| b.add(h));
    b.finish()
}

fn parse(bytes: Vec<u8>) -> Filter {
    Filter::parse(bytes.into()).unwrap()
}

fn key(i: u64) -> u64 {
    hash(format!("key {i}").as_bytes())
}

/// Returns the share of `tries` keys that were not added but are reported as present.
fn false_positives(f: &Filter, tries: u64) -> f64 {
    let n = (0..tries).filter(|i| f.may_contain(hash(&(i | 1 << 63).to_be_bytes()))).count();
    n as f64 / tries as f64
}

/// Stores the right checksum in changed bytes.
fn seal(mut bytes: Vec<u8>) -> Vec<u8> {
    if bytes.len() >= 4 {
        let crc = crc32c(&bytes[4..]);
        bytes[..4].copy_from_slice(&crc.to_le_bytes());
    }
    bytes
}

#[test]
fn the_hash_is_the_published_one() {
    assert_eq!(hash(b""), 0x2d06_8005_38d3_94c2);
    assert_eq!(hash(b"a"), 0xe6c6_32b6_1e96_4e1f);
}

#[test]
fn an_empty_filter_contains_nothing() {
    let f = parse(build([]));
    assert!(f.is_empty());
    assert!((0..1000).all(|i| !f.may_contain(key(i))));
    assert_eq!(f.fingerprints().count(), 0);
}

#[test]
fn false_positives_and_size_are_as_promised() {
    for n in [1, 100, 1000, 5000, 8192, 10_000, 11_000, 20_000, 22_000, 50_000, 100_000, 300_000] {
        let bytes = build((0..n).map(key));
        let bits = bytes.len() as f64 * 8.0 / n as f64;
        let f = parse(bytes);
        assert!((0..n).all(|i| f.may_contain(key(i))));
        let rate = false_positives(&f, 200_000);
        println!("{n} keys: {bits:.2} bits a key, false positives {:.3}%", rate * 100.0);
        assert!(rate < 0.0036, "{n} keys: {rate}");
        assert!(n < 8000 || bits < 11.9, "{n} keys: {bits} bits a key");
        assert!(n < 1000 || bits < 15.5, "{n} keys: {bits} bits a key");
    }
}

#[test]
fn a_merge_of_a_few_full_filters_is_still_good() {
    for (k, n) in [(2, 50_000), (3, 21_000), (2, 10_000)] {
        let mut b = FilterBuilder::new(FALSE_POSITIVES);
        for part in 0..k {
            b.add_all(&parse(build((0..n).map(|i| key(part * n + i)))));
        }
        let bytes = b.finish();
        let bits = bytes.len() as f64 * 8.0 / (k * n) as f64;
        let f = parse(bytes);
        assert!((0..k * n).all(|i| f.may_contain(key(i))));
        let rate = false_positives(&f, 200_000);
        println!(
            "{k} filters of {n} keys: {bits:.2} bits a key, false positives {:.3}%",
            rate * 100.0
        );
        assert!(rate < 0.0096, "{k} filters of {n} keys: {rate}");
        assert!(bits < 12.0, "{k} filters of {n} keys: {bits} bits a key");
    }
}

#[test]
fn a_merge_of_many_little_filters_is_as_good_as_one_build() {
    let mut b = FilterBuilder::new(FALSE_POSITIVES);
    for part in 0..200 {
        b.add_all(&parse(build((0..160).map(|i| key(part * 160 + i)))));
    }
    let f = parse(b.finish());
    assert!((0..32_000).all(|i| f.may_contain(key(i))));
    assert!(false_positives(&f, 200_000) < 0.009);
}

#[test]
fn merging_merged_filters_again_and_again_keeps_every_key() {
    // Half of the keys of each filter are also in the next filter, as when neighbours of a node
    // overwrite it.
    let mut f = parse(build((0..10_000).map(key)));
    for round in 1..10 {
        let mut b = FilterBuilder::new(FALSE_POSITIVES);
        b.add_all(&f);
        (round * 5000..round * 5000 + 10_000).for_each(|i| b.add(key(i)));
        f = parse(b.finish());
        assert!((0..round * 5000 + 10_000).all(|i| f.may_contain(key(i))));
    }
    assert!(f.len() > 54_000, "{} fingerprints of 55,000 keys", f.len());
    assert!(
        false_positives(&f, 100_000) < 0.02,
        "fewer bits than a build would keep, hence more than the promised 0.8%"
    );
}

#[test]
fn every_flipped_bit_is_an_error() {
    let bytes = build((0..50).map(key));
    for bit in 0..bytes.len() * 8 {
        let mut bad = bytes.clone();
        bad[bit / 8] ^= 1 << (bit % 8);
        assert!(Filter::parse(bad.into()).is_err(), "bit {bit}");
    }
    for len in 0..bytes.len() {
        assert!(Filter::parse(bytes[..len].to_vec().into()).is_err(), "{len} bytes");
    }
}

#[test]
fn another_quotient_filter_merges_to_the_same_fingerprints() {
    // Compare filters of one size with a filter of the other implementation that has the top bits
    // of their hashes. That implementation keeps the low bits of a hash.
    for (parts, n) in [(2u64, 10_000u64), (5, 3000), (40, 200)] {
        let mut ours = FilterBuilder::new(FALSE_POSITIVES);
        let bits = bits_for(n, FALSE_POSITIVES) as u8;
        let empty = || qfilter::Filter::with_fingerprint_size(2 * parts * n, bits).unwrap();
        let mut theirs = empty();
        for part in 0..parts {
            // A third of each part is also in the next part.
            let hashes: Vec<u64> = (0..n).map(|i| key(part * n * 2 / 3 + i)).collect();
            let own = parse(build(hashes.iter().copied()));
            assert_eq!(own.bits(), bits.into());
            ours.add_all(&own);
            let mut other = empty();
            for h in &hashes {
                other.insert_fingerprint(false, h >> (64 - bits)).unwrap();
            }
            theirs.merge(false, &other).unwrap();
        }
        let ours = parse(ours.finish());
        // A merge may keep fewer bits than its parts. In that case the fingerprints of the other
        // filter are cut as well.
        let cut = u32::from(bits) - ours.bits();
        let want: BTreeSet<u64> = theirs.fingerprints().map(|f| f >> cut).collect();
        assert_eq!(ours.fingerprints().collect::<Vec<_>>(), want.into_iter().collect::<Vec<_>>());
        for i in 0..50_000u64 {
            let h = hash(&(i | 1 << 63).to_be_bytes());
            assert!(!theirs.contains_fingerprint(h >> (64 - bits)) || ours.may_contain(h));
        }
    }
}

#[test]
fn every_rate_asked_for_is_kept() {
    for rate in [1, 20, 80, 300, 1000, 10_000] {
        for n in [500, 8192, 30_000] {
            let mut b = FilterBuilder::new(rate);
            (0..n).for_each(|i| b.add(key(i)));
            let f = parse(b.finish());
            assert!((0..n).all(|i| f.may_contain(key(i))));
            let found = false_positives(&f, 200_000);
            assert!(found * 10_000.0 <= f64::from(rate) + 1.0, "{n} keys at {rate}: {found}");
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn fingerprints_are_the_tops_of_the_hashes(hashes in proptest::collection::vec(any::<u64>(), 0..2000), shift in 0u32..64) {
        // Shift the hashes, so that some cases have crowded hashes in a few quotients.
        let hashes: Vec<u64> = hashes.into_iter().map(|h| h >> shift).collect();
        let f = parse(build(hashes.iter().copied()));
        let want: BTreeSet<u64> = hashes.iter().map(|h| h >> (64 - f.bits())).collect();
        prop_assert_eq!(f.fingerprints().collect::<Vec<_>>(), want.iter().copied().collect::<Vec<_>>());
        prop_assert_eq!(f.len(), want.len());
        for h in &hashes {
            for near in [*h, h ^ 1 << 63, h ^ 1 << (64 - f.bits()), h.wrapping_add(1 << (64 - f.bits()))] {
                prop_assert_eq!(f.may_contain(near), want.contains(&(near >> (64 - f.bits()))));
            }
        }
    }

    #[test]
    fn a_merge_has_the_fingerprints_of_all(
        filters in proptest::collection::vec(proptest::collection::vec(any::<u64>(), 0..600), 0..6),
        hashes in proptest::collection::vec(any::<u64>(), 0..100),
    ) {
        let mut b = FilterBuilder::new(FALSE_POSITIVES);
        filters.iter().for_each(|hashes| b.add_all(&parse(build(hashes.iter().copied()))));
        hashes.iter().for_each(|h| b.add(*h));
        let f = parse(b.finish());
        let want: BTreeSet<u64> = filters.iter().flatten().chain(&hashes).map(|h| h >> (64 - f.bits())).collect();
        prop_assert_eq!(f.fingerprints().collect::<Vec<_>>(), want.into_iter().collect::<Vec<_>>());
    }

    #[test]
    fn foreign_bytes_are_refused_or_read_without_panic(
        n in 0u64..300,
        changes in proptest::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 1..8),
        garbage in proptest::collection::vec(any::<u8>(), 0..200),
    ) {
        // Keep the checksum right, so that the other checks are reached.
        let mut bytes = build((0..n).map(key));
        for (at, byte) in &changes {
            let at = at.index(bytes.len());
            bytes[at] = *byte;
        }
        for bytes in [bytes, garbage] {
            if let Ok(f) = Filter::parse(seal(bytes).into()) {
                prop_assert_eq!(f.fingerprints().count(), f.len());
                for i in 0..1000 {
                    f.may_contain(key(i));
                    f.may_contain(i << 54);
                }
            }
        }
    }
}
