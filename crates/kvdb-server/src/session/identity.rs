//! The client at the other end of a connection: the user and the process that the connection
//! reveals, its rights, and the names that it has given itself.

use crate::clients::Shown;
use crate::seals::Confined;

/// The client at the other end.
pub struct Identity {
    user: Option<u32>,
    process: Option<i32>,
    confined: Option<Confined>,
    needs_password: bool,
    authenticated: bool,
    is_replica: bool,
    name: String,
    /// The name and the version of the client's library.
    library: (String, String),
}

impl Identity {
    pub fn new(needs_password: bool) -> Identity {
        Identity {
            user: None,
            process: None,
            confined: None,
            needs_password,
            authenticated: !needs_password,
            is_replica: false,
            name: String::new(),
            library: Default::default(),
        }
    }

    /// Sets the user and the process that the connection reveals, and the seal that confines the
    /// process.
    pub fn reveal(&mut self, user: Option<u32>, process: Option<i32>, confined: Option<Confined>) {
        (self.user, self.process, self.confined) = (user, process, confined);
    }
    /// Returns the system user at the other end, if the connection reveals it.
    pub fn user(&self) -> Option<u32> {
        self.user
    }
    /// Returns the process at the other end, if the connection reveals it.
    pub fn process(&self) -> Option<i32> {
        self.process
    }
    /// Returns the seal that confines this client to some transactions.
    pub fn confined(&self) -> Option<Confined> {
        self.confined
    }

    /// Returns whether the client must authenticate before it may run other commands.
    pub fn needs_password(&self) -> bool {
        self.needs_password
    }
    pub fn is_authenticated(&self) -> bool {
        self.authenticated
    }
    pub fn authenticate(&mut self) {
        self.authenticated = true;
    }

    /// Records that the client has announced itself as a replica.
    pub fn announce_replica(&mut self) {
        self.is_replica = true;
    }
    pub fn is_replica(&self) -> bool {
        self.is_replica
    }

    pub fn name(&self) -> &str {
        &self.name
    }
    pub fn set_name(&mut self, name: String) {
        self.name = name;
    }
    pub fn set_library(&mut self, name: String) {
        self.library.0 = name;
    }
    pub fn set_library_version(&mut self, version: String) {
        self.library.1 = version;
    }

    /// Discards the settings of the client (`RESET`). The names of its library are kept.
    pub fn reset(&mut self) {
        self.is_replica = false;
        self.name.clear();
        self.authenticated = !self.needs_password;
    }

    /// Updates the names that `CLIENT LIST` shows.
    pub fn show(&self, shown: &mut Shown) {
        if differ(&shown.name, &self.name) {
            shown.name.clone_from(&self.name);
        }
        if differ(&shown.library.0, &self.library.0) || differ(&shown.library.1, &self.library.1) {
            shown.library.clone_from(&self.library);
        }
    }
}

/// Returns whether two names differ. Most names are empty. `memcmp` reads at the dangling
/// pointers of empty strings with all bytes masked out, which costs some processors hundreds of
/// cycles.
/// cycles.
pub fn differ(a: &str, b: &str) -> bool {
    a.len() != b.len() || !a.is_empty() && a != b
}
