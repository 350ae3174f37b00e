//! Runs the examples and checks their results.

#[path = "../../examples/ingest.rs"]
mod ingest;
#[path = "../../examples/quickstart.rs"]
mod quickstart;
#[path = "../../examples/snapshot_and_difference.rs"]
mod snapshot_and_difference;
#[path = "../../examples/transaction.rs"]
mod transaction;

#[test]
fn the_examples_run() {
    quickstart::main().expect("quickstart");
    transaction::main().expect("transaction");
    snapshot_and_difference::main().expect("snapshot_and_difference");
    ingest::main().expect("ingest");
}
