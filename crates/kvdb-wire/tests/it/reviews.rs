//! Questions about the changes of a transaction, which the host of the files answers.

use bytes::Bytes;
use kvdb::Scope;
use kvdb_wire::{FailureCode, Request};

use crate::served_transactions::{Raw, begin, put, store};

fn words(all: &[&str]) -> Vec<Bytes> {
    all.iter().map(|word| Bytes::copy_from_slice(word.as_bytes())).collect()
}

#[test]
fn an_answer_that_is_longer_than_a_frame_comes_whole() {
    let (store, _) = store();
    let transaction = begin(&store.client());
    for count in [0_u32, 1, 4 << 20, (4 << 20) + 1, (9 << 20) + 77] {
        let found = transaction.review(&words(&[&count.to_string()])).unwrap();
        let all: Vec<u8> = (0..count).map(|n| (n >> 12) as u8).collect();
        assert!(found == all, "{count}: {}", found.len());
    }
    let refused = transaction.review(&words(&["a", "b", "c"])).unwrap_err();
    assert!(refused.to_string().contains("one word or two"), "{refused}");
    // A question that no frame holds is not sent.
    let refused = transaction.review(&words(&["a"; 5000])).unwrap_err();
    assert!(matches!(refused, kvdb::Error::Limit(_)), "{refused}");
    assert_eq!(transaction.review(&words(&["3"])).unwrap(), [0; 3]);
}

#[test]
fn a_question_is_about_all_that_was_changed_before_it_and_about_one_transaction() {
    let (store, dict) = store();
    let client = store.client();
    let (mine, other) = (begin(&client), begin(&client));
    put(&Scope::Served(mine.clone()), dict, "apple", "red");
    let asked = words(&[&dict.0.to_string(), "apple"]);
    assert_eq!(mine.review(&asked).unwrap(), b"red");
    assert_eq!(other.review(&asked).unwrap(), b"");
    mine.abort().unwrap();
    assert!(matches!(mine.review(&asked), Err(kvdb::Error::NoTransaction(_))));
    // A connection on which it was not begun does not reach it.
    let mut raw = Raw::greeted(&store);
    let asked = Request::Review { transaction: 1, offset: 0, words: asked };
    raw.is_refused(&asked, FailureCode::NoView);
}
