//! The author of commits, for readers of the feed that leave out what they have changed themselves.

use std::cell::Cell;

thread_local! {
    static AUTHOR: Cell<Option<u64>> = const { Cell::new(None) };
}

/// Runs `work`. Commits that it makes on this thread have that author in the feed
/// ([`CommittedKeys::author`](crate::CommittedKeys::author)); the number means what the caller
/// wants. It is not stored.
///
/// ```
/// # use kvdb::Durability;
/// # let db = kvdb::Kvdb::in_memory();
/// let fruit = db.open_dictionary("fruit")?;
/// let start = db.follow_branch("", 1 << 20, &[])?;
/// kvdb::with_author(7, || fruit.insert("apple", "red"))?;
/// fruit.insert("pear", "green")?;
/// let recent = db.commits_since(start, 10).expect("it is followed since");
/// let authors: Vec<_> = recent.commits.iter().map(|commit| commit.author).collect();
/// assert_eq!(authors, [Some(7), None]);
/// # Ok::<(), kvdb::Error>(())
/// ```
pub fn with_author<T>(author: u64, work: impl FnOnce() -> T) -> T {
    struct Before(Option<u64>);
    impl Drop for Before {
        fn drop(&mut self) {
            AUTHOR.set(self.0);
        }
    }
    let _before = Before(AUTHOR.replace(Some(author)));
    work()
}

/// Returns the author of commits of this thread.
pub(crate) fn author() -> Option<u64> {
    AUTHOR.get()
}
