//! Reads ahead for a view (`ahead` says what), at one place for snapshots and transactions: the
//! plan is made, the server is asked without a lock, and the page is kept if it still holds.

use bytes::Bytes;
use env::sync::Mutex;
use kvdb::{DictionaryId, PageRequest, TuplePage};

use crate::ahead::Asked;
use crate::pages::Pages;

/// The locked state of a view that reads ahead.
pub(crate) trait Prefetches {
    /// The view's own changes at the time at which the server is asked.
    type Changes;

    fn pages(&mut self) -> &mut Pages;

    /// Returns the changes that the server may lack when it answers. Returns `None` if some of the
    /// values in the range are not known before it has them.
    fn changes(&self, dict: DictionaryId, request: &PageRequest<'_>) -> Option<Self::Changes>;

    /// Applies the changes to a page of the server, while the state is not locked.
    fn merge(changes: &Self::Changes, request: &PageRequest<'_>, page: TuplePage) -> TuplePage;

    /// Returns whether there were no others since.
    fn holds(&self, changes: &Self::Changes) -> bool;
}

/// A snapshot does not change.
impl Prefetches for Pages {
    type Changes = ();

    fn pages(&mut self) -> &mut Pages {
        self
    }

    fn changes(&self, _: DictionaryId, _: &PageRequest<'_>) -> Option<()> {
        Some(())
    }

    fn merge((): &(), _: &PageRequest<'_>, page: TuplePage) -> TuplePage {
        page
    }

    fn holds(&self, (): &()) -> bool {
        true
    }
}

/// Reads what lies around a key that is not known, where that is likely to be asked for, too.
/// `there` asks the server for a page. Returns whether more is known then. An error is not
/// reported, since the read of the key meets it again.
pub(crate) fn read_ahead<S: Prefetches>(
    state: &Mutex<S>,
    dict: DictionaryId,
    (key, asked): (&Bytes, Asked),
    there: impl FnOnce(&PageRequest<'_>) -> kvdb::Result<TuplePage>,
) -> bool {
    // The changes are taken before the server is asked, so that it lacks no others.
    let (plan, changes) = {
        let mut state = state.lock();
        let Some(plan) = state.pages().plan(dict, key, asked) else { return false };
        let changes = state.changes(dict, &plan.request());
        (plan, changes)
    };
    let request = plan.request();
    let read = changes.and_then(|changes| {
        let page = there(&request).ok().filter(|page| page.ended || !page.tuples.is_empty())?;
        let bytes = bytes_of(&page);
        let merged = S::merge(&changes, &request, page);
        Some((bytes, merged, changes))
    });
    let mut state = state.lock();
    state.pages().has_read_ahead(dict, read.as_ref().map_or(0, |(bytes, ..)| *bytes));
    match read {
        Some((_, merged, changes)) if state.holds(&changes) => {
            state.pages().keep_page(dict, &request, &merged);
            true
        }
        _ => false,
    }
}

fn bytes_of(page: &TuplePage) -> usize {
    page.tuples.iter().map(|(key, value)| key.len() + value.len()).sum()
}
