//! The libraries in the store. They are tuples of the reserved dictionary `:functions` of the
//! store or of a clone. Loading the first library creates the dictionary.
//!
//! ```text
//! l ‖ library                     version u8 (1), and a list of the code and of its functions
//! f ‖ function, in lower case     the name of its library
//! ```
//!
//! `kvdb_lua::wire` and `kvdb_lua::library` encode the lists; `docs/format.md` describes the
//! bytes. The size of all libraries together is bounded, so a command may read all of them.

use std::collections::BTreeMap;

use bytes::Bytes;
use kvdb::{Batch, DictionaryId, DictionaryOptions, View};
use kvdb_lua::library::{self, Function};
use kvdb_lua::wire::{read_list, write_list};

use crate::dictionaries::Place;
use crate::failure::{Failure, Outcome};
use crate::session::{SNAPSHOT, Session};

/// The name of the dictionary.
pub const NAME: &str = ":functions";
const VERSION: u8 = 1;
/// Limit on the bytes of one library.
pub const LONGEST: usize = 4 << 20;
/// Limit on the bytes of all libraries together.
pub const TOGETHER: usize = 16 << 20;

/// A library, with the functions that it registers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Library {
    pub name: String,
    /// The whole text of the library.
    pub code: Bytes,
    pub functions: Vec<Function>,
}

/// Libraries by their names.
pub type Libraries = BTreeMap<String, Library>;

impl Library {
    pub fn new(name: &str, code: &[u8], functions: Vec<Function>) -> Result<Library, Failure> {
        let code = Bytes::copy_from_slice(code);
        let library = Library { name: name.into(), code, functions };
        // The names of functions are keys as well, so their length is limited.
        let longest = library.functions.iter().map(|function| function.name.len()).max();
        if library.encode().len() > LONGEST || longest.max(Some(name.len())) > Some(1024) {
            return Err(Failure::Limit(format!(
                "a library has {LONGEST} bytes at most, and a name 1024"
            )));
        }
        Ok(library)
    }

    /// Returns whether the library has a function of this name.
    pub fn has(&self, function: &str) -> bool {
        self.functions.iter().any(|f| f.name.eq_ignore_ascii_case(function))
    }

    fn encode(&self) -> Vec<u8> {
        let functions = library::encode(&self.functions);
        let mut out = vec![VERSION];
        write_list([&self.code[..], &functions[..]].into_iter(), &mut out);
        out
    }

    fn decode(name: &[u8], value: &[u8]) -> Result<Library, Failure> {
        let wrong = || Failure::Corrupt(format!("library '{}'", name.escape_ascii()));
        let read = || {
            let (version, list) = value.split_first()?;
            let [code, functions] = <[&[u8]; 2]>::try_from(read_list(list)?).ok()?;
            let name = String::from_utf8(name.to_vec()).ok()?;
            let (code, functions) = (Bytes::copy_from_slice(code), library::decode(functions)?);
            (*version == VERSION).then_some(Library { name, code, functions })
        };
        read().ok_or_else(wrong)
    }
}

fn library_key(name: &[u8]) -> Vec<u8> {
    [b"l", name].concat()
}
fn function_key(name: &[u8]) -> Vec<u8> {
    [b"f", &name.to_ascii_lowercase()[..]].concat()
}

/// Returns the dictionary of the libraries, or `None` if no library was ever loaded.
pub fn dictionary(s: &Session) -> Option<DictionaryId> {
    let info = s.place.find(s.db(), NAME)?;
    info.options.reserved.then_some(info.id)
}

/// Returns the dictionary of the libraries, and creates the dictionary if necessary.
pub fn made(s: &Session) -> Result<DictionaryId, Failure> {
    if let Some(id) = dictionary(s) {
        return Ok(id);
    }
    let branch = s.place.branch().ok_or(SNAPSHOT)?;
    let options = DictionaryOptions { reserved: true, ..DictionaryOptions::default() };
    s.db().create_dictionary_in(branch, NAME, options)?;
    dictionary(s).ok_or_else(|| {
        Failure::request(format!("dictionary '{NAME}' is in use, so no functions can be kept"))
    })
}

/// Returns a function with its library, by the name of the function; case is ignored.
pub fn find(s: &Session, name: &[u8]) -> Result<Option<(Library, Function)>, Failure> {
    let Some(dictionary) = dictionary(s).filter(|_| library::is_name(name)) else {
        return Ok(None);
    };
    // Both tuples are read from one state, because a commit between two states may move the
    // function to another library.
    let view = s.view()?;
    let get = |key: Vec<u8>| {
        s.reads(dictionary, [&key[..]])?;
        Ok::<_, Failure>(s.renewed(&view)?.get(dictionary, &key)?)
    };
    let Some(of) = get(function_key(name))? else { return Ok(None) };
    let Some(value) = get(library_key(&of))? else { return Ok(None) };
    let library = Library::decode(&of, &value)?;
    let is_it = |function: &&Function| function.name.as_bytes().eq_ignore_ascii_case(name);
    let function = library.functions.iter().find(is_it).cloned();
    Ok(function.map(|function| (library, function)))
}

/// Returns all libraries.
pub fn all(s: &Session) -> Result<Libraries, Failure> {
    let Some(dictionary) = dictionary(s) else { return Ok(Libraries::new()) };
    s.reads_range(dictionary, b"l", b"m")?;
    read(&s.renewed(&s.view()?)?, dictionary)
}

fn read(view: &View, dictionary: DictionaryId) -> Result<Libraries, Failure> {
    let mut all = Libraries::new();
    for (key, value) in view.scan(dictionary, b"l", b"m", usize::MAX)? {
        let library = Library::decode(&key[1..], &value)?;
        all.insert(library.name.clone(), library);
    }
    Ok(all)
}

/// Returns the number of libraries of the store, and the number of their functions. The texts are
/// not read, because programs request these numbers every second.
pub fn counts(s: &Session) -> (usize, usize) {
    let info = Place::Store.find(s.db(), NAME).filter(|info| info.options.reserved);
    let Some(info) = info else { return (0, 0) };
    let view = s.db().view();
    let number = |start: &[u8], end: &[u8]| {
        let mut cursor = view.cursor(info.id, start, end).ok()?.keys_only();
        let mut number = 0;
        while cursor.next().ok()?.is_some() {
            number += 1;
        }
        Some(number)
    };
    (number(b"l", b"m").unwrap_or(0), number(b"f", b"g").unwrap_or(0))
}

/// Stores the difference between the libraries before and after a change.
pub fn store(
    s: &Session,
    dictionary: DictionaryId,
    before: &Libraries,
    after: &Libraries,
) -> Outcome {
    let bytes: usize = after.values().map(|library| library.encode().len()).sum();
    if bytes > TOGETHER && after != before {
        return Err(Failure::Limit(format!(
            "all libraries together have {TOGETHER} bytes at most"
        )));
    }
    let mut changes: BTreeMap<Vec<u8>, Option<Bytes>> = BTreeMap::new();
    let gone = before.iter().filter(|(name, library)| after.get(*name) != Some(*library));
    for (name, library) in gone {
        changes.insert(library_key(name.as_bytes()), None);
        for function in &library.functions {
            changes.insert(function_key(function.name.as_bytes()), None);
        }
    }
    let new = after.iter().filter(|(name, library)| before.get(*name) != Some(*library));
    for (name, library) in new {
        changes.insert(library_key(name.as_bytes()), Some(library.encode().into()));
        for function in &library.functions {
            let of = Bytes::copy_from_slice(name.as_bytes());
            changes.insert(function_key(function.name.as_bytes()), Some(of));
        }
    }
    if changes.is_empty() {
        return Ok(());
    }
    let _held = s.hold(dictionary, changes.keys().map(Vec::as_slice))?;
    let mut batch = Batch::new();
    for (key, value) in &changes {
        match value {
            Some(value) => batch.put(dictionary, key.clone(), value.clone()),
            None => batch.delete(dictionary, key.clone()),
        }
    }
    s.commit(batch)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_library_is_read_as_it_was_written() {
        let function = Function { name: "f".into(), description: Some(vec![0xff]), flags: 1 };
        let library = Library::new("lib", b"#!lua name=lib\n", vec![function]).expect("short");
        let bytes = library.encode();
        assert_eq!(Library::decode(b"lib", &bytes).expect("sound"), library);
        for cut in 0..bytes.len() {
            assert!(Library::decode(b"lib", &bytes[..cut]).is_err(), "cut at {cut}");
        }
        let newer = [&[2], &bytes[1..]].concat();
        assert!(Library::decode(b"lib", &newer).is_err());
        assert!(Library::new("lib", &vec![b' '; LONGEST], Vec::new()).is_err());
    }
}
