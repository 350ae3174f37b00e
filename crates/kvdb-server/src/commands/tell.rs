//! Events of all keys of dictionaries, for changes whose keys are not known.

use crate::effects::Effect;
use crate::session::Session;
use crate::waiters::Spot;

/// Publishes an event of all keys of some dictionaries of a branch, because each of the keys may
/// have changed.
pub fn tell_all(
    event: &'static str,
    branch: &str,
    dictionaries: impl IntoIterator<Item = String>,
    s: &Session,
) {
    let clone = Some(branch.to_owned()).filter(|clone| !clone.is_empty());
    for dictionary in dictionaries {
        let spot = Spot { dictionary, clone: clone.clone(), ..Spot::default() };
        s.shared.reached().carry_out_at(&spot, &[Effect::of_all(event)]);
    }
}
