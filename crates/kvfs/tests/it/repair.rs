//! Repairs of file systems whose blocks are whole and whose content contradicts itself in every way
//! that the hostile generator knows.

#[path = "../hostile/content.rs"]
mod content;

use std::sync::Arc;

use env::Simulated;
use kvdb::Kvdb;
use kvfs::{Fs, FsOptions};

use content::Random;

fn number(name: &str, or: u64) -> u64 {
    std::env::var(name).ok().and_then(|v| v.parse().ok()).unwrap_or(or)
}

#[test]
fn whatever_contradicts_itself_is_a_file_system_afterwards() {
    let base = number("KVFS_BASE", 0);
    let (mut mended, mut refused) = (0, 0);
    for seed in base..base + number("KVFS_HOSTILE", 60) {
        let env = Arc::new(Simulated::new(seed));
        let db = Kvdb::in_memory();
        let fs = Fs::open(db.clone(), env.clone(), FsOptions::default()).expect("a file system");
        let known = content::sound(&fs);
        fs.shutdown().expect("synced");
        drop(fs);
        assert!(kvfs::verify(&db).expect("readable").findings.is_empty());
        if !content::spoil(&mut Random::new(seed), &db, known) {
            continue;
        }
        match kvfs::repair(&db, &*env, kvfs::Losses::Keep) {
            Ok(repaired) => mended += repaired.mended.len(),
            // The record of another version is not for this one to mend.
            Err(e) => {
                assert!(
                    e.to_string().contains("version")
                        || e.to_string().contains("cut short")
                        || e.to_string().contains("number"),
                    "seed {seed}: {e}"
                );
                refused += 1;
                continue;
            }
        }
        let found = kvfs::verify(&db).expect("readable");
        assert!(found.findings.is_empty(), "seed {seed}: {:?}", found.findings);
        let again = kvfs::repair(&db, &*env, kvfs::Losses::Keep).expect("again");
        assert!(again.mended.is_empty(), "seed {seed}: {:?}", again.mended);
        let fs = Fs::open(db, env, FsOptions::default());
        assert!(fs.is_ok(), "seed {seed}: {:?}", fs.err());
    }
    eprintln!("{mended} findings mended, {refused} stores refused");
    assert!(mended > 50);
}
