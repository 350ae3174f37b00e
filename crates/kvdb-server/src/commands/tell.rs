//! Events of all keys of dictionaries: what has changed them named none of them.

use crate::effects::Effect;
use crate::session::Session;
use crate::waiters::Spot;

/// Tells of all keys of dictionaries of a branch that something may have happened to them.
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
