//! A place without access to its objects, for stores that are opened without their place.

use bytes::Bytes;

use crate::{Condition, Key, Object, Objects, ObjectsError, Page, Part, Result, Tag};

/// A place that fails every request at once. It has the name of the place for which it stands.
#[derive(Clone, Debug)]
pub struct Unreachable {
    place: String,
}

impl Unreachable {
    /// Creates a place that stands for `place`, as returned by its [`Objects::place`].
    pub fn new(place: &str) -> Unreachable {
        Unreachable { place: place.to_owned() }
    }

    fn error<T>(&self, key: &str) -> Result<T> {
        let why = format!("{} is not asked, since the store was opened without it", self.place);
        Err(ObjectsError::Busy { key: key.to_owned(), why })
    }
}

impl Objects for Unreachable {
    fn get(&self, key: &Key, _: Part) -> Result<Object> {
        self.error(key.as_str())
    }

    fn put(&self, key: &Key, _: Bytes, _: Condition) -> Result<Tag> {
        self.error(key.as_str())
    }

    fn delete(&self, key: &Key) -> Result<()> {
        self.error(key.as_str())
    }

    fn list(&self, prefix: &str, _: &str) -> Result<Page> {
        self.error(prefix)
    }

    fn place(&self) -> String {
        self.place.clone()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_is_asked_and_the_error_names_the_place() {
        let place = Unreachable::new("dir:/srv/stores");
        let key = Key::new("m/fruit/head").expect("a key");
        let error = place.get(&key, Part::Whole).expect_err("it fails").to_string();
        assert!(error.contains("dir:/srv/stores is not asked"), "{error}");
        assert!(place.put(&key, Bytes::new(), Condition::Always).is_err());
        assert!(place.delete(&key).is_err() && place.list("", "").is_err());
    }
}
